/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/algorithms.h"

#include <math.h>
#include <string.h>

#include "comm/hier/local.h"
#include "comm/hier/slices.h"
#include "comm/hier/store.h"
#include "comm/ops/combine_nodes.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

enum {
	UNDER_WAY_BYTES = 1024 * 1024,   /* so much keeps links busy while a rank has no core */
	DEPTH_MIN = 4,
	COALESCE_PART = 2,
	COALESCE_LEAST_NS = 200 * 1000,  /* below, sleeping costs more than it saves */
	COALESCE_MOST_NS = 2000 * 1000,
	COALESCE_RISE_NS = 10 * 1000
};

/* ---- cost --------------------------------------------------------------------------------- */

static size_t chunk_for(const ddp_link *link, const ddp_shape *shape, size_t slices, size_t buffers,
                        size_t longest)
{
	const size_t limit = ddp_least(DDP_BUDGET_BYTES / DEPTH_MIN / (buffers + 1), link->chunk_bytes);
	const size_t most = ddp_chunk_count(limit, shape->stage_bytes / slices, shape->element, shape->travel, longest);

	/* Chunks are as long as each other: a short last one would take a message as they do. */
	if (most < 64 || longest <= most)
		return most;
	const size_t even = ddp_quotient_up(longest, ddp_quotient_up(longest, most));
	return ddp_quotient_up(even, 64) * 64;
}

static size_t depth_for(const ddp_shape *shape, size_t chunk, size_t slices)
{
	const size_t depth = UNDER_WAY_BYTES / (chunk * shape->travel * slices + 1);

	return depth < DEPTH_MIN ? DEPTH_MIN : ddp_least(depth, DDP_CHUNKS_MAX);
}

static ddp_cost cost_of(const ddp_link *link, const ddp_shape *shape, bool every)
{
	const size_t nodes = (size_t)shape->nodes, parts = every ? 1 : nodes;
	const size_t slices = (size_t)shape->channels * parts, longest = ddp_quotient_up(shape->count, slices);
	const size_t chunk = chunk_for(link, shape, slices, every ? 2 + nodes : 3 * nodes, longest);
	const bool once = every || shape->kind == DDP_REDUCE_SCATTER;
	const double peers = shape->nodes - 1, exchanges = once ? 1 : 2;

	if (chunk == 0)
		return (ddp_cost){ .seconds = INFINITY };
	const double messages = exchanges * (double)ddp_quotient_up(longest, chunk);
	const double bytes = (double)(longest * (shape->travel + (once ? 0 : shape->element))) * shape->channels;
	return (ddp_cost){
		.seconds = exchanges * link->latency_seconds +
			peers * (messages * link->message_seconds + bytes * link->byte_seconds),
		.messages = peers * messages, .connections = shape->nodes - 1,
		.message_bytes = ddp_least(chunk, longest) * shape->travel,
	};
}

ddp_cost ddp_direct_cost(const ddp_link *link, const ddp_shape *shape)
{
	return cost_of(link, shape, true);
}

ddp_cost ddp_scatter_gather_cost(const ddp_link *link, const ddp_shape *shape)
{
	return cost_of(link, shape, false);
}

/* Buffers of a chunk of each share: this node's partial result and a place
   for the finished one; of owned slices also the other nodes' partial results.
   Counted for the node that owns most, since all must cut alike; and for
   channel 0, which has most slices, since a node's ranks share windows. */
static size_t buffers_per_chunk(const ddp_reduction *x, size_t *slices)
{
	int *owned = x->comm->hier.store->owned, every = 0, most = 0;

	*slices = 0;
	for (int node = 0; node < x->nodes; node++)
		owned[node] = 0;
	for (int i = 0; i < x->count; i++) {
		const ddp_slice *p = &x->slices[i];
		if (p->channel != 0)
			continue;
		++*slices;
		int *counter = p->owner == DDP_EVERY_NODE ? &every : &owned[p->owner];
		++*counter;
	}
	for (int node = 0; node < x->nodes; node++)
		most = owned[node] > most ? owned[node] : most;
	return 2 * *slices + (size_t)(most + every) * (size_t)x->nodes;
}

void ddp_direct_cut(ddp_reduction *x, size_t longest)
{
	const ddp_shape shape = ddp_shape_of(x);
	size_t slices;

	const size_t buffers = buffers_per_chunk(x, &slices);
	x->chunk_count = chunk_for(&x->comm->hier.link, &shape, (size_t)x->count, buffers, longest);
	x->depth = depth_for(&shape, x->chunk_count, slices);
	/* A small operation has but one chunk, and sets up no others. */
	if (x->chunk_count > 0 && longest <= x->chunk_count)
		x->depth = 1;
}

