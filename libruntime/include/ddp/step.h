/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/step.h: the steps of training: gradients that are ready, and updates.
 */
#ifndef DDP_STEP_H
#define DDP_STEP_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- steps: gradients and updates ----------------------------------------- */

/*
 * What this rank does now, for the trace, the metrics, the summary and the failure report. The library sets
 * WAIT, OPTIMIZER and CHECKPOINT itself. On a device this enqueues a timed event, so do not call it while a
 * graph is captured.
 */
DDP_API void ddp_model_set_phase(ddp_model *model, ddp_phase phase);

/*
 * Gradient accumulation (PyTorch's no_sync): with sync off, gradients add up on this rank, and
 * ddp_model_grad_ready() only notes that a parameter is used. Turn sync on for the last micro-batch of a
 * step. It is on at the start of each step.
 */
DDP_API ddp_status ddp_model_set_sync(ddp_model *model, bool sync);

/*
 * Announces that a parameter's gradient is complete. The program calls it once for each parameter and each
 * backward with sync on, in any order. The last gradient of a bucket starts the bucket.
 */
DDP_API ddp_status ddp_model_grad_ready(ddp_model *model, int param);

/*
 * Announces, instead of ddp_model_grad_ready(), that this rank will have no gradient of a parameter in this
 * step, so its bucket need not wait. Unless an earlier micro-batch announced the parameter, this rank adds
 * 0 (with DDP_UNUSED_ZERO: the gradient that its memory holds). With sync off it does nothing. At the end of
 * a step, a parameter without any announcement counts as unused.
 */
DDP_API ddp_status ddp_model_grad_unused(ddp_model *model, int param);

/*
 * Sets a hook that gets this rank's gradient of a parameter when it is complete, before it is checked and
 * reduced (PyTorch's register_post_accumulate_grad_hook), to clip, disturb or log it. The hook may change
 * grad[count] and nothing else of the model. The gradient is the sum over the step's micro-batches on this
 * rank, multiplied by ddp_model_loss_scale(), and not yet divided by any weight.
 *
 * The hook is called once a step, in ddp_model_grad_ready() with sync on, or at the end of the step if the
 * parameter is not announced. It is not called for a parameter that this rank does not use
 * (DDP_UNUSED_SKIP, _STATIC), nor by ddp_model_join(). If it fails, ddp_set_error() gives the reason, and the
 * model cannot be trained any more, on all ranks. On a device, the gradient is complete when the model's
 * stream gets there: the hook enqueues its work on the stream, or makes the stream wait for other work, and
 * does not wait itself.
 *
 * Local: ranks may have different hooks. A hook stays until another hook, or NULL, replaces it.
 * DDP_ERR_UNSUPPORTED: the parameter has sparse_rows. To change gradients after they are reduced, see
 * ddp_model_reduce_grads().
 */
typedef ddp_status (*ddp_grad_hook_fn)(void *user, int param, float *grad, int64_t count);
DDP_API ddp_status ddp_model_set_grad_hook(ddp_model *model, int param, ddp_grad_hook_fn hook, void *user);

/*
 * Adds values [count, width] to the rows index[count] of the gradient of a matrix [rows, width] with
 * sparse_rows. An index may occur several times. The call is for a gradient with a dense and a sparse part,
 * such as that of an embedding whose weight is also the classifier's: ddp_model_grad_ready() announces the
 * dense part in ddp_model_param_grad(), and rows may come until ddp_model_step(), in any number of calls, also
 * with sync off. An error changes nothing. The caller may reuse the arrays after the call. Local.
 *
 * If buckets are reduced while backward runs, and the sum of all ranks' sparse_rows is below the matrix's
 * rows, the dense part is reduced early; rows are gathered at the end of the step and added in the order of
 * ranks and calls. Otherwise rows are added to the dense part at once, which is reduced at the end of the step.
 */
DDP_API ddp_status ddp_model_grad_rows(ddp_model *model, int param, const int32_t *index,
                                 const float *values, int64_t count);

typedef struct ddp_step_stats {
	int64_t step;            /* steps done, from 1; after a skipped step, the last one that was not
	                            skipped, or 0 */
	double loss;             /* of all ranks, divided as ddp_loss says; NaN if skipped */
	double weight;           /* of all ranks */
	double grad_norm;        /* of the mean gradient, before clipping; NaN if skipped */
	double learning_rate;
	double seconds;          /* since the end of the previous step */
	double data_seconds;     /* this field to optimizer_seconds: time in the phases of
	                            ddp_model_set_phase() */
	double forward_seconds, backward_seconds; /* on a device: the device's time */
	double exposed_seconds;  /* waiting after backward, for communication or slower ranks */
	double communication_seconds; /* from each bucket's start to its end, overlaps counted once */
	double optimizer_seconds;
	bool stop;               /* a rank has asked for it by ddp_model_request_stop() */
	bool skipped;            /* nothing was updated and no step counted, see ddp_scaling */
	int active_ranks;        /* ranks that took part and did not call ddp_model_join() */
	double checkpoint_seconds, evaluation_seconds; /* since the end of the previous step */
	double other_seconds;    /* in no phase. On the host, data, forward, backward, exposed, optimizer,
	                            checkpoint, evaluation and other add up to `seconds` */
	uint64_t reserved[5];
} ddp_step_stats;

