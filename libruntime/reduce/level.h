/* SPDX-License-Identifier: Apache-2.0 */
/* level: brings all ranks that are left to the same step, after others have died (reduce/survival.h).

   When a step fails, some ranks may have ended it, and others not. There are three kinds of strategies:
   - A strategy that shares memory meets at the end of an update. So if a rank has ended a step, all updates of the
     step are complete. If no rank has, each rank undoes its own update, and the updates of dead ranks of its node.
   - A strategy that spreads the optimizer's state (reduce/buddy.h) undoes a rank's own update likewise. A dead rank's
     shard comes from its buddy. If the buddy's copy is a step older, all ranks first take back the last step.
   - Any other strategy waits for all gradients before an update. So a rank has updated everything or nothing, and a
     rank that has ended the step sends parameters and state to the others. */
#pragma once

#include "reduce/model.h"

enum { DDP_DONE = 3 };

/* Each rank that is left says this. */
typedef struct ddp_survivor {
	int64_t steps, attempts;
	int64_t epoch, samples;
	int64_t copied;       /* see ddp_buddy_copied() */
	int64_t done[DDP_DONE]; /* what the caller of ddp_survive_with() has done: the least of all counts */
	int32_t whole;        /* its parameters and state are those after `steps` steps, or can be made so */
	int32_t learned;      /* it knows the static graph */
	int32_t able;         /* nothing keeps it from going on */
	int32_t fitted;       /* for so many ranks its model was fitted last, */
	int32_t sharded;      /* and it has a shard of which its buddy keeps a copy */
	int32_t saves;        /* a checkpoint that it writes may be under way */
} ddp_survivor;

/* Brings the rank to the step of rank `root` of `left`, as which all[left's size] describes it. `dead`: of the former
   ranks of this node, those that are lost. Collective over `left`. It may be repeated with fewer ranks. */
ddp_status ddp_level_with(ddp_model *model, ddp_comm *left, const ddp_survivor *all, int root, const bool *dead);

/* The model is fitted to the ranks of its communicator: it forgets the step that failed, with its gradients, unless a
   join has brought new ones (`clears` is false). Collective on a device. */
ddp_status ddp_level_resume(ddp_model *model, bool learned, bool clears);
