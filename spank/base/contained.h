/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With SlurmdParameters=contain_spank, Slurm makes some callbacks in a child of slurmstepd, which is in
 * the job's namespace and ends behind the callback. The child shares slurmstepd's memory and nothing
 * else: a descriptor or a thread that it makes goes with it, and the tasks are not its children.
 * libc only.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Called in slurmstepd itself, before any other callback. */
void contained_note_slurmstepd(void);

/* Whether the caller is in such a child. Not to be asked in a task or in a witness. */
bool contained_here(void);

/* Whether a process that is not the caller's child has ended, reaped or not. A kernel without
   pidfd_open() tells so of a reaped one only. */
bool contained_sees_end(pid_t pid);

/* Sends a signal to such a process, unless it has ended. */
void contained_signal(pid_t pid, int number);
