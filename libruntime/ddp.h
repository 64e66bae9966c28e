/*
 * ddp.h - data-parallel training across processes and nodes.
 *
 * A program calls ddp_init(), registers its parameters in a ddp_model, and
 * then, per step, computes gradients into the arena that the model gives it,
 * says ddp_grad_ready() for each parameter as backward produces it, and ends
 * the step with ddp_step(). On one node, each rank then sums and updates a
 * part for all; between nodes, gradient buckets are all-reduced while backward
 * still runs (Li et al., "PyTorch Distributed: Experiences on Accelerating
 * Data Parallel Training", VLDB 2020), and the ranks of each node share out the
 * update.
 *
 * Conventions
 *  - Every function that can fail returns a ddp_status. On anything but
 *    DDP_OK, ddp_last_error() gives a full sentence for the calling thread.
 *  - The library never exits the process and never prints; messages go to
 *    the callback of ddp_set_log(), which is unset at first.
 *  - Options structures begin with their size: .size = sizeof(options). So programs
 *    go on working with later releases, whose structures are longer; one that sets an
 *    option which this release does not know gets DDP_ERR_INVALID, and so does one that
 *    sets no size. Zero in any other field means its default, and DDP_ZERO is 0 itself
 *    where that is another number. Options structures are copied; their strings need to
 *    live for the call only.
 *  - Other structures that programs make room for end with `reserved` words, which are for
 *    fields of later releases; but ddp_image_shape and ddp_bucket_hook stay as they are. What
 *    the library fills in has zeros there. Where the program fills a structure in they must be
 *    0, as all that is left out of { .field = value } is: else DDP_ERR_INVALID.
 *  - NULL for what a function needs (a context, communicator, model, loader, request, path, a
 *    place for a result) is DDP_ERR_INVALID where a status is returned; it does nothing in void
 *    functions; others give NULL or 0 (ddp_comm_rank() -1, ddp_loss_scale() 1, ddp_schedule_rate()
 *    NaN). What may be NULL is said: options (all their defaults), stats, what is freed.
 *  - Output pointers are written on success only, unless said otherwise.
 *  - Times are in the unit that the name ends in (_ms, _ns, _seconds); sizes
 *    are in bytes where the name says bytes, else in elements.
 *  - Threads: a ddp_context, ddp_model or ddp_loader is used by one thread at
 *    a time. Collectives of one communicator are issued from one thread at a
 *    time, in the same order on all ranks; other threads may send and receive
 *    beside them. ddp_comm_abort(), ddp_set_log() and ddp_last_error() may be
 *    called from any thread at any time.
 */
#ifndef DDP_H
#define DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_API __attribute__((visibility("default")))

/* 0 in an option of floating point whose 0 means a default that is not 0. */
#define DDP_ZERO 1e-300

/* ---- status, errors, log ------------------------------------------------ */

typedef enum ddp_status {
	DDP_OK = 0,
	DDP_ERR_INVALID,     /* an argument or option is wrong */
	DDP_ERR_STATE,       /* a call out of order */
	DDP_ERR_NOMEM,       /* memory, shared memory or descriptors ran out */
	DDP_ERR_IO,          /* a system call or a file operation failed */
	DDP_ERR_FORMAT,      /* a file is not what it should be, or cut short */
	DDP_ERR_JOB,         /* who-am-I could not be derived, or ranks disagree on it */
	DDP_ERR_AUTH,        /* a peer does not hold the step's key */
	DDP_ERR_TIMEOUT,     /* a deadline passed */
	DDP_ERR_PEER,        /* a peer died or cannot be reached */
	DDP_ERR_MISMATCH,    /* ranks issued different collectives */
	DDP_ERR_ABORTED,     /* ddp_comm_abort() was called, here or on a peer */
	DDP_ERR_UNSUPPORTED, /* not in this build or not for these arguments */
	DDP_ERR_NOT_FINITE,  /* a loss, gradient or tensor holds an infinity or a NaN */
	DDP_ERR_INTERNAL     /* a bug in the library */
} ddp_status;

/* The name of a status, such as "DDP_ERR_TIMEOUT". Never NULL. */
DDP_API const char *ddp_status_name(ddp_status status);

/*
 * The calling thread's last error, a full sentence that names the thing, the
 * reason and what to do. Valid until the thread's next failing call; "" if
 * there was none.
 */
DDP_API const char *ddp_last_error(void);

/*
 * Whether another rank tells the user of the calling thread's last error, so that this rank need
 * not. If all ranks have the error in the same words, one rank has false: rank 0, or rank 1 where
 * rank 0 is the one that failed. For DDP_ERR_PEER and DDP_ERR_TIMEOUT one rank of each node has
 * false, as other nodes may be lost. A rank also has true if it only heard that another rank failed,
 * whose own error says why. A rank that has true should not be the first to exit, because launchers
 * then end the others.
 */
DDP_API bool ddp_last_error_is_told(void);

/*
 * For a callback of the program that fails: a read() of a dataset, a ddp_batch_fn, an on_step, a
 * hook. It gives the reason, as printf() does, in up to 1023 bytes, and returns the status that
 * all ranks are to get, such as DDP_ERR_IO; the library puts in front what failed, where and on
 * which rank. Without a reason the error says that there was none; after a failed call of libddp
 * there is one already. DDP_OK is success, as everywhere.
 */
DDP_API void ddp_set_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

typedef enum ddp_log_level {
	DDP_LOG_ERROR = 1,
	DDP_LOG_WARN,
	DDP_LOG_INFO,
	DDP_LOG_DEBUG
} ddp_log_level;

/* Called with one line, without a newline; may be called from any thread. */
typedef void (*ddp_log_fn)(void *user, ddp_log_level level, const char *message);

/* Sets the callback (NULL: none) for messages at `level` and more urgent. */
DDP_API void ddp_set_log(ddp_log_fn fn, void *user, ddp_log_level level);

/* A ready callback: writes "ddp: message" to stderr. `user` is ignored. */
DDP_API void ddp_log_stderr(void *user, ddp_log_level level, const char *message);

/* The library's version, such as "0.2.0". */
DDP_API const char *ddp_version(void);

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
 * ---- communicator ---------------------------------------------------------
 *
 * An operation that ends with an error of its communicator (DDP_ERR_PEER,
 * _TIMEOUT, _ABORTED, _MISMATCH, ...) has let go of its buffers: neither the
 * library nor the network touches them any more when the call, or ddp_wait(),
 * returns. To that end a peer of another node that does not come to rest
 * within 0.8 s loses its connection (a rank that is stopped in the middle of a
 * message may be such a peer). If it belongs to other communicators of the process
 * that work, which use the same connection and would lose it, too, it has as long as
 * these would wait for it: their timeout. Else, what ends one
 * communicator leaves the others as they are. What a buffer then holds is not
 * defined; and memory of ddp_mem_alloc() may still be written by a rank of the same
 * node that has not seen the failure yet.
 *
 * A process that forks: the child must not use the library, and does not keep
 * the network's TCP connections open, so that the death of its parent is seen.
 */

typedef enum ddp_type {
	DDP_F32, DDP_F64, DDP_F16, DDP_BF16, DDP_I32, DDP_I64, DDP_U8, DDP_I8,
	DDP_BOOL /* one byte, 0 or 1 */
} ddp_type;

