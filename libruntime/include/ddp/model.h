/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/model.h: a model: its parameters, how gradients are reduced, and the steps of training.
 */
#ifndef DDP_MODEL_H
#define DDP_MODEL_H

#include "comm.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- model: parameters, gradients, optimizer ------------------------------ */

#define DDP_MAX_DIMS 8

typedef struct ddp_model ddp_model;

/*
 * What a tensor is to training. Only what is trained has a gradient: the others cost no
 * memory for gradients, no traffic of theirs and no optimizer's state, but all are broadcast by
 * ddp_model_broadcast_params() and saved in checkpoints, as rank 0 has them.
 *
 * A buffer is what forward itself writes, such as the running statistics of a batch
 * norm. PyTorch broadcasts those of rank 0 as the next step's first forward begins
 * (broadcast_buffers); here the step before ends with it, and so they are also the same
 * on all ranks between steps: ddp_model_step(), or ddp_model_reduce_grads(), broadcasts them, or
 * averages them, over all ranks that take part. A step that is refused
 * (DDP_ERR_NOT_FINITE, say) does not, and leaves in them what its forward wrote, as PyTorch
 * does: a running mean that became a NaN stays one. So, as long as other ranks' buffers are
 * finite, a rank with one that is not does not count, and gets the others' in the next step.
 */
typedef enum ddp_tensor_kind {
	DDP_PARAM_TRAINED = 0,
	DDP_PARAM_FROZEN,      /* does not change */
	DDP_BUFFER_BROADCAST,  /* rank 0's counts */
	DDP_BUFFER_MEAN,       /* the mean of all ranks' */
	DDP_BUFFER_LOCAL       /* each rank has its own (broadcast_buffers=False) */
} ddp_tensor_kind;

/* How the optimizer treats some parameters; a 0 is a 0 here. */
typedef struct ddp_param_group {
	double learning_rate_factor; /* times the model's learning rate */
	double weight_decay;         /* in place of the model's */
	bool adamw;                  /* with DDP_MUON: no matrix to make orthogonal, but updated by
	                                AdamW, such as an embedding or a classifier's weight */
	uint64_t reserved[4];        /* 0 */
} ddp_param_group;

/* One tensor, f32, row-major. */
typedef struct ddp_param {
	const char *name;            /* unique, printable, at most 255 bytes */
	int ndim;                    /* 0 (a single number, and no shape) .. DDP_MAX_DIMS */
	int64_t shape[DDP_MAX_DIMS]; /* all > 0 */
	bool no_decay;               /* excluded from weight decay */
	int64_t sparse_rows;         /* of a matrix: most rows that ddp_model_grad_rows() adds
	                                to it on a rank in a step; 0: it is not used */
	bool rows_only;              /* its gradient has no other part, so that the rest, which
	                                is 0, need not travel: an embedding by itself */
	ddp_tensor_kind kind;
	const ddp_param_group *group; /* NULL: as the model's options are. Copied. */
	uint64_t reserved[4];        /* 0 */
} ddp_param;

/*
 * What of a model is sharded: each rank keeps a part of it only, and updates that part for
 * all ranks (ZeRO: Rajbhandari et al., SC 2020). Bytes of a rank per parameter, with AdamW
 * on N ranks, besides 4 for the parameter itself:
 *
 * DDP_SHARD_NONE: 12. Gradients are all-reduced in buckets while backward runs, and every
 * rank updates all parameters. It hides a network.
 *
 * DDP_SHARD_STATE: 4 + 8/N on one node: after backward each rank sums and updates what it
 * owns in the memory of all ranks. Sum and update are one pass over memory, by the threads
 * that have just computed the gradients, so it costs less than to reduce beside backward on
 * the same cores. ddp_model_grad_ready() then starts nothing, the sum counts as
 * optimizer_seconds, and exposed_seconds are those in which ranks waited for slower ones.
 * Over several nodes 4 + 12/N: buckets are reduce-scattered while backward runs, and the
 * new parameters are all-gathered, as many bytes as an all-reduce together.
 *
 * DDP_SHARD_GRADIENTS: 12/N, and the gradients that are not reduced yet; with sync off
 * (ddp_model_set_sync()) that is all. What is reduced goes back to the system while backward
 * runs, and comes as zero again when it is written, which costs page faults; ranks of a
 * node do not share gradients, so that reducing takes a copy.
 *
 * DDP_SHARD_AUTO is DDP_SHARD_STATE on one node. Over several nodes of which one at least has
 * several ranks, buckets are all-reduced as with NONE, and the ranks of each node share
 * out the update and the optimizer's state: 4 + 8/L, if the node with the fewest has L. Each
 * node has all of that state.
 * With one rank a node it is DDP_SHARD_NONE.
 *
 * In one world all give the same bits, if no rows travel by themselves (ddp_model_grad_rows()).
 */
