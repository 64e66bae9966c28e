/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/comm.h: communicators: collective operations, messages, and memory that ranks share.
 */
#ifndef DDP_COMM_H
#define DDP_COMM_H

#include "job.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * ---- communicator ---------------------------------------------------------
 *
 * When an operation has ended with an error of its communicator (DDP_ERR_PEER, _TIMEOUT, _ABORTED,
 * _MISMATCH, ...) and the call or ddp_wait() has returned, neither the library nor the network touches
 * its buffers any more. Their contents are undefined. Memory of ddp_mem_alloc() may still be written by
 * a rank of the same node that has not seen the failure. If a peer on another node is in the middle of a
 * message and does not end it within 0.8 s, for instance because it is stopped, it loses its connection.
 * If other working communicators use that connection, the peer has their timeout instead of 0.8 s. Apart
 * from this, an error of one communicator does not affect the others.
 *
 * After a fork, the child must not use the library: calls that would act for the parent's rank return DDP_ERR_STATE.
 * The child does not keep the network's TCP connections open, so peers notice the death of the parent.
 */

typedef enum ddp_type {
	DDP_F32, DDP_F64, DDP_F16, DDP_BF16, DDP_I32, DDP_I64, DDP_U8, DDP_I8,
	DDP_BOOL /* one byte, 0 or 1 */
} ddp_type;

/*
 * How reductions compute. The user guide ("16-bit types between nodes") has the details of rounding,
 * also on GPUs.
 *
 * Host: the result has the same bits for the same inputs and the same world, whatever the algorithm.
 * 16-bit types are accumulated in f32 and rounded once (between nodes, once for each node and once at
 * the end). u8 and i8 are accumulated in i32, and the low 8 bits of the result are kept. Sums and products
 * of integers wrap around. AVG divides the sum, and truncates integers. MIN and MAX of floats are IEEE
 * 754's minimum and maximum: one NaN makes the result a NaN, and -0 is less than +0. BAND, BOR and BXOR
 * combine the bits of integers and bools, without a scale. For bools, SUM and MAX are BOR, PROD and MIN
 * are BAND; bools have no AVG and no scale.
 *
 * NCCL on a GPU: the bits are the same on all ranks, but not those of the host. DDP_ERR_UNSUPPORTED:
 * AVG of u8 and i8; BAND, BOR and BXOR of integers; BXOR of bools; a scale with another op than SUM and
 * AVG of floats; a scale that the type cannot represent (f32 and f64 take any). Either all ranks give a
 * scale, or none does.
 */
typedef enum ddp_op { DDP_SUM, DDP_AVG, DDP_PROD, DDP_MIN, DDP_MAX, DDP_BAND, DDP_BOR, DDP_BXOR } ddp_op;

typedef enum ddp_operation_kind {
	DDP_ALL_REDUCE,     /* send [count] -> recv [count] on all */
	DDP_REDUCE,         /* send [count] -> recv [count] on root */
	DDP_BROADCAST,      /* recv [count], in place, from root */
	DDP_REDUCE_SCATTER, /* send [size * count] -> recv [count]; or counts: see below */
	DDP_ALL_GATHER,     /* send [count] -> recv [size * count]; or counts */
	DDP_GATHER,         /* send [count] -> recv [size * count] on root; or counts */
	DDP_SCATTER,        /* send [size * count] on root -> recv [count]; or counts */
	DDP_ALL_TO_ALL,     /* send [size * count] -> recv [size * count]; or counts and recv_counts */
	DDP_SEND,           /* send [count] to root; may end only when root has issued its recv */
	DDP_RECV,           /* recv [count] from root, or from any rank */
	DDP_BARRIER
} ddp_operation_kind;

/* Where an operation's buffers lie: in the host's memory, or in memory of ddp_options.device. */
typedef enum ddp_memory { DDP_MEMORY_HOST = 0, DDP_MEMORY_DEVICE } ddp_memory;

/*
 * An operation waits only for earlier operations of its lane, so a small operation need not wait for a
 * large one. All ranks issue the collectives of a lane in the same order. A send and its recv use the same lane.
 * The first operation on a lane other than 0 opens the lane: it is collective, waits for all ranks,
 * counts as an operation of lane 0, and must not be issued from a callback.
 */
enum { DDP_LANES = 4 };

