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
	DDP_SOURCE_SINGLE,      /* nothing around: a world of one */
	DDP_SOURCE_GIVEN        /* the program: `job` of ddp_options */
} ddp_source;

/* The identity of this process in the job. Plain data, safe to copy. */
typedef struct ddp_job {
	int rank;             /* 0 .. world_size - 1 */
	int world_size;
	int local_rank;       /* index among the ranks of this node */
	int local_world_size;
	int node_rank;        /* 0 .. nnodes - 1 */
	int nnodes;
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
	int exit_code;    /* parent: 0, or what to exit with: the first failure's
	                     exit code, or 128 + its signal */
	int failed_rank;  /* parent: the rank that failed first, or -1 */
	uint64_t reserved[4];
} ddp_spawn_result;

/*
 * Forks 1 to 1024 ranks on this node, for programs that start without SLURM. It returns in each child
 * at once, with result->is_rank set, and in the parent when all children have ended. After the first
 * child has failed, the others get SIGTERM and then SIGKILL. The parent passes SIGINT and SIGTERM on
 * to the children. Call it before the program starts threads.
 */
DDP_API ddp_status ddp_spawn(int ranks, ddp_spawn_result *result);

/* ---- context -------------------------------------------------------------
 *
 * Files and folders. Checkpoints, metrics and traces follow the same rules:
 * - The library makes missing folders. A relative name starts from the folder in which the process is
 *   when it gives the name.
 * - A run that begins with step 1 keeps the files of an earlier run: metrics as PATH.1, PATH.2, ...,
 *   traces as rank-N.json.1, ..., and checkpoints of later steps as step-N.safetensors.aside. A
 *   checkpoint of the same step is replaced. Checkpoints of earlier steps stay, and count among
 *   those that are kept. A resumed run appends to metrics and traces. A run that ends before its first
 *   step appends to the trace.
 * - A pipe without a reader, a socket and a folder are DDP_ERR_IO at once. No write waits for a reader
 *   or raises SIGPIPE or SIGXFSZ in the program.
 * - Another user who may write to the folder cannot redirect a write. These are DDP_ERR_IO, and the
 *   message names them:
 *   - a link in a file's place that belongs neither to this user nor to root, unless it leads to a
 *     descriptor (/proc/self/fd/N) and only its owner may write to its folder, as for /dev/stdout;
 *   - such a link in a folder's place, if everybody may write to the folder that holds it and the link
 *     does not belong to that folder's owner;
 *   - if everybody may write to the folder, a file or pipe that belongs neither to this user, nor to
 *     root, nor to the folder's owner;
 *   - if others may write to the folder, a file with a second name (a hard link).
 *   A checkpoint is written under a new name and renamed, which follows no link.
 * If the process has closed descriptor 0, 1 or 2, ddp_init() and ddp_spawn() open /dev/null there.
 * Numbers are written and read with a point, and messages are in English, in every locale.
 */

typedef struct ddp_context ddp_context;
typedef struct ddp_comm ddp_comm;

/*
 * Where ranks meet that the program brought up by other means: a store that all of them reach and that keeps bytes
 * under keys, as PyTorch's c10d::Store does. ddp_init() calls it from the calling thread, until it returns. All keys
 * begin with "ddp/". Contexts that are made at the same time need different stores, or a prefix that the calls put
 * before each key. What earlier runs have left in the store does no harm. The key that ranks prove to each other
 * afterwards is in the store: who can read it can join the run.
 *
 * Each call returns DDP_OK, or a status that ends ddp_init(), with a reason by ddp_set_error(). `reserved` must be 0.
 */
typedef struct ddp_store {
	void *user; /* the first argument of each call */
	/* Puts `bytes` bytes under `key`, in place of what is there. */
	ddp_status (*set)(void *user, const char *key, const void *value, size_t bytes);
	/* Sets *bytes to the length of what is under `key`, and copies it to `value` if `room` bytes suffice. ddp_init()
	   asks for keys only that wait() has found. */
	ddp_status (*get)(void *user, const char *key, void *value, size_t room, size_t *bytes);
	/* Waits until `key` is there. DDP_ERR_TIMEOUT, if it is not within timeout_ms (at least 1), ends nothing. */
	ddp_status (*wait)(void *user, const char *key, int timeout_ms);
	uint64_t reserved[4];
} ddp_store;