typedef enum ddp_shard {
	DDP_SHARD_AUTO = 0,
	DDP_SHARD_NONE,
	DDP_SHARD_STATE,
	DDP_SHARD_GRADIENTS
} ddp_shard;

/*
 * In what form buckets of gradients travel, if nothing is sharded. In 16 bits they are
 * half the bytes; what each rank sends is rounded once, and what is in ddp_type's comments
 * on 16-bit types. bf16 keeps f32's range, and 8 bits; f16 keeps 11 bits of what is in its
 * range, into which gradients are scaled by a power of two: by the largest of the step
 * before, so that the first step, also after a checkpoint was loaded, goes by f32, as does
 * one that would not fit. Rows (ddp_model_grad_rows()) travel in f32.
 *
 * PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019) sends a parameter of two and more
 * dimensions, as a matrix of the first and the others, [rows, columns], as two factors of
 * powersgd_rank r: (rows + columns) r numbers instead of rows times columns, where that is
 * fewer by powersgd_rate at least; the rest travels as it is. What that leaves out of its
 * gradients, each rank keeps, and adds to those of the next step, in sums: as if their
 * weight had been the next one's. The factors of a step start from the last step's. Bytes
 * of a rank per parameter that is compressed: 8 more. Checkpoints hold the sum of what all
 * ranks have kept, which saving moves to rank 0, so they can be resumed on another number
 * of ranks, or with another compression, which leaves that out. In the host's memory it uses lane
 * DDP_LANES - 1 of the model's communicator while gradients are reduced.
 */
typedef enum ddp_compression {
	DDP_COMPRESS_NONE = 0,
	DDP_COMPRESS_BF16,
	DDP_COMPRESS_F16,
	DDP_COMPRESS_POWERSGD
} ddp_compression;

/* A bucket of gradients, for a program that sums them in its own way. */
typedef struct ddp_grad_bucket {
	int index, buckets;  /* 0 .. buckets - 1: the one that backward fills first is 0 */
	float *grads;        /* [count]: this rank's; finish() leaves the sums over all ranks */
	int64_t count;
	ddp_comm *comm;      /* the model's */
	ddp_memory memory;   /* where grads is; of a device: */
	void *stream;        /* the model's, or NULL */
} ddp_grad_bucket;

/*
 * The program's own way of summing gradients, if nothing is sharded. start() is called
 * when a bucket is complete, from ddp_model_grad_ready() or at the end of the step, and should
 * issue what it can and return; finish() waits for that, at the end of the step. Both are
 * called for the buckets in their order, on all ranks alike, so that they may use
 * collectives; on all ranks the sums must come out the same. Gradients are multiplied by
 * ddp_model_loss_scale(), which may change from step to step: what a hook keeps for a later step,
 * it divides by that. An error is the model's last; ddp_set_error() says why.
 * Of a model on a device, the bucket is complete when its stream has come to start(), which
 * issues its operations with that stream, and does not wait; finish() has the stream wait for
 * them (ddp_wait_on()), so that the sums are there when it comes so far, and may then wait itself,
 * to end its requests.
 * After another error that is the model's last (see ddp_model_step()), finish() is not called any more:
 * the program itself ends what start() has begun before it calls ddp_model_free(). Freeing a
 * model in the middle of a step without an error breaks the world, and calls finish().
 */
typedef struct ddp_bucket_hook {
	ddp_status (*start)(void *user, const ddp_grad_bucket *bucket);
	ddp_status (*finish)(void *user, const ddp_grad_bucket *bucket);
	void *user;
} ddp_bucket_hook;

