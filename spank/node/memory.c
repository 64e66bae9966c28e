/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/memory.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank/base/child.h"

#define OLD_FILE "memory.oom_control"

/* The part of a list such as "cpu,memory" up to ':' that is "memory". */
static bool lists_memory(const char *list)
{
	static const char word[] = "memory";
	size_t length = sizeof(word) - 1;

	for (; *list != '\0' && *list != ':' && *list != '\n'; list++) {
		if (strncmp(list, word, length) == 0 && (list[length] == ':' || list[length] == ','))
			return true;
		list += strcspn(list, ",:\n");
		if (*list != ',')
			break;
	}
	return false;
}

/* The length of the part of "/.../step_0/user/task_1" up to the step, below which all tasks are. */
static size_t step_length(const char *path)
{
	size_t length = strcspn(path, "\n");
	const char *step = memmem(path, length, "/step_", 6);

	return step != NULL ? (size_t)(step - path) + 1 + strcspn(step + 1, "/\n") : length;
}

/* A line is HIERARCHY:CONTROLLERS:PATH; version 2 has hierarchy 0 and no list. */
bool memory_find(const char *cgroups, char path[MEMORY_PATH_MAX])
{
	const char *found = NULL;
	bool old = false;
	int length;

	for (const char *line = cgroups; line != NULL && *line != '\0'; line++) {
		const char *list = line + strcspn(line, ":\n");
		if (*list == ':' && strncmp(line, "0::", 3) == 0 && !old)
			found = line + 3;
		if (*list == ':' && lists_memory(list + 1)) {
			list += 1 + strcspn(list + 1, ":\n");
			found = *list == ':' ? list + 1 : found;
			old = *list == ':';
		}
		line = strchr(line, '\n');
		if (line == NULL)
			break;
	}
	if (found == NULL || *found != '/')
		return false;
	length = snprintf(path, MEMORY_PATH_MAX, "/sys/fs/cgroup%s%.*s/%s", old ? "/memory" : "",
	                  (int)step_length(found), found, old ? OLD_FILE : "memory.events");
	return length > 0 && length < MEMORY_PATH_MAX;
}

uint64_t memory_kills(const char *events)
{
	static const char name[] = "oom_kill ";

	for (const char *line = events; line != NULL && *line != '\0';) {
		if (strncmp(line, name, sizeof(name) - 1) == 0)
			return strtoull(line + sizeof(name) - 1, NULL, 10);
		line = strchr(line, '\n');
		line = line != NULL ? line + 1 : NULL;
	}
	return 0;
}

/* Version 2 counts a kill in all groups above, and version 1 only in the task's own group. */
static uint64_t kills_below(const char *path, size_t length)
{
	char folder[MEMORY_PATH_MAX], text[4096];
	const struct dirent *entry;
	uint64_t sum = 0;
	DIR *step;

	snprintf(folder, sizeof(folder), "%.*s", (int)length, path);
	step = opendir(folder);
	while (step != NULL && (entry = readdir(step)) != NULL) {
		if (strncmp(entry->d_name, "task_", 5) == 0 &&
		    proc_read(text, sizeof(text), "%s%.40s/" OLD_FILE, folder, entry->d_name) > 0)
			sum += memory_kills(text);
	}
	if (step != NULL)
		closedir(step);
	return sum;
}

static bool count_kills(const char *path, uint64_t *kills)
{
	const char *name = strrchr(path, '/');
	char text[4096];

	if (name == NULL || proc_read(text, sizeof(text), "%s", path) == 0)
		return false;
	*kills = memory_kills(text);
	if (strcmp(name + 1, OLD_FILE) == 0)
		*kills += kills_below(path, (size_t)(name - path) + 1);
	return true;
}

void memory_start(struct memory_watch *watch, pid_t pid)
{
	char text[4096];

	*watch = (struct memory_watch){ .path = "" };
	if (proc_read(text, sizeof(text), "/proc/%d/cgroup", (int)pid) == 0 || !memory_find(text, watch->path) ||
	    !count_kills(watch->path, &watch->kills))
		watch->path[0] = '\0';
}

bool memory_ran_out(const struct memory_watch *watch)
{
	uint64_t kills;

	return watch->path[0] != '\0' && count_kills(watch->path, &kills) && kills > watch->kills;
}