/*
 * 16-bit types accumulate in f32 and round to nearest once, u8 and i8 in i32, cut once.
 * Sums and products of integers wrap around; AVG divides the sum, and truncates.
 * MIN and MAX of floats are IEEE 754's minimum and maximum: a NaN of any rank makes
 * the result a NaN, and -0 is less than +0. BAND, BOR and BXOR combine the bits of integers and of
 * bool, without a scale. A bool is summed, and has its maximum, as by BOR, multiplied, and its
 * minimum, as by BAND; it has no AVG and no scale.
 *
 * Between nodes 16-bit types travel in their own width. If a node has several ranks,
 * or a scale, its sum or product is rounded for that; the nodes' are accumulated in
 * f32, and the result is rounded. So a sum may be off by half a unit in the last place
 * of each node's sum and of its own: of random numbers, 1.5 times as much as if it were
 * rounded at the end alone. In f16 a node's sum or product beyond 65504 is infinite,
 * whatever other nodes add. A mean does not leave the range on its way: nodes' sums are
 * divided first, by a power of two that is at least the largest node's size. MIN, MAX,
 * and one rank on each node without a scale lose nothing.
 *
 * Nodes' sums and products of u8 and i8 travel as these. But what several nodes have combined travels
 * as f32 (of u8 and i8, as i32), or it would be rounded on its way, and bits would depend on the
 * algorithm. Two algorithms send such values; more than two nodes take them where messages
 * are expected to cost more than bytes: recursive halving until values are complete, so an
 * all_reduce of 16-bit types sends 3/4 of f32's bytes, not half (u8: 5/8, not a quarter), and
 * a reduce_scatter up to all of them; recursive doubling, for at most 8 KiB, always.
 *
 * NCCL, on a GPU, does otherwise. 16-bit types are rounded after each addition, and u8 is
 * combined in u8, as i8 is in i8. AVG of floats sums inputs that were multiplied by 1/ranks, rounded to their
 * type: exact if the ranks are a power of two, else off by up to 0.2% in bf16, 0.03% in f16,
 * 6e-8 in f32. MIN and MAX pass over a NaN where another rank has a number, and take +0 and -0
 * for equal. What it cannot do is DDP_ERR_UNSUPPORTED: AVG of u8 and i8;
 * BAND, BOR and BXOR of integers, and BXOR of bool;
 * a scale with other ops than SUM, and AVG of floats; one that is not a number of
 * the type (with AVG: scale/ranks), but for f32 and f64. There, all ranks give a scale or
 * none does. Bits are the same on all ranks, but not those of the host.
 */
typedef enum ddp_op { DDP_SUM, DDP_AVG, DDP_PROD, DDP_MIN, DDP_MAX, DDP_BAND, DDP_BOR, DDP_BXOR } ddp_op;

typedef enum ddp_kind {
	DDP_ALL_REDUCE,     /* send [count] -> recv [count] on all */
	DDP_REDUCE,         /* send [count] -> recv [count] on root */
	DDP_BROADCAST,      /* recv [count], in place, from root */
	DDP_REDUCE_SCATTER, /* send [size * count] -> recv [count]; v: counts */
	DDP_ALL_GATHER,     /* send [count] -> recv [size * count]; v: counts */
	DDP_GATHER,         /* send [count] -> recv [size * count] on root; v: counts */
	DDP_SCATTER,        /* send [size * count] on root -> recv [count]; v: counts */
	DDP_ALL_TO_ALL,     /* send [size * count] -> recv [size * count];
	                       v: counts (sent) and recv_counts */
	DDP_SEND,           /* send [count] to root; may end only when root has asked for it */
	DDP_RECV,           /* recv [count] from root */
	DDP_BARRIER
} ddp_kind;

/* Where an operation's buffers lie: in the host's memory, or in that of the device
   of ddp_options. */
typedef enum ddp_memory { DDP_MEMORY_HOST = 0, DDP_MEMORY_DEVICE } ddp_memory;

/*
 * Operations of one communicator wait for each other only within a lane, so that a small
 * one need not wait behind 25 MiB. All ranks issue a lane's collectives in the same order;
 * a send and its recv give the same lane. The first operation of a lane (but 0) on a
 * communicator opens it: that is an operation of lane 0, too, and of all ranks, it waits
 * for them, and a callback must not be the one to issue it.
 */
enum { DDP_LANES = 4 };

/*
 * One operation. `send` NULL means in place: this rank's input lies in `recv`. Where MPI
 * (MPI_IN_PLACE) or NCCL has it, `send` may also point there:
 *  - all_reduce, reduce (root), all_to_all: `send` is `recv`;
 *  - all_gather, gather (root): `send` is this rank's block of `recv`;
 *  - reduce_scatter, scatter (root): the input begins at `recv`, and so does the result; or `recv`
 *    is this rank's block of `send`.
 * In all other cases a rank's input and output must not overlap. If they do, the rank gets
 * DDP_ERR_INVALID, which ends the communicator on all ranks, since one rank alone may have made
 * the mistake.
 *
 * All ranks issue the same operation: kind, type, op, count or counts, root. If a rank does not, all
 * ranks get DDP_ERR_MISMATCH in the same words, which name the rank whose operation is not that of
 * most ranks. Between nodes a rank may have ended the operation with DDP_OK by then, such as each of
 * two ranks that take themselves for a broadcast's root: to hear of all others would cost each
 * operation the time of a further message. Such a rank gets the error from one of its next calls.
 *
 * The v-forms give `counts` (one per rank, the same on all ranks; for all-to-all: what this rank
 * sends to each) and leave `count` 0; blocks lie one behind the other without gaps. A count of 0
 * is allowed. The v-form of all-to-all does not work in place.
 */
typedef struct ddp_collective {
	ddp_kind kind;
	const void *send;
	void *recv;
	size_t count;
	const size_t *counts;
	const size_t *recv_counts;
	ddp_type type;
	ddp_op op;
	int root;     /* or the peer of send and recv */
	int tag;      /* of send and recv; 0 .. 65535 */
	bool scaled;  /* this rank's inputs are multiplied by `scale` before a reduction;
	                 0 is a scale, too. Integers are multiplied in double, truncated,
	                 and held within their type's range (u8: i32's); it is finite,
	                 then. */
	double scale; /* 0 unless `scaled` */
	int lane;     /* 0 .. DDP_LANES - 1 */
	ddp_memory memory; /* of `send` and `recv` */
	void *stream; /* memory of a device: a queue of it, such as a cudaStream_t; NULL: its
	                 default one. The operation begins when all is done that the queue holds
	                 as it is issued; ddp_wait_on() has a queue wait for its end. */
	/*
	 * Of ddp_issue(), may be NULL: called exactly once, when the operation is complete
	 * or has failed; ddp_last_error() is then the reason. It is called on a thread of
	 * the library, or on the one that closes the communicator, and has returned before
	 * ddp_wait() does and before ddp_test() says done. It may issue further operations,
	 * and should be short: operations behind this one may wait for it. What waits
	 * (ddp_run(), ddp_wait(), ...) is DDP_ERR_STATE in it, and so is ddp_issue() once the
	 * communicator is being closed. That of a send or recv is called also while a
	 * collective of its communicator runs.
	 */
	void (*on_complete)(void *user, ddp_status status);
	void *user;
	uint64_t reserved[4]; /* 0 */
} ddp_collective;

typedef struct ddp_request ddp_request;

/* Which of the communicator's ranks this process is, 0 .. size - 1, and how many they are. */
DDP_API int ddp_comm_rank(const ddp_comm *comm);
DDP_API int ddp_comm_size(const ddp_comm *comm);

/*
 * Where a communicator's ranks are, and what runs its operations here, for logs and tests. Texts
 * stay as they are for the life of the process; they are never NULL. Local. Any thread.
 */
typedef struct ddp_comm_info {
	int nodes;                  /* that its ranks are on */
	int local_size;             /* its ranks on this node */
	const char *network;        /* between nodes: "ucx"; "" if there is one node */
	const char *algorithm;      /* of the last reduction between nodes: "direct", "scatter_gather",
	                               "recursive_doubling" or "recursive_halving"; "" before one */
	const char *instructions;   /* with which the host combines: "generic", "AVX2", "AVX-512" or
	                               "AVX-512 with FP16" */
	const char *device_backend; /* of operations on a device's memory: "nccl" or "staged"; "" before
	                               the first one of lane 0 */
	uint64_t reserved[4];
} ddp_comm_info;
DDP_API ddp_status ddp_comm_describe(ddp_comm *comm, ddp_comm_info *info);

