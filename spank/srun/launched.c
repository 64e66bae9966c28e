/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/launched.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>
#include <unistd.h>

#include "spank/identity/nodelist.h"

/* The MPIR Process Acquisition Interface lays it out so. */
struct mpir_task {
	char *host;
	char *program;
	int pid; /* 0: not started */
};

enum { TASKS_AT_ONCE = 256, PAGE = 4096 };

/* srun frees the table at its end, on another thread: memory that is gone is an error here,
   not the process's end. */
static bool copy(void *to, const void *from, size_t bytes)
{
	struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

/* As far as the page on which it begins, and on to the next if it has no end there. */
static bool copy_name(char name[HOST_NAME_MAX_BYTES], const char *from)
{
	for (size_t used = 0; used < HOST_NAME_MAX_BYTES;) {
		size_t piece = PAGE - ((uintptr_t)from + used) % PAGE;
		if (piece > HOST_NAME_MAX_BYTES - used)
			piece = HOST_NAME_MAX_BYTES - used;
		if (!copy(name + used, from + used, piece))
			return false;
		for (size_t i = used; i < used + piece; i++)
			if (name[i] == '\0')
				return true;
		used += piece;
	}
	return false;
}

uint32_t launched_tasks(void)
{
	const int *count = dlsym(RTLD_DEFAULT, "MPIR_proctable_size");

	return count != NULL && *count > 0 ? (uint32_t)*count : 0;
}

void launched_look(struct presence *presence, uint64_t now_ns)
{
	struct mpir_task *volatile *table, *tasks, some[TASKS_AT_ONCE];
	char name[HOST_NAME_MAX_BYTES];

	*(void **)&table = dlsym(RTLD_DEFAULT, "MPIR_proctable");
	if (table == NULL || presence->started == presence->tasks || launched_tasks() != presence->tasks)
		return;
	tasks = *table;
	if (tasks == NULL)
		return;
	for (uint32_t first = 0; first < presence->tasks; first += TASKS_AT_ONCE) {
		uint32_t left = presence->tasks - first, here = left < TASKS_AT_ONCE ? left : TASKS_AT_ONCE;
		if (!copy(some, tasks + first, here * sizeof(some[0])))
			return;
		for (uint32_t i = 0; i < here; i++)
			if (presence->task[first + i].host == NULL && some[i].pid > 0 && some[i].host != NULL &&
			    copy_name(name, some[i].host))
				presence_start(presence, first + i, name, now_ns);
	}
}
