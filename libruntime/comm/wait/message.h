/* SPDX-License-Identifier: Apache-2.0 */
/* comm/wait/message: messages between nodes that belong to the running operation.
   Each carries what the operation is on its sender, which has to be the same on
   its receiver: this is where it comes to light if ranks of different nodes have
   taken different paths through the program. A rank that notices that asks all ranks. */
#pragma once

#include "comm/net/net.h"

/* The tag of message `number` (0 .. 2^24 - 1) of the running operation. */
static inline uint64_t ddp_message_tag(const ddp_comm *comm, uint32_t number)
{
	return comm->run.sequence << 24 | number;
}

/* Start a transfer that belongs to the running operation. A message of
   another size or operation than the receiver's breaks the communicator. */
ddp_status ddp_message_send(ddp_comm *comm, int peer, uint64_t tag, const void *buffer,
                            size_t bytes, ddp_transfer *transfer);
void ddp_message_recv(ddp_comm *comm, int peer, uint64_t tag, void *buffer, size_t bytes,
                      ddp_transfer *transfer);
/* `take`, if it is not NULL, may use the data where they have come. */
void ddp_message_take(ddp_comm *comm, int peer, uint64_t tag, void *buffer, size_t bytes, ddp_take_message *take,
                      void *taker, ddp_transfer *transfer);

/* Breaks the communicator if a message did not fit its receiver, a peer sent its failure, or the rank `missing` (or
   DDP_NOBODY) is `lost`. A caller finds a rank lost first, then that it is still missing, because what the rank sent
   before counts. */
ddp_status ddp_message_check(ddp_comm *comm, int missing, bool lost);

/* Breaks the communicator, on which operation `sequence`, of which this rank knows what it was here, is `theirs` on
   another rank: asks all ranks what it was there. Ranks that do not answer within 2 s are not counted. */
ddp_status ddp_message_survey(ddp_comm *comm, uint64_t sequence, const ddp_issued *theirs);

/* Call this after an error. It breaks the communicator if it is not broken yet, and no transfer touches memory
   any more. Returns what broke the communicator. */
ddp_status ddp_message_give_up(ddp_comm *comm, ddp_status status);
