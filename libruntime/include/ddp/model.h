/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/model.h: a model: its parameters and its options. ddp/step.h has the steps of training.
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
 * What training does with a tensor. Only a trained parameter has a gradient and optimizer state.
 * ddp_model_broadcast_params() and checkpoints take rank 0's tensors of all kinds.
 *
 * Forward writes a buffer, such as the running statistics of a batch norm. ddp_model_step() and
 * ddp_model_reduce_grads() broadcast or average buffers over the ranks that take part in the step, so
 * all ranks have the same buffers between steps. (PyTorch broadcasts when the next forward begins.) A
 * step that is refused, for instance by DDP_ERR_NOT_FINITE, leaves what its forward wrote. A rank whose
 * buffer is not finite does not count as long as other ranks' buffers are, and gets theirs.
 */
typedef enum ddp_tensor_kind {
	DDP_PARAM_TRAINED = 0,
	DDP_PARAM_FROZEN,      /* does not change */
	DDP_BUFFER_BROADCAST,  /* all ranks take rank 0's */
	DDP_BUFFER_MEAN,       /* all ranks take the mean */
	DDP_BUFFER_LOCAL       /* each rank keeps its own (broadcast_buffers=False) */
} ddp_tensor_kind;

/* How the optimizer treats some parameters. */
typedef struct ddp_param_group {
	double learning_rate_factor; /* times the model's learning rate */
	double weight_decay;         /* in place of the model's */
	bool adamw;                  /* with DDP_MUON: update by AdamW, for a matrix such as an
	                                embedding or a classifier's weight */
	uint64_t reserved[4];        /* 0 */
} ddp_param_group;

/* One tensor, f32, row-major. */
typedef struct ddp_param {
	const char *name;            /* unique, printable, at most 255 bytes */
	int ndim;                    /* 0 (a single number, and no shape) .. DDP_MAX_DIMS */
	int64_t shape[DDP_MAX_DIMS]; /* all > 0 */
	bool no_decay;               /* excluded from weight decay */
	int64_t sparse_rows;         /* for a matrix: most rows that ddp_model_grad_rows() adds to its
	                                gradient on a rank in a step; 0: that call is not used */
	bool rows_only;              /* the gradient consists of these rows only, so nothing else travels:
	                                an embedding that has its weight to itself */
	ddp_tensor_kind kind;
	const ddp_param_group *group; /* copied; NULL: the model's options hold */
	uint64_t reserved[4];        /* 0 */
} ddp_param;

/*
 * Which parts of the model's state each rank keeps alone and updates for all ranks (ZeRO: Rajbhandari
 * et al., SC 2020). The user guide ("What ranks keep a part of only") explains each way. Bytes per
 * parameter on a rank of N, with AdamW, besides 4 for the parameter itself:
 *
 * DDP_SHARD_NONE: 12. Gradients are all-reduced while backward runs; every rank updates all parameters.
 * DDP_SHARD_STATE: on one node 4 + 8/N: after backward, each rank sums and updates its share in the
 * memory of all ranks; ddp_model_grad_ready() starts nothing, and the sum counts as optimizer_seconds.
 * Over several nodes 4 + 12/N: buckets are reduce-scattered while backward runs, and new parameters
 * all-gathered.
 * DDP_SHARD_GRADIENTS: 12/N, and gradients that are not reduced yet. Memory of reduced gradients goes
 * back to the system while backward runs, which costs page faults.
 * DDP_SHARD_AUTO: STATE on one node. Over nodes with one rank each, NONE. Over other nodes, 4 + 8/L
 * with L ranks on the smallest node: buckets are all-reduced as with NONE, and the ranks of each node
 * share out the update and the state. With memory of the program or of a device, NONE.
 *
 * In one world all ways give the same bits, unless rows travel by themselves (ddp_model_grad_rows()).
 */
typedef enum ddp_shard {
	DDP_SHARD_AUTO = 0,
	DDP_SHARD_NONE,
	DDP_SHARD_STATE,
	DDP_SHARD_GRADIENTS
} ddp_shard;

