/* SPDX-License-Identifier: Apache-2.0 */
#include "base/segment.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/signals.h"

int ddp_segment_create(size_t bytes)
{
	int fd = memfd_create("ddp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int error = fd >= 0 ? ddp_set_file_size(fd, (off_t)bytes) : 0;

	/* Whoever cut it would end by SIGBUS all that have mapped it. */
	if (fd >= 0 && error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
		error = errno;
	if (error != 0) {
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

static bool is_sealed(int fd)
{
	const int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

int ddp_segment_open(int64_t pid, int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)pid, fd);
	/* A descriptor that was closed meanwhile may be a pipe's, a terminal's, a socket's or a folder's. */
	const int opened = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (opened >= 0 && is_sealed(opened))
		return opened;
	if (opened >= 0)
		close(opened);
	/* Other errors may also be a lack of rights on the peer's segment, so they stay as they are. */
	if (opened >= 0 || errno == EISDIR || errno == ENXIO || errno == EROFS || errno == ETXTBSY)
		errno = ESTALE;
	return -1;
}

/* ---- which processes are on one node ------------------------------------------------------- */

void ddp_boot_id(char id[DDP_BOOT_ID_MAX])
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, id, DDP_BOOT_ID_MAX - 1);

	if (fd >= 0)
		close(fd);
	id[length > 0 ? length : 0] = '\0';
	id[strcspn(id, "\n")] = '\0';
}

static unsigned long long inode(const char *path)
{
	struct stat info;

	return stat(path, &info) == 0 ? (unsigned long long)info.st_ino : 0;
}

/* Processes are on one node if their boot id, /dev/shm, PID and IPC namespaces agree, and the one's segment can really
   be opened; host names are not asked. DDP_LOCALITY=TEXT in a rank's environment tells ranks with another text apart,
   for tests and for measuring the network on one machine. */
static uint64_t locality(void)
{
	char boot[DDP_BOOT_ID_MAX], key[256];
	struct stat shm = { .st_dev = 0 };
	const char *apart = getenv("DDP_LOCALITY");

	ddp_boot_id(boot);
	(void)stat("/dev/shm", &shm); /* without one, all are alike */
	snprintf(key, sizeof(key), "%s %llu %llu %llu %s", boot, (unsigned long long)shm.st_dev,
	         inode("/proc/self/ns/pid"), inode("/proc/self/ns/ipc"), apart != NULL ? apart : "");
	return ddp_hash(key, strlen(key));
}

int ddp_segment_make_offer(size_t bytes, ddp_segment_offer *offer)
{
	int fd = ddp_segment_create(bytes);

	if (fd < 0)
		return -1;
	*offer = (ddp_segment_offer){ .locality = locality(), .pid = getpid(), .fd = fd };
	if (getrandom(offer->nonce, sizeof(offer->nonce), 0) == sizeof(offer->nonce) &&
	    pwrite(fd, offer->nonce, sizeof(offer->nonce), 0) == sizeof(offer->nonce))
		return fd;
	const int error = errno;
	close(fd);
	offer->fd = -1;
	errno = error;
	return -1;
}

int ddp_segment_take_offer(const ddp_segment_offer *offer)
{
	unsigned char nonce[DDP_SEGMENT_NONCE_BYTES];
	int fd = ddp_segment_open(offer->pid, offer->fd);

	if (fd < 0)
		return -1;
	if (pread(fd, nonce, sizeof(nonce), 0) == sizeof(nonce) && memcmp(nonce, offer->nonce, sizeof(nonce)) == 0)
		return fd;
	close(fd);
	errno = ENOENT;
	return -1;
}