/* ---- buffers ------------------------------------------------------------------------------ */

static size_t buffer_bytes(const ddp_reduction *x)
{
	return x->chunk_count * x->travel_bytes;
}

static char *partial_of(const ddp_reduction *x, const ddp_chunk *g, int m)
{
	return g->buffers + 2 * (size_t)m * buffer_bytes(x);
}

static char *result_of(const ddp_reduction *x, const ddp_chunk *g, int m)
{
	return partial_of(x, g, m) + buffer_bytes(x);
}

/* `owned` counts owned slices before this one. */
static char *incoming_of(const ddp_reduction *x, const ddp_chunk *g, int owned, int node)
{
	size_t index = 2 * (size_t)x->mine_count + (size_t)owned * (size_t)x->nodes + (size_t)node;

	return g->buffers + index * buffer_bytes(x);
}

ddp_status ddp_direct_prepare(ddp_reduction *x)
{
	size_t owned = (size_t)x->owned_count * (size_t)x->nodes, mine = (size_t)x->mine_count;
	size_t bytes = (2 * mine + owned) * buffer_bytes(x);
	size_t transfers = mine + owned + (size_t)x->nodes;
	const ddp_hier_store *store = x->comm->hier.store;

	if (mine == 0)
		return DDP_OK;
	ddp_status status = ddp_hier_store_grow(x->comm, x->depth * bytes, x->depth * 4 * transfers);
	for (size_t i = 0; i < x->depth && status == DDP_OK; i++) {
		ddp_chunk *g = &x->chunks[i];
		g->buffers = store->buffers + i * bytes;
		g->sends = store->transfers + i * 4 * transfers;
		g->recvs = g->sends + transfers;
		g->result_sends = g->recvs + transfers;
		g->result_recvs = g->result_sends + transfers;
	}
	return status;
}

/* ---- messages ----------------------------------------------------------------------------- */

static ddp_range chunk_range(const ddp_reduction *x, int m, size_t s)
{
	return ddp_window(ddp_window_of(x, &x->slices[x->mine[m]]), x->chunk_count, s);
}

static uint64_t tag_of(const ddp_reduction *x, int m, size_t s, int results)
{
	size_t index = x->window * (x->width / x->chunk_count) + s;
	size_t number = (index * (size_t)x->count + (size_t)x->mine[m]) * 2 + (size_t)results;

	return ddp_message_tag(x->comm, number & 0xffffff);
}

/* The rank of `node` with which this one exchanges the slice. */
static int peer_of(const ddp_reduction *x, int node, int m)
{
	return ddp_channel_rank(x->comm, node, x->slices[x->mine[m]].channel);
}

static ddp_status send_to(ddp_reduction *x, int node, int m, size_t s, bool results,
                          const void *buffer, size_t bytes, ddp_transfer *t)
{
	return ddp_message_send(x->comm, peer_of(x, node, m), tag_of(x, m, s, results), buffer, bytes, t);
}

/* ---- partial results ------------------------------------------------------------------------ */

/* This node's partial result of a chunk: only to be read. */
static const char *own_partial(const ddp_reduction *x, const ddp_chunk *g, int m, ddp_range range)
{
	return x->plain ? ddp_input_of(x, &x->slices[x->mine[m]]) + range.begin * x->element : partial_of(x, g, m);
}

/* Returns where a result that comes from other nodes, or goes to them, lies on this node. If the result is for
   this rank, it is in this rank's output. In place, the owner has got what was sent from there before the result
   can come back. */
static void *result_place(const ddp_reduction *x, const ddp_chunk *g, int m, ddp_range range)
{
	if (ddp_rank_wants(x, &x->slices[x->mine[m]], x->comm->rank))
		return (char *)((uintptr_t)x->output + range.begin * x->element);
	return result_of(x, g, m);
}

/* Combines the nodes' parts into the places where they are wanted. */
static void combine_slice(ddp_reduction *x, const ddp_chunk *g, int m, ddp_range range)
{
	void **places = x->comm->node.dst, *result = result_place(x, g, m, range);
	ddp_combination last = { .type = x->c->type, .op = x->c->op, .divisor = x->divisor,
	                         .ndst = ddp_local_places(x, x->mine[m], range, places), .dst = places };

	if (x->spread && result == result_of(x, g, m))
		places[last.ndst++] = result;
	ddp_combine_nodes(&last, x->travel, x->parts, x->nodes, range.count, x->comm->hier.store->scratch);
}

/* Combines the other node's part while it is in the cache, a block at a time, which aligns it. Our part is there when
   it is sent, and in place, the result goes to where it is sent from. */
