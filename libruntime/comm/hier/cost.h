/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/cost: what a reduction between nodes is to the algorithms that could run it, and how
   they say how long it takes them, from what the network was measured to do. Each algorithm's file
   has its own formula, which needs no communicator: all ranks get the same figures
   from the same numbers.

   The model is that of Hockney (1994) with the time that a message takes its sender or
   receiver (LogP, Culler et al. 1993): messages that a node sends behind each other
   take their own times, and one latency. Links work in both directions at once. */
#pragma once

#include "comm/core/comm.h"

enum { DDP_BUDGET_BYTES = 32 * 1024 * 1024 }; /* of buffers of one operation */

/* An operation, as the algorithms see it. */
typedef struct ddp_shape {
	ddp_operation_kind kind;                /* all_reduce, reduce or reduce_scatter */
	int nodes, channels;
	size_t blocks;                /* of reduce_scatter: of a channel, at most */
	size_t count;                 /* elements */
	size_t element, travel, wide; /* bytes of one: as given, between nodes, in accumulator form */
	size_t stage_bytes;           /* of a slot */
} ddp_shape;

typedef struct ddp_cost {
	double seconds;       /* INFINITY: it is taken only if it is asked for */
	double messages;      /* that a rank sends; the highest of any */
	int connections;      /* that a rank uses */
	size_t message_bytes; /* of the largest message */
} ddp_cost;

static inline size_t ddp_least(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline size_t ddp_quotient_up(size_t a, size_t b)
{
	return (a + b - 1) / b;
}