/*
 * Memory that ranks of one node reach directly: collectives on it take no
 * copy. Collective: all ranks ask for the same number of bytes, in the same
 * order. Zeroed, aligned to a page. Other memory works too, by a staged path.
 * ddp_mem_free() waits for nobody; a rank that frees its part while a rank of
 * its node still gives its own to an operation makes that one fail, on all.
 */
DDP_API ddp_status ddp_mem_alloc(ddp_comm *comm, size_t bytes, void **memory);
DDP_API ddp_status ddp_mem_free(ddp_comm *comm, void *memory);
/* The same of a chosen kind; that of a device is reached by its queues alone. Collective. */
DDP_API ddp_status ddp_mem_alloc_on(ddp_comm *comm, ddp_memory kind, size_t bytes,
                                    void **memory);

/*
 * Starts an operation. It proceeds without further calls, beside the caller's
 * computation. Buffers and counts stay untouched until it is complete. Every
 * request must be ended by ddp_wait(), ddp_wait_for() or a ddp_test() that
 * says done; it is invalid afterwards. With on_complete, `request` may be NULL:
 * the library then ends it itself. An error of ddp_issue() started nothing, and
 * calls nothing.
 */
DDP_API ddp_status ddp_issue(ddp_comm *comm, const ddp_collective *operation,
                             ddp_request **request);
/* *done true: complete, request gone. An error also ends the request. */
DDP_API ddp_status ddp_test(ddp_request *request, bool *done);
/* Waits until complete, or until the communicator's deadline. */
DDP_API ddp_status ddp_wait(ddp_request *request);
/* DDP_ERR_TIMEOUT after timeout_ms; the request is then still valid. */
DDP_API ddp_status ddp_wait_for(ddp_request *request, int timeout_ms);

/*
 * What `stream` is given from now on waits until the operation is complete, which must be
 * one on a device's memory; the host does not wait, but on a GPU for the counterpart of a send
 * or receive to be issued: issue your sends before it, or ranks wait for each other. The
 * request is still to be ended. A queue also goes on after an error, which ddp_wait() tells.
 * May be called for several queues.
 */
DDP_API ddp_status ddp_wait_on(ddp_request *request, void *stream);

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

/* Issue and wait. The operation's own shape is as in ddp_kind above. */
DDP_API ddp_status ddp_run(ddp_comm *comm, const ddp_collective *operation);

/* Each is ddp_run() of the kind of its name, in the host's memory, on lane 0. `count` is as in
   ddp_kind; `send` NULL means in place. Collective, but for send and recv. */
DDP_API ddp_status ddp_all_reduce(ddp_comm *comm, const void *send, void *recv,
                                  size_t count, ddp_type type, ddp_op op);
DDP_API ddp_status ddp_reduce(ddp_comm *comm, const void *send, void *recv,
                              size_t count, ddp_type type, ddp_op op, int root);
DDP_API ddp_status ddp_broadcast(ddp_comm *comm, void *buffer, size_t count,
                                 ddp_type type, int root);
DDP_API ddp_status ddp_reduce_scatter(ddp_comm *comm, const void *send, void *recv,
                                      size_t count, ddp_type type, ddp_op op);
DDP_API ddp_status ddp_all_gather(ddp_comm *comm, const void *send, void *recv,
                                  size_t count, ddp_type type);
DDP_API ddp_status ddp_gather(ddp_comm *comm, const void *send, void *recv,
                              size_t count, ddp_type type, int root);
DDP_API ddp_status ddp_scatter(ddp_comm *comm, const void *send, void *recv,
                               size_t count, ddp_type type, int root);
DDP_API ddp_status ddp_all_to_all(ddp_comm *comm, const void *send, void *recv,
                                  size_t count, ddp_type type);
DDP_API ddp_status ddp_send(ddp_comm *comm, const void *buffer, size_t count,
                            ddp_type type, int peer, int tag);
DDP_API ddp_status ddp_recv(ddp_comm *comm, void *buffer, size_t count,
                            ddp_type type, int peer, int tag);
DDP_API ddp_status ddp_barrier(ddp_comm *comm);

/*
 * Splits `comm`: ranks that give the same colour form a new communicator,
 * ordered by key, then by rank. colour < 0: none (*part is NULL). Collective.
 * Errors name ranks by their numbers in the world. Roots and peers, which the program gives, are ranks of the
 * communicator, also in the text of an operation.
 * A rank's part of a new one takes less than 1 MiB. It keeps what its operations needed: on
 * memory that is not of ddp_mem_alloc(), up to 1 MiB, over several nodes 16 MiB, and
 * reductions between nodes up to 32 MiB more; of 8 MiB, 0.3 and 10 MiB were measured.
 */
DDP_API ddp_status ddp_comm_split(ddp_comm *comm, int colour, int key, ddp_comm **part);
/* The same by a list of `count` ranks of `comm`; collective over all of
   `comm`; *part is NULL on a rank that is not listed. */
DDP_API ddp_status ddp_comm_group(ddp_comm *comm, const int *ranks, int count,
                                  ddp_comm **part);
/*
 * After any error that broke `comm`: a communicator of the ranks that are left,
 * in the old order. Collective over them. Ranks that have died or closed the
 * communicator do not count; others are waited for as long as a collective is,
 * and are left out then: if they come later, they get DDP_ERR_PEER. A rank takes up
 * to half that time to come if a message between it and one that does not answer was
 * under way: other communicators are not to lose that one. A message that moves, but slowly,
 * is cut off after half that time, too: then the rank at its other end, though alive, is lost
 * to all communicators.
 * One without descriptors for the connections that it needs, though libddp has raised its
 * soft limit of them up to the hard one (RLIMIT_NOFILE), gets DDP_ERR_NOMEM, and the others go
 * on without it.
 *
 * All ranks that succeed have the same members, also if one dies during the
 * call: then they begin again without it, or it is still a member, and the
 * first collective fails with DDP_ERR_PEER; shrink the new one. If more die at
 * once between nodes, some may fail while others succeed; what these then have
 * breaks as soon as it is used. Ranks that cannot reach each other any more,
 * but are alive, are dead to each other: each side may form its own.
 *
 * Any other error (of memory, say) is one on all ranks, and leaves `comm` as it
 * was: the call may be repeated.
 */
DDP_API ddp_status ddp_comm_shrink(ddp_comm *comm, ddp_comm **survivors);
/* Ends every operation under way, here and on all peers, with
   DDP_ERR_ABORTED and `reason`. Any thread. */
DDP_API ddp_status ddp_comm_abort(ddp_comm *comm, const char *reason);
/* Frees a communicator made by split, group or shrink. NULL is allowed. Waits
   for collectives that were issued and, between nodes, for all its ranks to
   free it; a send or recv that has not met its counterpart ends with
   DDP_ERR_STATE, a send between nodes perhaps with DDP_OK; on one node with
   DDP_ERR_PEER if the rank that it waits for frees the communicator before.
   Where NCCL has run operations, it always waits for all ranks, and messages
   that have met theirs end first. A rank that does not come, or has died, is an error as in
   ddp_finalize(); the communicator is freed nevertheless. */
DDP_API ddp_status ddp_comm_free(ddp_comm *comm);

/* ---- model: parameters, gradients, optimizer ------------------------------ */

#define DDP_MAX_DIMS 8

typedef struct ddp_model ddp_model;

