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
 * A buffer is a tensor that forward writes, such as the running statistics of a batch norm.
 * ddp_model_step() and ddp_model_reduce_grads() broadcast or average buffers over the ranks that take
 * part in the step, so all ranks have the same buffers between steps. If a step is refused, for instance
 * by DDP_ERR_NOT_FINITE, buffers keep what its forward wrote. If a rank's buffer is not finite and
 * another rank's is, the first rank is left out of the mean (or broadcast) and gets its result.
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
	int64_t sparse_rows;         /* for a matrix: the largest number of rows that ddp_model_grad_rows()
	                                adds to its gradient on a rank in a step; 0: no such call */
	bool rows_only;              /* the gradient consists of these rows only, so nothing else is sent:
	                                for an embedding whose weight no other layer uses */
	ddp_tensor_kind kind;
	const ddp_param_group *group; /* copied; NULL: the model's options hold */
	uint64_t reserved[4];        /* 0 */
} ddp_param;

/*
 * Which parts of the model's state each rank keeps alone and updates for all ranks (ZeRO: Rajbhandari
 * et al., SC 2020). The user guide ("What ranks keep a part of only") explains each way, and has the
 * bytes that it takes.
 *
 * DDP_SHARD_NONE: gradients are all-reduced while backward runs; every rank updates all parameters.
 * DDP_SHARD_STATE: on one node, after backward, each rank sums and updates its shard in the memory of
 * all ranks; ddp_model_grad_ready() starts nothing, and the sum counts as optimizer_seconds. Over several
 * nodes, buckets are reduce-scattered while backward runs, and new parameters all-gathered.
 * DDP_SHARD_GRADIENTS: as STATE over several nodes, and each rank keeps only its shard of the reduced
 * gradients: the rest of their memory goes back to the system while backward runs.
 * DDP_SHARD_AUTO: STATE on one node. NONE over nodes with one rank each, and with memory of the program
 * or of a device. Otherwise buckets are all-reduced as with NONE, and the ranks of each node share out
 * the update and the optimizer's state.
 *
 * In one world all ways give the same bits, unless ddp_model_grad_rows() gathers rows separately.
 */
typedef enum ddp_shard {
	DDP_SHARD_AUTO = 0,
	DDP_SHARD_NONE,
	DDP_SHARD_STATE,
	DDP_SHARD_GRADIENTS
} ddp_shard;

/*
 * The form in which gradient buckets are sent, if nothing is sharded. The user guide ("Fewer bytes, or a
 * way of your own") has the details. Rows (ddp_model_grad_rows()) are always sent in f32.
 *
 * DDP_COMPRESS_BF16, DDP_COMPRESS_F16: half the bytes. Each rank rounds once before it sends; ddp_op
 * says what else is rounded. With f16, gradients are scaled by a power of two; the first step (also
 * after a load), and a step that would overflow, are sent in f32.
 * DDP_COMPRESS_POWERSGD: Vogels, Karimireddy and Jaggi, NeurIPS 2019. The gradient of a parameter with
 * shape [rows, columns...] is sent as two factors, (rows + columns) * powersgd.rank numbers, if these are
 * fewer than its elements by the factor powersgd.min_rate. In the host's memory it uses lane
 * DDP_LANES - 1 of the model's communicator.
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
 * A program's own way of summing gradients, if nothing is sharded. The library calls start() when a
 * bucket is complete (in ddp_model_grad_ready() or at the end of the step); start() should issue
 * operations and return. It calls finish() at the end of the step; finish() waits for the operations.
 * All ranks call both for the buckets in the same order, so both may use collectives. The sums must be
 * the same on all ranks. Gradients are multiplied by ddp_model_loss_scale(); a hook that keeps values for
 * a later step divides them by it.
 *
 * On a device, start() issues its operations with the model's stream and does not wait. finish() makes
 * the stream wait for them (ddp_wait_on()), and may then wait itself to end its requests.
 *
 * If a hook fails, ddp_set_error() gives the reason, and the model cannot be trained any more (see
 * ddp_model_step()). After any other such error finish() is not called: the program itself ends the
 * operations of start() before it calls ddp_model_free(). If a model is freed in the middle of a step,
 * finish() is called, and the world is broken.
 */
