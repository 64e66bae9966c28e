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

typedef enum ddp_operation_kind {
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
} ddp_operation_kind;

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
typedef struct ddp_operation {
	ddp_operation_kind kind;
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
} ddp_operation;

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
DDP_API ddp_status ddp_issue(ddp_comm *comm, const ddp_operation *operation,
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

/* Issue and wait. The operation's own shape is as in ddp_operation_kind above. */
DDP_API ddp_status ddp_run(ddp_comm *comm, const ddp_operation *operation);

/* Each is ddp_run() of the kind of its name, in the host's memory, on lane 0. `count` is as in
   ddp_operation_kind; `send` NULL means in place. Collective, but for send and recv. */
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

#ifdef __cplusplus
}
#endif
#endif
