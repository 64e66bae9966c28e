/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survival: what a model needs so that the ranks that are left go on when others have died (ddp_survive()).
 *
 * When a step fails, some ranks may have ended it, and others not. If a strategy shares memory, it meets at the end of
 * an update, so one rank that has ended a step shows that all updates of it are complete. Otherwise each rank undoes
 * its own update. Other strategies first wait for all gradients, so a rank has updated everything or nothing, and a rank
 * that has ended the step sends parameters and state to the others.
 */
#ifndef DDP_REDUCE_SURVIVAL_H
#define DDP_REDUCE_SURVIVAL_H

#include "reduce/model.h"

enum { DDP_DONE = 3 };

typedef struct ddp_survival {
	ddp_step_stats stats; /* of the last step that ended */
	float *buffers;       /* [layout.all - layout.buffers]: as that step left them; NULL: there are none */
	int64_t attempts;     /* steps when the loop was here last, with those that were skipped, */
	int64_t epoch, samples; /* where its loader was then, */
	void *user_state;     /* and ddp_model_user_state() */
	size_t user_bytes;
	bool updating;        /* an update that this rank cannot undo is under way */
	bool owns_comm;       /* the model's communicator was made for it */
} ddp_survival;

/* What each rank that is left says. */
typedef struct ddp_survivor {
	int64_t steps, attempts;
	int64_t epoch, samples;
	int64_t done[DDP_DONE]; /* what the caller of ddp_survive_with() has done: the least of all counts */
	int32_t whole;        /* its parameters and state are those after `steps` steps, or can be made so */
	int32_t learned;      /* it knows the static graph */
	int32_t able;         /* nothing keeps it from going on */
	int32_t saves;        /* a checkpoint that it writes may be under way */
} ddp_survivor;

/* DDP_ERR_UNSUPPORTED: why ranks cannot go on without each other, on all ranks alike. Collective. */
ddp_status ddp_survival_open(ddp_model *model);
void ddp_survival_close(ddp_model *model);

/* Around the update of a step; without survival they do nothing. begin() waits for all gradients. */
ddp_status ddp_survival_begin_update(ddp_model *model);
void ddp_survival_end_update(ddp_model *model);
/* A step has ended. */
void ddp_survival_end_step(ddp_model *model);

/* The loop is between two steps, and its loader is there. */
void ddp_survival_note(ddp_model *model, int64_t epoch, int64_t samples);

/* Steps done, with those that were skipped. */
int64_t ddp_survival_attempts(const ddp_model *model);

/* Brings the rank to the step of rank `root` of `left`, as which all[left's size] describes it. `dead`: of the former
   ranks of this node, those that are lost. Collective over `left`. It may be repeated with fewer ranks. */
ddp_status ddp_survival_level(ddp_model *model, ddp_comm *left, const ddp_survivor *all, int root, const bool *dead);

/* The model is fitted to the ranks that are left: it forgets the step that failed. */
ddp_status ddp_survival_resume(ddp_model *model, bool learned);

#endif