typedef struct ddp_bucket_hook {
	ddp_status (*start)(void *user, const ddp_grad_bucket *bucket);
	ddp_status (*finish)(void *user, const ddp_grad_bucket *bucket);
	void *user;
} ddp_bucket_hook;

/*
 * Whether gradients and `loss_sum` are sums or means over this rank's samples, and by what their total
 * over ranks and micro-batches is divided. `weight` counts samples, tokens, or another unit.
 *
 * DDP_LOSS_SUM: sums over this rank's samples; divided by the sum of all weights. The mean is exact
 * however many samples each rank has. A rank without samples has weight 0.
 * DDP_LOSS_MEAN: each rank's own mean, as in PyTorch DDP; divided by the number of ranks, including ranks
 * without samples and ranks that have joined (divide_by_initial_world_size=True). The program
 * divides the loss of each micro-batch by the number of micro-batches. `weight` counts in stats only.
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
 * did not use a parameter that other ranks used adds 0. The program announces a parameter in each
 * micro-batch that uses it, also with sync off. ddp_model_grad_unused() says early that a gradient will
 * not come.
 * DDP_UNUSED_STATIC: as SKIP, but the first step in which all ranks take part decides which parameters
 * each rank uses (static_graph=True), so no bucket waits for parameters that were not used then. A step
 * that uses other parameters gets DDP_ERR_STATE on all ranks, with the rank and the parameter, and
 * updates nothing.
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
	int64_t start;      /* start_powerSGD_iter: in this many first steps gradients are all-reduced.
	                       Default 0, where PyTorch has 1000; give at least the steps of the
	                       warm-up, better a tenth of all steps */
	double min_rate;    /* min_compression_rate, above 0; default 2 */
	bool feedback;      /* use_error_feedback: add the error of the factors to the next step's
	                       gradients. Default true */
	bool warm_start;    /* start from the factors of the last step instead of random ones. Default
	                       true */
} ddp_powersgd_options;

/* Local SGD: each rank trains by itself, and after some steps parameters are averaged. See
   ddp_model_average_params(). */
typedef struct ddp_local_sgd_options {
	int64_t steps;      /* from one average to the next; default 0: gradients are reduced in each
	                       step instead */
	int64_t start;      /* in this many first steps gradients are reduced (post-local SGD) */
} ddp_local_sgd_options;

/* If a field's comment names no default, it is 0, false, NULL or the first value of the enumeration. */
typedef struct ddp_model_options {
	size_t size;            /* sizeof(ddp_model_options) */
	ddp_optimizer optimizer;
	double learning_rate;   /* 0 or more; default 1e-3 */
	double beta1, beta2;    /* from 0 to below 1. Default DDP_AUTO: see ddp_optimizer */
	double epsilon;         /* at least 1.2e-38, the smallest of f32. Default DDP_AUTO: the same */
	double momentum;        /* of the optimizers that have one. Default DDP_AUTO: the same */
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
	double first_bucket_mb; /* cap of the first bucket; may be larger than bucket_mb. Default
	                           DDP_AUTO: 1, or bucket_mb if that is less */
	bool late_gather;       /* return from a step before the new parameters of other ranks' shards
	                           have come: see ddp_model_param_wait(). No effect if parameters are
	                           not gathered (DDP_SHARD_NONE, AUTO, STATE on one node) */
	bool bf16_params;       /* also keep the parameters in bf16: see ddp_model_param_bf16() */
	ddp_memory memory;      /* of parameters, gradients and the optimizer's state */
	void *stream;           /* for a device's memory: the device's queue on which the program
	                           computes; NULL: its default queue */
	float *params_memory;   /* the program's memory in which parameters lie; NULL: the library's.
	                           See ddp_model_bytes() */
	float *grads_memory;    /* the same for gradients */
	ddp_comm *comm;         /* the ranks that train this model together; NULL: the world. See
	                           ddp_model_create() */
	int64_t compare_every;  /* ranks compare their parameters after so many steps: see below. 0:
	                           DDP_COMPARE_EVERY of the environment, otherwise never */
	bool buddy;             /* once the ranks survive (ddp_survive()), each rank keeps a copy of another
	                           rank's shard of the optimizer's state; on one node, ranks share the memory
	                           of shards. No effect unless each shard is kept once only. DDP_BUDDY of the
	                           environment, 1 or 0, wins over it */
} ddp_model_options;
#define DDP_MODEL_OPTIONS_FIELDS \
	sizeof(ddp_model_options), DDP_ADAMW, 1e-3, DDP_AUTO, DDP_AUTO, DDP_AUTO, DDP_AUTO, 0, 0, false, \
	{ false, 5 }, { 0.8, 1e-3, 1 }, { DDP_SCALING_NONE, 65536, 2000 }, DDP_LOSS_SUM, DDP_UNUSED_ZERO, \
	DDP_SHARD_AUTO, DDP_COMPRESS_NONE, { 1, 0, 0, 2, true, true }, { 0, 0 }, { NULL, NULL, NULL }, \
	DDP_AUTO, DDP_AUTO, false, false, DDP_MEMORY_HOST, NULL, NULL, NULL, NULL, 0, false
