/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/staged/sides: what a rank gives to an operation, and gets, as blocks: one of each
 * rank where ranks have their own, else one. A chunk of an operation is the same elements
 * of every block, and is an operation of the same kind.
 */
#ifndef DDP_COMM_STAGED_SIDES_H
#define DDP_COMM_STAGED_SIDES_H

#include "comm/core/comm.h"

/* Blocks one behind the other. */
typedef struct ddp_side {
	char *memory;         /* NULL: nothing is given, or got */
	int blocks;
	const size_t *counts; /* [blocks]; NULL: all are `count` */
	size_t count;
} ddp_side;

typedef struct ddp_sides {
	ddp_side input, output;
	size_t element;       /* bytes */
	size_t longest;       /* elements of the longest block: the same on all ranks, */
	bool whole;           /* unless it cannot be cut, since ranks do not know that */
} ddp_sides;

/* The most blocks that a side of this kind has, the same on all ranks. */
int ddp_sides_blocks(const ddp_comm *comm, ddp_operation_kind kind);

/* `c` is complete. */
ddp_sides ddp_sides_of(const ddp_comm *comm, const ddp_operation *c);

/* Elements first .. first + most - 1 of a block, as far as it goes. */
static inline size_t ddp_side_part(size_t count, size_t first, size_t most)
{
	const size_t left = count > first ? count - first : 0;

	return left < most ? left : most;
}

/* Elements of all blocks. */
size_t ddp_side_count(const ddp_side *side);

#endif
