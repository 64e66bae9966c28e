/* SPDX-License-Identifier: Apache-2.0 */
/* A reduction's inputs and outputs on this node. */
#include "comm/hier/local.h"

#include <string.h>

#include "comm/core/comm.h"
#include "comm/hier/slices.h"
#include "comm/shm/memory.h"
#include "comm/shm/node.h"

static void *rebase(const void *memory, size_t begin, size_t element)
{
	return (void *)((uintptr_t)memory - begin * element);
}

/* Piece i's place in a slot of the present window, addressed like the input. */
static char *in_slot(const ddp_reduction *x, char *slot, int i)
{
	return rebase(slot + (size_t)i * x->width * x->element, ddp_window_of(x, &x->slices[i]).begin,
	              x->element);
}

static const void *source_of(const ddp_reduction *x, int local, int i)
{
	ddp_comm *comm = x->comm;
	const ddp_header *h = ddp_node_header(comm, local);

	if (local == comm->node.self)
		return ddp_input_of(x, &x->slices[i]);
	if (x->small)
		return ddp_node_payload(comm, local, x->total * x->element);
	if ((h->flags & DDP_HEADER_SEND_SHARED) != 0)
		return ddp_memory_at(comm, local, &h->send);
	return in_slot(x, ddp_stage_slot(comm, local, x->window), i);
}

void ddp_local_combine(ddp_reduction *x, int i, ddp_range range, char *partial)
{
	const void **src = x->comm->node.src;
	void *dst[1] = { rebase(partial, range.begin, x->travel_bytes) };

	for (int local = 0; local < x->comm->node.size; local++)
		src[local] = source_of(x, local, i);
	x->combination.src = src;
	x->combination.dst = dst;
	x->combination.ndst = 1;
	ddp_combine(&x->combination, range.begin, range.count);
}

void ddp_local_combine_wide(ddp_reduction *x, int i, ddp_range range, char *scratch, char *partial)
{
	const bool wide = x->travel == ddp_accumulator(x->c->type);
	const void *src[1] = { scratch };
	void *dst[1] = { partial };
	const ddp_combination widen = { .type = x->travel, .op = x->c->op, .wide_dst = true, .nsrc = 1,
	                                .src = src, .ndst = 1, .dst = dst };

	ddp_local_combine(x, i, range, wide ? partial : scratch);
	if (!wide)
		ddp_combine(&widen, 0, range.count);
}

void ddp_local_round(const ddp_reduction *x, const void *results, size_t count, void *const *places,
                     int place_count)
{
	const void *src[1] = { results };
	const ddp_combination last = { .type = x->c->type, .op = x->c->op, .wide_src = true, .nsrc = 1,
	                               .src = src, .divisor = x->divisor, .ndst = place_count, .dst = places };

	ddp_combine(&last, 0, count);
}

static bool output_shared(const ddp_reduction *x, int local)
{
	/* Only a block's reader knows where it goes. */
	return !x->small && x->c->kind != DDP_REDUCE_SCATTER &&
	       (ddp_node_header(x->comm, local)->flags & DDP_HEADER_RECV_SHARED) != 0;
}

int ddp_local_places(const ddp_reduction *x, int i, ddp_range range, void **places)
{
	ddp_comm *comm = x->comm;
	size_t offset = range.begin * x->element;
	bool slot = false;
	int count = 0;

	if (ddp_rank_wants(x, &x->slices[i], comm->rank))
		places[count++] = (char *)((uintptr_t)x->output + offset);
	for (int local = 0; local < comm->node.size; local++) {
		if (local == comm->node.self || !ddp_rank_wants(x, &x->slices[i], comm->node.ranks[local]))
			continue;
		if (output_shared(x, local))
			places[count++] = (char *)ddp_memory_at(comm, local,
			                                        &ddp_node_header(comm, local)->recv) + offset;
		else
			slot = true;
	}
	if (slot)
		places[count++] = in_slot(x, ddp_result_slot(comm, comm->node.self, x->window), i) + offset;
	return count;
}

void ddp_local_stage(const ddp_reduction *x)
{
	const ddp_comm *comm = x->comm;
	char *slot = ddp_stage_slot(comm, comm->node.self, x->window);

	for (int i = 0; i < x->count; i++) {
		ddp_range range = ddp_window_of(x, &x->slices[i]);
		if (range.count > 0 && x->slices[i].channel != comm->node.self)
			memcpy(slot + (size_t)i * x->width * x->element,
			       ddp_input_of(x, &x->slices[i]) + range.begin * x->element,
			       range.count * x->element);
	}
}

void ddp_local_pull(const ddp_reduction *x)
{
	const ddp_comm *comm = x->comm;

	if (output_shared(x, comm->node.self))
		return;
	for (int i = 0; i < x->count; i++) {
		const ddp_slice *p = &x->slices[i];
		ddp_range range = ddp_window_of(x, p);
		if (range.count == 0 || p->channel == comm->node.self || !ddp_rank_wants(x, p, comm->rank))
			continue;
		const char *slot = ddp_result_slot(comm, p->channel, x->window) +
			(size_t)i * x->width * x->element;
		memcpy((char *)((uintptr_t)x->output + range.begin * x->element), slot,
		       range.count * x->element);
	}
}
