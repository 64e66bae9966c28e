/* SPDX-License-Identifier: Apache-2.0 */
/* A thread in slurmstepd that learns of the tasks' ends from the kernel, at once. Slurm's callback comes
   later: after TaskEpilog, and after the same callback of other plugins, which may take a minute to remove a
   container. Each end is handled once, by the thread or by the callback, whichever is first. libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/node/node.h"

/* All of the node's tasks were forked. `act` is called with what node_take_end() gives, unless
   that is DELAY_NEVER. Without `thread`, or if there can be none (see child.h), ends_take() alone
   learns of ends. */
void ends_watch(struct node *node, void (*act)(enum end_delay delay), bool thread);

/* If the thread has to look at the tasks itself: the pause after a look that found nothing new, from the pause
   before that look. */
int ends_next_look_ms(int look_ms);

/* Takes the end of a task from Slurm's callback; returns when srun knows of it. True: it was the last task, and
   the thread has ended, or has got as far as behind node_end_witness(). */
bool ends_take(const struct node_task *task);

/* Whether node_end_witness() and node_tell_end() are left to the caller. Otherwise the thread has called both, or
   does so, as soon as the last task has ended: Slurm may call back much later. */
bool ends_leaves_rest(void);

/* Ends the thread, which first takes what has ended, and says good-bye to srun. True if that is all tasks. */
bool ends_finish(void);

/* Waits until srun lets slurmstepd end, LEAVE_MS at most: srun first takes lost nodes out of the job, because SLURM
   never completes a step whose other nodes have all ended before. Then it closes the connection. */
void ends_leave(void);
