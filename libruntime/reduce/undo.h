/* SPDX-License-Identifier: Apache-2.0 */
/* undo: a rank keeps what an update changes of what the rank owns, so that the update can be undone if another rank
   dies meanwhile (reduce/survival.h). Each piece is copied just before the update reads it, while it is in a core's
   own cache. If ranks share the memory, the ranks that are left also undo the update of a dead rank, which ended
   anywhere in it. */
#pragma once

#include "ddp.h"

typedef struct ddp_undo {
	int64_t most, pieces; /* elements and pieces that a rank owns at most */
	void **memory;        /* [units.ranks]: where this process has what each rank keeps; NULL: it does not reach it */
	void **states;        /* [states][units.ranks]: and the optimizer's states; NULL: ranks do not share the memory */
	float *own;           /* this rank's copies, where the model is, if ranks do not share the memory */
} ddp_undo;

/* `most`: the same on all ranks. Collective if ranks share the memory, in which the optimizer's states already are,
   otherwise local. Close it after success only. */
ddp_status ddp_undo_open(const ddp_model *model, int64_t most, bool shares, ddp_undo *undo);
void ddp_undo_close(const ddp_model *model, ddp_undo *undo);

/* Step `step` is about to update elements [begin, end), which begin a piece, and whose state is at `at`. On a device,
   this and ddp_undo_rank() are done in the order of its queue. Any thread. */
void ddp_undo_keep(const ddp_model *model, const ddp_undo *undo, int64_t step, int64_t begin, int64_t end, int64_t at);
/* Forgets all copies, because the program may repeat steps from other parameters. */
void ddp_undo_forget(const ddp_model *model, const ddp_undo *undo);

/* Undoes what step `step` has changed of what `rank` owns: in arenas[count] of parameters (NULL: in the model's alone),
   and in the rank's states. */
void ddp_undo_rank(const ddp_model *model, const ddp_undo *undo, int rank, int64_t step, void *const *arenas,
                   int count);
