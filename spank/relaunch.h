/* SPDX-License-Identifier: Apache-2.0 */
/* SLURM ends a step that it cannot start on each of its nodes, because slurmd does not answer there, or the Prolog fails. With
   restart= and enough nodes, srun then starts itself again: no node can join a step later, so another one begins. */
#ifndef SPANK_RELAUNCH_H
#define SPANK_RELAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/failure/srun/presence.h"
#include "spank/launch/srun_options.h"

struct relaunch_step {
	uint32_t nodes, tasks, spares, min_nodes;
	bool may_go_on; /* on fewer nodes, in another step */
};

/* When srun begins: notes where its input begins, and takes what the srun before it has left for it, so that no task and no
   other srun gets that. */
void relaunch_begin(void);

/* How many spares are left, if an srun before this one has left nodes out; otherwise as it is. */
void relaunch_take_spares(uint32_t *spares);

/* At srun's very end: if there are nodes of the step on which no task has begun, names them, and starts srun again. False:
   there are none. True: srun was not started again. */
bool relaunch_unstarted(const struct relaunch_step *step, const struct presence *presence, const struct srun_words *given);

#endif