/*
 * Of what ddp_model_step() is given the gradients and the loss, and what their sum over all ranks
 * and micro-batches is divided by. A weight is in samples, tokens, or what the program
 * counts in; a loss in nats per unit of weight, say.
 *
 * DDP_LOSS_SUM: gradients of the loss *summed* over this rank's samples, `loss_sum` that
 * sum, `weight` how many they were: divided by the sum of all weights. The mean is exact,
 * whatever each rank's share. A rank without samples has weight 0.
 *
 * DDP_LOSS_MEAN: gradients of each rank's own mean, and `loss_sum` that mean, as in PyTorch DDP:
 * divided by the number of ranks. Each rank counts as much as any other, one without
 * samples, or that has joined, too (Join's divide_by_initial_world_size=True). Of
 * several micro-batches in a step, divide each one's loss by their number. `weight`
 * then counts in stats only.
 *
 * DDP_LOSS_MEAN_OF_ACTIVE: the same, divided by the number of ranks that have not joined
 * (divide_by_initial_world_size=False).
 */
typedef enum ddp_loss {
	DDP_LOSS_SUM = 0,
	DDP_LOSS_MEAN,
	DDP_LOSS_MEAN_OF_ACTIVE
} ddp_loss;

/*
 * What a parameter is without which a step's backward went: one that no rank has
 * announced by ddp_model_grad_ready() or given rows.
 *
 * DDP_UNUSED_ZERO: its gradient is what its memory holds, 0 if nobody has written it; decay
 * and momentum move it on. Announcing only says when a gradient is complete.
 *
 * DDP_UNUSED_SKIP: it stays as it is, and so does its part of the optimizer's state (PyTorch's
 * find_unused_parameters=True). If other ranks have announced it, this rank adds 0 to
 * their gradients. What is used in any micro-batch of a step is announced in it, also
 * with sync off. ddp_model_grad_unused() says early that a parameter will not come.
 *
 * DDP_UNUSED_STATIC: the same, and what each rank uses is learned in the first step in which
 * all ranks take part, and stays (static_graph=True): nobody waits for what is unused, and it
 * need not be said. A step that uses others gets DDP_ERR_STATE on all ranks, which names
 * the rank and the parameter; as after DDP_ERR_NOT_FINITE, none has updated anything.
 */
typedef enum ddp_unused {
	DDP_UNUSED_ZERO = 0,
	DDP_UNUSED_SKIP,
	DDP_UNUSED_STATIC
} ddp_unused;

typedef struct ddp_model_options {
	size_t size;            /* sizeof(ddp_model_options) */
	double bucket_mb;       /* cap of a gradient bucket, MiB; 0: DDP_BUCKET_MB of
	                           the environment, else a 32nd of the model, from 1
	                           to 25, until the buckets are cut anew: see below */
	double first_bucket_mb; /* cap of the first; may be larger than the others'. 0: 1, or
	                           bucket_mb if that is less */
	ddp_optimizer optimizer;
	double learning_rate;   /* 0: 1e-3. Also DDP_ZERO */
	double beta1, beta2;    /* 0: 0.9, 0.999. Also DDP_ZERO */
	double epsilon;         /* 0: 1e-8, LAMB's 1e-6, Adafactor's 1.2e-7; at least 1.2e-38, the
	                           least of f32 */
	double weight_decay;    /* see ddp_optimizer; default 0 */
	double momentum;        /* SGD's, default 0; Muon's: 0 is 0.95. Also DDP_ZERO */
	double clip_norm;       /* 0: no clipping by the global 2-norm */
	ddp_shard shard;
	ddp_compression compress;
	ddp_bucket_hook hook;   /* start NULL: none */
	/* Of DDP_COMPRESS_POWERSGD, with PyTorch's names for them: */
	int powersgd_rank;      /* matrix_approximation_rank; 0: 1 */
	uint32_t powersgd_seed; /* random_seed: of the first step's factors */
	int64_t powersgd_start; /* start_powerSGD_iter: steps before, in which gradients are
	                           all-reduced. 0: none, where PyTorch has 1000; at least those
	                           of the warm-up, better a tenth of all */
	double powersgd_rate;   /* min_compression_rate; 0: 2 */
	bool powersgd_no_feedback;   /* use_error_feedback: forget what factors leave out */
	bool powersgd_no_warm_start; /* warm_start: each step starts from random factors */
	int64_t local_steps;    /* local SGD: each rank trains by itself, and after so many steps
	                           parameters are averaged; 0: not. See ddp_model_average_params() */
	int64_t local_start;    /* steps before, in which gradients are reduced (post-local SGD) */
	ddp_memory memory;      /* of parameters, gradients and the optimizer's state */
	void *stream;           /* memory of a device: the queue of it on which the program computes;
	                           NULL: its default one */
	ddp_loss loss;
	ddp_unused unused;
	bool nesterov;          /* SGD's momentum; Muon always has it */
	bool muon_match_rms;    /* multiply Muon's learning rate by 0.2 sqrt(max(rows, columns))
	                           instead, so that elements of a matrix change as those that
	                           AdamW updates (Liu et al., "Muon is Scalable for LLM Training",
	                           2025), and both can have one learning rate */
	int muon_iterations;    /* 0: 5; at most 99 */
	/* Of DDP_ADAFACTOR, with PyTorch's names for them: */
	double adafactor_decay; /* -beta2_decay: step t counts t to the power of minus this in the
	                           means of squares; 0: 0.8 */
	double adafactor_least_scale; /* eps[1]; 0: 1e-3 */
	double adafactor_clip;  /* d: root mean square that updates have at most; 0: 1 */
	bool bf16_params;       /* keep the parameters in bf16, too: see ddp_model_param_bf16() */
	bool late_gather;       /* return from a step before the new parameters of other ranks' shards
	                           have come: see ddp_model_param_wait(). No effect where each rank
	                           updates all, nor where they update for all in the memory that
	                           ranks of a node share (DDP_SHARD_AUTO, STATE on one node) */
	double loss_scale;      /* the first one, with loss_scaling: a power of two from 1 to 2^64;
	                           0: 65536 */
	int64_t loss_scale_interval; /* of DDP_SCALING_DYNAMIC; 0: 2000 */
	ddp_scaling loss_scaling; /* not with DDP_COMPRESS_POWERSGD, which adds gradients of one
	                           step to those of the next, of another scale */
	float *params_memory;   /* the program's own, in which parameters lie; NULL: the library's.
	                           See ddp_model_bytes() */
	float *grads_memory;    /* the same of gradients */
	ddp_comm *comm;         /* the ranks that train this model together; NULL: the world. See
	                           ddp_model_create() */
} ddp_model_options;

