/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/staged/sides.h"

#include "comm/ops/names.h"

int ddp_sides_blocks(const ddp_comm *comm, ddp_operation_kind kind)
{
	return kind >= DDP_REDUCE_SCATTER && kind <= DDP_ALL_TO_ALL ? comm->size : 1;
}

static ddp_side one_block(const void *memory, size_t count)
{
	return (ddp_side){ .memory = (char *)(uintptr_t)memory, .blocks = 1, .count = count };
}

static ddp_side all_blocks(const ddp_comm *comm, const void *memory, const size_t *counts, size_t count)
{
	return (ddp_side){ .memory = (char *)(uintptr_t)memory, .blocks = comm->size, .counts = counts,
	                   .count = count };
}

static size_t longest(const ddp_operation *c, int ranks)
{
	size_t most = c->counts == NULL ? c->count : 0;

	for (int r = 0; r < ranks && c->counts != NULL; r++)
		most = c->counts[r] > most ? c->counts[r] : most;
	return most;
}

ddp_sides ddp_sides_of(const ddp_comm *comm, const ddp_operation *c)
{
	const bool root = c->root == comm->rank;
	const size_t mine = c->counts != NULL ? c->counts[comm->rank] : c->count;
	ddp_sides sides = { .element = ddp_type_bytes(c->type), .longest = longest(c, comm->size) };

	sides.input = one_block(c->send, mine);
	sides.output = one_block(c->recv, mine);
	switch (c->kind) {
	case DDP_REDUCE: sides.output.memory = root ? c->recv : NULL; break;
	case DDP_BROADCAST:
		sides.input.memory = root ? c->recv : NULL;
		sides.output.memory = root ? NULL : c->recv;
		break;
	case DDP_REDUCE_SCATTER: sides.input = all_blocks(comm, c->send, c->counts, c->count); break;
	case DDP_ALL_GATHER: sides.output = all_blocks(comm, c->recv, c->counts, c->count); break;
	case DDP_GATHER: sides.output = all_blocks(comm, root ? c->recv : NULL, c->counts, c->count); break;
	case DDP_SCATTER: sides.input = all_blocks(comm, root ? c->send : NULL, c->counts, c->count); break;
	case DDP_ALL_TO_ALL:
		sides.input = all_blocks(comm, c->send, c->counts, c->count);
		sides.output = all_blocks(comm, c->recv, c->recv_counts, c->count);
		sides.whole = c->counts != NULL;
		break;
	case DDP_SEND: sides.output.memory = NULL; break;
	case DDP_RECV: sides.input.memory = NULL; break;
	case DDP_BARRIER: sides.input.memory = sides.output.memory = NULL; sides.longest = 0; break;
	default: break;
	}
	return sides;
}

size_t ddp_side_count(const ddp_side *side)
{
	size_t sum = 0;

	if (side->counts == NULL)
		return side->count * (size_t)side->blocks;
	for (int b = 0; b < side->blocks; b++)
		sum += side->counts[b];
	return sum;
}