static bool combine_taken(void *taker, const void *data)
{
	alignas(64) char block[8192];
	ddp_chunk *g = taker;
	ddp_reduction *x = g->reduction;
	const ddp_range range = chunk_range(x, 0, g->number);
	ddp_range now = { range.begin, 0 };

	if (g->send_count == 0 || !g->sends[0].done)
		return false;
	for (size_t done = 0; done < range.count; done += now.count) {
		now.begin = range.begin + done;
		now.count = ddp_least(range.count - done, sizeof(block) / x->travel_bytes);
		memcpy(block, (const char *)data + done * x->travel_bytes, now.count * x->travel_bytes);
		x->parts[!x->node] = block;
		x->parts[x->node] = (void *)(uintptr_t)(own_partial(x, g, 0, range) + done * x->travel_bytes);
		combine_slice(x, g, 0, now);
	}
	g->combined = true;
	return true;
}

/* Between two nodes, all that a result waits for is one message. */
static bool takes(const ddp_reduction *x)
{
	return x->nodes == 2 && x->mine_count == 1 && !x->spread;
}

/* Posts what is to come of chunk s of all slices. */
static void post_receives(ddp_reduction *x, ddp_chunk *g, size_t s)
{
	int owned = 0;

	g->send_count = g->recv_count = g->result_send_count = g->result_recv_count = 0;
	g->reduction = x;
	g->number = s;
	g->combined = false;
	for (int m = 0; m < x->mine_count; m++) {
		const ddp_slice *p = &x->slices[x->mine[m]];
		ddp_range range = chunk_range(x, m, s);
		bool owner = ddp_owns(x, p);
		for (int n = 1; owner && n < x->nodes && range.count > 0; n++) {
			int node = (x->node + n) % x->nodes;
			ddp_message_take(x->comm, peer_of(x, node, m), tag_of(x, m, s, false), incoming_of(x, g, owned, node),
			                 range.count * x->travel_bytes, takes(x) ? combine_taken : NULL, g,
			                 &g->recvs[g->recv_count++]);
		}
		if (!owner && x->spread && ddp_node_wants(x, p, x->node) && range.count > 0)
			ddp_message_recv(x->comm, peer_of(x, p->owner, m), tag_of(x, m, s, true), result_place(x, g, m, range),
			                 range.count * x->element, &g->result_recvs[g->result_recv_count++]);
		owned += owner;
	}
}

/* Combines chunk s of each share and sends it off; nodes start at different
   slices, so that they do not all send to the same. */