/*
 * Where buckets are all-reduced between nodes, in the host's memory and beside backward, and
 * neither cap is given, nor DDP_BUCKET_MB, they are cut anew behind the seventh step, once:
 * by when the slowest rank's gradients were complete in the steps before, and by what their
 * all-reduces took, so that the step ends as early as it can. That is merged-gradient scheduling
 * (MG-WFBP: Shi, Chu and Li, INFOCOM 2019); where it promises less than 2% of the time from the
 * first gradient to the step's end, the first cut stays. Over a link with much latency buckets
 * become fewer and larger; over a narrow one they end at borders of tensors that backward
 * completes far apart. Each model measures anew, one that resumes a checkpoint, too. Steps count
 * that all ranks have taken part in (see ddp_model_join()). The cut changes no sum's order: parameters
 * get the same bits; the grad_norm that a step tells, where nothing is clipped by it, may differ
 * in its last ones.
 * The first cut stays on one node; on a device, where NCCL's order of sums hangs on sizes; with
 * DDP_SHARD_STATE and DDP_SHARD_GRADIENTS, whose slices travel one by one; with
 * DDP_COMPRESS_POWERSGD, whose factors are of a bucket; with a hook, which may keep what is of a
 * bucket; with local_steps; with DDP_MEASURE; and where a model has one bucket, or more than 512.
 */

/*
 * DDP_MEASURE of the environment is for measurements of what communication costs, and the same on
 * all ranks as they make a model: "no-overlap" has it reduced after backward only,
 * "no-communication" not at all, so that ranks drift apart.
 */

/*
 * A model in the memory of the context's device (DDP_MEMORY_DEVICE) is trained as any other.
 * What differs: the host cannot reach what ddp_model_param_data() and ddp_model_param_grad() return. The
 * calls below work on `stream`, behind what it holds when they are called, and before what it
 * is given afterwards: so ddp_model_grad_ready() means that the gradient is complete when the
 * stream has come so far, and the host goes on. The end of a step waits for the backward
 * pass, since ranks have to agree on it, and for its sums of squares. DDP_SHARD_AUTO is
 * DDP_SHARD_NONE; DDP_SHARD_STATE goes the way that it has over several nodes, and with
 * DDP_SHARD_GRADIENTS no gradients go back to the system: on a device both take 8 + 12/N bytes
 * with the parameter's own 4. After ddp_model_param_wait() what the stream is given waits, and not the
 * host. Of DDP_COMPRESS_POWERSGD's two factors, the first is sent beside the backward pass, the
 * second behind it; a GPU sums the products of matrices in an order of its own. Indices of
 * ddp_model_grad_rows() are not checked, and they and the values are the device's, too, and are left
 * alone as long as the stream needs them.
 * If the context's device has the host's memory, DDP_MEMORY_DEVICE is the same as the host's.
 */

