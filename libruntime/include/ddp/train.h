/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/train.h: the loop of training, for programs that do not write their own.
 */
#ifndef DDP_TRAIN_H
#define DDP_TRAIN_H

#include "state.h"
#include "step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the loop ---------------------------------------------------------------- */

typedef struct ddp_summary {
	int64_t steps;            /* steps that this process has done; the other fields are about these steps */
	double seconds;
	double units_per_second;  /* weight of all ranks (samples or tokens) per second */
	double first_loss, last_loss; /* NaN without a step */
	double data_seconds, forward_seconds, backward_seconds;
	double exposed_seconds, communication_seconds, optimizer_seconds;
	bool stopped;             /* ended before the last step by ddp_model_request_stop() or the signal. Exit with
	                             a code that is not 0, or jobs that wait for this one's success begin. The
	                             examples take 75 (EX_TEMPFAIL), after which slurm/batch/requeue.sh restarts
	                             them */
	int skipped;              /* skipped steps, which no other field counts: see ddp_scaling */
	double overlap_ratio;     /* 1 - exposed / communication; 1 without communication, NaN without a step */
	ddp_shard shard;          /* the way in use: never AUTO; STATE where ranks of a node share the update; NONE
	                             without communication */
	int64_t first_step, last_step; /* numbers of these steps in the whole training; 0 without a step */
	double checkpoint_seconds, evaluation_seconds, other_seconds; /* between these steps */
	double evaluation_loss;   /* ddp_train()'s last one; NaN without one */
	uint64_t reserved[2];
} ddp_summary;

/*
 * Computes one micro-batch: forward, backward, and ddp_model_grad_ready() for each parameter. It adds to *weight
 * and *loss_sum (see ddp_model_step()). If batch->samples is 0, it only announces the gradients. If it returns
 * another status than DDP_OK, the loop ends on all ranks, with the reason of ddp_set_error(). The same holds for
 * the callbacks of ddp_train_options.
 */
typedef ddp_status (*ddp_batch_fn)(void *user, ddp_model *model, const ddp_batch *batch,
                                   double *weight, double *loss_sum);

typedef struct ddp_train_options {
	size_t size;                /* sizeof(ddp_train_options) */
	int64_t steps;              /* of the whole training, also when it is resumed; required */
	int accumulate;             /* micro-batches per step. Default DDP_AUTO: the loader's number, otherwise 1. If
	                               the loader has no number, it takes this one for its epochs */
	const char *checkpoint_dir; /* NULL: no checkpoints. ddp_train() tries to write there before the first step */
	int64_t checkpoint_every;   /* steps; 0: at the end only */
	int checkpoint_keep;        /* how many checkpoints stay, 1 or more; default 3 */
	bool resume;                /* begin with checkpoint_dir's newest checkpoint, if there is one */
	double (*schedule_fn)(void *user, int64_t step); /* the learning rate of a step, from 1; NULL: none */
	ddp_status (*on_step)(void *user, const ddp_step_stats *stats); /* called on all ranks, with the same
	                               numbers except seconds; may issue collectives, on all ranks alike, and
	                               save; NULL: none */
	void *user;                 /* for the callbacks */
	int stop_signal;            /* a signal that ends the loop on all ranks after the step under way, with a
	                               checkpoint, whichever rank gets it. Slurm sends SIGTERM before it takes a
	                               job's nodes away. Ranks may get it at different times, so after a stop it
	                               is caught until the next loop begins. 0: none */
	const ddp_schedule *schedule; /* the learning rates. DDP_ERR_INVALID: schedule_fn is given too. With
	                               either, the model's learning_rate and ddp_model_set_learning_rate() do not
	                               count. Must live until the loop ends. NULL: none */
	bool checkpoint_async;      /* write all checkpoints but the last while training goes on: see
	                               ddp_checkpoint_save_async(). If there will be one besides the last, rank 0
	                               takes the memory for the copy when the loop begins */
	/* Evaluation on other data, by an epoch of this loader: */
	ddp_loader *evaluate_loader; /* another loader than the training's; with DDP_TAIL_UNEVEN each sample
	                               counts once. NULL: none */
	ddp_batch_fn evaluate;      /* forward only: adds to *weight and *loss_sum; samples may be 0 */
	int64_t evaluate_every;     /* steps; 0: at the end only */
	ddp_status (*on_evaluate)(void *user, int64_t step, double loss, double weight); /* called on all ranks
	                               with the mean loss and the weight of all ranks; NULL: none */
	bool survive;               /* if a rank or a node dies, the other ranks go on: see ddp_survive(). Callbacks
	                               then use no other communicator than ddp_model_comm(), and a step's callbacks
	                               may be called again */
} ddp_train_options;
#define DDP_TRAIN_OPTIONS_FIELDS \
	sizeof(ddp_train_options), 0, DDP_AUTO, NULL, 0, 3, false, NULL, NULL, NULL, 0, NULL, false, NULL, NULL, 0, NULL, \
	false
#define DDP_TRAIN_OPTIONS { DDP_TRAIN_OPTIONS_FIELDS }

/*
 * Runs the loop of training. Collective. summary may be NULL.
 *
 * A callback that fails on one rank ends the loop on all ranks, with its reason. If a checkpoint other than the
 * last one cannot be written (DDP_ERR_IO, such as a full disk), rank 0's log warns, and the loop goes on. Any other
 * error of a checkpoint, or of the last one, ends the loop, and the model can still be used: save it elsewhere, or
 * make room and train on. The same holds for errors after which the program may repeat a step (see
 * ddp_model_step()): after DDP_ERR_NOT_FINITE, for instance, load a checkpoint and call ddp_train() again with a
 * lower learning rate.
 *
 * The ranks evaluate after every evaluate_every steps and after the last step, after the step's checkpoint, but not
 * after a stop. They share an epoch of evaluate_loader, with complete (and averaged) parameters, in DDP_PHASE_EVAL.
 */