/*
 * The form in which gradient buckets travel, if nothing is sharded. The user guide ("Fewer bytes, or a
 * way of your own") has the details. Rows (ddp_model_grad_rows()) always travel in f32.
 *
 * DDP_COMPRESS_BF16, DDP_COMPRESS_F16: half the bytes. Each rank rounds once before it sends; see
 * ddp_op for the rest. f16 has 11 bits and a small range, so gradients are scaled by a power of two,
 * taken from the largest gradient of the step before. The first step (also after a load), and a step
 * that would overflow, travel in f32.
 * DDP_COMPRESS_POWERSGD: Vogels, Karimireddy and Jaggi, NeurIPS 2019. A parameter of two or more
 * dimensions travels as two factors of its matrix [rows, columns], where columns are all dimensions but
 * the first: (rows + columns) * rank numbers, if these are fewer by the factor powersgd.min_rate. Each rank adds
 * the error that this leaves to its next step's gradients, which takes 8 bytes per compressed
 * parameter. Checkpoints hold the sum of these errors. It uses lane DDP_LANES - 1 of the model's
 * communicator in the host's memory.
 */
typedef enum ddp_compression {
	DDP_COMPRESS_NONE = 0,
	DDP_COMPRESS_BF16,
	DDP_COMPRESS_F16,
	DDP_COMPRESS_POWERSGD
} ddp_compression;

/* A bucket of gradients that a hook sums. */
typedef struct ddp_grad_bucket {
	int index, buckets;  /* 0 .. buckets - 1; backward fills bucket 0 first */
	float *grads;        /* [count]: this rank's gradients; finish() leaves the sums over all ranks */
	int64_t count;
	ddp_comm *comm;      /* the model's */
	ddp_memory memory;   /* where grads lies */
	void *stream;        /* the model's, if grads lies on a device */
} ddp_grad_bucket;

/*
 * A program's own way of summing gradients, if nothing is sharded. start() is called when a bucket is
 * complete (in ddp_model_grad_ready() or at the end of the step); it should issue operations and
 * return. finish() is called at the end of the step; it waits for them. Both are called for buckets in
 * their order on all ranks, so they may use collectives. The sums must be the same on all ranks.
 * Gradients are multiplied by ddp_model_loss_scale(), by which a hook divides what it keeps for a later
 * step. An error of a hook is the model's last (see ddp_model_step()); ddp_set_error() gives the reason.
 *
 * On a device, the bucket is complete when the model's stream has reached start(), which issues its
 * operations with that stream and does not wait. finish() makes the stream wait for them
 * (ddp_wait_on()), and may then wait itself to end its requests.
 *
 * After another error that is the model's last, finish() is not called: the program ends what start()
 * began before it calls ddp_model_free(). Freeing a model in the middle of a step breaks the world, and
 * calls finish().
 */
typedef struct ddp_bucket_hook {
	ddp_status (*start)(void *user, const ddp_grad_bucket *bucket);
	ddp_status (*finish)(void *user, const ddp_grad_bucket *bucket);
	void *user;
} ddp_bucket_hook;

/*
 * Whether gradients and `loss_sum` are sums or means over this rank's samples, and what their total over
 * ranks and micro-batches is divided by. `weight` counts samples, tokens, or another unit.
 *
 * DDP_LOSS_SUM: sums over this rank's samples; divided by the sum of all weights. The mean is exact
 * whatever the ranks' shares are. A rank without samples has weight 0.
 * DDP_LOSS_MEAN: each rank's own mean, as in PyTorch DDP; divided by the number of ranks, including ranks
 * without samples and ranks that have joined (divide_by_initial_world_size=True). The program
 * divides each micro-batch's loss by their number. `weight` counts in stats only.
 * DDP_LOSS_MEAN_OF_ACTIVE: the same, divided by the number of ranks that have not joined.
 */
typedef enum ddp_loss {
	DDP_LOSS_SUM = 0,
	DDP_LOSS_MEAN,
	DDP_LOSS_MEAN_OF_ACTIVE
} ddp_loss;

