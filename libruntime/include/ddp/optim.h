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
 * How gradients update parameters. Operations have the order of PyTorch's optimizers of the same names.
 * t is the number of the step. Each optimizer has its defaults of beta1, beta2, epsilon and momentum (DDP_AUTO).
 * They are 0.9, 0.999, 1e-8 and 0, where nothing else is said.
 *
 * DDP_ADAMW: Loshchilov and Hutter, ICLR 2019. Weight decay is separate from the gradient.
 * DDP_SGD: the options are momentum and nesterov. Weight decay is added to the gradient.
 * DDP_ADAM: Kingma and Ba, ICLR 2015. Weight decay is added to the gradient.
 * DDP_LION: Chen et al., NeurIPS 2023. Each element changes by the learning rate, in the direction of a mean of
 * gradients. Weight decay is separate. Begin with AdamW's learning rate divided by 3 to 10, and with its weight
 * decay multiplied by the same factor. epsilon is not used. The default of beta2 is 0.99.
 *
 * LAMB, Adafactor and Muon work on whole tensors, so nothing can be sharded (DDP_SHARD_AUTO is DDP_SHARD_NONE):
 *
 * DDP_LAMB: You et al., ICLR 2020. AdamW's step, decay included, is scaled to the norm of the tensor; with
 * no_decay it is not scaled. The default of epsilon is 1e-6.
 *
 * DDP_ADAFACTOR: Shazeer and Stern, ICML 2018. A tensor of two or more dimensions keeps the means of squares
 * over rows and columns of its last two dimensions only, which take almost no memory. It has no momentum.
 * The rate is min(learning_rate, 1 / sqrt(t)) times the root mean square of the tensor, or times
 * adafactor.least_scale if that is larger. Weight decay is separate, and is multiplied by the learning rate alone.
 * epsilon^2 is the least value of a square. The default of epsilon is 1.2e-7.
 *
 * DDP_MUON: Jordan et al., 2024 (https://kellerjordan.github.io/posts/muon/). The Nesterov momentum of a
 * matrix is made orthogonal by muon.iterations of Newton-Schulz. A matrix is a parameter of two dimensions without
 * sparse_rows and without a group with `adamw`; AdamW updates the others. A matrix [rows, columns] has the
 * learning rate times sqrt(max(1, rows / columns)). Each of several ranks makes some matrices orthogonal and
 * sends them to the others, 4 bytes per parameter and step. The default of momentum is 0.95.
 */
typedef enum ddp_optimizer {
	DDP_ADAMW = 0,
	DDP_SGD,
	DDP_ADAM,
	DDP_LAMB,
	DDP_ADAFACTOR,
	DDP_MUON,
	DDP_LION
} ddp_optimizer;

/* Returns the optimizer's name, such as "AdamW". NULL: there is no such optimizer, so a loop from 0 to the first
   NULL finds all optimizers. */
DDP_API const char *ddp_optimizer_name(ddp_optimizer optimizer);

/* Options of DDP_MUON. */
typedef struct ddp_muon_options {
	bool match_rms;     /* multiply the learning rate by 0.2 sqrt(max(rows, columns)) instead. The
	                       elements of a matrix then change by as much as with AdamW, so one
	                       learning rate fits both (Liu et al., "Muon is Scalable for LLM
	                       Training", 2025). Default false */
	int iterations;     /* 1 to 99; default 5 */
} ddp_muon_options;

/* Options of DDP_ADAFACTOR, with PyTorch's names for them. */
typedef struct ddp_adafactor_options {
	double decay;       /* -beta2_decay: in the means of squares, step t has the weight
	                       pow(t, -decay). Above 0; default 0.8 */
	double least_scale; /* eps[1], above 0; default 1e-3 */
	double clip;        /* d: the largest root mean square of an update, above 0; default 1 */
} ddp_adafactor_options;

/*
 * How the loss scale is chosen (Micikevicius et al., "Mixed Precision Training", ICLR 2018). The program
 * multiplies its loss before backward by the scale (ddp_model_loss_scale()), so small gradients in fp16 do
 * not become 0, and the update divides by it. The scale is a power of two. So, as long as no gradient
 * becomes 0 or overflows, results have the same bits as without it.
 *
 * DDP_SCALING_DYNAMIC: as PyTorch's GradScaler. A step whose loss or gradients are not finite is skipped on
 * all ranks: ddp_model_step() returns DDP_OK and sets stats->skipped, nothing is updated, no step counts, and
 * the scale is halved (at a scale of 1 it is DDP_ERR_NOT_FINITE). After loss_scaling.interval steps that were not
 * skipped the scale is doubled. Checkpoints hold it. A skipped step's buffers are as ddp_tensor_kind says.
 * DDP_SCALING_FIXED: the scale stays.
 */
typedef enum ddp_scaling {
	DDP_SCALING_NONE = 0,
	DDP_SCALING_DYNAMIC,
	DDP_SCALING_FIXED
} ddp_scaling;

/* DDP_COMPRESS_POWERSGD excludes a loss scale, because it adds errors of one step to the gradients of the next
   step, whose scale may differ. */
typedef struct ddp_loss_scaling {
	ddp_scaling kind;   /* default DDP_SCALING_NONE; the other fields then keep their defaults */
	double initial;     /* the first scale: a power of two from 1 to 2^64; default 65536 */
	int64_t interval;   /* of DDP_SCALING_DYNAMIC, in steps; default 2000 */
} ddp_loss_scaling;

/* The learning rate of each step. All kinds grow linearly to `peak` at step `warmup` first. */
typedef enum ddp_schedule_kind {
	DDP_SCHEDULE_CONSTANT = 0, /* then the rate stays */
	DDP_SCHEDULE_LINEAR,       /* then it falls linearly, to `floor` at step `total` */
	DDP_SCHEDULE_COSINE,       /* then it falls by half a cosine wave, to `floor` at step `total`
	                              (Loshchilov and Hutter, ICLR 2017) */
	DDP_SCHEDULE_WSD,          /* warm-up, stable, decay: it stays, and falls linearly in the last `decay`
	                              steps before `total` (Hu et al., "MiniCPM", 2024) */
	DDP_SCHEDULE_INVERSE_ROOT  /* then it falls as 1 / sqrt(step), not below `floor`, without an end
	                              (Vaswani et al., NeurIPS 2017) */
} ddp_schedule_kind;

typedef struct ddp_schedule {
	size_t size;           /* sizeof(ddp_schedule) */
	ddp_schedule_kind kind;
	double peak, floor;    /* floor <= peak */
	int64_t warmup, total; /* steps; warmup < total where the rate falls until `total` */
	int64_t decay;         /* DDP_AUTO, the default: a tenth of total */
} ddp_schedule;
#define DDP_SCHEDULE_FIELDS sizeof(ddp_schedule), DDP_SCHEDULE_CONSTANT, 0, 0, 0, 0, DDP_AUTO
#define DDP_SCHEDULE { DDP_SCHEDULE_FIELDS }

/* The kind's name, such as "cosine" or "inverse-root". NULL: there is no such kind. */
DDP_API const char *ddp_schedule_kind_name(ddp_schedule_kind kind);

/* DDP_ERR_INVALID: the schedule is wrong; the sentence says how. */
DDP_API ddp_status ddp_schedule_check(const ddp_schedule *schedule);
/* The learning rate of a step, from 1; NaN if the schedule is wrong. */
DDP_API double ddp_schedule_rate(const ddp_schedule *schedule, int64_t step);

/* The learning rate for updates of `batch` samples, if `learning_rate` is good for updates of `base_batch`:
   proportional to the batch, which needs a warm-up (Goyal et al., "Accurate, Large Minibatch SGD", 2017).
   A batch counts the samples of all ranks and micro-batches of a step. */
DDP_API double ddp_linear_scaling(double learning_rate, double batch, double base_batch);

/*
 * Computes how many micro-batches of per_batch tokens (or samples) each rank accumulates for an update of
 * per_update tokens over all ranks: per_update / (per_batch * world_size). DDP_ERR_INVALID: this is not a whole
 * number of at least 1; the sentence names the numbers.
 */
DDP_API ddp_status ddp_accumulation(int64_t per_update, int64_t per_batch, int world_size,
                                    int *accumulate);

#ifdef __cplusplus
}
#endif
#endif
