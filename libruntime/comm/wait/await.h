/* SPDX-License-Identifier: Apache-2.0 */
/* comm/wait/await: waiting, and what ends a wait: a failed communicator, a dead
   peer, a deadline. What is waited for comes by whatever moves meanwhile: the
   control segment, the network, messages between single ranks. */
#pragma once

#include "comm/net/net.h"

/* A rank of the communicator that is still missing, or DDP_NOBODY when what
   is waited for is there. */
typedef int (*ddp_missing_fn)(ddp_comm *comm, const void *argument);

typedef struct ddp_condition {
	ddp_missing_fn missing;
	const void *argument;
	uint32_t sleeps_for; /* which post of a peer wakes the sleeper */
	uint64_t until;      /* the sequence or step that all are to reach */
	uint64_t coalesce_ns; /* so long may messages coalesce while the program computes */
} ddp_condition;

/* Returns when nobody is missing. Any error has broken the communicator. */
ddp_status ddp_comm_await(ddp_comm *comm, const ddp_condition *wait);

/* Waits until `count` transfers are done. */
ddp_status ddp_await_transfers(ddp_comm *comm, const ddp_transfer *transfers, int count);
/* Waits like this while more messages follow. While the program computes, messages may coalesce for so long, so
   that not each of them interrupts it. */
ddp_status ddp_await_transfers_coalescing(ddp_comm *comm, const ddp_transfer *transfers, int count,
                                          uint64_t coalesce_ns);

/* The operation under way has ended: the progress page says so, if it had told
   of a wait. comm->run.lock is held. */
void ddp_comm_tell_end(ddp_comm *comm);
