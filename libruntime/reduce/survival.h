/* SPDX-License-Identifier: Apache-2.0 */
/* survival: what a model needs so that the ranks that are left go on when others have died (ddp_survive()). */
#pragma once

#include "optim/scaler.h"
#include "reduce/model.h"

/* Between two steps. */
typedef struct ddp_moment {
	int64_t steps;        /* that have ended; of the last one: */
	ddp_step_stats stats;
	float *buffers;       /* [layout.all - layout.buffers]: where the model is, as that step left them; or NULL */
	float *missed;        /* [layout.count]: see ddp_uses; NULL: no step is taken back */
	ddp_scaler scaler;
	double largest, weight_sum;
	ddp_summary summary;
	int64_t attempts;     /* steps when the loop was here last, with those that were skipped, */
	int64_t epoch, samples; /* where its loader was then, */
	void *user_state;     /* and ddp_model_user_state() */
	size_t user_bytes;
	bool user_lost;       /* there was no memory for the copy of it */
} ddp_moment;

typedef struct ddp_survival {
	ddp_moment now;       /* after the last step */
	ddp_moment before;    /* after the step before that, if it may have to be taken back (reduce/buddy.h) */
	bool updating;        /* an update that this rank cannot undo is under way */
	bool owns_comm;       /* the model's communicator was made for it */
	bool of_writer;       /* the first of its ranks writes the metrics */
} ddp_survival;

/* DDP_ERR_UNSUPPORTED: why ranks cannot go on without each other, on all ranks alike. Collective. */
ddp_status ddp_survival_open(ddp_model *model);
/* A newcomer makes the memory only: a rank that has stayed then sends it what ranks keep. Local. */
ddp_status ddp_survival_make(ddp_model *model);
void ddp_survival_close(ddp_model *model);

/* Around the update of a step; without survival they do nothing. begin() waits for all gradients. */
ddp_status ddp_survival_begin_update(ddp_model *model);
void ddp_survival_end_update(ddp_model *model);
/* A step has ended. */
void ddp_survival_end_step(ddp_model *model);

/* The program may have changed them since. */
void ddp_survival_keep_buffers(ddp_model *model);

/* The loop is between two steps, and its loader is there. */
void ddp_survival_note(ddp_model *model, int64_t epoch, int64_t samples);

/* Steps done, with those that were skipped. */
int64_t ddp_survival_attempts(const ddp_model *model);

/* Takes back the last step, if more than `steps` have ended. */
void ddp_survival_go_back(ddp_model *model, int64_t steps);

/* Buffers and the program's state become what they were when the last step had ended. An error is this rank's alone. */
ddp_status ddp_survival_restore(ddp_model *model);