/*
 * Makes a model of `count` parameters in the order in which forward uses
 * them. Parameters and gradients lie in arenas that the model owns; gradient
 * buckets are cut from the last parameter to the first, and a tensor may be
 * split. Collective over the communicator of the option comm, or else over the world; all its ranks
 * must give the same list (DDP_ERR_MISMATCH).
 *
 * The ranks of that communicator train the model together, and the others have no part in it. For
 * such a model, "all ranks" in this header are the ranks of its communicator, "rank 0" is the first of them, and
 * "the world is broken" means that this communicator is. A program that splits a network over several ranks
 * (tensor or pipeline parallelism, by communicators and messages of its own) makes one model of each
 * part, on a communicator of the ranks that have this part; the example `parallel` shows it. Each of
 * these models saves to a directory of its own, and takes a loader on its own communicator. The
 * communicator may be what ddp_comm_shrink() has left. It is freed after the model (DDP_ERR_STATE before). The file of
 * metrics has the steps of the models on the world's rank 0. DDP_ERR_INVALID: the communicator is
 * another context's.
 */
DDP_API ddp_status ddp_model_create(ddp_context *context, const ddp_param *params,
                                    int count, const ddp_model_options *options,
                                    ddp_model **model);
DDP_API void ddp_model_free(ddp_model *model);

/*
 * How many bytes the options params_memory and grads_memory have to point to for such a list. In
 * them lies then what ddp_model_param_data() and ddp_model_param_grad() return: parameters may be views of
 * one flat tensor of PyTorch, say, and nothing is copied between the two. Aligned to 64 bytes;
 * the model sets it to 0 when it is made, and has it until ddp_model_free(). The two must not
 * overlap.
 *
 * Each may be given alone, by all ranks or by none (DDP_ERR_MISMATCH). That of a model on a device
 * is memory of the context's device, such as what cudaMalloc() or a CUDA tensor of PyTorch has;
 * it is set to 0 in the order of the model's stream, and ddp_model_free() waits until the stream
 * needs it no more.
 *
 * On the host, ranks of a node do not reach such memory of each other, so collectives copy it
 * there; DDP_SHARD_AUTO is DDP_SHARD_NONE, DDP_SHARD_STATE goes the way that it has over several
 * nodes, and with DDP_SHARD_GRADIENTS, nothing of grads_memory goes back to the system.
 */
DDP_API ddp_status ddp_model_bytes(const ddp_param *params, int count, size_t *params_bytes,
                                   size_t *grads_bytes);

/* Pointers into the arenas, valid for the model's life; NULL if out of range, and for the
   gradient of what is not trained. Aligned to 64 bytes. Gradients start as zero and are zero again after each
   ddp_model_step(); backward adds to them. */
DDP_API float *ddp_model_param_data(ddp_model *model, int param);
DDP_API float *ddp_model_param_grad(ddp_model *model, int param);
DDP_API int64_t ddp_model_param_count(const ddp_model *model, int param); /* elements */

/*
 * With late_gather, what a rank does not own of the new parameters (DDP_SHARD_GRADIENTS, and
 * DDP_SHARD_STATE over several nodes or in the program's own memory) comes while the next forward runs already, what is first
 * in the list first. Until this call returns DDP_OK for it after each step, what a parameter
 * that is trained holds is not defined: forward calls it for each as it comes to it, which
 * costs nothing if the parameter is there; DDP_ALL_PARAMS waits for all. Checkpoints, broadcasts
 * and the first gradient bucket to travel wait by themselves, and so does the end of ddp_train().
 *
 * Not collective. Without late_gather, nothing is waited for. DDP_ERR_PEER and others of a
 * collective: the model trains no more, and cannot be saved.
 */
enum { DDP_ALL_PARAMS = -1 };
DDP_API ddp_status ddp_model_param_wait(ddp_model *model, int param);

/* Of a model on a device: a number in its memory, 0 at the start of each step, which ddp_model_step()
   adds to loss_sum. A program's kernels add their losses to it, not multiplied by
   ddp_model_loss_scale(), and nobody waits for each of them. NULL on the host. */
