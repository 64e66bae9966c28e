/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/restart/descend.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Kills the numbers of a text such as "12 345 ", whose last word may be cut: `rest` then has it, for the next
   piece. */
static void kill_listed(char *text, size_t bytes, size_t *rest)
{
	size_t begin = 0;

	for (size_t i = 0; i < bytes; i++) {
		if (text[i] != ' ')
			continue;
		text[i] = '\0';
		pid_t pid = (pid_t)strtol(text + begin, NULL, 10);
		if (pid > 1)
			kill(pid, SIGKILL);
		begin = i + 1;
	}
	*rest = bytes - begin;
	memmove(text, text + begin, *rest);
}

/* The kernel's own list of the children; false: it keeps none. */
static bool kill_by_list(void)
{
	char path[64], text[4096];
	size_t rest = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	while ((got = read(fd, text + rest, sizeof(text) - rest)) > 0)
		kill_listed(text, rest + (size_t)got, &rest);
	close(fd);
	return true;
}

static pid_t parent_of(const char *number)
{
	char path[300], text[1024];
	const char *behind;
	ssize_t got = -1;
	int fd, parent;

	snprintf(path, sizeof(path), "/proc/%.255s/stat", number);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		got = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	text[got > 0 ? got : 0] = '\0';
	behind = strrchr(text, ')');
	return behind != NULL && sscanf(behind, ") %*c %d", &parent) == 1 ? parent : -1;
}

/* As the kernel writes a folder's entries. */
struct entry {
	uint64_t inode;
	int64_t offset;
	unsigned short bytes;
	unsigned char type;
	char name[];
};

/* Looks at all processes: readdir(3) would take memory, and a lock with it. */
static void kill_by_search(void)
{
	_Alignas(struct entry) char text[8192];
	pid_t own = getpid();
	long got;
	int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	while (fd >= 0 && (got = syscall(SYS_getdents64, fd, text, sizeof(text))) > 0) {
		for (long at = 0; at < got;) {
			const struct entry *entry = (const struct entry *)(text + at);
			at += entry->bytes;
			if (entry->name[0] >= '1' && entry->name[0] <= '9' && parent_of(entry->name) == own)
				kill((pid_t)strtol(entry->name, NULL, 10), SIGKILL);
		}
	}
	if (fd >= 0)
		close(fd);
}

void descend_kill_children(void)
{
	static bool no_list;

	if (no_list || !kill_by_list()) {
		no_list = true;
		kill_by_search();
	}
}
