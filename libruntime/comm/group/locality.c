/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/group/locality.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void boot_id(char *text, size_t bytes)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, text, bytes - 1);

	if (fd >= 0)
		close(fd);
	text[length > 0 ? length : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
}

static unsigned long long inode(const char *path)
{
	struct stat info;

	return stat(path, &info) == 0 ? (unsigned long long)info.st_ino : 0;
}

void ddp_locality_key(char key[DDP_LOCALITY_TEXT])
{
	char boot[64];
	struct stat shm = { .st_dev = 0 };
	const char *apart = getenv("DDP_LOCALITY");

	boot_id(boot, sizeof(boot));
	(void)stat("/dev/shm", &shm); /* without one, all are alike */
	memset(key, 0, DDP_LOCALITY_TEXT);
	snprintf(key, DDP_LOCALITY_TEXT, "%s %llu %llu %llu %s", boot,
	         (unsigned long long)shm.st_dev, inode("/proc/self/ns/pid"), inode("/proc/self/ns/ipc"),
	         apart != NULL ? apart : "");
}