/*
 * What happens to a parameter that a step did not use, that is, for which no rank called
 * ddp_model_grad_ready() or ddp_model_grad_rows().
 *
 * DDP_UNUSED_ZERO: it is updated with the gradient that its memory holds, usually 0, so decay and
 * momentum move it.
 * DDP_UNUSED_SKIP: it and its optimizer state stay (PyTorch's find_unused_parameters=True). A rank that
 * did not use a parameter that others used adds 0. A parameter that any micro-batch of the step uses is
 * announced in that micro-batch, also with sync off. ddp_model_grad_unused() tells early that a
 * parameter will not come.
 * DDP_UNUSED_STATIC: as SKIP, but the first step in which all ranks take part decides which parameters
 * each rank uses (static_graph=True), so nobody waits for the others. A step that uses other parameters
 * gets DDP_ERR_STATE on all ranks, with the rank and the parameter, and updates nothing.
 */
typedef enum ddp_unused {
	DDP_UNUSED_ZERO = 0,
	DDP_UNUSED_SKIP,
	DDP_UNUSED_STATIC
} ddp_unused;

/* Options of DDP_COMPRESS_POWERSGD, with PyTorch's names for them. */
typedef struct ddp_powersgd_options {
	int rank;           /* matrix_approximation_rank, 1 or more; default 1 */
	uint32_t seed;      /* random_seed: of the first step's factors */
	int64_t start;      /* start_powerSGD_iter: steps before, in which gradients are all-reduced.
	                       Default 0, where PyTorch has 1000; give at least the steps of the
	                       warm-up, better a tenth of all */
	double min_rate;    /* min_compression_rate, above 0; default 2 */
	bool feedback;      /* use_error_feedback: add what factors leave out to the next step's
	                       gradients. Default true */
	bool warm_start;    /* start from the last step's factors, and not from random ones. Default
	                       true */
} ddp_powersgd_options;

/* Local SGD: each rank trains by itself, and after some steps parameters are averaged. See
   ddp_model_average_params(). */
typedef struct ddp_local_sgd_options {
	int64_t steps;      /* from one average to the next; default 0: gradients are reduced in each
	                       step instead */
	int64_t start;      /* steps before, in which gradients are reduced (post-local SGD) */
} ddp_local_sgd_options;

/* The default is 0, false, NULL or the first of an enum where no other is said. */
typedef struct ddp_model_options {
	size_t size;            /* sizeof(ddp_model_options) */
	ddp_optimizer optimizer;
	double learning_rate;   /* 0 or more; default 1e-3 */
	double beta1, beta2;    /* from 0 to below 1. Default DDP_AUTO: 0.9 and 0.999,
	                           Lion's 0.9 and 0.99 */
	double epsilon;         /* at least 1.2e-38, the least of f32. Default DDP_AUTO: 1e-8, LAMB's
	                           1e-6, Adafactor's 1.2e-7 */
	double momentum;        /* SGD's and Muon's. Default DDP_AUTO: SGD's 0, Muon's 0.95 */
	double weight_decay;    /* see ddp_optimizer */
	double clip_norm;       /* limit of the gradient's global 2-norm; 0: none */
	bool nesterov;          /* SGD's momentum; Muon always has it */
	ddp_muon_options muon;
	ddp_adafactor_options adafactor;
	ddp_loss_scaling loss_scaling;
	ddp_loss loss;
	ddp_unused unused;
	ddp_shard shard;
	ddp_compression compress;
	ddp_powersgd_options powersgd;
	ddp_local_sgd_options local_sgd;
	ddp_bucket_hook hook;   /* start NULL: none */
	double bucket_mb;       /* cap of a gradient bucket, MiB, above 0. Default DDP_AUTO:
	                           DDP_BUCKET_MB of the environment, otherwise a 32nd of the model,
	                           from 1 to 25, until the buckets are cut anew: see below */
	double first_bucket_mb; /* cap of the first; may be larger than the others'. Default
	                           DDP_AUTO: 1, or bucket_mb if that is less */
	bool late_gather;       /* return from a step before the new parameters of other ranks' shards
	                           have come: see ddp_model_param_wait(). No effect where each rank
	                           updates all, nor where they update for all in the memory that
	                           ranks of a node share (DDP_SHARD_AUTO, STATE on one node) */
	bool bf16_params;       /* keep the parameters in bf16, too: see ddp_model_param_bf16() */
	ddp_memory memory;      /* of parameters, gradients and the optimizer's state */
	void *stream;           /* memory of a device: the queue of it on which the program computes;
	                           NULL: its default one */
	float *params_memory;   /* the program's own, in which parameters lie; NULL: the library's.
	                           See ddp_model_bytes() */
	float *grads_memory;    /* the same of gradients */
	ddp_comm *comm;         /* the ranks that train this model together; NULL: the world. See
	                           ddp_model_create() */
} ddp_model_options;
#define DDP_MODEL_OPTIONS_FIELDS \
	sizeof(ddp_model_options), DDP_ADAMW, 1e-3, DDP_AUTO, DDP_AUTO, DDP_AUTO, DDP_AUTO, 0, 0, false, \
	{ false, 5 }, { 0.8, 1e-3, 1 }, { DDP_SCALING_NONE, 65536, 2000 }, DDP_LOSS_SUM, DDP_UNUSED_ZERO, \
	DDP_SHARD_AUTO, DDP_COMPRESS_NONE, { 1, 0, 0, 2, true, true }, { 0, 0 }, { NULL, NULL, NULL }, \
	DDP_AUTO, DDP_AUTO, false, false, DDP_MEMORY_HOST, NULL, NULL, NULL, NULL
