/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uses: which parameters have gradients in a step. Each rank tells this in the step's consensus, in a
 * few bits for each parameter, so that the sums over all ranks stay exact. When a static graph has been
 * learned, ranks only tell whether their parameters have changed.
 */
#ifndef DDP_REDUCE_USES_H
#define DDP_REDUCE_USES_H

#include "params/layout.h"

typedef struct ddp_uses {
	ddp_unused mode;
	const ddp_layout *layout;
	int count, ranks; /* parameters, as the program counts them; ranks that communicate */
	bool learned;     /* what each step is to use */
	bool *used;       /* [count]: on this rank, in the step under way */
	bool *absent;     /* [count]: not used on this rank in any step, as was learned */
	bool *unused;     /* [count]: on all ranks, in the step that all have agreed on */
	float *missed;    /* [count]: steps that did not update it */
	int changed;      /* the first parameter that is not used as it was learned; -1 */
} ddp_uses;

/* The layout must outlive it. Free it after an error, too. */
ddp_status ddp_uses_make(ddp_unused mode, const ddp_layout *layout, int ranks, ddp_uses *uses);
void ddp_uses_free(ddp_uses *uses);

/* This rank has a gradient of it in the step under way. */
void ddp_uses_note(ddp_uses *uses, int param);
/* A new step. */
void ddp_uses_reset(ddp_uses *uses);

/* Whether parameters that are not used are left as they are. */
bool ddp_uses_counts(const ddp_uses *uses);
/* At most so many numbers are added to a consensus. */
int ddp_uses_words_max(const ddp_uses *uses);
/* Writes the numbers that this rank says, and returns how many. `joined`: it says
   that it uses nothing, which is no change. */
int ddp_uses_state(ddp_uses *uses, bool joined, double *words);
/* Takes the sums of all ranks' numbers. `whole`: no rank has joined. */
void ddp_uses_agree(ddp_uses *uses, const double *words, bool whole);
/* The step has updated what is used. */
void ddp_uses_end_step(ddp_uses *uses);

#endif