/*
 * One operation. `send` NULL means in place: this rank's input lies in `recv`. As in MPI
 * (MPI_IN_PLACE) and NCCL, `send` may also overlap `recv` in these cases:
 *  - all_reduce, reduce (root), all_to_all: `send` is `recv`;
 *  - all_gather, gather (root): `send` is this rank's block of `recv`;
 *  - reduce_scatter, scatter (root): `recv` is `send`, or this rank's block of `send`.
 * Any other overlap is DDP_ERR_INVALID. It ends the communicator on all ranks, since one rank alone
 * may have made the mistake.
 *
 * All ranks issue the same kind, type, op, count or counts, and root. Otherwise all ranks get the same
 * DDP_ERR_MISMATCH, which names the rank that differs from most ranks. Between nodes, a rank may have
 * ended that operation with DDP_OK before, and then gets the error from one of its next calls.
 *
 * With `counts`, `count` is 0. `counts` has one count for each rank, and is the same on all ranks. For
 * all_to_all it has the counts that this rank sends to each rank, and recv_counts those that it receives.
 * Blocks lie one behind the other without gaps. A count may be 0. all_to_all with counts does not work in
 * place.
 *
 * If an operation sends or receives a block for each rank, each block may have its own address: send_list
 * (reduce_scatter, all_to_all, scatter on root) replaces `send`, and recv_list (all_gather, all_to_all,
 * gather on root) replaces `recv`. No block is copied to a common buffer. Each rank decides for itself.
 * Only all_gather and gather then work in place (`send` NULL: this rank's input is its own block of
 * recv_list). No call checks whether blocks of a recv_list overlap each other, or, for all_to_all, blocks
 * that are sent: those blocks are then undefined. Lists are for the host's memory (DDP_ERR_UNSUPPORTED).
 *
 * A recv takes messages as in MPI: it takes the messages of one rank in the order in which they were
 * sent, and a message goes to the first issued recv that can take it. With DDP_ANY_SOURCE and DDP_ANY_TAG
 * a recv takes a message of any rank and any tag. With `received`, the message may be shorter than
 * `count`. DDP_ERR_MISMATCH: it is longer, or has another type. DDP_ANY_SOURCE, DDP_ANY_TAG and
 * `received` are for the host's memory (DDP_ERR_UNSUPPORTED).
 */
enum { DDP_ANY_SOURCE = -1, DDP_ANY_TAG = -1 };

/* What a recv has received. It is written before the operation is complete, if it ends with DDP_OK. */
typedef struct ddp_received {
	int source, tag;
	size_t count;         /* elements */
	uint64_t reserved[2];
} ddp_received;

typedef struct ddp_operation {
	ddp_operation_kind kind;
	const void *send;
	void *recv;
	size_t count;
	const size_t *counts;
	const size_t *recv_counts;
	ddp_type type;
	ddp_op op;
	int root;     /* of send and recv: the peer; of recv also DDP_ANY_SOURCE */
	int tag;      /* of send and recv; 0 .. INT_MAX, of recv also DDP_ANY_TAG */
	int timeout_ms; /* how long this rank waits for others: a send or recv from its issue, a
	                   collective from when it begins to wait; 0: the communicator's timeout. To find
	                   out who is late, a wait lasts up to 200 ms longer.
	                   DDP_ERR_TIMEOUT on any rank ends the communicator. Ranks may differ */
	bool scaled;  /* multiply this rank's inputs by `scale` before a reduction. Integers are
	                 multiplied in double, truncated, and limited to the range of their type (u8
	                 and i8: of i32, and the low 8 bits of the result are kept), and their scale must be finite */
	double scale; /* 0 unless `scaled` */
	int lane;     /* 0 .. DDP_LANES - 1 */
	ddp_memory memory; /* where `send` and `recv` lie */
	void *stream; /* for a device's memory: a queue of the device, such as a cudaStream_t; NULL: its
	                 default queue. The operation begins after the work that the queue holds when
	                 the operation is issued. ddp_wait_on() makes a queue wait for its end */
	/*
	 * For ddp_issue(); NULL: no callback. It is called exactly once, when the operation is complete
	 * or has failed (ddp_last_error() then gives the reason), before ddp_wait() returns and before
	 * ddp_test() sets *done. A thread of the library calls it, or the thread that is in ddp_wait() for the
	 * request, or the thread that closes the communicator. It may issue further operations, unless the communicator is being closed
	 * (DDP_ERR_STATE). It must not wait: ddp_run(), ddp_wait(), ... are DDP_ERR_STATE. It should be
	 * short, since later operations may wait for it. The callback of a send or recv may run while a
	 * collective of its communicator runs.
	 */
	void (*on_complete)(void *user, ddp_status status);
	void *user;
	const void *const *send_list; /* [size]: a buffer for each rank, in place of `send` */
	void *const *recv_list;       /* [size]: a buffer for each rank, in place of `recv` */
	ddp_received *received;       /* of recv; NULL: the message has `count` elements */
	uint64_t reserved[4]; /* 0 */
} ddp_operation;