static ddp_status start(ddp_reduction *x, ddp_chunk *g, size_t s)
{
	ddp_status status = DDP_OK;

	post_receives(x, g, s);
	for (int k = 0; k < x->mine_count; k++) {
		int m = (k + (x->node + 1) * x->mine_count / x->nodes) % x->mine_count;
		const ddp_slice *p = &x->slices[x->mine[m]];
		ddp_range range = chunk_range(x, m, s);
		if (range.count == 0)
			continue;
		if (!x->plain)
			ddp_local_combine(x, x->mine[m], range, partial_of(x, g, m));
		for (int n = 1; n < x->nodes; n++) {
			int node = (x->node + n) % x->nodes;
			if (p->owner != DDP_EVERY_NODE && p->owner != node)
				continue;
			status = send_to(x, node, m, s, false, own_partial(x, g, m, range),
			                 range.count * x->travel_bytes, &g->sends[g->send_count++]);
			if (status != DDP_OK)
				return status;
		}
		/* Where there is only to send, all chunks go first: to receive between them contends for the TCP socket. */
		if (!x->plain)
			(void)ddp_net_progress(x->comm);
	}
	return DDP_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

static void copy_to(void *const *places, int count, const void *from, size_t bytes)
{
	for (int i = 0; i < count; i++) {
		if (places[i] != from)
			memcpy(places[i], from, bytes);
	}
}

static ddp_status send_result(ddp_reduction *x, ddp_chunk *g, int m, size_t s, ddp_range range)
{
	const ddp_slice *p = &x->slices[x->mine[m]];
	const void *result = result_place(x, g, m, range);

	for (int n = 1; n < x->nodes; n++) {
		int node = (x->node + n) % x->nodes;
		if (!ddp_node_wants(x, p, node))
			continue;
		ddp_status status = send_to(x, node, m, s, true, result, range.count * x->element,
		                            &g->result_sends[g->result_send_count++]);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

/* Returns for how long messages may coalesce while the program computes, so that not each of them interrupts it.
   `behind` chunks are under way behind the awaited one, and messages wait for a part of the time that these take. */
static uint64_t coalesce_ns(const ddp_reduction *x, size_t behind)
{
	double bytes = (double)(behind * x->chunk_count * x->travel_bytes) * x->owned_count * (x->nodes - 1);
	uint64_t ns = (uint64_t)(bytes * x->comm->hier.link.byte_seconds * 1e9 / COALESCE_PART);

	if (ns > x->comm->hier.store->coalesce_ns)
		ns = x->comm->hier.store->coalesce_ns;
	return ns < COALESCE_LEAST_NS ? 0 : ns;
}

/* The measured times of the link may be wrong. It should still be busy when
   the coalescing ends: if nothing is under way any more, that was too long. */
static void learn_coalescing(const ddp_reduction *x, const ddp_chunk *newest, bool coalesced)
{
	uint64_t *ns = &x->comm->hier.store->coalesce_ns;
	bool dry = true;

	for (int i = 0; i < newest->recv_count; i++)
		dry = dry && newest->recvs[i].done;
	if (dry && coalesced)
		*ns /= 2;
	else if (!dry && *ns < COALESCE_MOST_NS)
		*ns += COALESCE_RISE_NS;
}

/* The own slices of chunk s, behind which those until `newest` are under way:
   combines the nodes' parts, passes results on. */
static ddp_status combine_owned(ddp_reduction *x, size_t s, size_t newest)
{
	ddp_chunk *g = &x->chunks[s % x->depth];
	uint64_t gather = coalesce_ns(x, newest - s);
	ddp_status status = ddp_await_transfers_coalescing(x->comm, g->recvs, g->recv_count, gather);
	int owned = 0;

	if (newest > s)
		learn_coalescing(x, &x->chunks[newest % x->depth], gather > 0);
	/* In place, the result goes to where our part may still be sent from. */
	if (status == DDP_OK && x->plain && x->input == x->output)
		status = ddp_await_transfers(x->comm, g->sends, g->send_count);
	for (int m = 0; status == DDP_OK && m < x->mine_count; m++) {
		const ddp_slice *p = &x->slices[x->mine[m]];
		ddp_range range = chunk_range(x, m, s);
		if (!ddp_owns(x, p))
			continue;
		for (int node = 0; node < x->nodes; node++)
			x->parts[node] = incoming_of(x, g, owned, node);
		x->parts[x->node] = (void *)(uintptr_t)own_partial(x, g, m, range);
		owned++;
		if (range.count == 0 || g->combined)
			continue;
		combine_slice(x, g, m, range);
		if (x->spread)
			status = send_result(x, g, m, s, range);
	}
	return status;
}

/* The other slices' results have come; everything of ours has gone. */
static ddp_status finish(ddp_reduction *x, ddp_chunk *g, size_t s)
{
	ddp_status status = ddp_await_transfers(x->comm, g->result_recvs, g->result_recv_count);
	void **places = x->comm->node.dst;

	for (int m = 0; status == DDP_OK && x->spread && m < x->mine_count; m++) {
		const ddp_slice *p = &x->slices[x->mine[m]];
		ddp_range range = chunk_range(x, m, s);
		if (ddp_owns(x, p) || !ddp_node_wants(x, p, x->node) || range.count == 0)
			continue;
		int count = ddp_local_places(x, x->mine[m], range, places);
		copy_to(places, count, result_place(x, g, m, range), range.count * x->element);
	}
	if (status == DDP_OK)
		status = ddp_await_transfers(x->comm, g->sends, g->send_count);
	if (status == DDP_OK)
		status = ddp_await_transfers(x->comm, g->result_sends, g->result_send_count);
	return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

ddp_status ddp_direct_run(ddp_reduction *x)
{
	size_t longest = 0, depth = x->depth, lag = x->spread ? depth / 2 : depth - 1;
	ddp_status status = DDP_OK;

	for (int m = 0; m < x->mine_count; m++) {
		size_t count = ddp_window_of(x, &x->slices[x->mine[m]]).count;
		longest = count > longest ? count : longest;
	}
	size_t chunks = longest == 0 ? 0 : (longest + x->chunk_count - 1) / x->chunk_count;
	for (size_t s = 0; s < chunks + depth - 1 && status == DDP_OK; s++) {
		if (s < chunks)
			status = start(x, &x->chunks[s % depth], s);
		if (status == DDP_OK && s >= lag && s - lag < chunks)
			status = combine_owned(x, s - lag, s < chunks ? s : chunks - 1);
		if (status == DDP_OK && s >= depth - 1)
			status = finish(x, &x->chunks[(s - depth + 1) % depth], s - depth + 1);
	}
	return status;
}