DDP_API double *ddp_model_device_loss(ddp_model *model);
/*
 * The parameter, trained or frozen, in bf16, for forward and backward: what
 * ddp_model_param_data() holds, in f32, is then the master copy, which updates change and
 * checkpoints keep. It is rounded, to the nearest, by ddp_model_broadcast_params(), each step,
 * and ddp_checkpoint_load(); a first step without one of these gets DDP_ERR_STATE. Valid
 * for the model's life, aligned to 32 bytes; NULL if out of range, of a buffer, which stays
 * f32, and without the option bf16_params. Gradients stay f32 (in what form they travel,
 * ddp_compression says).
 */
DDP_API const uint16_t *ddp_model_param_bf16(const ddp_model *model, int param);

/* Sends rank 0's tensors, of all kinds, to all. Collective; once, after initialisation: the first
   step, and each checkpoint, ends with DDP_ERR_MISMATCH if a rank's parameters are
   not rank 0's (unless ranks do not communicate). */
DDP_API ddp_status ddp_model_broadcast_params(ddp_model *model);

/*
 * Averages the ranks' parameters, with local_steps (Lin, Stich, Patel and Jaggi, "Don't Use
 * Large Mini-Batches, Use Local SGD", ICLR 2020). From step local_start + 1 on each rank
 * updates its own parameters by its own gradients over its own weight, and its own state
 * of the optimizer; stats->grad_norm, by which it clips, is of these. What ranks agree on
 * in a step (loss, weight, stop) still travels, some numbers. After each local_steps steps
 * of that kind the library averages parameters; with PyTorch's PostLocalSGDOptimizer, a
 * PeriodicModelAverager of warmup_steps = local_start + local_steps - 1. In between they
 * are another model on each rank: average them before one of them is tested or written.
 * ddp_checkpoint_save() and the end of ddp_train() do that, and the former averages the
 * state of the optimizer, too. Does nothing before and without local steps. Between
 * steps. Collective.
 */
DDP_API ddp_status ddp_model_average_params(ddp_model *model);

/*
 * What this rank does now. Feeds the trace, the metrics, the summary and the
 * failure report. The library itself sets WAIT, OPTIMIZER and CHECKPOINT. Of a
 * model on a device it enqueues a timed event: not while a graph is captured.
 */
typedef enum ddp_phase {
	DDP_PHASE_IDLE, DDP_PHASE_DATA, DDP_PHASE_FORWARD, DDP_PHASE_BACKWARD,
	DDP_PHASE_WAIT, DDP_PHASE_OPTIMIZER, DDP_PHASE_CHECKPOINT, DDP_PHASE_EVAL
} ddp_phase;
DDP_API void ddp_model_set_phase(ddp_model *model, ddp_phase phase);

/*
 * Gradient accumulation: with sync off, ddp_model_grad_ready() only notes that the
 * parameter is used (needed with DDP_UNUSED_SKIP and DDP_UNUSED_STATIC), and
 * gradients pile up locally (PyTorch's no_sync). Turn it on for the last
 * micro-batch of a step. On at the start of each step.
 */
DDP_API ddp_status ddp_model_set_sync(ddp_model *model, bool sync);

/*
 * Says that this parameter's gradient is complete for this step. Each
 * parameter once per synchronised backward, in any order; the last one of a
 * bucket starts the bucket's all-reduce.
 */
DDP_API ddp_status ddp_model_grad_ready(ddp_model *model, int param);

/*
 * Says that this rank has no gradient of this parameter in this step, so that its bucket does
 * not wait for it; in place of ddp_model_grad_ready(). Unless an earlier micro-batch of the step
 * has announced it, this rank adds 0 (with DDP_UNUSED_ZERO: what its memory holds). Does
 * nothing with sync off. What is not announced until ddp_model_step() counts as this at its end.
 */
DDP_API ddp_status ddp_model_grad_unused(ddp_model *model, int param);

