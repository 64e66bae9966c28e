/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children of a process in which another thread may reap them: slurmstepd waits for any child, the plugin's too. From then
 * on the number of a child may belong to another process. So a signal goes by a handle (handle.h), where the kernel has
 * handles. libc only.
 */
#ifndef SPANK_CHILD_H
#define SPANK_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

/* Whether the process is a child of the caller's process that has not ended. Reaps nothing. */
bool child_runs(pid_t child);

/* Sends a signal to a child that has not ended. False: it has, or it is no child. */
bool child_signal(pid_t child, int number);

/* Reaps the child if it ends within so many milliseconds, and gives its wait status unless `wait_status` is NULL; -1
   if somebody else has reaped it. False: the child has not ended, or a debugger holds it. A child that waits for a
   device does not end by SIGKILL either, so nobody may wait for it without a limit. */
bool child_reap(pid_t child, int wait_ms, int *wait_status);

#endif
