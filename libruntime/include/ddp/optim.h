/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/optim.h: optimizers, loss scaling and learning rates.
 */
#ifndef DDP_OPTIM_H
#define DDP_OPTIM_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- optimizers and learning rates ----------------------------------------- */

/*
 * What makes new parameters of gradients. In the order of operations of PyTorch's optimizers
 * of the same names, where it has them; t is the number of the step.
 *
 * DDP_ADAMW: Loshchilov and Hutter, ICLR 2019; decay is apart from the gradient.
 * DDP_SGD: with `momentum`, and Nesterov's with `nesterov`; decay is a part of the gradient.
 * DDP_ADAM: Kingma and Ba, ICLR 2015; decay is a part of the gradient.
 *
 * The others work on whole tensors, so nothing can be sharded (DDP_SHARD_AUTO is
 * DDP_SHARD_NONE):
 *
 * DDP_LAMB: You et al., ICLR 2020: AdamW's step, decay included, made as long as the
 * tensor's norm; with no_decay, it is left as long as it is.
 *
 * DDP_ADAFACTOR: Shazeer and Stern, ICML 2018. Of a tensor of two and more dimensions it
 * keeps the means of squares over rows and over columns of its last two only, which take
 * next to no memory; no momentum. The rate is the least of learning_rate and 1 / sqrt(t),
 * times the root mean square of the tensor, or adafactor_least_scale if that is more. Decay
 * is apart, by the learning rate alone. Squares are estimated as epsilon^2 at least.
 *
 * DDP_MUON: Jordan et al., 2024 (https://kellerjordan.github.io/posts/muon/): the momentum
 * (Nesterov's) of a matrix, made orthogonal by muon_iterations of Newton-Schulz. A matrix is
 * a parameter of two dimensions, unless it has sparse_rows or a group with `adamw`; the
 * others are updated by AdamW. The learning rate of a matrix [rows, columns] is
 * multiplied by sqrt(max(1, rows / columns)). With several ranks, each makes some of
 * the matrices orthogonal, and sends them to the others: 4 bytes more for each of their
 * parameters and step.
 */
typedef enum ddp_optimizer {
	DDP_ADAMW = 0,
	DDP_SGD,
	DDP_ADAM,
	DDP_LAMB,
	DDP_ADAFACTOR,
	DDP_MUON
} ddp_optimizer;

/*
 * What the program multiplies its loss by before backward (ddp_model_loss_scale()), so that gradients
 * that it computes in fp16 do not vanish; the update divides by it (Micikevicius et al., "Mixed
 * Precision Training", ICLR 2018). A scale is a power of two, so that results are those without
 * it, to the bit, as long as no gradient vanishes or overflows.
 *
 * DDP_SCALING_DYNAMIC: as PyTorch's GradScaler. A step whose loss or gradients are not finite is
 * skipped on all ranks: ddp_model_step() returns DDP_OK and says so in stats->skipped, has updated
 * nothing and counted no step, and the scale is halved; stats->loss and grad_norm are NaN. With
 * a scale of 1, which could not be lowered any more, it is DDP_ERR_NOT_FINITE. After loss_scale_interval steps that were not skipped the scale is
 * doubled. Checkpoints hold it. Buffers are those of a step that is refused (see
 * ddp_tensor_kind).
 *
 * DDP_SCALING_FIXED: the scale stays.
 */
typedef enum ddp_scaling {
	DDP_SCALING_NONE = 0,
	DDP_SCALING_DYNAMIC,
	DDP_SCALING_FIXED
} ddp_scaling;

/*
 * How a learning rate goes with the steps. In all kinds it first grows linearly, to `peak` at
 * step `warmup`. Then it
 */
typedef enum ddp_schedule_kind {
	DDP_SCHEDULE_CONSTANT = 0, /* stays */
	DDP_SCHEDULE_LINEAR,       /* falls linearly, to `floor` at step `total` */
	DDP_SCHEDULE_COSINE,       /* by half a wave of a cosine (Loshchilov and Hutter, ICLR 2017) */
	DDP_SCHEDULE_WSD,          /* stays, and falls linearly in the last `decay` steps before
	                              `total`: warm-up, stable, decay (Hu et al., "MiniCPM", 2024) */
	DDP_SCHEDULE_INVERSE_ROOT  /* falls as 1 / sqrt(step) (Vaswani et al., NeurIPS 2017), not
	                              below `floor`, without an end */
} ddp_schedule_kind;

typedef struct ddp_schedule {
	size_t size;           /* sizeof(ddp_schedule) */
	ddp_schedule_kind kind;
	double peak, floor;    /* floor <= peak */
	int64_t warmup, total; /* steps; warmup < total where the rate falls until `total` */
	int64_t decay;         /* 0: a tenth of total */
} ddp_schedule;

/* DDP_ERR_INVALID says what is wrong with it. */
DDP_API ddp_status ddp_schedule_check(const ddp_schedule *schedule);
/* The learning rate of a step, from 1; NaN if the schedule is wrong. */
DDP_API double ddp_schedule_rate(const ddp_schedule *schedule, int64_t step);

/* The learning rate for updates of `batch` samples if `learning_rate` is good for those of
   `base_batch`: as many times more, which wants a warm-up (Goyal et al., "Accurate, Large
   Minibatch SGD", 2017). `batch` is that of all ranks and micro-batches of a step. */
DDP_API double ddp_linear_scaling(double learning_rate, double batch, double base_batch);

/*
 * How many micro-batches a rank accumulates, so that an update is of `per_update` tokens (or
 * samples) over all ranks, whatever their number: per_update / (per_batch * world_size),
 * per_batch being the tokens of a rank's micro-batch. DDP_ERR_INVALID names the numbers if
 * that is not whole, or less than 1.
 */
DDP_API ddp_status ddp_accumulation(int64_t per_update, int64_t per_batch, int world_size,
                                    int *accumulate);

#ifdef __cplusplus
}
#endif
#endif