#define DDP_MODEL_OPTIONS { DDP_MODEL_OPTIONS_FIELDS }

/*
 * If neither cap is given, nor DDP_BUCKET_MB, buckets that are all-reduced between nodes from the host's
 * memory are cut anew once, after the seventh step, by measured times (the user guide, "Bucket size").
 * Parameters get the same bits; if nothing is clipped, the last bits of grad_norm may differ.
 *
 * DDP_MEASURE of the environment, the same on all ranks, shows what communication costs: with
 * "no-overlap" it begins after backward, with "no-communication" there is none and ranks drift apart.
 */

/*
 * A model on a device (DDP_MEMORY_DEVICE) is used like any other, with these differences:
 * - The host cannot reach ddp_model_param_data() and ddp_model_param_grad().
 * - Calls work on `stream`, behind the work that it holds. ddp_model_grad_ready() means that the gradient
 *   is complete when the stream gets there. The end of a step waits for backward.
 * - DDP_SHARD_STATE works as over several nodes, and DDP_SHARD_GRADIENTS gives no memory back: both take
 *   8 + 12/N bytes with the parameter's own 4. After ddp_model_param_wait() the stream waits, not the host.
 * - The second factor of DDP_COMPRESS_POWERSGD is sent after backward.
 * - Indices and values of ddp_model_grad_rows() lie on the device, are not checked, and must stay until
 *   the stream has used them.
 * If the context's device uses the host's memory, DDP_MEMORY_DEVICE is the host's memory.
 */

/*
 * Makes a model of `count` parameters, in the order in which forward uses them. The model owns the memory
 * of parameters and gradients. Buckets are cut from the last parameter to the first, and a tensor may be
 * split. Collective. DDP_ERR_MISMATCH: ranks give different lists or options.
 *
 * The ranks of the option comm train the model together. In this header, "all ranks" are then these
 * ranks, "rank 0" is the first of them, and "the world is broken" means this communicator. A program that
 * splits a network over ranks makes one model per part (the user guide, "Data parallelism beside tensor
 * and pipeline parallelism"). Each such model saves to its own directory and has a loader on its own
 * communicator. The metrics contain the models of the world's rank 0. comm may be a result of
 * ddp_comm_shrink(). It is freed after the model (DDP_ERR_STATE before). DDP_ERR_INVALID: comm belongs to
 * another context.
 */
DDP_API ddp_status ddp_model_create(ddp_context *context, const ddp_param *params,
                                    int count, const ddp_model_options *options,
                                    ddp_model **model);