/*
 * Has `hook` called with this rank's gradient of a parameter once it is complete, before it is
 * looked at (DDP_ERR_NOT_FINITE) and reduced (PyTorch's register_post_accumulate_grad_hook):
 * to clip its values, add noise, or log it. It may change grad[count], and nothing else of the
 * model, of which it calls no function that changes it. What it gets is the sum over the
 * step's micro-batches on this rank: of summed losses, if the loss is DDP_LOSS_SUM, and times
 * ddp_model_loss_scale(), by both of which only the step's end divides.
 *
 * Called once a step, by the thread that calls ddp_model_grad_ready() with sync on, in there; what
 * is not announced until the step's end has it called there, by the thread that ends the step,
 * in any order. Not called for what this rank does not use (DDP_UNUSED_SKIP, _STATIC), nor by
 * ddp_model_join(). An error ends the step as the model's last, on all ranks; the hook says why by
 * ddp_set_error().
 *
 * Of a model on a device, grad is the device's, and complete when the model's stream has come to
 * what it is given in the call: the hook enqueues there what it does, or has the stream wait for
 * it, and does not wait itself. Kernels that fail there are no error of the hook.
 *
 * Local: each rank may have others, which last until they are replaced; NULL: none any more.
 * DDP_ERR_UNSUPPORTED: the parameter has sparse_rows, so that its gradient is in two parts. To
 * change gradients that are reduced: see ddp_model_reduce_grads().
 */
typedef ddp_status (*ddp_grad_hook_fn)(void *user, int param, float *grad, int64_t count);
DDP_API ddp_status ddp_model_set_grad_hook(ddp_model *model, int param, ddp_grad_hook_fn hook, void *user);

/*
 * Adds values [count, width] to rows index[count] of the gradient of a matrix
 * [rows, width] with sparse_rows > 0; a row may come several times. It is for
 * a gradient with a dense part and a sparse one, such as that of an embedding
 * that is the classifier's weight, too: its ddp_model_grad_ready() says that the
 * dense part, in ddp_model_param_grad(), is complete, while rows come until
 * ddp_model_step(), in any number of calls, also with sync off. The arrays are the
 * caller's again after the call. Local; an error changes nothing.
 *
 * Where gradients travel in buckets, and all ranks' rows are fewer than the
 * matrix's (decided when the model is made), the dense part is reduced early
 * and the rows are gathered at the end of the step and added in the order of
 * ranks, then of calls. Otherwise rows are added to the dense part at once,
 * which is reduced at the end of the step.
 */
DDP_API ddp_status ddp_model_grad_rows(ddp_model *model, int param, const int32_t *index,
                                 const float *values, int64_t count);

typedef struct ddp_step_stats {
	int64_t step;            /* number of steps done, from 1; of a step that is skipped, that of
	                            the last that was not, 0 if there was none */
	double loss;             /* global: sum of loss_sum over sum of weight, or over the number
	                            of active ranks (see ddp_loss); NaN if skipped */
	double weight;           /* global */
	double grad_norm;        /* of the mean gradient, before clipping */
	double learning_rate;
	double seconds;          /* since the end of the step before */
	double data_seconds;     /* in phases, see ddp_model_set_phase(), as the others down to optimizer_seconds */
	double forward_seconds, backward_seconds; /* the device's, of a model on one: its host only enqueues */
	double exposed_seconds;  /* waiting after backward, for communication or slower ranks */
	double communication_seconds; /* from each bucket's start to its end, overlaps counted once */
	double optimizer_seconds;
	bool stop;               /* a rank asked for it: see ddp_model_request_stop() */
	bool skipped;            /* nothing was updated, and no step counted: see ddp_scaling */
	int active_ranks;        /* that took part in the step, and did not ddp_model_join() it */
	double checkpoint_seconds, evaluation_seconds; /* since the end of the step before, too */
	double other_seconds;    /* in no phase: on the host, data, forward, backward, exposed, optimizer,
	                            checkpoint, evaluation and other are `seconds` */
	uint64_t reserved[5];
} ddp_step_stats;

/*
 * Ends a step: reduces what has not been announced, waits, and updates with
 * the exact mean gradient, sum of gradients / sum of weights, over all ranks
 * and micro-batches. So backward computes the gradient of the loss *summed*
 * over its samples (or tokens), `weight` says how many those were on this
 * rank in this step, and `loss_sum` is that sum of losses. A rank without
 * samples gives weight 0. (Of means: see ddp_loss.) Collective. stats may be NULL.
 *
 * DDP_ERR_NOT_FINITE: a rank's loss or gradient holds an infinity or a NaN, or
 * their sums would, and no lower loss scale could help (ddp_scaling). All ranks get it, with
 * the rank and the parameter.
 *
 * DDP_ERR_INVALID: a rank's weight or learning rate is negative or not finite, or, of summed
 * losses, all weights are 0. DDP_ERR_MISMATCH: ranks have different learning rates, or, in the
 * first step, parameters (ddp_model_broadcast_params()). DDP_ERR_STATE: see DDP_UNUSED_STATIC, ddp_model_join().
 *
 * After these errors, which all ranks get, none has updated anything, and the step's gradients
 * are forgotten: it may come again, as if it had not begun (but for what hooks keep and forward
 * has written to buffers), or a checkpoint be loaded. A hook, or NCCL, may give the same status
 * for an error that is the model's last: the next call then gets DDP_ERR_STATE.
 *
 * After another error, which reaches all ranks, the model trains no more; its
 * parameters can be saved unless the update had begun (DDP_ERR_STATE then).
 *
 * If loss and gradients are the same on all ranks for ten steps, a warning in rank 0's log says
 * that they seem to train on the same samples.
 */
