/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/job.h: who this process is in the job, and the context, which a program opens first and closes last.
 */
#ifndef DDP_JOB_H
#define DDP_JOB_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- job: who am I ------------------------------------------------------- */

#define DDP_HOST_MAX 256

typedef enum ddp_source {
	DDP_SOURCE_NONE = 0,
	DDP_SOURCE_ENVIRONMENT, /* the plugin's, torchrun's or the user's variables */
	DDP_SOURCE_PMIX,        /* the PMIx server of the step */
	DDP_SOURCE_SPAWN,       /* ddp_spawn() */
	DDP_SOURCE_SINGLE,      /* none of these: a world of one */
	DDP_SOURCE_GIVEN        /* the program: `job` of ddp_options */
} ddp_source;

/* The identity of this process in the job. Plain data, safe to copy. */
typedef struct ddp_job {
	int rank;             /* 0 .. world_size - 1 */
	int world_size;
	int local_rank;       /* index among the ranks of this node */
	int local_world_size;
	int node_rank;        /* 0 .. nnodes - 1 */
	int nnodes;           /* of a job given to ddp_init(), as it was given; which ranks share a node, communicators
	                         find out themselves, and ddp_comm_describe() tells */
	char master_addr[DDP_HOST_MAX]; /* "" if none is needed */
	int master_port;                /* 0 if none is needed */
	uint32_t job_id;
	uint32_t step_id;
	uint32_t restart_count;
	char hostname[DDP_HOST_MAX];
	int64_t pid;
	ddp_source identity_source; /* of rank and sizes */
	ddp_source address_source;  /* of master_addr and master_port */
	bool plugin;                /* set by the SPANK plugin */
	uint64_t reserved[8];
} ddp_job;

/*
 * Writes `job` as one line of JSON into `text`, which has room for `bytes` and is always terminated.
 * DDP_ERR_INVALID: there is too little room; 2048 bytes always suffice.
 */
DDP_API ddp_status ddp_job_json(const ddp_job *job, char *text, size_t bytes);

typedef struct ddp_spawn_result {
	bool is_rank;     /* true in each child: go on and call ddp_init() */
	int exit_code;    /* parent: with what to exit: 0, or the exit code of the child
	                     that failed first, or 128 + its signal */
	int failed_rank;  /* parent: the rank that failed first, or -1 */
	uint64_t reserved[4];
} ddp_spawn_result;

/*
 * Forks 1 to 1024 ranks on this node, for programs that start without SLURM. In each child it returns at
 * once, with result->is_rank set; in the parent it returns when all children have ended. After the first
 * child has failed, the others get SIGTERM and then SIGKILL. The parent passes SIGINT and SIGTERM on to
 * the children. Call it before the program starts threads.
 */
DDP_API ddp_status ddp_spawn(int ranks, ddp_spawn_result *result);

/* ---- context -------------------------------------------------------------
 *
 * Files and folders. Checkpoints, metrics and traces follow the same rules:
 * - The library makes missing folders. A relative name starts from the folder in which the process is
 *   when it gives the name.
 * - A run that begins with step 1 keeps the files of an earlier run: metrics as PATH.1, PATH.2, ...,
 *   traces as rank-N.json.1, ..., and checkpoints of later steps as step-N.safetensors.aside. A
 *   checkpoint of the same step is replaced. Checkpoints of earlier steps stay, and count among the
 *   `keep` checkpoints. A resumed run appends to metrics and traces, and so does a run that is started
 *   again by srun --ddp=restart=N or by Slurm (requeue). A run that ends before its first step appends
 *   to the trace.
 * - If the path leads to a pipe without a reader, a socket or a folder, the call returns DDP_ERR_IO at
 *   once. No write waits for a reader or raises SIGPIPE or SIGXFSZ in the program.
 * - Another user who may write to the folder cannot redirect a write. In these cases the call returns
 *   DDP_ERR_IO, and the message names the file:
 *   - a link in a file's place that belongs neither to this user nor to root, unless it leads to a
 *     descriptor (/proc/self/fd/N) and only its owner may write to its folder, as for /dev/stdout;
 *   - such a link in a folder's place, if everybody may write to the folder that holds it and the link
 *     does not belong to that folder's owner;
 *   - if everybody may write to the folder, a file or pipe that belongs neither to this user, nor to
 *     root, nor to the folder's owner;
 *   - if others may write to the folder, a file with a second name (a hard link).
 *   A checkpoint is written under a new name and renamed, which follows no link.
 * If the process has closed descriptor 0, 1 or 2, ddp_init() and ddp_spawn() open /dev/null there.
 * In every locale, numbers are written and read with a decimal point, and messages are in English.
 */

