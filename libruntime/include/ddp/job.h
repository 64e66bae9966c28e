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

typedef struct ddp_options {
	size_t size;              /* sizeof(ddp_options) */
	int timeout_ms;           /* limit of wire-up and of each collective; 0: DDP_TIMEOUT of the
	                             environment (in seconds), otherwise 300000 */
	const char *wireup;       /* "pmix" or "tcp"; NULL: PMIx if there is a server, otherwise TCP */
	const char *metrics_path; /* rank 0 writes JSON lines; NULL: none. If a resumed run repeats a
	                             step, the later line counts */
	const char *trace_dir;    /* one Chrome trace per rank; NULL: DDP_TRACE_DIR of the environment,
	                             otherwise none */
	const char *device;       /* for DDP_MEMORY_DEVICE: "cuda" or "cuda:1"; without an index,
	                             DDP_LOCAL_DEVICE of the environment, otherwise 0. NULL: none */
	int max_ctas;             /* most thread blocks that NCCL may occupy on a GPU; 0: NCCL decides.
	                             NCCL_MAX_CTAS of the environment wins */
} ddp_options;

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