/*
 * What a tensor is to training. Only what is trained has a gradient: the others cost no
 * memory for gradients, no traffic of theirs and no optimizer's state, but all are broadcast by
 * ddp_broadcast_params() and saved in checkpoints, as rank 0 has them.
 *
 * A buffer is what forward itself writes, such as the running statistics of a batch
 * norm. PyTorch broadcasts those of rank 0 as the next step's first forward begins
 * (broadcast_buffers); here the step before ends with it, and so they are also the same
 * on all ranks between steps: ddp_step(), or ddp_reduce_grads(), broadcasts them, or
 * averages them, over all ranks that take part. A step that is refused
 * (DDP_ERR_NOT_FINITE, say) does not, and leaves in them what its forward wrote, as PyTorch
 * does: a running mean that became a NaN stays one. So, as long as other ranks' buffers are
 * finite, a rank with one that is not does not count, and gets the others' in the next step.
 */
typedef enum ddp_param_kind {
	DDP_PARAM_TRAINED = 0,
	DDP_PARAM_FROZEN,      /* does not change */
	DDP_BUFFER_BROADCAST,  /* rank 0's counts */
	DDP_BUFFER_MEAN,       /* the mean of all ranks' */
	DDP_BUFFER_LOCAL       /* each rank has its own (broadcast_buffers=False) */
} ddp_param_kind;

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
	int64_t sparse_rows;         /* of a matrix: most rows that ddp_grad_rows() adds
	                                to it on a rank in a step; 0: it is not used */
	bool rows_only;              /* its gradient has no other part, so that the rest, which
	                                is 0, need not travel: an embedding by itself */
	ddp_param_kind kind;
	const ddp_param_group *group; /* NULL: as the model's options are. Copied. */
	uint64_t reserved[4];        /* 0 */
} ddp_param;

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
 * the same cores. ddp_grad_ready() then starts nothing, the sum counts as
 * optimizer_seconds, and exposed_seconds are those in which ranks waited for slower ones.
 * Over several nodes 4 + 12/N: buckets are reduce-scattered while backward runs, and the
 * new parameters are all-gathered, as many bytes as an all-reduce together.
 *
 * DDP_SHARD_GRADIENTS: 12/N, and the gradients that are not reduced yet; with sync off
 * (ddp_set_sync()) that is all. What is reduced goes back to the system while backward
 * runs, and comes as zero again when it is written, which costs page faults; ranks of a
 * node do not share gradients, so that reducing takes a copy.
 *
 * DDP_SHARD_AUTO is DDP_SHARD_STATE on one node. Over several nodes of which one at least has
 * several ranks, buckets are all-reduced as with NONE, and the ranks of each node share
 * out the update and the optimizer's state: 4 + 8/L, if the node with the fewest has L. Each
 * node has all of that state.
 * With one rank a node it is DDP_SHARD_NONE.
 *
 * In one world all give the same bits, if no rows travel by themselves (ddp_grad_rows()).
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
 * one that would not fit. Rows (ddp_grad_rows()) travel in f32.
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
 * when a bucket is complete, from ddp_grad_ready() or at the end of the step, and should
 * issue what it can and return; finish() waits for that, at the end of the step. Both are
 * called for the buckets in their order, on all ranks alike, so that they may use
 * collectives; on all ranks the sums must come out the same. Gradients are multiplied by
 * ddp_loss_scale(), which may change from step to step: what a hook keeps for a later step,
 * it divides by that. An error is the model's last; ddp_set_error() says why.
 * Of a model on a device, the bucket is complete when its stream has come to start(), which
 * issues its operations with that stream, and does not wait; finish() has the stream wait for
 * them (ddp_wait_on()), so that the sums are there when it comes so far, and may then wait itself,
 * to end its requests.
 * After another error that is the model's last (see ddp_step()), finish() is not called any more:
 * the program itself ends what start() has begun before it calls ddp_model_free(). Freeing a
 * model in the middle of a step without an error breaks the world, and calls finish().
 */
typedef struct ddp_bucket_hook {
	ddp_status (*start)(void *user, const ddp_grad_bucket *bucket);
	ddp_status (*finish)(void *user, const ddp_grad_bucket *bucket);
	void *user;
} ddp_bucket_hook;

/*
 * Of what ddp_step() is given the gradients and the loss, and what their sum over all ranks
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
 * announced by ddp_grad_ready() or given rows.
 *
 * DDP_UNUSED_ZERO: its gradient is what its memory holds, 0 if nobody has written it; decay
 * and momentum move it on. Announcing only says when a gradient is complete.
 *
 * DDP_UNUSED_SKIP: it stays as it is, and so does its part of the optimizer's state (PyTorch's
 * find_unused_parameters=True). If other ranks have announced it, this rank adds 0 to
 * their gradients. What is used in any micro-batch of a step is announced in it, also
 * with sync off. ddp_grad_unused() says early that a parameter will not come.
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

/*
 * What the program multiplies its loss by before backward (ddp_loss_scale()), so that gradients
 * that it computes in fp16 do not vanish; the update divides by it (Micikevicius et al., "Mixed
 * Precision Training", ICLR 2018). A scale is a power of two, so that results are those without
 * it, to the bit, as long as no gradient vanishes or overflows.
 *
 * DDP_SCALING_DYNAMIC: as PyTorch's GradScaler. A step whose loss or gradients are not finite is
 * skipped on all ranks: ddp_step() returns DDP_OK and says so in stats->skipped, has updated
 * nothing and counted no step, and the scale is halved; stats->loss and grad_norm are NaN. With
 * a scale of 1, which could not be lowered any more, it is DDP_ERR_NOT_FINITE. After loss_scale_interval steps that were not skipped the scale is
 * doubled. Checkpoints hold it. Buffers are those of a step that is refused (see
 * ddp_param_kind).
 *
 * DDP_SCALING_FIXED: the scale stays.
 */
typedef enum ddp_scaling {
	DDP_SCALING_NONE = 0,
	DDP_SCALING_DYNAMIC,
	DDP_SCALING_FIXED
} ddp_scaling;

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
	                           parameters are averaged; 0: not. See ddp_average_params() */
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
	bool bf16_params;       /* keep the parameters in bf16, too: see ddp_param_bf16() */
	bool late_gather;       /* return from a step before the new parameters of other ranks' shards
	                           have come: see ddp_param_wait(). No effect where each rank
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
 * that all ranks have taken part in (see ddp_join()). The cut changes no sum's order: parameters
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
 * What differs: the host cannot reach what ddp_param_data() and ddp_param_grad() return. The
 * calls below work on `stream`, behind what it holds when they are called, and before what it
 * is given afterwards: so ddp_grad_ready() means that the gradient is complete when the
 * stream has come so far, and the host goes on. The end of a step waits for the backward
 * pass, since ranks have to agree on it, and for its sums of squares. DDP_SHARD_AUTO is
 * DDP_SHARD_NONE; DDP_SHARD_STATE goes the way that it has over several nodes, and with
 * DDP_SHARD_GRADIENTS no gradients go back to the system: on a device both take 8 + 12/N bytes
 * with the parameter's own 4. After ddp_param_wait() what the stream is given waits, and not the
 * host. Of DDP_COMPRESS_POWERSGD's two factors, the first is sent beside the backward pass, the
 * second behind it; a GPU sums the products of matrices in an order of its own. Indices of
 * ddp_grad_rows() are not checked, and they and the values are the device's, too, and are left
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
 * them lies then what ddp_param_data() and ddp_param_grad() return: parameters may be views of
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
   ddp_step(); backward adds to them. */
DDP_API float *ddp_param_data(ddp_model *model, int param);
DDP_API float *ddp_param_grad(ddp_model *model, int param);
DDP_API int64_t ddp_param_count(const ddp_model *model, int param); /* elements */

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
DDP_API ddp_status ddp_param_wait(ddp_model *model, int param);

/* Of a model on a device: a number in its memory, 0 at the start of each step, which ddp_step()
   adds to loss_sum. A program's kernels add their losses to it, not multiplied by
   ddp_loss_scale(), and nobody waits for each of them. NULL on the host. */