typedef struct ddp_context ddp_context;
typedef struct ddp_comm ddp_comm;

/*
 * A store of the program, through which ranks meet: it keeps bytes under keys, and all ranks reach it, as
 * PyTorch's c10d::Store. Only ddp_init() calls it, in its own thread. All keys begin with "ddp/". Contexts
 * that are made at the same time need different stores, or functions that put a different prefix before
 * each key. Entries of earlier runs do no harm. The store holds the key that ranks prove to each other
 * afterwards, so whoever can read the store can join the run.
 *
 * Each function returns DDP_OK, or a status that ends ddp_init(), with a reason by ddp_set_error().
 */
typedef struct ddp_store {
	void *user; /* the first argument of each function */
	/* Puts `bytes` bytes under `key`, and replaces the value that is there. */
	ddp_status (*set)(void *user, const char *key, const void *value, size_t bytes);
	/* Sets *bytes to the length of the value under `key`, and copies the value to `value` if `room` bytes
	   suffice. ddp_init() only asks for keys that wait() has found. */
	ddp_status (*get)(void *user, const char *key, void *value, size_t room, size_t *bytes);
	/* Waits until `key` is there. DDP_ERR_TIMEOUT: it did not come within timeout_ms (at least 1). This status
	   alone does not end ddp_init(). */
	ddp_status (*wait)(void *user, const char *key, int timeout_ms);
	uint64_t reserved[4];
} ddp_store;

typedef struct ddp_options {
	size_t size;              /* sizeof(ddp_options) */
	int timeout_ms;           /* limit of wire-up and of each collective, above 0. Default DDP_AUTO:
	                             DDP_TIMEOUT of the environment (in seconds), otherwise 300000 */
	const char *wireup;       /* how ranks meet: "pmix"; "tcp"; "file:///PATH", a file that all ranks
	                             reach: the first rank makes it and the last one removes it; a file that
	                             holds something else stays, and is DDP_ERR_IO. NULL: PMIx if there is a
	                             server, otherwise TCP */
	const char *metrics_path; /* rank 0 writes JSON lines; NULL: none. If a resumed run repeats a
	                             step, the later line counts */
	const char *trace_dir;    /* one Chrome trace per rank; NULL: DDP_TRACE_DIR of the environment,
	                             otherwise none. Of open contexts that name one folder, and have one rank, only
	                             the first has a trace */
	const char *device;       /* for DDP_MEMORY_DEVICE: "cuda" or "cuda:1"; without an index,
	                             DDP_LOCAL_DEVICE of the environment, otherwise 0. NULL: none */
	int max_ctas;             /* most thread blocks that NCCL may occupy on a GPU; 0: NCCL decides.
	                             NCCL_MAX_CTAS of the environment wins */
	const ddp_job *job;       /* the identity that the program gives; NULL: ddp_init() finds it out. With
	                             it, no variable of the identity is read. rank and world_size must be set.
	                             If local_rank and local_world_size are both 0, ddp_init() finds them
	                             out; so it does if node_rank and nnodes are both 0. It ignores hostname,
	                             pid, plugin and the sources */
	const ddp_store *store;   /* where ranks meet, in place of `wireup`; NULL: none */
	int silence_ms;           /* if a node gives no sign of life for so long, as after the loss of its power
	                             or network, operations end with DDP_ERR_PEER and name the node. 2000 to
	                             3600000; 0: never. Default DDP_AUTO: DDP_SILENCE of the environment (in
	                             seconds), otherwise 5000. A node gives signs of life while its kernel
	                             answers, also if processes there are stopped */
} ddp_options;
#define DDP_OPTIONS_FIELDS sizeof(ddp_options), DDP_AUTO, NULL, NULL, NULL, NULL, 0, NULL, NULL, DDP_AUTO
#define DDP_OPTIONS { DDP_OPTIONS_FIELDS }