typedef struct ddp_request ddp_request;

/* This process's rank in the communicator, 0 .. size - 1, and the number of its ranks. */
DDP_API int ddp_comm_rank(const ddp_comm *comm);
DDP_API int ddp_comm_size(const ddp_comm *comm);

/*
 * Where a communicator's ranks are, and what runs its operations, for logs and tests. The texts are
 * never NULL and live as long as the process. Local. Any thread.
 */
typedef struct ddp_comm_info {
	int nodes;                  /* number of nodes of its ranks */
	int local_size;             /* its ranks on this node */
	const char *network;        /* between nodes: "ucx"; "" if there is one node */
	const char *algorithm;      /* of the last reduction between nodes, such as "scatter_gather": a name
	                               that DDP_ALGORITHM takes; "" before one */
	const char *instructions;   /* with which the host combines: "generic", "AVX2", "AVX-512" or
	                               "AVX-512 with FP16" */
	const char *device_backend; /* of operations on a device's memory: "nccl", or "self" for one rank; ""
	                               before the first such operation on lane 0 */
	uint64_t reserved[4];
} ddp_comm_info;
DDP_API ddp_status ddp_comm_describe(ddp_comm *comm, ddp_comm_info *info);

/*
 * Allocates memory that all ranks of a node can reach, so collectives on it take no copy. On other memory
 * they take one. Collective: all ranks ask for the same number of bytes in the same order. The memory is
 * zero and aligned to a page. ddp_mem_free() does not wait for other ranks: if another rank of the node
 * still uses its memory of the same allocation in an operation, that operation fails on all ranks.
 */
DDP_API ddp_status ddp_mem_alloc(ddp_comm *comm, size_t bytes, void **memory);
DDP_API ddp_status ddp_mem_free(ddp_comm *comm, void *memory);
/*
 * Allocates such memory for one rank alone, for instance for the allocator of a framework (user guide,
 * "Embedding libddp in another framework"). When an operation first uses it, the node's other ranks map
 * it. It takes one descriptor until ddp_mem_free() frees it, which must not be called before the rank's
 * operations on it are complete. A forked child shares the memory: the parent sees what the child writes
 * there. Local. Any thread.
 */
DDP_API ddp_status ddp_mem_alloc_local(ddp_comm *comm, size_t bytes, void **memory);
/*
 * Keeps memory of ddp_mem_alloc_local() when its context is closed, for tensors that outlive the context. From
 * then on no rank shares the memory, and ddp_mem_free(NULL, memory) frees it. Local. Any thread.
 */
DDP_API ddp_status ddp_mem_keep(ddp_comm *comm, void *memory);
/* Allocates memory of a chosen kind. Only the queues of a device can reach the device's memory. Collective. */
DDP_API ddp_status ddp_mem_alloc_on(ddp_comm *comm, ddp_memory kind, size_t bytes,
                                    void **memory);

/*
 * Starts an operation, which proceeds without further calls while the program computes. Buffers and
 * counts must not change until it is complete. Each request is ended by ddp_wait(), ddp_wait_for(),
 * ddp_request_free(), or a ddp_test() that says done, and is invalid afterwards. With on_complete,
 * `request` may be NULL; the library then ends the request. If ddp_issue() fails, nothing has started,
 * and nothing is called.
 */
DDP_API ddp_status ddp_issue(ddp_comm *comm, const ddp_operation *operation,
                             ddp_request **request);
/* Sets *done if the operation is complete; the request is then gone. An error also ends the request. */
DDP_API ddp_status ddp_test(ddp_request *request, bool *done);
/* Waits for the end of the operation, at most for its timeout. */
DDP_API ddp_status ddp_wait(ddp_request *request);
/* Waits at most timeout_ms. After DDP_ERR_TIMEOUT the request is still valid. */
DDP_API ddp_status ddp_wait_for(ddp_request *request, int timeout_ms);
/*
 * Lets go of a request, complete or not, without waiting. The library ends it when the operation is
 * complete, and then calls on_complete. Buffers must stay until then. Without on_complete the program does
 * not learn when the operation ends; if its error has ended the communicator, or ends it, ddp_comm_free()
 * or ddp_finalize() returns that error. It may be called in a callback, also in the request's own. NULL is
 * allowed. No other thread may use the request at the same time.
 */
