/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/slices.h"

#include "base/error.h"
#include "comm/core/offsets.h"
#include "comm/hier/store.h"

/* The blocks of the first channel, which has the most. */
static size_t blocks_of_channel(const ddp_reduction *x)
{
	const int channels = x->comm->topology.channels;
	size_t blocks = 0;

	for (int node = 0; node < x->nodes; node++)
		blocks += (size_t)((ddp_node_size(x->comm, node) + channels - 1) / channels);
	return blocks;
}

ddp_shape ddp_shape_of(const ddp_reduction *x)
{
	return (ddp_shape){ .kind = x->c->kind, .nodes = x->nodes, .channels = x->comm->topology.channels,
	                    .blocks = blocks_of_channel(x), .count = x->total,
	                    .element = x->element, .travel = x->travel_bytes,
	                    .wide = ddp_type_bytes(ddp_accumulator(x->c->type)),
	                    .stage_bytes = x->comm->node.stage_bytes };
}

bool ddp_rank_wants(const ddp_reduction *x, const ddp_slice *p, int rank)
{
	switch (x->c->kind) {
	case DDP_ALL_REDUCE: return true;
	case DDP_REDUCE: return rank == x->c->root;
	default: return rank == p->target;
	}
}

bool ddp_node_wants(const ddp_reduction *x, const ddp_slice *p, int node)
{
	switch (x->c->kind) {
	case DDP_ALL_REDUCE: return true;
	case DDP_REDUCE: return node == x->comm->topology.node_of[x->c->root];
	default: return node == p->owner;
	}
}

/* One share per rank that gets a block. */
static void cut_blocks(ddp_reduction *x)
{
	ddp_comm *comm = x->comm;

	x->count = comm->size;
	for (int r = 0; r < comm->size; r++)
		x->slices[r] = (ddp_slice){
			.range = { ddp_block_offset(comm, r), ddp_block_count(x->c, r) },
			.channel = comm->topology.local_of[r] % comm->topology.channels,
			.owner = comm->topology.node_of[r], .target = r,
		};
}

/* A share per channel; if it is worth it, each cut into a part per node. */
static void cut_evenly(ddp_reduction *x, int channels, bool by_node)
{
	size_t align = 64 / x->element;
	int parts = by_node ? x->nodes : 1;
	int owner = x->c->kind == DDP_REDUCE ? x->comm->topology.node_of[x->c->root] : DDP_EVERY_NODE;

	x->count = channels * parts;
	for (int i = 0; i < x->count; i++) {
		ddp_range share = ddp_part(x->total, channels, i / parts, align);
		ddp_range part = ddp_part(share.count, parts, i % parts, align);
		x->slices[i] = (ddp_slice){ .range = { share.begin + part.begin, part.count },
		                            .channel = i / parts, .owner = by_node ? i % parts : owner,
		                            .target = DDP_NOBODY };
	}
	x->spread = by_node;
}

static void find_mine(ddp_reduction *x)
{
	for (int i = 0; i < x->count; i++) {
		if (x->slices[i].channel != x->comm->node.self)
			continue;
		x->mine[x->mine_count++] = i;
		x->owned_count += ddp_owns(x, &x->slices[i]);
	}
}

/* Direct operations have one window: the slices are worked on whole. But where a chunk's last rounds come
   behind the first ones of chunks behind it, a node with one window would wait there for chunks of the
   next window of a node that waits for these rounds. */
static bool has_one_window(const ddp_reduction *x)
{
	return x->direct && (!x->algorithm->chunks_overlap || x->comm->size == x->nodes);
}

static ddp_status choose_width(ddp_reduction *x, size_t *windows)
{
	size_t longest = 0;

	for (int i = 0; i < x->count; i++)
		longest = x->slices[i].range.count > longest ? x->slices[i].range.count : longest;
	x->algorithm->cut(x, longest);
	if (x->chunk_count == 0)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "%s: %d slices are more than a slot of %zu bytes holds",
		                ddp_kind_name(x->c->kind), x->count, x->comm->node.stage_bytes);
	if (has_one_window(x))
		x->width = longest / x->chunk_count * x->chunk_count + x->chunk_count;
	else
		x->width = x->comm->node.stage_bytes / (size_t)x->count / x->element /
			x->chunk_count * x->chunk_count;
	*windows = (longest + x->width - 1) / x->width;
	return DDP_OK;
}

ddp_status ddp_slices_cut(ddp_reduction *x, size_t *windows)
{
	x->slices = x->comm->hier.store->slices;
	x->mine = x->comm->hier.store->mine;
	x->parts = x->comm->hier.store->parts;
	if (x->c->kind == DDP_REDUCE_SCATTER)
		cut_blocks(x);
	else if (x->small)
		cut_evenly(x, 1, false);
	else
		cut_evenly(x, x->comm->topology.channels, x->algorithm->by_node);
	find_mine(x);
	return choose_width(x, windows);
}