typedef struct ddp_options {
	size_t size;              /* sizeof(ddp_options) */
	int timeout_ms;           /* limit of wire-up and of each collective, above 0. Default DDP_AUTO:
	                             DDP_TIMEOUT of the environment (in seconds), otherwise 300000 */
	const char *wireup;       /* how ranks meet: "pmix"; "tcp"; "file:///PATH", a file that all ranks reach, which
	                             the first one makes and the last one removes; NULL: PMIx if there is a
	                             server, otherwise TCP */
	const char *metrics_path; /* rank 0 writes JSON lines; NULL: none. If a resumed run repeats a
	                             step, the later line counts */
	const char *trace_dir;    /* one Chrome trace per rank; NULL: DDP_TRACE_DIR of the environment,
	                             otherwise none */
	const char *device;       /* for DDP_MEMORY_DEVICE: "cuda" or "cuda:1"; without an index,
	                             DDP_LOCAL_DEVICE of the environment, otherwise 0. NULL: none */
	int max_ctas;             /* most thread blocks that NCCL may occupy on a GPU; 0: NCCL decides.
	                             NCCL_MAX_CTAS of the environment wins */
	const ddp_job *job;       /* who this process is, as the program says; NULL: found out. It needs rank
	                             and world_size. local_rank with local_world_size, and node_rank with
	                             nnodes, are found out if both are 0. hostname, pid, plugin and the
	                             sources are ignored. No variable that says who a process is is read */
	const ddp_store *store;   /* where ranks meet, in place of `wireup`; NULL: none */
} ddp_options;
#define DDP_OPTIONS_FIELDS sizeof(ddp_options), DDP_AUTO, NULL, NULL, NULL, NULL, 0, NULL, NULL
#define DDP_OPTIONS { DDP_OPTIONS_FIELDS }

/*
 * Derives the identity of this process, connects the ranks, and opens the communicator of the world.
 * Collective.
 */
DDP_API ddp_status ddp_init(const ddp_options *options, ddp_context **context);

/*
 * Closes the context. Models and loaders must have been freed before. Collective: it waits until all
 * ranks have called it, at most for timeout_ms. If one rank has longer work to do, such as writing a
 * result, let it do that after this call.
 *
 * DDP_ERR_TIMEOUT: a rank does not come. DDP_ERR_PEER: a rank has died or still issues an operation.
 * The sentence names the rank. A failure of the world that no call has returned yet, such as one
 * during ddp_model_free(), is returned here. If a call has returned the failure, ddp_finalize() waits
 * for nobody and returns DDP_OK. It releases everything whatever it returns.
 */
DDP_API ddp_status ddp_finalize(ddp_context *context);

/* The job and the communicator of all ranks. The context owns them. */
DDP_API const ddp_job *ddp_get_job(const ddp_context *context);
DDP_API ddp_comm *ddp_world(ddp_context *context);

struct ddp_step_stats; /* step.h */

typedef enum ddp_phase {
	DDP_PHASE_IDLE, DDP_PHASE_DATA, DDP_PHASE_FORWARD, DDP_PHASE_BACKWARD,
	DDP_PHASE_WAIT, DDP_PHASE_OPTIMIZER, DDP_PHASE_CHECKPOINT, DDP_PHASE_EVAL
} ddp_phase;

/*
 * Says what this rank does now, in a program without a ddp_model (which has ddp_model_set_phase()). It feeds the
 * failure report, stall=, ddp-status and the trace.
 */
DDP_API void ddp_context_set_phase(ddp_context *context, ddp_phase phase);

/* Step `step` (from 1) begins. The training ends with step `last`; 0: that is not known. For a program without a
   model, whose ddp_model_step() does this. */
DDP_API ddp_status ddp_context_begin_step(ddp_context *context, int64_t step, int64_t last);

/* The step has ended: writes a line of metrics on rank 0, and its part of the trace. Of `stats`, the rate of steps and
   samples that ddp-status shows comes from `seconds` and `weight`; what is left 0 is 0 in the metrics. */
DDP_API ddp_status ddp_context_end_step(ddp_context *context, const struct ddp_step_stats *stats);

/*
 * This rank is about to leave by an error of its own, such as an exception. All operations of the world under way end
 * with DDP_ERR_ABORTED, here and on the other ranks, whose sentence has this rank and `reason`. So has the failure
 * report, also if the task then exits with code 0. ddp_finalize() afterwards waits for nobody. Any thread.
 */
DDP_API ddp_status ddp_context_fail(ddp_context *context, const char *reason);

/*
 * A queue for programs that compute with the kernels of slurm-ddp (<ddp/kernels.h>;
 * `pkg-config --libs libddpkernels`). It works on `stream`, a queue of the context's device (NULL: the
 * device's default queue), in order with the other work there. One thread at a time uses it, by
 * dk_use(). `version` is DK_TABLE_VERSION of the program's <ddp/table.h>. `type` is a dk_type:
 * DK_F32; DK_TF32, which is f32 with matrix products that a GPU rounds to TF32; or DK_MIXED, for
 * parameters in bf16. If the context's device has no memory of its own and the type is f32, *queue
 * is NULL, which means the host. Close the queue before the context.
 * DDP_ERR_UNSUPPORTED: the device's kernels are missing or have another version.
 */
struct dk_queue;
DDP_API ddp_status ddp_kernels_open(ddp_context *context, int version, int type, void *stream,
                                    struct dk_queue **queue);
/* Waits for the queue's work, and closes it. */
DDP_API void ddp_kernels_close(struct dk_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