#define DDP_MODEL_OPTIONS { DDP_MODEL_OPTIONS_FIELDS }

/*
 * With compare_every = k, the first step after each k steps also compares a checksum of what each rank should have the
 * same: trained and frozen parameters and, if nothing is sharded, the optimizer's state. The checksum travels with what ranks
 * exchange in each step. If a rank's memory or processor has damaged its copy, ddp_model_step() gives DDP_ERR_MISMATCH on
 * all ranks, updates nothing, and names the rank and the node that differ from most others, or "one of" two. After a load of
 * a checkpoint (ddp_checkpoint_load()) training can go on. Checkpoints compare before they are written, with and without
 * compare_every, so each one is from before the damage. The user guide ("Silent damage") says what no comparison sees.
 *
 * If the program and DDP_BUCKET_MB give no cap, buckets that are all-reduced between nodes from the
 * host's memory are cut anew once, after the seventh step, from measured times (the user guide, "Bucket
 * size"). Parameters get the same bits; if nothing is clipped, the last bits of grad_norm may differ.
 *
 * A model on a device (DDP_MEMORY_DEVICE) is used like any other, with these differences:
 * - The host cannot reach ddp_model_param_data() and ddp_model_param_grad().
 * - Calls enqueue their work on `stream`, after the work that it holds. ddp_model_grad_ready() means that
 *   the gradient is complete when the stream gets there. The end of a step waits for backward.
 * - DDP_SHARD_STATE works as over several nodes, and DDP_SHARD_GRADIENTS gives no memory back.
 *   ddp_model_param_wait() makes the stream wait, not the host.
 * - Indices and values of ddp_model_grad_rows() lie on the device, are not checked, and must stay until
 *   the stream has used them.
 * If the context's device uses the host's memory, DDP_MEMORY_DEVICE is the host's memory.
 */

/*
 * Makes a model of `count` parameters, in the order in which forward uses them. Collective.
 * DDP_ERR_MISMATCH: ranks give different lists or options. DDP_ERR_INVALID: comm belongs to another
 * context. The model owns the memory of parameters and gradients.
 *
 * On the host, this memory is private if the model has one rank, and the node's ranks share it if it has several.
 * So a forked child of a model of one rank has a copy of the memory at the fork. A forked child of a model of several
 * ranks shares the memory: it sees later steps, and the ranks see what it writes there. A child that needs a fixed
 * state takes a copy of it before the fork. Gradients that give memory back (DDP_SHARD_GRADIENTS) are always private.
 *
 * The ranks of the option comm train the model together. In the contracts of models, steps and state, "all
 * ranks" are then these ranks, "rank 0" is the first of them, and "the world" is this communicator. comm may be
 * a result of ddp_comm_shrink(), and is freed after the model (DDP_ERR_STATE before). Each model saves to
 * its own directory, and has a loader on its own communicator. The user guide ("Data parallelism beside
 * tensor and pipeline parallelism") has an example.
 */
