/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/train.h: the loop of training, for programs that do not write their own.
 */
#ifndef DDP_TRAIN_H
#define DDP_TRAIN_H

#include "state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the loop ---------------------------------------------------------------- */

typedef struct ddp_summary {
	int64_t steps;            /* that this process has done, whose numbers follow; of a training
	                             that was resumed, the last ones only */
	double seconds;
	double units_per_second;  /* global weight (samples or tokens) over seconds */
	double first_loss, last_loss; /* of these steps; NaN without one */
	double data_seconds, forward_seconds, backward_seconds;
	double exposed_seconds, communication_seconds, optimizer_seconds;
	bool stopped;             /* before its last step, by ddp_model_request_stop() or the signal:
	                             exit with a code of its own, or jobs that wait for this
	                             one's success begin. The examples take 75 (EX_TEMPFAIL of
	                             sysexits.h), for which slurm/batch/requeue.sh starts them again */
	int skipped;              /* steps, which are not in the other numbers: see ddp_scaling */
	double overlap_ratio;     /* 1 - exposed / communication; 1 if there was none, NaN without a step */
	ddp_shard shard;          /* the one in use: AUTO has become one of the others, STATE where
	                             ranks of a node share the update; NONE where they do not
	                             communicate */
	int64_t first_step, last_step; /* of these steps, counted from the training's first; 0 without one */
	double checkpoint_seconds, evaluation_seconds, other_seconds; /* between these steps, not after
	                             the last */
	double evaluation_loss;   /* the last one of ddp_train(); NaN without one */
	uint64_t reserved[2];
} ddp_summary;

/*
 * Computes one micro-batch: forward, backward, ddp_model_grad_ready() for each
 * parameter. Adds to *weight and *loss_sum (see ddp_model_step). batch->samples may
 * be 0: then only announce the gradients. Returns DDP_OK, or a status that ends the
 * loop on all ranks, with the reason by ddp_set_error(); the callbacks of
 * ddp_train_options do the same.
 */
typedef ddp_status (*ddp_batch_fn)(void *user, ddp_model *model, const ddp_batch *batch,
                                   double *weight, double *loss_sum);

typedef struct ddp_train_options {
	size_t size;                /* sizeof(ddp_train_options) */
	int64_t steps;              /* total, also when resumed; required */
	int accumulate;             /* micro-batches per step; 0: the loader's, else 1. A loader that
	                               has none cuts its epochs by these from now on */
	const char *checkpoint_dir; /* NULL: none; tried before the first step */
	int64_t checkpoint_every;   /* steps; 0: at the end only */
	int checkpoint_keep;        /* 0: 3 */
	bool resume;                /* from checkpoint_dir's newest, if there is one */
	double (*schedule_fn)(void *user, int64_t step); /* learning rate of a step, from 1;
	                                                 NULL: constant */
	ddp_status (*on_step)(void *user, const ddp_step_stats *stats); /* all ranks, with the same
	                                                 numbers but for seconds. May issue
	                                                 collectives, on all ranks alike, and save;
	                                                 may be NULL */
	void *user;                 /* for the callbacks */
	int stop_signal;            /* ends the loop on all ranks after the step under way,
	                               in order and with a checkpoint, whichever rank gets
	                               it; SIGTERM is what Slurm sends before it takes a
	                               job's nodes away. Caught during the loop, and, as ranks get
	                               it at different times, after one that was stopped, until
	                               the next loop. 0: none */
	const ddp_schedule *schedule; /* learning rates, in place of schedule_fn: to give
	                               both is DDP_ERR_INVALID. With either, learning_rate of
	                               the model's options and ddp_model_set_learning_rate() do not
	                               count. NULL: none. Must stay until the loop's end */
	bool checkpoint_async;     /* write checkpoints, but for the last, while training goes on:
	                               see ddp_checkpoint_save_async() */
	/* Evaluation on other data, by an epoch of this loader: */
	ddp_loader *evaluate_loader; /* not the training's; with DDP_TAIL_UNEVEN, each sample
	                                counts once; NULL: none */
	ddp_batch_fn evaluate;      /* forward only: adds to *weight and *loss_sum. Samples may be 0 */
	int64_t evaluate_every;     /* steps; 0: at the end only */
	ddp_status (*on_evaluate)(void *user, int64_t step, double loss, double weight); /* all ranks,
	                               with the sums' ratio and the weight of all; may be NULL */
} ddp_train_options;

/*
 * Runs the whole loop. Collective. summary may be NULL. A callback that fails
 * on one rank ends the loop on all, with its reason. A checkpoint that cannot be written
 * (DDP_ERR_IO: the disk is full, say) is a warning, unless it is the last: that one, as any
 * other error of a checkpoint, ends the loop, but leaves the model good: save it elsewhere,
 * or train on after making room. So do the errors after which a step may come again (see
 * ddp_model_step()), such as DDP_ERR_NOT_FINITE: load a checkpoint, and call it again with a lower
 * learning rate, say.
 *
 * Evaluation comes after every evaluate_every steps and after the last one, behind the step's
 * checkpoint, but not after a stop: ranks share an epoch of evaluate_loader, with parameters that
 * are complete (and averaged, see ddp_model_average_params()), in DDP_PHASE_EVAL.
 */
DDP_API ddp_status ddp_train(ddp_model *model, ddp_loader *loader, ddp_batch_fn compute,
                             const ddp_train_options *options, ddp_summary *summary);

/* What was measured since the model was made, for loops of one's own. */
DDP_API void ddp_model_summary(const ddp_model *model, ddp_summary *summary);

#ifdef __cplusplus
}
#endif
#endif
