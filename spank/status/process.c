/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/status/process.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/base/child.h"

enum { ENVIRONMENT_MAX = 4 << 20, THREADS_LOOKED_AT = 256 };

/* Reads up to bytes - 1, and terminates. The number of bytes, or -1. */
static ssize_t read_file(const char *path, char *text, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	size_t used = 0;
	ssize_t got = -1;

	if (fd < 0)
		return -1;
	while (used < bytes - 1 && (got = read(fd, text + used, bytes - 1 - used)) != 0) {
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	text[used] = '\0';
	return got < 0 && used == 0 ? -1 : (ssize_t)used;
}

/* The fields behind the name, which may hold anything, parentheses too. */
static char *fields_of(char *text)
{
	char *end = strrchr(text, ')');

	return end != NULL && end[1] == ' ' ? end + 2 : NULL;
}

/* R or D of any thread says more than the first thread's state. */
static char busiest_state(pid_t pid, char state)
{
	char path[64], text[1024], *fields;
	struct dirent *entry;
	DIR *threads;
	int looked_at = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	threads = opendir(path);
	while (threads != NULL && state != 'D' && looked_at < THREADS_LOOKED_AT &&
	       (entry = readdir(threads)) != NULL) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		looked_at++;
		proc_read(text, sizeof(text), "/proc/%d/task/%s/stat", (int)pid, entry->d_name);
		if ((fields = fields_of(text)) == NULL)
			continue;
		if (fields[0] == 'D' || (fields[0] == 'R' && state == 'S'))
			state = fields[0];
	}
	if (threads != NULL)
		closedir(threads);
	return state;
}

bool process_read(pid_t pid, struct process *process)
{
	unsigned long long user, system, start;
	char text[1024], *open, *fields;
	int parent;

	proc_read(text, sizeof(text), "/proc/%d/stat", (int)pid);
	if ((open = strchr(text, '(')) == NULL || (fields = fields_of(text)) == NULL || fields - open < 3 ||
	    sscanf(fields, "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu",
	           &parent, &user, &system, &start) != 4)
		return false;
	*process = (struct process){ .pid = pid, .parent = parent, .start = start, .state = fields[0] };
	process->cpu_ms = (user + system) * 1000 / (unsigned long long)sysconf(_SC_CLK_TCK);
	fields[-2] = '\0';
	snprintf(process->name, sizeof(process->name), "%s", open + 1);
	process->state = busiest_state(pid, process->state);
	return true;
}

bool process_owner(pid_t pid, uid_t *owner)
{
	static const char field[] = "\nUid:";
	char text[1024];
	const char *found;
	unsigned int user;

	proc_read(text, sizeof(text), "/proc/%d/status", (int)pid);
	/* The kernel escapes newlines in the name, which comes first. */
	if ((found = strstr(text, field)) == NULL || sscanf(found + strlen(field), "%u", &user) != 1)
		return false;
	*owner = user;
	return true;
}

char *process_environment(pid_t pid, size_t *bytes)
{
	size_t room = 16384;
	char path[64], *block = NULL;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	for (; room <= ENVIRONMENT_MAX; room *= 2) {
		char *more = realloc(block, room);
		ssize_t got;
		if (more == NULL)
			break;
		block = more;
		got = read_file(path, block, room);
		if (got <= 0)
			break;
		if ((size_t)got < room - 1) {
			*bytes = (size_t)got;
			return block;
		}
	}
	free(block);
	return NULL;
}

bool process_variable(const char *block, size_t block_bytes, const char *name, char *value, size_t bytes)
{
	const char *end = block + block_bytes, *item = block;
	size_t length = strlen(name);

	for (; item < end; item += strnlen(item, (size_t)(end - item)) + 1)
		if (strncmp(item, name, length) == 0 && item[length] == '=' &&
		    strnlen(item + length + 1, bytes) < bytes) {
			strcpy(value, item + length + 1);
			return true;
		}
	return false;
}

void process_wait_channel(pid_t pid, char *text, size_t bytes)
{
	proc_read(text, bytes, "/proc/%d/wchan", (int)pid);
	if (strcmp(text, "0") == 0)
		text[0] = '\0';
}

const char *process_state_name(char state)
{
	switch (state) {
	case 'R': return "running";
	case 'S': return "sleeping";
	case 'D': return "blocked in I/O";
	case 'T': return "stopped";
	case 't': return "stopped by a debugger";
	case 'Z': return "ended";
	}
	return "in an unknown state";
}