DDP_API double *ddp_device_loss(ddp_model *model);
/*
 * The parameter, trained or frozen, in bf16, for forward and backward: what
 * ddp_param_data() holds, in f32, is then the master copy, which updates change and
 * checkpoints keep. It is rounded, to the nearest, by ddp_broadcast_params(), each step,
 * and ddp_checkpoint_load(); a first step without one of these gets DDP_ERR_STATE. Valid
 * for the model's life, aligned to 32 bytes; NULL if out of range, of a buffer, which stays
 * f32, and without the option bf16_params. Gradients stay f32 (in what form they travel,
 * ddp_compression says).
 */
DDP_API const uint16_t *ddp_param_bf16(const ddp_model *model, int param);

/* Sends rank 0's tensors, of all kinds, to all. Collective; once, after initialisation: the first
   step, and each checkpoint, ends with DDP_ERR_MISMATCH if a rank's parameters are
   not rank 0's (unless ranks do not communicate). */
DDP_API ddp_status ddp_broadcast_params(ddp_model *model);

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
DDP_API ddp_status ddp_average_params(ddp_model *model);

/*
 * What this rank does now. Feeds the trace, the metrics, the summary and the
 * failure report. The library itself sets WAIT, OPTIMIZER and CHECKPOINT. Of a
 * model on a device it enqueues a timed event: not while a graph is captured.
 */
typedef enum ddp_phase {
	DDP_PHASE_IDLE, DDP_PHASE_DATA, DDP_PHASE_FORWARD, DDP_PHASE_BACKWARD,
	DDP_PHASE_WAIT, DDP_PHASE_OPTIMIZER, DDP_PHASE_CHECKPOINT, DDP_PHASE_EVAL
} ddp_phase;
DDP_API void ddp_set_phase(ddp_model *model, ddp_phase phase);

/*
 * Gradient accumulation: with sync off, ddp_grad_ready() only notes that the
 * parameter is used (needed with DDP_UNUSED_SKIP and DDP_UNUSED_STATIC), and
 * gradients pile up locally (PyTorch's no_sync). Turn it on for the last
 * micro-batch of a step. On at the start of each step.
 */
DDP_API ddp_status ddp_set_sync(ddp_model *model, bool sync);

/*
 * Says that this parameter's gradient is complete for this step. Each
 * parameter once per synchronised backward, in any order; the last one of a
 * bucket starts the bucket's all-reduce.
 */
DDP_API ddp_status ddp_grad_ready(ddp_model *model, int param);

/*
 * Says that this rank has no gradient of this parameter in this step, so that its bucket does
 * not wait for it; in place of ddp_grad_ready(). Unless an earlier micro-batch of the step
 * has announced it, this rank adds 0 (with DDP_UNUSED_ZERO: what its memory holds). Does
 * nothing with sync off. What is not announced until ddp_step() counts as this at its end.
 */
DDP_API ddp_status ddp_grad_unused(ddp_model *model, int param);

/*
 * Has `hook` called with this rank's gradient of a parameter once it is complete, before it is
 * looked at (DDP_ERR_NOT_FINITE) and reduced (PyTorch's register_post_accumulate_grad_hook):
 * to clip its values, add noise, or log it. It may change grad[count], and nothing else of the
 * model, of which it calls no function that changes it. What it gets is the sum over the
 * step's micro-batches on this rank: of summed losses, if the loss is DDP_LOSS_SUM, and times
 * ddp_loss_scale(), by both of which only the step's end divides.
 *
 * Called once a step, by the thread that calls ddp_grad_ready() with sync on, in there; what
 * is not announced until the step's end has it called there, by the thread that ends the step,
 * in any order. Not called for what this rank does not use (DDP_UNUSED_SKIP, _STATIC), nor by
 * ddp_join(). An error ends the step as the model's last, on all ranks; the hook says why by
 * ddp_set_error().
 *
 * Of a model on a device, grad is the device's, and complete when the model's stream has come to
 * what it is given in the call: the hook enqueues there what it does, or has the stream wait for
 * it, and does not wait itself. Kernels that fail there are no error of the hook.
 *
 * Local: each rank may have others, which last until they are replaced; NULL: none any more.
 * DDP_ERR_UNSUPPORTED: the parameter has sparse_rows, so that its gradient is in two parts. To
 * change gradients that are reduced: see ddp_reduce_grads().
 */
typedef ddp_status (*ddp_grad_hook_fn)(void *user, int param, float *grad, int64_t count);
DDP_API ddp_status ddp_grad_hook(ddp_model *model, int param, ddp_grad_hook_fn hook, void *user);

/*
 * Adds values [count, width] to rows index[count] of the gradient of a matrix
 * [rows, width] with sparse_rows > 0; a row may come several times. It is for
 * a gradient with a dense part and a sparse one, such as that of an embedding
 * that is the classifier's weight, too: its ddp_grad_ready() says that the
 * dense part, in ddp_param_grad(), is complete, while rows come until
 * ddp_step(), in any number of calls, also with sync off. The arrays are the
 * caller's again after the call. Local; an error changes nothing.
 *
 * Where gradients travel in buckets, and all ranks' rows are fewer than the
 * matrix's (decided when the model is made), the dense part is reduced early
 * and the rows are gathered at the end of the step and added in the order of
 * ranks, then of calls. Otherwise rows are added to the dense part at once,
 * which is reduced at the end of the step.
 */
