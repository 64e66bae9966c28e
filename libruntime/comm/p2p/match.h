/* SPDX-License-Identifier: Apache-2.0 */
/* comm/p2p/match: which message a receive takes. As in MPI, messages from one rank by which a receive may
   be served are taken in the order in which they were sent, and a message goes to the first receive that
   was issued and takes it. */
#pragma once

#include <limits.h>

#include "comm/core/comm.h"

/* A message that has come, or was announced. */
typedef struct ddp_message {
	int source, tag;
	ddp_type type;
	uint64_t count, bytes;
} ddp_message;

/* Tags of the library's own messages are negative; a program's are not. Each has a number: a group's, which the program
   gives, is less than the buddy copies', and no number is INT_MAX, whose tag would be DDP_ANY_TAG. */
enum { DDP_BUDDY_NUMBER = INT_MAX - 1 };

static inline int ddp_match_own_tag(int number)
{
	return INT_MIN + number;
}

static inline bool ddp_match_is_own(int tag)
{
	return tag < 0;
}

/* Whether a receive takes messages that differ in source, tag or size: it is a ddp_request.open until it has
   its message. */
static inline bool ddp_match_is_open(const ddp_operation *c)
{
	return c->kind == DDP_RECV && (c->root == DDP_ANY_SOURCE || c->received != NULL ||
	                               c->tag == DDP_ANY_TAG);
}

/* Does it receive a message of this rank with this tag? */
static inline bool ddp_match_takes(const ddp_request *r, int source, int tag)
{
	const ddp_operation *c = &r->operation;

	return c->kind == DDP_RECV && (c->root == source || c->root == DDP_ANY_SOURCE) &&
	       (c->tag == tag || (c->tag == DDP_ANY_TAG && !ddp_match_is_own(tag)));
}

/* The receive gets this message: its operation becomes that of the message. Breaks the communicator if it
   is of another type, or of a size that does not fit. */
ddp_status ddp_match_accept(ddp_comm *comm, ddp_request *r, const ddp_message *message);

/* "recv f32[3] from rank 2 with tag 7" */
void ddp_match_describe(const ddp_operation *c, char *text, size_t bytes);
