/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/message: sends and receives. NCCL matches them by their order alone, and a
   kernel that waits for its counterpart keeps the queue, and maybe the GPU, for itself.
   So ranks match them by the host first, by peer and tag as ddp.h has it: the sender tells
   of its message, the receiver answers with the message's turn, and NCCL is given what is
   certain to come. Between two ranks, each direction has a communicator and a queue of its
   own, so that no message waits for one of other ranks. */
#pragma once

#include "comm/nccl/lane.h"

/* Opens what messages need, but for links, which are made when they are used. Collective. */
ddp_status ddp_nccl_messages_open(ddp_nccl_lane *lane);

/* Tells the peer of a message that is sent, or expects one. */
ddp_status ddp_nccl_message_begin(ddp_nccl_operation *operation);
/* Takes all messages as far as they go. */
ddp_status ddp_nccl_messages_advance(ddp_nccl_lane *lane);
/* Frees what the operation has for it: it is ENQUEUED or FAILED, or all are aborted. */
void ddp_nccl_message_free(ddp_nccl_operation *operation);

/* The communicator is to be closed: when all ranks close theirs, or it has failed, messages
   fail that are not matched, on both ranks or on none. To be called until true, and messages
   to be advanced between, which others may wait for before they close. */
bool ddp_nccl_messages_stop(ddp_nccl_lane *lane);
/* All fail; the first call begins that, so that other communicators of NCCL's may be ended
   beside links', and the second one waits. */
void ddp_nccl_messages_begin_abort(ddp_nccl_lane *lane);
void ddp_nccl_messages_await_abort(ddp_nccl_lane *lane);
/* Is all done that links' queues were given? */
bool ddp_nccl_messages_rest(ddp_nccl_lane *lane);
/* No message is under way. Collective unless the communicator has failed. */
void ddp_nccl_messages_close(ddp_nccl_lane *lane);