DDP_API ddp_status ddp_model_step(ddp_model *model, double weight, double loss_sum,
                            ddp_step_stats *stats);

/* What the loss is to be multiplied by before backward: the same on all ranks, until the step's
   end. The loss_sum of ddp_model_step() is not multiplied, and stats->grad_norm is of the mean
   gradient of that. 1 without loss_scaling. */
DDP_API double ddp_model_loss_scale(const ddp_model *model);

/*
 * For a rank that has no samples left, while others have (PyTorch's Join): takes part in one
 * step, adds nothing to it, and updates as the others do, which call ddp_model_step(). Call it
 * again until stats->active_ranks is 0: then all ranks have called it, in the same step,
 * nothing was updated, no step is counted, and all may go on, with the next epoch, say. What
 * has piled up on this rank with sync off is forgotten. Set the learning rate as the others
 * do. What else the others do together, such as a checkpoint, this rank does, too.
 * Buffers are those of the first rank that is active, or the mean of these. Errors are
 * those of ddp_model_step(); DDP_ERR_STATE, on all ranks: others are in ddp_model_reduce_grads();
 * DDP_ERR_UNSUPPORTED: the model has local_steps. That, and DDP_ERR_STATE
 * of gradients that are announced, are of this rank alone and change nothing: the others wait
 * for its ddp_model_step().
 */
DDP_API ddp_status ddp_model_join(ddp_model *model, ddp_step_stats *stats);

/*
 * ddp_model_step() in two halves, for programs that look at a step before it counts.
 *
 * ddp_model_reduce_grads() is all of it but the update: stats tell weight, loss, grad_norm,
 * learning_rate, stop, and step as the number that the step will have. Its errors are
 * those of ddp_model_step(). With DDP_SHARD_NONE ddp_model_param_grad() then holds the sums over all
 * ranks, and may be changed, on all ranks alike; grad_norm, by which gradients are
 * clipped, stays what it was. Otherwise sums are with their owners, and what
 * ddp_model_param_grad() holds is not defined; parameters may change from when another rank
 * calls ddp_model_update_params(). Sums are multiplied by the loss scale. If
 * stats->skipped, gradients are 0, step is as ddp_step_stats says, and ddp_model_update_params() only
 * ends the step and forgets what was added to the gradients meanwhile.
 *
 * Then follows, on all ranks alike, either ddp_model_update_params(), which ends the step with
 * the learning rate that the model had at ddp_model_reduce_grads(); or ddp_model_zero_grads(), which
 * forgets its gradients, so that it did not happen: one with a norm far from the
 * others', say. Before the first ddp_model_grad_ready() with sync on, ddp_model_zero_grads() is local,
 * and forgets what has piled up. DDP_ERR_STATE: out of order.
 */
DDP_API ddp_status ddp_model_reduce_grads(ddp_model *model, double weight, double loss_sum,
                                    ddp_step_stats *stats);
DDP_API ddp_status ddp_model_update_params(ddp_model *model, ddp_step_stats *stats);
DDP_API ddp_status ddp_model_zero_grads(ddp_model *model);

/*
 * Asks all ranks to stop: a ddp_model_step() that they are about to end, or the next
 * one, says so in stats->stop, in the same step on all ranks, which then leave
 * their loops together; ddp_train() does. Any thread, and signal handlers.
 */
DDP_API void ddp_model_request_stop(ddp_model *model);

/* Sets the rate of the steps from now on. Local: all ranks set the same rate. In ddp_train() with
   schedule or schedule_fn the rate lasts until the next step begins. */
DDP_API void ddp_model_set_learning_rate(ddp_model *model, double learning_rate);

#ifdef __cplusplus
}
#endif
#endif