DDP_API ddp_status ddp_train(ddp_model *model, ddp_loader *loader, ddp_batch_fn compute,
                             const ddp_train_options *options, ddp_summary *summary);

/*
 * Lets the other ranks go on, in their processes, if a rank or a node dies. ddp_train() does so with the option survive.
 * A loop of one's own calls this function once before its first step, with DDP_OK, and then after each step, with the
 * status of that step:
 *
 *     status = ddp_survive(model, loader, DDP_OK, &done);
 *     while (status == DDP_OK && done < steps)
 *             status = ddp_survive(model, loader, my_step(model, loader), &done);
 *
 * If `status` says that another rank was lost (DDP_ERR_PEER, DDP_ERR_TIMEOUT or DDP_ERR_ABORTED, from a step, a save or
 * an evaluation), the ranks that are left form a new communicator (ddp_comm_shrink()), agree on the last step that is
 * complete, and go on with the next one. The function then returns DDP_OK, *steps (may be NULL) becomes the number of
 * steps done, and rank 0 of those that are left logs a warning. No checkpoint is read, no step is lost, and none counts
 * twice: what was half done is undone, or done again. The losses are those, bit for bit, of a training with so many ranks
 * that goes on from the same state, except with rows that are gathered separately (ddp_model_grad_rows()).
 *
 * An update keeps its number of samples: each rank computes more batches, some of them short or empty (global_batch of
 * ddp_loader_options). Before each step, a loop of one's own gets the number
 * of a rank's batches by ddp_loader_accumulation(). The pointers of
 * ddp_model_param_data() and ddp_model_param_grad() stay valid. ddp_model_comm() is the new communicator; ddp_get_job()
 * and ddp_world() stay those of the first ranks, and operations of the world return errors from then on. If a
 * step is done again, ddp_model_user_state() is what it was before that step, for a program that keeps the state of its
 * random numbers there. loader may be NULL.
 *
 * In a step of srun with restart=, the ranks do not become fewer: srun starts others in place of the dead ones,
 * also on a spare node, and the function returns when these have joined. A rank that was started so has a world of
 * its own, of one rank, until its first call of this function, which brings it to the others' step; *steps tells
 * which. ddp_world() and ddp_model_comm() are new ones then, on all ranks, and ddp_get_job() tells the same ranks
 * as before. A newcomer's ddp_model_user_state() is that of another rank. Losses are those of a training in which
 * no rank has died.
 *
 * With DDP_SHARD_STATE over several nodes or on a device, and DDP_SHARD_GRADIENTS, this takes the model option buddy:
 * after each step, each rank sends its shard of the optimizer's state to another rank, on another node if there is one,
 * while the next step computes. If a rank dies before its last step's shard was sent, that step is done again: *steps
 * is one less than before, and on_step of ddp_train() is called again for it. A step that was saved, or that
 * ddp_train() has evaluated, is not done again. A newcomer gets the shard of the rank whose place it takes from the
 * rank that kept the copy, and all make new copies. If a rank and the rank that kept its copy die at once, the ranks
 * cannot go on. If all ranks are on one node without devices, and late_gather is off, they share the memory of shards
 * instead, and any of them may die.
 *
 * If two ranks die within the last step and the shrink that follows, one rank may have left for ddp_finalize()
 * with the step complete, while another goes on without it.
 *
 * If the program changes parameters, buffers or the loader's place between two steps, as by ddp_checkpoint_load() or
 * ddp_model_broadcast_params(), all ranks then call this function with DDP_OK once more. Rank 0 of those that are left goes on
 * with the metrics. If only a rank that dies had noted that the training is to stop, the others do not stop.
 *
 * It returns another status than DDP_OK as it was given, if the ranks cannot go on: another kind of error, or each rank
 * that is left lacks something, as with DDP_MUON if a rank dies while ranks exchange updated tensors. A warning says what is
 * lacking. Then load a checkpoint in a new run.
 *
 * DDP_ERR_UNSUPPORTED, from the first call: the ranks cannot survive, so the training ends with the first rank that dies, as
 * without this function. The reason is one of these:
 * - The model has local SGD, or is compressed by PowerSGD or a hook.
 * - Each rank keeps the only copy of a part of the optimizer's state (DDP_SHARD_STATE over several nodes or on a device,
 *   and DDP_SHARD_GRADIENTS), and the model lacks the option buddy.
 * - srun starts ranks again (restart=), and the model has the option comm, or the program trains several models on all
 *   ranks, or it gave ddp_init() a store, a wire-up or a job of its own.
 * Costs: updates begin when all gradients have come. If ranks of a node share the update, and with buddy, a rank keeps a
 * copy of its share of parameters and optimizer state. If ranks send their shards to buddies, a rank also keeps two copies
 * of another rank's share. A model on a device has these two copies in the host's memory, with one copy of the share that
 * the rank sends. Collective.
 */
DDP_API ddp_status ddp_survive(ddp_model *model, ddp_loader *loader, ddp_status status, int64_t *steps);

/* Gets the measurements since the model was made, for programs with their own loop. */
DDP_API void ddp_model_summary(const ddp_model *model, ddp_summary *summary);

#ifdef __cplusplus
}
#endif
#endif
