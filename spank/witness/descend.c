/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/descend.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/base/child.h"

static bool is_srun(pid_t pid)
{
	char text[8];

	return proc_read(text, sizeof(text), "/proc/%d/comm", (int)pid) > 0 && strcmp(text, "srun\n") == 0;
}

/* A child, whose number is the child's until the caller reaps the child. */
static void end_child(pid_t pid, struct descend_asked *asked)
{
	for (uint32_t i = 0; asked != NULL && i < asked->count; i++)
		if (asked->pid[i] == pid)
			return;
	if (asked == NULL || asked->count == DESCEND_ASKED_MAX || !is_srun(pid)) {
		kill(pid, SIGKILL);
		return;
	}
	asked->pid[asked->count++] = pid;
	kill(pid, SIGTERM);
	kill(pid, SIGCONT);
}

/* Ends the numbers of a text such as "12 345 ", whose last word may be cut: `rest` then has it, for the next
   piece. */
static void end_listed(char *text, size_t bytes, size_t *rest, struct descend_asked *asked)
{
	size_t begin = 0;

	for (size_t i = 0; i < bytes; i++) {
		if (text[i] != ' ')
			continue;
		text[i] = '\0';
		pid_t pid = (pid_t)strtol(text + begin, NULL, 10);
		if (pid > 1)
			end_child(pid, asked);
		begin = i + 1;
	}
	*rest = bytes - begin;
	memmove(text, text + begin, *rest);
}

/* Ends the children that the kernel's own list has. False: the kernel keeps no list. */
static bool end_by_list(struct descend_asked *asked)
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
		end_listed(text, rest + (size_t)got, &rest, asked);
	close(fd);
	return true;
}

enum { FORKED_ONLY = 0x40 }; /* the kernel's PF_FORKNOEXEC */

/* A line of /proc. */
struct relative {
	char state;
	int parent, group, session, threads;
	unsigned int flags;
};

static bool read_relative(const char *number, struct relative *relative)
{
	char text[1024];
	const char *behind;

	proc_read(text, sizeof(text), "/proc/%s/stat", number);
	behind = strrchr(text, ')');
	return behind != NULL &&
	       sscanf(behind, ") %c %d %d %d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d", &relative->state,
	              &relative->parent, &relative->group, &relative->session, &relative->flags, &relative->threads) == 6;
}

static void end_if_child(const char *number, void *asked)
{
	struct relative relative;

	if (read_relative(number, &relative) && relative.parent == getpid())
		end_child((pid_t)strtol(number, NULL, 10), asked);
}

/* Root looks for this. */
struct search {
	bool (*is_meant)(const struct relative *relative, const struct search *search);
	pid_t parent, session, group;
	bool (*is_kept)(pid_t pid, const void *about); /* NULL: none is */
	const void *about;
	uint32_t killed;
};

/* The first thread of a process is a zombie as soon as it has ended, although others may still end for long. */
static bool has_ended(const struct relative *relative)
{
	return relative->state == 'X' || (relative->state == 'Z' && relative->threads <= 1);
}

static bool is_child(const struct relative *relative, const struct search *search)
{
	return relative->parent == search->parent && !has_ended(relative);
}

static bool is_adopted(const struct relative *relative, const struct search *search)
{
	return is_child(relative, search) &&
	       (relative->group == search->group || relative->session != search->session);
}

static bool is_found(const char *number, const struct search *search)
{
	struct relative relative;

	return read_relative(number, &relative) && search->is_meant(&relative, search);
}

/* At each moment the number may come to belong to another process. So a handle of the process is opened first, and then
   the process is looked at again. */
static void kill_if_found(const char *number, void *about)
{
	struct search *search = about;
	pid_t pid = (pid_t)strtol(number, NULL, 10);
	int process;

	if (!is_found(number, search))
		return;
	process = handle_open(pid);
	if (process < 0 && errno != ENOSYS)
		return;
	if (is_found(number, search) && (search->is_kept == NULL || !search->is_kept(pid, search->about)))
		search->killed += process >= 0 ? handle_signal(process, SIGKILL) : kill(pid, SIGKILL) == 0;
	if (process >= 0)
		close(process);
}

uint32_t descend_kill_adopted(pid_t group, bool (*is_kept)(pid_t pid, const void *about), const void *about)
{
	struct search search = { is_adopted, getpid(), getsid(0), group, is_kept, about, 0 };

	proc_visit("/proc", kill_if_found, &search);
	return search.killed;
}

uint32_t descend_kill_children_of(pid_t parent)
{
	struct search search = { .is_meant = is_child, .parent = parent };

	proc_visit("/proc", kill_if_found, &search);
	return search.killed;
}

void descend_kill_children(struct descend_asked *asked)
{
	static bool no_list;

	if (no_list || !end_by_list(asked)) {
		no_list = true;
		proc_visit("/proc", end_if_child, asked);
	}
}

bool descend_never_ran(pid_t child)
{
	struct relative relative;
	char number[16];

	snprintf(number, sizeof(number), "%d", (int)child);
	return read_relative(number, &relative) && relative.parent == getpid() && (relative.flags & FORKED_ONLY) != 0;
}
