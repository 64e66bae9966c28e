/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/stack.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"

enum { LOOK_MS = 5, QUIET_MS = 40 };

int stack_signal(const char *link)
{
	static const char name[] = "/memfd:ddp_stack-";
	const char *text = link + sizeof(name) - 1;
	char *end;
	long number;

	if (strncmp(link, name, sizeof(name) - 1) != 0 || !isdigit((unsigned char)text[0]))
		return 0;
	number = strtol(text, &end, 10);
	/* The usual signals would end a process that does not expect them. */
	if ((*end != '\0' && *end != ' ') || number < SIGRTMIN || number > SIGRTMAX)
		return 0;
	return (int)number;
}

/* Opens the process's file anew, so that the kernel checks that it is the user's. */
static int open_file(pid_t pid, int *number)
{
	char folder[64], path[sizeof(folder) + 256 + 2], link[128];
	struct dirent *entry;
	DIR *files;
	int file = -1;

	snprintf(folder, sizeof(folder), "/proc/%d/fd", (int)pid);
	files = opendir(folder);
	while (files != NULL && file < 0 && (entry = readdir(files)) != NULL) {
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		ssize_t length = readlink(path, link, sizeof(link) - 1);
		if (length < 0)
			continue;
		link[length] = '\0';
		*number = stack_signal(link);
		if (*number != 0)
			file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	}
	if (files != NULL)
		closedir(files);
	return file;
}

static bool handles(pid_t pid, int number)
{
	char status[8192];

	proc_read(status, sizeof(status), "/proc/%d/status", (int)pid);
	return (proc_signals(status, "SigCgt") >> (number - 1) & 1) != 0;
}

/* The number may be another process's by now, which a descriptor never is. */
static bool send(int process, pid_t pid, int number)
{
	return process >= 0 ? handle_signal(process, number) : kill(pid, number) == 0;
}

bool stack_ask(pid_t pid, struct stack *stack)
{
	int process = handle_open(pid), number = 0;
	struct stat info;
	bool asked;

	stack->file = open_file(pid, &number);
	asked = stack->file >= 0 && fstat(stack->file, &info) == 0 && S_ISREG(info.st_mode) && handles(pid, number);
	if (asked)
		stack->before = info.st_size;
	asked = asked && send(process, pid, number);
	if (process >= 0)
		close(process);
	if (!asked && stack->file >= 0)
		close(stack->file);
	if (!asked)
		stack->file = -1;
	return asked;
}

static off_t size_of(int file)
{
	struct stat info;

	return fstat(file, &info) == 0 ? info.st_size : 0;
}

char *stack_take(struct stack *stack, unsigned long long deadline_ns)
{
	const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000L };
	uint64_t changed_ns = ddp_now_ns();
	off_t seen = stack->before;
	char *text = NULL;
	ssize_t got = 0;

	/* Threads come one after the other. */
	while (ddp_now_ns() < deadline_ns && (seen == stack->before || ddp_now_ns() < changed_ns + QUIET_MS * 1000000ull)) {
		off_t now = size_of(stack->file);
		if (now != seen)
			changed_ns = ddp_now_ns();
		seen = now;
		nanosleep(&pause, NULL);
	}
	if (seen > stack->before)
		text = calloc(1, STACK_TEXT_MAX + 1);
	if (text != NULL && (got = pread(stack->file, text, STACK_TEXT_MAX, stack->before)) <= 0) {
		free(text);
		text = NULL;
	}
	/* The file may hold anything that its user wrote there. */
	for (size_t i = 0; text != NULL && i < (size_t)got; i++)
		if (text[i] != '\n' && (text[i] < ' ' || text[i] > '~'))
			text[i] = '?';
	/* The next text begins at the start of the file, so the file does not grow. */
	if (ftruncate(stack->file, 0) != 0)
		errno = 0;
	close(stack->file);
	stack->file = -1;
	return text;
}
