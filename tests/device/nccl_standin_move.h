/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_standin_move: how the stand-in for NCCL moves data between ranks: through memory
   that they share, on the threads of a device's queues. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/device/nccl_standin.h"
#include "tests/device/runtime.h"

enum { RANKS_MAX = 8, CHANNEL_BYTES = 16384, SCALARS = 16 };

DDP_API extern nccl_standin_switches nccl_standin;

/* Bytes from one rank to another. */
typedef struct channel {
	_Atomic uint64_t written, read;
	char bytes[CHANNEL_BYTES];
} channel;

/* What a communicator's ranks share. */
typedef struct region {
	atomic_int joined;
	_Atomic uint64_t ids; /* what those given to the first rank amount to */
	channel channels[RANKS_MAX][RANKS_MAX]; /* from, to */
} region;

typedef struct scalar_op {
	bool used;
	int type;
	uint64_t bits;
} scalar_op;

/* One user is the program, the others are works that are queued. */
typedef struct standin_comm {
	region *shared;
	char name[128];
	int ranks, rank, number; /* of the process's communicators, from 1 */
	atomic_int users;
	atomic_bool aborted;
	int polls;            /* left until it is ready */
	bool made, finalized;
	scalar_op scalars[SCALARS];
	struct work *pending; /* to be queued when it is ready */
} standin_comm;

typedef enum kind { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, SEND, RECV } kind;

typedef struct call {
	kind kind;
	const void *send;
	void *recv;
	size_t count;
	int type, op, peer; /* or root */
	scalar_op scalar;   /* of an op that was made */
} call;

/* Calls, which are one work when their group ends. */
typedef struct work {
	standin_comm *comm;
	gpu_stream *queue;
	int count;
	call calls[64];
	struct work *next;   /* of all that are queued */
	uint64_t number;
} work;

/* Queues the work, which it frees. One of NCCL's results. */
int standin_queue(work *w);
/* Waits for all works that are queued now, of whatever communicator: as a GPU does where
   memory is freed. */
void standin_await_works(void);
void standin_release(standin_comm *comm);

/* Types are those of comm/nccl/abi.h. */
size_t nccl_bytes_of(int type);