DDP_API void ddp_request_free(ddp_request *request);

/*
 * Makes `stream` wait for an operation on a device's memory: work that is enqueued on the stream from now
 * on begins when the operation is complete. The host does not wait, with one exception: on a GPU it waits
 * until the counterpart of a send or recv is issued, so issue your sends first. The request must still be
 * ended. The stream also goes on after an error, which ddp_wait() returns. You may call this for several
 * streams.
 */
DDP_API ddp_status ddp_wait_on(ddp_request *request, void *stream);

/* Issues an operation and waits for its end. */
DDP_API ddp_status ddp_run(ddp_comm *comm, const ddp_operation *operation);

/* Each function is ddp_run() of the kind of its name, in the host's memory, on lane 0. `count` is as in
   ddp_operation_kind. `send` NULL means in place. All but send and recv are collective. */
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
 * Splits `comm`: the ranks that give the same colour form a new communicator, in the order of their
 * keys, then of their ranks. A rank with a negative colour gets none (*part is NULL). Collective.
 * Roots and peers of operations are ranks of the communicator; error sentences name ranks of the world.
 * A new communicator takes less than 1 MiB of a rank's memory. Its operations take more and keep it: up to
 * 1 MiB if buffers are not of ddp_mem_alloc() (16 MiB over several nodes), and up to 32 MiB for reductions
 * between nodes.
 */
DDP_API ddp_status ddp_comm_split(ddp_comm *comm, int colour, int key, ddp_comm **part);
/* Forms a communicator of the listed ranks of `comm`. Collective over all of `comm`. *part is NULL on
   a rank that is not listed. */
DDP_API ddp_status ddp_comm_group(ddp_comm *comm, const int *ranks, int count,
                                  ddp_comm **part);
/*
 * Forms a communicator of the listed ranks of `comm`, in that order. Only they call the function. All of
 * them give the same list and tag, 0 .. INT_MAX - 2. DDP_ERR_INVALID: this rank is not listed.
 * DDP_ERR_MISMATCH: lists differ. DDP_ERR_TIMEOUT: a member does not come. The last two end `comm`, and
 * DDP_ERR_NOMEM, a member's lack of memory, may end it. Several threads may form communicators at the same
 * time, with different tags. The messages that this takes never meet the program's own.
 */
DDP_API ddp_status ddp_comm_create_group(ddp_comm *comm, const int *ranks, int count, int tag,
                                         ddp_comm **part);
/*
 * Forms a communicator of the surviving ranks, in their old order, after an error that broke `comm`.
 * Collective over the survivors. It waits for other ranks as long as a collective does, except for ranks
 * that have died or closed the communicator, and for ranks of a silent node (silence_ms of ddp_options).
 * A rank that comes later gets DDP_ERR_PEER. If a message to a rank that does not answer was under way,
 * the call may take half that time. If the message is slow and has not ended by then, it is cut off, and
 * all communicators lose the rank at its other end. If a rank has no descriptors left for the new
 * connections (RLIMIT_NOFILE; the library has raised the soft limit) or no memory to begin, it gets
 * DDP_ERR_NOMEM and should free `comm`, and the others go on without it. Any other error, such as one of
 * memory later, comes on all ranks and leaves `comm` as it was; the call may then be repeated.
 *
 * All ranks that succeed have the same members. If a rank dies during the call, either the others start
 * again without it, or it is still a member and the first collective fails with DDP_ERR_PEER: then shrink
 * the new communicator. If ranks of several nodes die at once, some calls may fail while others succeed;
 * the new communicator then breaks at its first use. Ranks that live but cannot reach each other count as
 * dead to each other, so each side may form its own communicator.
 */
DDP_API ddp_status ddp_comm_shrink(ddp_comm *comm, ddp_comm **survivors);
/* Ends all operations under way, here and on all peers, with DDP_ERR_ABORTED and `reason`. Any thread. */
DDP_API ddp_status ddp_comm_abort(ddp_comm *comm, const char *reason);
/*
 * Frees a communicator of split, group, create_group or shrink. It waits for collectives that were issued.
 * Between nodes, and after operations of NCCL, it also waits until all its ranks free it. If a rank does not
 * come or has died, that is an error as in ddp_finalize(), and the communicator is freed nevertheless. A
 * send or recv without its counterpart ends with DDP_ERR_STATE; between nodes such a send may end with
 * DDP_OK, and on one node a send or recv ends with DDP_ERR_PEER if the peer frees the communicator first.
 */
DDP_API ddp_status ddp_comm_free(ddp_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