/*
 * Ends a step: reduces the gradients that were not announced, waits for all buckets, and updates the
 * parameters with the exact mean gradient: the sum of gradients divided by the sum of weights, over all ranks
 * and micro-batches. `loss_sum` and the gradients are sums over this rank's samples in this step, and
 * `weight` is their number (for means see ddp_loss). A rank without samples gives weight 0. Collective.
 *
 * After these errors the program may repeat the step. All ranks get them, nothing was updated, and the step's
 * gradients are dropped (buffers, and values that hooks keep, are not restored):
 * DDP_ERR_NOT_FINITE: a loss, a gradient or their sum is infinite or NaN, and a lower loss scale cannot help;
 * the sentence names the rank and the parameter. DDP_ERR_INVALID: a weight or learning rate is negative or
 * not finite, or all weights of summed losses are 0. DDP_ERR_MISMATCH: learning rates differ, or, in the
 * first step, parameters differ. DDP_ERR_STATE: see DDP_UNUSED_STATIC and ddp_model_join().
 *
 * After any other error, and after any error of a hook or of NCCL, the model cannot be trained any more: all
 * ranks get the error, and the next call is DDP_ERR_STATE. Its parameters can be saved unless the update had
 * begun (DDP_ERR_STATE). If loss and gradients are equal on all ranks for ten steps, rank 0's log warns that
 * ranks seem to train on the same samples.
 */
DDP_API ddp_status ddp_model_step(ddp_model *model, double weight, double loss_sum,
                            ddp_step_stats *stats);

/* Returns the factor by which the program multiplies its loss before backward; 1 without loss scaling. It is the
   same on all ranks until the end of the step. loss_sum and grad_norm do not contain it. */
DDP_API double ddp_model_loss_scale(const ddp_model *model);

/*
 * Takes part in one step of ranks that call ddp_model_step(), for a rank that has no samples left (PyTorch's
 * Join). It adds nothing to the step, drops gradients that were added with sync off, and updates as the
 * other ranks do. Call it until stats->active_ranks is 0. Then all ranks have called it, nothing was updated,
 * no step counted, and all ranks go on together. Set the learning rate, and save checkpoints, as the other
 * ranks do. Buffers come from the active ranks.
 *
 * Errors are those of ddp_model_step(). DDP_ERR_STATE, on all ranks: other ranks are in
 * ddp_model_reduce_grads(). Two errors come on this rank alone and change nothing, and the other ranks go on
 * waiting for this rank: DDP_ERR_UNSUPPORTED with local_sgd, and DDP_ERR_STATE after gradients were announced.
 */
DDP_API ddp_status ddp_model_join(ddp_model *model, ddp_step_stats *stats);

/*
 * ddp_model_step() in two halves, for programs that look at a step before it counts.
 *
 * ddp_model_reduce_grads() does everything except the update, with the same errors. stats has weight, loss,
 * grad_norm, learning_rate, stop, and the number that the step will have. With DDP_SHARD_NONE,
 * ddp_model_param_grad() then holds the sums over all ranks, multiplied by the loss scale. The program may
 * change these sums on all ranks alike; the grad_norm by which gradients are clipped does not change. With
 * other ways of sharding, the contents of ddp_model_param_grad() are undefined, and parameters may change when
 * another rank calls ddp_model_update_params(). If stats->skipped is set, gradients are 0, and
 * ddp_model_update_params() only ends the step.
 *
 * Then all ranks call either ddp_model_update_params(), which ends the step with the learning rate of
 * ddp_model_reduce_grads(), or ddp_model_zero_grads(), which drops the step. Before the first
 * ddp_model_grad_ready() with sync on, ddp_model_zero_grads() is local, and drops gradients that were added
 * with sync off. DDP_ERR_STATE: the calls are out of order.
 */
DDP_API ddp_status ddp_model_reduce_grads(ddp_model *model, double weight, double loss_sum,
                                    ddp_step_stats *stats);
DDP_API ddp_status ddp_model_update_params(ddp_model *model, ddp_step_stats *stats);
DDP_API ddp_status ddp_model_zero_grads(ddp_model *model);

/*
 * Asks all ranks to stop. The ddp_model_step() under way, or the next one, sets stats->stop in the same step
 * on all ranks, which then leave their loops; ddp_train() does so. Any thread, and signal handlers.
 */
DDP_API void ddp_model_request_stop(ddp_model *model);

/* Sets the rate of the steps from now on. Local: all ranks set the same rate. In ddp_train() with a schedule
   the rate lasts until the next step begins. */
DDP_API void ddp_model_set_learning_rate(ddp_model *model, double learning_rate);

#ifdef __cplusplus
}
#endif
#endif