DDP_API ddp_status ddp_grad_rows(ddp_model *model, int param, const int32_t *index,
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
	double data_seconds;     /* in phases, see ddp_set_phase(), as the others down to optimizer_seconds */
	double forward_seconds, backward_seconds; /* the device's, of a model on one: its host only enqueues */
	double exposed_seconds;  /* waiting after backward, for communication or slower ranks */
	double communication_seconds; /* from each bucket's start to its end, overlaps counted once */
	double optimizer_seconds;
	bool stop;               /* a rank asked for it: see ddp_request_stop() */
	bool skipped;            /* nothing was updated, and no step counted: see ddp_scaling */
	int active_ranks;        /* that took part in the step, and did not ddp_join() it */
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
 * first step, parameters (ddp_broadcast_params()). DDP_ERR_STATE: see DDP_UNUSED_STATIC, ddp_join().
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
DDP_API ddp_status ddp_step(ddp_model *model, double weight, double loss_sum,
                            ddp_step_stats *stats);

/* What the loss is to be multiplied by before backward: the same on all ranks, until the step's
   end. The loss_sum of ddp_step() is not multiplied, and stats->grad_norm is of the mean
   gradient of that. 1 without loss_scaling. */
DDP_API double ddp_loss_scale(const ddp_model *model);

/*
 * For a rank that has no samples left, while others have (PyTorch's Join): takes part in one
 * step, adds nothing to it, and updates as the others do, which call ddp_step(). Call it
 * again until stats->active_ranks is 0: then all ranks have called it, in the same step,
 * nothing was updated, no step is counted, and all may go on, with the next epoch, say. What
 * has piled up on this rank with sync off is forgotten. Set the learning rate as the others
 * do. What else the others do together, such as a checkpoint, this rank does, too.
 * Buffers are those of the first rank that is active, or the mean of these. Errors are
 * those of ddp_step(); DDP_ERR_STATE, on all ranks: others are in ddp_reduce_grads();
 * DDP_ERR_UNSUPPORTED: the model has local_steps. That, and DDP_ERR_STATE
 * of gradients that are announced, are of this rank alone and change nothing: the others wait
 * for its ddp_step().
 */
DDP_API ddp_status ddp_join(ddp_model *model, ddp_step_stats *stats);

/*
 * ddp_step() in two halves, for programs that look at a step before it counts.
 *
 * ddp_reduce_grads() is all of it but the update: stats tell weight, loss, grad_norm,
 * learning_rate, stop, and step as the number that the step will have. Its errors are
 * those of ddp_step(). With DDP_SHARD_NONE ddp_param_grad() then holds the sums over all
 * ranks, and may be changed, on all ranks alike; grad_norm, by which gradients are
 * clipped, stays what it was. Otherwise sums are with their owners, and what
 * ddp_param_grad() holds is not defined; parameters may change from when another rank
 * calls ddp_update_params(). Sums are multiplied by the loss scale. If
 * stats->skipped, gradients are 0, step is as ddp_step_stats says, and ddp_update_params() only
 * ends the step and forgets what was added to the gradients meanwhile.
 *
 * Then follows, on all ranks alike, either ddp_update_params(), which ends the step with
 * the learning rate that the model had at ddp_reduce_grads(); or ddp_zero_grads(), which
 * forgets its gradients, so that it did not happen: one with a norm far from the
 * others', say. Before the first ddp_grad_ready() with sync on, ddp_zero_grads() is local,
 * and forgets what has piled up. DDP_ERR_STATE: out of order.
 */
DDP_API ddp_status ddp_reduce_grads(ddp_model *model, double weight, double loss_sum,
                                    ddp_step_stats *stats);
DDP_API ddp_status ddp_update_params(ddp_model *model, ddp_step_stats *stats);
DDP_API ddp_status ddp_zero_grads(ddp_model *model);

/*
 * Asks all ranks to stop: a ddp_step() that they are about to end, or the next
 * one, says so in stats->stop, in the same step on all ranks, which then leave
 * their loops together; ddp_train() does. Any thread, and signal handlers.
 */
DDP_API void ddp_request_stop(ddp_model *model);

/* Sets the rate of the steps from now on. Local: all ranks set the same rate. In ddp_train() with
   rates or schedule the rate lasts until the next step begins. */
DDP_API void ddp_set_learning_rate(ddp_model *model, double learning_rate);
/* Linear warm-up to peak over `warmup` steps, then cosine to `floor` at
   `total`. Steps count from 1, as in ddp_step_stats. */
DDP_API double ddp_cosine_schedule(int64_t step, int64_t warmup, int64_t total,
                                   double peak, double floor);

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

/* ---- data ------------------------------------------------------------------ */

/* A source of equally large samples. read() is called from a thread of the loader, from
   several at the same time where the loader has several readers, and by loaders that share
   a dataset: those that are opened below may be, from any thread. It fills in all of `sample`,
   sample_bytes, which may lie at any address, and returns DDP_OK; or another status, with the
   reason by ddp_set_error(), which the batch's ddp_loader_next() then returns. One of your own is
   zero where it is not set. */
typedef struct ddp_dataset {
	int64_t size;        /* samples */
	size_t sample_bytes;
	ddp_status (*read)(void *self, int64_t index, void *sample);
	void (*close)(void *self);
	void *self;
	uint64_t digest;     /* of what the samples hold; 0: not known. Where ranks give others to
	                        ddp_loader_create(), it refuses them */
	uint64_t reserved[4]; /* 0 */
} ddp_dataset;

typedef enum ddp_token_format {
	DDP_TOKENS_BYTES = 0, /* any file: each byte is a token, vocabulary 256 */
	DDP_TOKENS_U16,       /* raw little-endian uint16 */
	DDP_TOKENS_LLMC       /* llm.c .bin: 256 int32 of header (magic 20240520), uint16 */
} ddp_token_format;

/*
 * Opens a token file as samples of length + 1 int32 tokens; sample i starts at
 * token i * length (inputs are the first `length`, targets are shifted by
 * one). If there is no file of that name, `path` may be a pattern of the shell's, such as
 * "shard_*.bin" or "{a,b}.bin": the files that match, each once, are one dataset, in the order
 * of their names, with shard_2 before shard_10, and samples do not go over from one to the next.
 * Each alternative in braces must match.
 * DDP_ERR_FORMAT if a file is cut short, naming the byte, or has fewer than length + 1
 * tokens. [first, last) as fractions of all tokens choose a part: 0, 0.9 to train on.
 */
DDP_API ddp_status ddp_tokens_open(const char *path, ddp_token_format format,
                                   int length, double first, double last,
                                   ddp_dataset *dataset);
DDP_API void ddp_dataset_close(ddp_dataset *dataset);

/* Images of bytes, and their labels: a sample is a byte of label, then the image
   [channels, height, width]. */
typedef struct ddp_image_shape {
	int channels, height, width;
} ddp_image_shape;

/*
 * Opens a pair of IDX files, in which MNIST comes: images [count, height, width] of bytes, and
 * labels [count]. DDP_ERR_FORMAT names the byte at which a file is damaged.
 */
DDP_API ddp_status ddp_idx_open(const char *images, const char *labels,
                                ddp_image_shape *shape, ddp_dataset *dataset);
/* Opens CIFAR-10's binary files as one dataset, in their order. A label above 9 is an
   error of read(). */
DDP_API ddp_status ddp_cifar10_open(const char *const *paths, int count,
                                    ddp_image_shape *shape, ddp_dataset *dataset);

enum { DDP_IMAGE_CHANNELS_MAX = 4 };

/* What becomes of images on their way to a model. */
typedef struct ddp_image_transform {
	size_t size;                             /* sizeof(ddp_image_transform) */
	float mean[DDP_IMAGE_CHANNELS_MAX];      /* of each channel, whose numbers are 0 to 1 */
	float deviation[DDP_IMAGE_CHANNELS_MAX]; /* likewise; 0: 1 */
	int crop_padding;  /* cut at random from the image with so many zero bytes around it */
	bool flip;         /* mirror about every other image */
	uint64_t seed;     /* of both */
} ddp_image_transform;

/*
 * Gives `count` samples as images [count, height, width, channels], of (byte / 255 - mean) /
 * deviation, and labels [count]. What is random hangs on the seed and the sample's number
 * alone: `first`, first + 1, ... So give numbers that differ over ranks and batches, such as
 * (epoch * batches + batch) * world size + rank, times the batch size. Local.
 */
DDP_API ddp_status ddp_transform_images(const ddp_image_shape *shape,
                                        const ddp_image_transform *transform,
                                        const void *samples, int64_t count, uint64_t first,
                                        float *images, int32_t *labels);

typedef enum ddp_tail {
	DDP_TAIL_PAD = 0, /* repeat samples until ranks are even: PyTorch's default */
	DDP_TAIL_DROP,    /* drop the tail: drop_last=True; a loader then drops the
	                     last incomplete update, too */
	DDP_TAIL_UNEVEN   /* each sample exactly once; some ranks get fewer */
} ddp_tail;

/*
 * DistributedSampler of PyTorch: the same indices for the same arguments (for
 * 214748364 samples and more: as PyTorch 2.6 and later). At most 2^32 - 1.
 *
 * A checkpoint knows nothing of a sampler. A loop of one's own keeps the epoch, and how many of
 * the epoch's samples all ranks have done together, by ddp_set_user_state() before each
 * ddp_checkpoint_save(), on all ranks. After ddp_checkpoint_load() it takes them by
 * ddp_get_user_state(), calls ddp_sampler_set_epoch(), and goes on with indices[samples /
 * world_size], on any number of ranks that divides `samples`. A ddp_loader does this by itself.
 */
typedef struct ddp_sampler ddp_sampler;
DDP_API ddp_status ddp_sampler_create(int64_t size, int world_size, int rank,
                                      uint64_t seed, bool shuffle, ddp_tail tail,
                                      ddp_sampler **sampler);
DDP_API ddp_status ddp_sampler_set_epoch(ddp_sampler *sampler, int64_t epoch);
/* This rank's indices of the epoch; owned by the sampler until set_epoch. */
DDP_API const int64_t *ddp_sampler_indices(const ddp_sampler *sampler, int64_t *count);
DDP_API void ddp_sampler_free(ddp_sampler *sampler);

typedef struct ddp_loader_options {
	size_t size;      /* sizeof(ddp_loader_options) */
	int batch_size;   /* samples per rank and batch; required */
	uint64_t seed;
	bool sequential;  /* no shuffling */
	ddp_tail tail;
	int prefetch;     /* batches read ahead; 0: 2, and at least one for each reader */
	int readers;      /* threads that read, each a batch at a time; 0: 1. Each keeps the order of
	                     this rank's samples, 8 bytes a sample. What they read comes in the order
	                     of one */
	int accumulate;   /* batches of a rank that make an update, so that epochs end with one: see
	                     below. 0: ddp_train() sets its own; in a loop of one's own 1 */
	ddp_comm *comm;   /* the ranks that share out the samples; NULL: the world. A model on a
	                     communicator needs a loader on the same one: each of its ranks then gets
	                     its share, and ranks of other communicators may get the same samples */
} ddp_loader_options;

/*
 * An update of batch_size * ranks * accumulate samples holds the same samples on any number of
 * ranks: update u of an epoch is of the epoch's order from sample u times that on, dealt to the
 * ranks like cards, and an epoch is of whole updates. Its last one holds what is left, so that
 * some of its batches are short or empty; DDP_TAIL_DROP leaves it out.
 * Other numbers of ranks still differ in: the last bits, as sums are in another order; with
 * DDP_TAIL_PAD, the epoch's last update, in which up to ranks - 1 samples come twice; what a
 * program does by rank or by batch (a random generator, statistics of a batch); and
 * DDP_LOSS_MEAN, by which each rank counts alike however many samples it has. A ddp_sampler
 * knows no updates: of its indices, a loop of one's own cuts the tail.
 */

typedef struct ddp_loader ddp_loader;
typedef struct ddp_batch {
	const void *data;   /* [samples, sample_bytes], one behind the other without a gap, aligned to
	                       64 bytes; valid until the next call */
	int64_t samples;    /* may be below batch_size, even 0, at an epoch's end */
	int64_t epoch;      /* from 0 */
	int64_t batch;      /* within the epoch, from 0 */
	uint64_t reserved[4];
} ddp_batch;

/* The loader reads `dataset`, which must not be closed before it is freed.
   Every rank gets the same number of batches per epoch; epochs follow one
   another without end. Collective: DDP_ERR_MISMATCH, on all ranks, names what they
   gave differently, such as the size of a file that is still being copied to
   one of the nodes. Of files of the same sizes, ranks compare some bytes: those that
   ddp_dataset.digest is of. */
DDP_API ddp_status ddp_loader_create(ddp_context *context, const ddp_dataset *dataset,
                                     const ddp_loader_options *options,
                                     ddp_loader **loader);
/* An error of read() comes with the batch it belongs to, and again with each
   further call. */
DDP_API ddp_status ddp_loader_next(ddp_loader *loader, ddp_batch *batch);
DDP_API int64_t ddp_loader_batches_per_epoch(const ddp_loader *loader);
DDP_API void ddp_loader_free(ddp_loader *loader);

/* ---- state ------------------------------------------------------------------ */

/*
 * Writes DIR/step-NNNNNNNN.safetensors: parameters under their names,
 * optimizer state under "optimizer.", what ways of reducing keep under "ddp.", step,
 * loader position and seed as metadata. Rank 0 writes, under a temporary name, fsynced, renamed,
 * directory fsynced; then all but the last `keep` (0: 3) are removed, and later
 * steps than this one, which training has left by going back or by beginning
 * anew, get names that end in ".aside". One model at a time writes to DIR: another
 * one's save, of this program or of another run, gets DDP_ERR_STATE until the model that saved
 * there last is freed, or saves elsewhere. Each
 * tensor carries a CRC-32C. Only rank 0 touches DIR (made if absent), and the
 * others wait however long it takes; success or failure is the same on all
 * ranks. Collective; loader may be NULL.
 * Once the world is broken, the calling rank writes alone, what it has: all
 * ranks have the same parameters after the same step, so let one of those left
 * call it, or give each a directory of its own. The state that a dead rank
 * kept (DDP_SHARD_AUTO, or DDP_SHARD_STATE on one node) is read from its memory by a rank of its
 * node, which outlives it; with DDP_SHARD_AUTO over several nodes any node has all of it. What is spread over nodes, or DDP_SHARD_GRADIENTS, cannot be saved
 * any more: DDP_ERR_STATE.
 * DDP_ERR_STATE if a rank was in the middle of an update, or a load failed:
 * what there is belongs to no step, the last checkpoint is where to go on.
 * DDP_ERR_NOT_FINITE if a parameter that is trained, or the optimizer's state, holds an
 * infinity or a NaN; what is frozen (a mask, say) and buffers are saved as they are.
 */
DDP_API ddp_status ddp_checkpoint_save(ddp_model *model, ddp_loader *loader,
                                       const char *dir, int keep);
/*
 * The same, but rank 0 only copies what is to be written, and a thread of its own writes it
 * while training goes on. It takes memory for the copy, of parameters and optimizer's state,
 * until the model is freed. ddp_checkpoint_wait() waits until it is on the disk: an error of
 * writing is its own, on all ranks. The next save, or load, also waits, but then that is a
 * warning. So does ddp_model_free(), on all ranks, if no call has waited before. All are collective. After an error the checkpoints
 * before are kept, as ever. Where there is no memory for the copy, that is a warning, and
 * begin writes at once. Once the world is broken, begin is ddp_checkpoint_save(), and wait is
 * of rank 0's own thread: on the others it is DDP_ERR_PEER, for they cannot know.
 */
DDP_API ddp_status ddp_checkpoint_begin(ddp_model *model, ddp_loader *loader,
                                        const char *dir, int keep);
DDP_API ddp_status ddp_checkpoint_wait(ddp_model *model);
/*
 * Loads a file, or a directory's newest complete checkpoint, passing over
 * broken ones, with a warning that names the file and the one that is loaded in its place. What
 * the disk cannot read (DDP_ERR_IO) may be good, and is an error. *step is the number of steps done, 0 if the
 * directory is absent or has none. Exact: training goes on as if it had not
 * stopped, also with another batch and world, if a global batch of the loader
 * begins where it had stopped. If the loader's dataset holds other samples than then
 * (ddp_dataset.digest), that is a warning. Model options that were others then are named in
 * warnings, and stay, but for those that change no result: bucket_mb, first_bucket_mb, shard,
 * late_gather, memory, stream, params_memory and grads_memory. Of hook, it is only known whether
 * there was one, and of the parameters, whether all had the same kinds, groups and no_decay: what
 * was frozen and is trained now begins with a new optimizer's state, and the state of what is
 * frozen now is left out;
 * loss_scale is named with DDP_SCALING_FIXED only. The learning rate that ddp_set_learning_rate()
 * had set comes back, unless the model was made with another one than then; so does the scale
 * to which DDP_SCALING_DYNAMIC had come.
 * A file that does not fit the model or the loader, is damaged or cut short
 * is an error, and neither is changed. If the disk or the communicator fails after the file was
 * verified, the model is loaded in part: see ddp_load_params(). Rank 0 reads, the others get the
 * tensors by broadcast. Collective. Between any two calls of the model: what the
 * step under way has of gradients and announcements is forgotten, also if
 * nothing is loaded.
 */
DDP_API ddp_status ddp_checkpoint_load(ddp_model *model, ddp_loader *loader,
                                       const char *path, int64_t *step);

typedef struct ddp_load_options {
	size_t size;              /* sizeof(ddp_load_options) */
	const char *file_prefix;  /* the file's names begin with it, */
	const char *model_prefix; /* where the model's begin with this: "transformer." and NULL, say;
	                             what begins otherwise, in the model or in the file, is left
	                             alone. NULL: "" */
	bool partial;             /* not strict: see below */
} ddp_load_options;

/*
 * Loads parameters alone, what is frozen and buffers too, from a safetensors file of this or
 * another program, or a directory's newest checkpoint: to fine-tune a model, or to take over a
 * part of one. Steps, the optimizer's state, the loader and the options stay as they are. Tensors
 * may be F32, F16, BF16 or F64.
 *
 * Unless it is partial, the file has each tensor of the model, and no other (PyTorch's
 * strict=True), except for what a checkpoint holds beside parameters. A partial one takes what
 * both have by name, at least one: *loaded (NULL: not told) is how many. A model of several
 * files is loaded by a partial call for each. Shapes must be the same in any case.
 *
 * options NULL: strict, with the same names. DDP_ERR_FORMAT names the tensor that does not fit.
 * Names, shapes and types are compared before the first value is stored, so after such an error the
 * model is as it was. If reading (DDP_ERR_IO) or the communicator fails later, the model holds a part
 * of the new values. Steps, saves and ddp_load_params() are then DDP_ERR_STATE until
 * ddp_checkpoint_load() succeeds; without a checkpoint, make the model anew. The same holds after a
 * ddp_checkpoint_load() or an average that fails half-way.
 * Rank 0 reads, and all ranks have what it read: what is not loaded still needs
 * ddp_broadcast_params(), before or after. Between any two calls of the model; what the step
 * under way has of gradients and announcements is forgotten. Collective.
 */
DDP_API ddp_status ddp_load_params(ddp_model *model, const char *path, const ddp_load_options *options,
                                   int *loaded);

/*
 * State of the program's own that goes with the model's checkpoints, such as that of
 * its random generator: each rank gives its own, which is copied. A checkpoint saves
 * what each had given last, and ddp_checkpoint_load() puts in its place what the rank
 * of the same number had given then: nothing, if there was none. Once the world is
 * broken, the rank that saves alone saves its own only.
 */
enum { DDP_USER_STATE_MAX = 65536 }; /* bytes */
DDP_API ddp_status ddp_set_user_state(ddp_model *model, const void *state, size_t bytes);
/* NULL and 0 if there is none. Valid until the next ddp_set_user_state() or load. */
DDP_API const void *ddp_get_user_state(const ddp_model *model, size_t *bytes);

/* ---- the loop ---------------------------------------------------------------- */

typedef struct ddp_summary {
	int64_t steps;            /* that this process has done, whose numbers follow; of a training
	                             that was resumed, the last ones only */
	double seconds;
	double units_per_second;  /* global weight (samples or tokens) over seconds */
	double first_loss, last_loss; /* of these steps; NaN without one */
	double data_seconds, forward_seconds, backward_seconds;
	double exposed_seconds, communication_seconds, optimizer_seconds;
	bool stopped;             /* before its last step, by ddp_request_stop() or the signal:
	                             exit with a code of its own, or jobs that wait for this
	                             one's success begin. The examples take 75 (EX_TEMPFAIL of
	                             sysexits.h), for which slurm/batch/requeue.sh starts them again */
	int skipped;              /* steps, which are not in the other numbers: see ddp_scaling */
	double overlap_ratio;     /* 1 - exposed / communication; 1 if there was none, NaN without a step */
	ddp_shard shard;          /* the one in use: AUTO has become one of the others, STATE where
	                             ranks of a node share the update; NONE where they do not
	                             communicate */
	int64_t first_step, last_step; /* of these steps, counted from the training's first; 0 without one */
	double checkpoint_seconds, evaluation_seconds, other_seconds; /* between these steps, not after
	                             the last */
	double evaluation_loss;   /* the last one of ddp_train(); NaN without one */
	uint64_t reserved[2];
} ddp_summary;

/*
 * Computes one micro-batch: forward, backward, ddp_grad_ready() for each
 * parameter. Adds to *weight and *loss_sum (see ddp_step). batch->samples may
 * be 0: then only announce the gradients. Returns DDP_OK, or a status that ends the
 * loop on all ranks, with the reason by ddp_set_error(); the callbacks of
 * ddp_train_options do the same.
 */
typedef ddp_status (*ddp_batch_fn)(void *user, ddp_model *model, const ddp_batch *batch,
                                   double *weight, double *loss_sum);

typedef struct ddp_train_options {
	size_t size;                /* sizeof(ddp_train_options) */
	int64_t steps;              /* total, also when resumed; required */
	int accumulate;             /* micro-batches per step; 0: the loader's, else 1. A loader that
	                               has none cuts its epochs by these from now on */
	const char *checkpoint_dir; /* NULL: none; tried before the first step */
	int64_t checkpoint_every;   /* steps; 0: at the end only */
	int checkpoint_keep;        /* 0: 3 */
	bool resume;                /* from checkpoint_dir's newest, if there is one */
	double (*schedule)(void *user, int64_t step); /* learning rate of a step, from 1;
	                                                 NULL: constant */
	ddp_status (*on_step)(void *user, const ddp_step_stats *stats); /* all ranks, with the same
	                                                 numbers but for seconds. May issue
	                                                 collectives, on all ranks alike, and save;
	                                                 may be NULL */
	void *user;                 /* for the callbacks */
	int stop_signal;            /* ends the loop on all ranks after the step under way,
	                               in order and with a checkpoint, whichever rank gets
	                               it; SIGTERM is what Slurm sends before it takes a
	                               job's nodes away. Caught during the loop, and, as ranks get
	                               it at different times, after one that was stopped, until
	                               the next loop. 0: none */
	const ddp_schedule *rates;  /* learning rates, in place of `schedule`: to give
	                               both is DDP_ERR_INVALID. With either, learning_rate of
	                               the model's options and ddp_set_learning_rate() do not
	                               count. NULL: none. Must stay until the loop's end */
	bool checkpoint_beside;     /* write checkpoints, but for the last, while training goes on:
	                               see ddp_checkpoint_begin() */
	/* Evaluation on other data, by an epoch of this loader: */
	ddp_loader *evaluate_loader; /* not the training's; with DDP_TAIL_UNEVEN, each sample
	                                counts once; NULL: none */
	ddp_batch_fn evaluate;      /* forward only: adds to *weight and *loss_sum. Samples may be 0 */
	int64_t evaluate_every;     /* steps; 0: at the end only */
	ddp_status (*on_evaluate)(void *user, int64_t step, double loss, double weight); /* all ranks,
	                               with the sums' ratio and the weight of all; may be NULL */
} ddp_train_options;

/*
 * Runs the whole loop. Collective. summary may be NULL. A callback that fails
 * on one rank ends the loop on all, with its reason. A checkpoint that cannot be written
 * (DDP_ERR_IO: the disk is full, say) is a warning, unless it is the last: that one, as any
 * other error of a checkpoint, ends the loop, but leaves the model good: save it elsewhere,
 * or train on after making room. So do the errors after which a step may come again (see
 * ddp_step()), such as DDP_ERR_NOT_FINITE: load a checkpoint, and call it again with a lower
 * learning rate, say.
 *
 * Evaluation comes after every evaluate_every steps and after the last one, behind the step's
 * checkpoint, but not after a stop: ranks share an epoch of evaluate_loader, with parameters that
 * are complete (and averaged, see ddp_average_params()), in DDP_PHASE_EVAL.
 */
DDP_API ddp_status ddp_train(ddp_model *model, ddp_loader *loader, ddp_batch_fn compute,
                             const ddp_train_options *options, ddp_summary *summary);

/* What was measured since the model was made, for loops of one's own. */
DDP_API void ddp_get_summary(const ddp_model *model, ddp_summary *summary);

#ifdef __cplusplus
}
#endif
#endif
