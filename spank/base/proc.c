/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/proc.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel writes a folder's entries so. */
struct entry {
	uint64_t inode;
	int64_t offset;
	unsigned short bytes;
	unsigned char type;
	char name[];
};

/* readdir(3) would take memory, and a lock with it. */
void proc_visit(const char *folder, void (*visit)(const char *number, void *about), void *about)
{
	_Alignas(struct entry) char text[8192];
	long got;
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	while (fd >= 0 && (got = syscall(SYS_getdents64, fd, text, sizeof(text))) > 0) {
		for (long at = 0; at < got;) {
			const struct entry *entry = (const struct entry *)(text + at);
			at += entry->bytes;
			if (entry->name[0] >= '0' && entry->name[0] <= '9')
				visit(entry->name, about);
		}
	}
	if (fd >= 0)
		close(fd);
}

static bool is_channel(int fd)
{
	struct stat file;
	int type;
	socklen_t bytes = sizeof(type);

	if (fstat(fd, &file) != 0)
		return false;
	return S_ISFIFO(file.st_mode) || (S_ISSOCK(file.st_mode) &&
	       getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM);
}

static void close_channel(const char *number, void *about)
{
	int fd = (int)strtol(number, NULL, 10), flags = fcntl(fd, F_GETFD);

	(void)about;
	if (flags >= 0 && (flags & FD_CLOEXEC) != 0 && is_channel(fd))
		close(fd);
}

void proc_close_channels(void)
{
	proc_visit("/proc/self/fd", close_channel, NULL);
}

uint64_t proc_caught(pid_t pid)
{
	static const char caught[] = "\nSigCgt:";
	char path[64], text[4096];
	const char *found;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[got > 0 ? got : 0] = '\0';
	found = strstr(text, caught);
	return found != NULL ? strtoull(found + sizeof(caught) - 1, NULL, 16) : 0;
}
