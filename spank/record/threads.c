/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/record/threads.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static size_t read_text(const char *folder, const char *thread, const char *name, char *text, size_t bytes)
{
	char path[128];
	ssize_t got = -1;
	int file;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s/%s", folder, thread, name) < sizeof(path)) {
		file = open(path, O_RDONLY | O_CLOEXEC);
		if (file >= 0) {
			got = read(file, text, bytes - 1);
			close(file);
		}
	}
	text[got > 0 ? got : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return strlen(text);
}

static const char *state_name(const char *stat)
{
	const char *end = strrchr(stat, ')');

	switch (end != NULL && end[1] == ' ' ? end[2] : '\0') {
	case 'R': return "runs";
	case 'S': return "sleeps";
	case 'D': return "waits for a device";
	case 'T': return "is stopped";
	case 't': return "is traced";
	case 'Z':
	case 'X': return "has ended";
	default: return "is there";
	}
}

static void add_thread(struct sink *sink, const char *folder, const char *thread)
{
	char stat[512], name[64], channel[64];

	if (read_text(folder, thread, "stat", stat, sizeof(stat)) == 0)
		return;
	read_text(folder, thread, "comm", name, sizeof(name));
	read_text(folder, thread, "wchan", channel, sizeof(channel));
	sink_add(sink, "thread %s (", thread);
	sink_add_untrusted(sink, name, sizeof(name));
	sink_add(sink, ") %s", state_name(stat));
	if (channel[0] != '\0' && strcmp(channel, "0") != 0) {
		sink_add(sink, " in ");
		sink_add_untrusted(sink, channel, sizeof(channel));
	}
	sink_add(sink, "\n");
}

void threads_add(struct sink *sink, pid_t pid)
{
	char folder[64];
	struct dirent *entry;
	DIR *threads;
	int count = 0;

	snprintf(folder, sizeof(folder), "/proc/%d/task", (int)pid);
	threads = opendir(folder);
	if (threads == NULL)
		return;
	while (count < THREADS_MAX && (entry = readdir(threads)) != NULL) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		add_thread(sink, folder, entry->d_name);
		count++;
	}
	closedir(threads);
}