/* Frees the model and its memory. Collective. */
DDP_API void ddp_model_free(ddp_model *model);

/*
 * How many bytes params_memory and grads_memory must have for these parameters. There,
 * ddp_model_param_data() and ddp_model_param_grad() then point, so that a framework's tensors can be views
 * of it. Both are aligned to 64 bytes and do not overlap. The model sets them to 0 when it is made, and uses
 * them until ddp_model_free(). All ranks give the same of the two (DDP_ERR_MISMATCH). For a model on a
 * device they are the device's memory, and are set to 0 in the order of the model's stream.
 *
 * Ranks of a node cannot reach such memory of each other, so collectives copy it on the host,
 * DDP_SHARD_STATE works as over several nodes, and DDP_SHARD_GRADIENTS gives none of it back.
 */
DDP_API ddp_status ddp_model_bytes(const ddp_param *params, int count, size_t *params_bytes,
                                   size_t *grads_bytes);

/* A parameter and its gradient, for the model's life, aligned to 64 bytes; its number of elements. NULL or
   0 if `param` is out of range; the gradient of a tensor that is not trained is NULL. Gradients are zero at
   first and after each ddp_model_step(), and backward adds to them. */
DDP_API float *ddp_model_param_data(ddp_model *model, int param);
DDP_API float *ddp_model_param_grad(ddp_model *model, int param);
DDP_API int64_t ddp_model_param_count(const ddp_model *model, int param);

/*
 * With late_gather, waits until the new values of a parameter have come, or of all (DDP_ALL_PARAMS). After
 * each step, forward calls it for a trained parameter before it uses the parameter; the first parameters of
 * the list come first. The call costs nothing if the values are there. Checkpoints, broadcasts, the first
 * bucket to travel, and the end of ddp_train() wait by themselves. Local; without late_gather there is
 * nothing to wait for. After DDP_ERR_PEER or another error of a collective, the model can be neither
 * trained nor saved.
 */
enum { DDP_ALL_PARAMS = -1 };
DDP_API ddp_status ddp_model_param_wait(ddp_model *model, int param);

/* A number in the memory of a model's device, which is 0 at the start of each step; ddp_model_step() adds it
   to loss_sum. The program's kernels add their losses to it, without ddp_model_loss_scale(), so nobody waits
   for each loss. NULL on the host. */
DDP_API double *ddp_model_device_loss(ddp_model *model);
/*
 * The parameter in bf16, for forward and backward, with the option bf16_params. ddp_model_param_data() then
 * holds the f32 master copy, which updates change and checkpoints keep. The bf16 copy is rounded to the
 * nearest by ddp_model_broadcast_params(), each step, and ddp_checkpoint_load(). A first step without one
 * of these is DDP_ERR_STATE. Valid for the model's life, aligned to 32 bytes. NULL: out of range, or a
 * buffer, which stays f32. Gradients stay f32.
 */
DDP_API const uint16_t *ddp_model_param_bf16(const ddp_model *model, int param);

/* Sends rank 0's tensors of all kinds to all ranks. Collective; once, after initialisation. If ranks'
   parameters differ, the first step and each checkpoint are DDP_ERR_MISMATCH. */
DDP_API ddp_status ddp_model_broadcast_params(ddp_model *model);

/*
 * Averages the ranks' parameters during local SGD (Lin, Stich, Patel and Jaggi, "Don't Use Large
 * Mini-Batches, Use Local SGD", ICLR 2020): from step local_sgd.start + 1 on, each rank updates its own
 * parameters and optimizer state by its own gradients, and after every local_sgd.steps steps the library
 * averages. (PyTorch: PostLocalSGDOptimizer with PeriodicModelAverager, warmup_steps = start + steps - 1.) In
 * between, parameters differ among ranks: call this before you test or write them. ddp_checkpoint_save(),
 * which also averages the optimizer state, and the end of ddp_train() do it themselves. Does nothing without
 * local steps. Between steps. Collective.
 */
DDP_API ddp_status ddp_model_average_params(ddp_model *model);

#ifdef __cplusplus
}
#endif
#endif