DDP_API ddp_status ddp_model_create(ddp_context *context, const ddp_param *params,
                                    int count, const ddp_model_options *options,
                                    ddp_model **model);
/* Returns the communicator of the ranks that train the model: the option comm, or the world; after ranks were lost
   (ddp_survive()), that of the ranks that are left, which the model then owns. Local. */
DDP_API ddp_comm *ddp_model_comm(const ddp_model *model);
/* Frees the model and its memory. Collective. */
DDP_API void ddp_model_free(ddp_model *model);

/*
 * Computes how many bytes params_memory and grads_memory must have for these parameters.
 * ddp_model_param_data() and ddp_model_param_grad() then point into this memory, so a framework's tensors
 * can be views of it. Both are aligned to 64 bytes and do not overlap. If one rank gives one of the two,
 * all ranks give it (DDP_ERR_MISMATCH). For a model on a device they are memory of the device. The model
 * sets them to 0 when it is made, in the order of its stream, and uses them until ddp_model_free().
 */
DDP_API ddp_status ddp_model_bytes(const ddp_param *params, int count, size_t *params_bytes,
                                   size_t *grads_bytes);

/* Return a parameter, its gradient, and its number of elements; NULL or 0 if `param` is out of range. The
   gradient of a tensor that is not trained is NULL. The pointers are aligned to 64 bytes and valid for the
   model's life. Gradients are zero at first and after each ddp_model_step(), and backward adds to them. */
DDP_API float *ddp_model_param_data(ddp_model *model, int param);
DDP_API float *ddp_model_param_grad(ddp_model *model, int param);
DDP_API int64_t ddp_model_param_count(const ddp_model *model, int param);

/*
 * With late_gather, waits until the new values of a parameter have come, or of all parameters
 * (DDP_ALL_PARAMS). After each step, forward calls it for each trained parameter before it uses the
 * parameter; the first parameters of the list come first. If the values are there, the call costs nothing.
 * Checkpoints, broadcasts, the first bucket of the next step, and the end of ddp_train() wait by
 * themselves. Without late_gather there is nothing to wait for. After DDP_ERR_PEER or another error of a
 * collective, the model can be neither trained nor saved. Local.
 */
enum { DDP_ALL_PARAMS = -1 };
DDP_API ddp_status ddp_model_param_wait(ddp_model *model, int param);

/* Returns a number in the memory of a model's device; NULL on the host. It is 0 at the start of each step.
   The program's kernels add their losses to it, without ddp_model_loss_scale(), and ddp_model_step() adds it
   to loss_sum. So the host does not wait for each loss. */
DDP_API double *ddp_model_device_loss(ddp_model *model);
/*
 * With the option bf16_params, returns the parameter in bf16, for forward and backward. NULL: `param` is out
 * of range, or a buffer, which stays f32. ddp_model_param_data() then holds the f32 master copy, which
 * updates change and checkpoints keep. ddp_model_broadcast_params(), ddp_checkpoint_load() and each step
 * round the masters to the nearest bf16; DDP_ERR_STATE: the first step comes before the first two. The
 * pointer is aligned to 32 bytes and valid for the model's life. Gradients stay f32.
 */
DDP_API const uint16_t *ddp_model_param_bf16(const ddp_model *model, int param);

/* Sends rank 0's tensors of all kinds to all ranks. Collective; once, after initialisation. If ranks'
   parameters differ, the first step and each checkpoint are DDP_ERR_MISMATCH. */
DDP_API ddp_status ddp_model_broadcast_params(ddp_model *model);

/*
 * Averages the ranks' parameters during local SGD (Lin, Stich, Patel and Jaggi, ICLR 2020): from step
 * local_sgd.start + 1 on, each rank updates its own parameters and optimizer state from its own gradients,
 * and after every local_sgd.steps steps the library averages the parameters. In between they differ among
 * ranks, so call this before you test or write them. ddp_checkpoint_save(), which also averages the optimizer
 * state, and the end of ddp_train() do so themselves. Without local steps it does nothing. Call it between
 * two steps. Collective.
 */
DDP_API ddp_status ddp_model_average_params(ddp_model *model);

#ifdef __cplusplus
}
#endif
#endif
