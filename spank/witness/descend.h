/* SPDX-License-Identifier: Apache-2.0 */
/* Kills what programs have left. It takes no lock and no memory. libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { DESCEND_ASKED_MAX = 64 };

/* Inner sruns that were asked to end. If `count` is DESCEND_ASKED_MAX, no further srun is asked. */
struct descend_asked {
	uint32_t count;
	pid_t pid[DESCEND_ASKED_MAX];
};

/* Sends SIGKILL to each child of the calling process, which has one thread. Dead children count, too. A child that is
   an srun, whose step would outlive it, gets SIGTERM instead, once, and then ends its step. If `asked` is NULL, an srun
   is killed, too. A child that a
   dying process leaves to the caller meanwhile may be missed: the caller calls again until wait(2) finds no child. */
void descend_kill_children(struct descend_asked *asked);

/* Sends SIGKILL to processes that the calling process, a subreaper, has adopted from programs of the process group.
   Such a process is a child of the caller, and is in that group or has left the caller's session. Processes that
   is_kept() names are left alone; it is asked last, because another process may fork one meanwhile. Returns how many
   were killed. The caller adopts their children, and the next call finds them. */
uint32_t descend_kill_adopted(pid_t group, bool (*is_kept)(pid_t pid, const void *about), const void *about);

/* Sends SIGKILL to the children of another process, and tells how many there are. */
uint32_t descend_kill_children_of(pid_t parent);

/* Whether a child that was not reaped has not become another program by execve(2). */
bool descend_never_ran(pid_t child);
