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
	DDP_SOURCE_SINGLE       /* nothing around: a world of one */
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
 * Writes `job` as one line of JSON into `text` (at most `bytes`, always
 * terminated). DDP_ERR_INVALID if it does not fit; 2048 bytes always do.
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
 * Forks `ranks` local ranks (1 .. 1024). Returns in each child at once with
 * result->is_rank set, and in the parent once all children have ended. After
 * the first child's failure the others get SIGTERM, then SIGKILL. SIGINT and
 * SIGTERM to the parent are passed on. Call it before starting threads.
 */
DDP_API ddp_status ddp_spawn(int ranks, ddp_spawn_result *result);

/* ---- context -------------------------------------------------------------
 *
 * Files and folders. Each one that a run writes (checkpoints, metrics, traces) follows the same
 * rules:
 * - Its folder is made if need be, with those above it.
 * - A relative name counts from the folder in which the process is when it gives the name.
 * - A run that begins with step 1 keeps what an earlier run left: metrics as PATH.1, PATH.2, ...,
 *   traces as rank-N.json.1, ..., checkpoints of later steps as step-N.safetensors.aside. A
 *   checkpoint of the same step is replaced, and those of earlier steps count among the
 *   checkpoints that are kept.
 *   A run that is resumed goes on: it appends to metrics and traces, and saves beside the
 *   checkpoints before. A run that ends before its first step appends to the
 *   trace.
 * - What cannot be written to is DDP_ERR_IO at once: a pipe without a reader, a socket, a folder.
 *   No write waits for a reader, and none raises SIGPIPE or SIGXFSZ in the program.
 * - Other users who may write to a folder there cannot turn a write to another file. What they have put
 *   there is DDP_ERR_IO, and the message names it:
 *   - in a file's place, a link that is neither this user's nor root's, except one to a descriptor
 *     (/proc/self/fd/N) in a folder to which only its owner may write, as /dev/stdout is;
 *   - in a folder's place, such a link in a folder to which everybody may write, unless the link is
 *     that folder's owner's;
 *   - where everybody may write to the folder, a file or pipe of another user than this one, root and
 *     the folder's owner;
 *   - where others may write to the folder, a file that has another name, too (a hard link).
 *   Checkpoints are written under a new name and renamed, which follows no link.
 * Where the process has closed descriptors 0, 1 or 2, ddp_init() and ddp_spawn() open /dev/null
 * there. Numbers are written and read with a point, and messages are in English,
 * whatever setlocale() was called.
 */

typedef struct ddp_context ddp_context;
typedef struct ddp_comm ddp_comm;

typedef struct ddp_options {
	size_t size;              /* sizeof(ddp_options) */
	int timeout_ms;           /* for wire-up and each collective; 0: DDP_TIMEOUT
	                             (seconds) of the environment, else 300000 */
	const char *wireup;       /* "pmix", "tcp" or NULL: the best there is */
	const char *metrics_path; /* JSON lines, written by rank 0; NULL: none. Of a step told twice,
	                           * by a resumed run, the later line counts */
	const char *trace_dir;    /* one Chrome trace per rank; NULL: DDP_TRACE_DIR
	                             of the environment, else none */
	const char *device;       /* of DDP_MEMORY_DEVICE: "cuda", "cuda:1" (without an index
	                             DDP_LOCAL_DEVICE of the environment, else 0); NULL: none */
	int max_ctas;             /* of a GPU's multiprocessors, how many blocks NCCL may take;
	                             0: as NCCL likes. NCCL_MAX_CTAS of the environment is stronger */
} ddp_options;

/*
 * Finds out who this process is, wires the ranks up and opens the world
 * communicator. Collective: all ranks must call it. options may be NULL.
 */
DDP_API ddp_status ddp_init(const ddp_options *options, ddp_context **context);

/*
 * Closes everything that belongs to the context; models and loaders must have
 * been freed before. Collective: it waits until all ranks have called it, or for the timeout of
 * ddp_options. What a rank does alone for longer, such as writing a result, belongs behind this call.
 * A rank that does not come is DDP_ERR_TIMEOUT, one that has died or that still issues an operation
 * DDP_ERR_PEER, and the sentence names it. A failure of the world that no call has returned yet,
 * such as one that ddp_model_free() has met, is returned as well. After an error that a call has
 * returned it waits for nobody, and returns DDP_OK. Everything is released whatever it returns.
 * NULL is allowed.
 */
DDP_API ddp_status ddp_finalize(ddp_context *context);

/* Owned by the context. */
DDP_API const ddp_job *ddp_get_job(const ddp_context *context);
DDP_API ddp_comm *ddp_world(ddp_context *context);

/*
 * For programs that compute with the kernels of slurm-ddp (<ddp/kernels.h>, and what
 * `pkg-config --libs libddpkernels` says): a queue of theirs on `stream`, a queue of the
 * context's device (NULL: its default one), for dk_use() of one thread at a time. What they
 * enqueue is in order with the stream's other work.
 * `type` is a dk_type: DK_F32; DK_TF32, which is f32, too, with matrix products that a GPU
 * rounds to TF32; DK_MIXED, for parameters in bf16 (bf16_params). *queue is NULL, which means the
 * host, if the context has no device with memory of its own and the type is f32. `version` is
 * DK_TABLE_VERSION of the program's <ddp/table.h>. Close it before the context.
 * DDP_ERR_UNSUPPORTED: what runs the kernels there is missing, or another version's.
 */
struct dk_queue;
DDP_API ddp_status ddp_kernels_open(ddp_context *context, int version, int type, void *stream,
                                    struct dk_queue **queue);
/* Waits for its work. NULL is allowed. */
DDP_API void ddp_kernels_close(struct dk_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