/*
 * Derives the identity of this process, connects the ranks, and opens the communicator of the world.
 * Collective.
 */
DDP_API ddp_status ddp_init(const ddp_options *options, ddp_context **context);

/*
 * Closes the context. Free models and loaders before; communicators of ddp_comm_split() and the like may be
 * freed later. Collective: it waits until all ranks have called it, at most for timeout_ms. If one rank has
 * longer work to do, such as writing a result, let it do that after this call.
 *
 * DDP_ERR_TIMEOUT: a rank does not come. DDP_ERR_PEER: a rank has died or still issues an operation.
 * The sentence names the rank. If the world has failed and no call has returned that error yet, as after
 * ddp_model_free(), this call returns it. If a call has returned the error, ddp_finalize() waits for no
 * rank and returns DDP_OK. It releases everything, also if it returns an error.
 */
DDP_API ddp_status ddp_finalize(ddp_context *context);

/* Return the job, and the communicator of all ranks. The context owns them. */
DDP_API const ddp_job *ddp_get_job(const ddp_context *context);
DDP_API ddp_comm *ddp_world(ddp_context *context);

struct ddp_step_stats; /* step.h */

typedef enum ddp_phase {
	DDP_PHASE_IDLE, DDP_PHASE_DATA, DDP_PHASE_FORWARD, DDP_PHASE_BACKWARD,
	DDP_PHASE_WAIT, DDP_PHASE_OPTIMIZER, DDP_PHASE_CHECKPOINT, DDP_PHASE_EVAL
} ddp_phase;

/*
 * Says what this rank does now, in a program without a ddp_model; with a model, call ddp_model_set_phase().
 * The failure report, stall=, ddp-status and the trace show it.
 */
DDP_API void ddp_context_set_phase(ddp_context *context, ddp_phase phase);

/* Says that step `step` (from 1) begins. The training ends with step `last`; 0: that is not known. For a
   program without a model; with a model, ddp_model_step() does this. */
DDP_API ddp_status ddp_context_begin_step(ddp_context *context, int64_t step, int64_t last);

/* Says that the step has ended: writes a line of metrics on rank 0, and the step's part of the trace. ddp-status
   computes its rates from the fields `seconds` and `weight` of stats. A field that is 0 is 0 in the metrics. */
DDP_API ddp_status ddp_context_end_step(ddp_context *context, const struct ddp_step_stats *stats);

/*
 * Says that this rank is about to leave because of its own error, such as an exception. All operations of the
 * world under way end with DDP_ERR_ABORTED, here and on the other ranks. The sentences of the other ranks have
 * this rank and `reason`, and so has the failure report, even if the task then exits with code 0. If another
 * rank's failure has ended the world before, that failure stays the reason.
 * ddp_finalize() then waits for no rank. Any thread.
 */
DDP_API ddp_status ddp_context_fail(ddp_context *context, const char *reason);

/*
 * Opens a queue for programs that compute with the kernels of slurm-ddp (<ddp/kernels.h>; `pkg-config --libs
 * libddpkernels`). Its work goes to `stream`, a queue of the context's device (NULL: the device's default queue), in
 * order with the other work there. One thread at a time uses the queue, by dk_use(). `version` is DK_TABLE_VERSION of
 * the program's <ddp/table.h>. `type` is a dk_type: DK_F32; DK_TF32, which is f32 with matrix products that a GPU
 * rounds to TF32; DK_MIXED, for parameters in bf16; or DK_MIXED_F16, for parameters in f16, on the host alone. If the
 * context's device has no memory of its own and the type is f32, *queue is NULL, which means the host. Close the
 * queue before the context. DDP_ERR_UNSUPPORTED: the device's kernels are missing or have another version.
 */
struct dk_queue;
DDP_API ddp_status ddp_kernels_open(ddp_context *context, int version, int type, void *stream,
                                    struct dk_queue **queue);
/* Waits for the queue's work, and closes it. Call this before ddp_finalize(). */
DDP_API void ddp_kernels_close(struct dk_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
