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

/* A chunk goes whole, or half, in one message: UCX 1.13 sends megabytes over sockets in one direction
   at a time (measured: half the rate). */
enum { MESSAGE_BYTES = 512 * 1024 };

/* ---- cost -------------------------------------------------------------------------------------- */

/* A chunk costs a node these times. */
typedef struct chunk_cost {
	double through;  /* seconds from its beginning to its end, if it is alone */
	double out, in;  /* seconds that the link needs for it, in either direction, */
	double busy;     /* and the process */
	double messages;
	size_t largest;  /* bytes of a message */
} chunk_cost;

static double larger(double a, double b)
{
	return a > b ? a : b;
}

ddp_plan ddp_halving_plan(const ddp_shape *shape, int root)
{
	switch (shape->kind) {
	case DDP_REDUCE: return ddp_plan_halving_to_root(shape->nodes, root);
	case DDP_REDUCE_SCATTER: return ddp_plan_halving_to_owners(shape->nodes);
	default: return ddp_plan_halving(shape->nodes);
	}
}

size_t ddp_halving_elements(const ddp_shape *shape, const ddp_plan *plan, ddp_range parts, bool share, size_t count)
{
	if (shape->kind != DDP_REDUCE_SCATTER)
		return ddp_plan_elements(plan, parts, count).count;
	const size_t owners = share ? parts.count : ddp_plan_node_count(plan, parts);
	return ddp_quotient_up(owners * shape->blocks, (size_t)shape->nodes) * count;
}

/* A channel has as many slices as blocks, or one. */
static size_t slices_of_channel(const ddp_shape *shape)
{
	return shape->kind == DDP_REDUCE_SCATTER ? shape->blocks : 1;
}

static size_t longest_of(const ddp_shape *shape)
{
	return ddp_quotient_up(shape->count, (size_t)shape->channels * slices_of_channel(shape));
}

static chunk_cost halving_chunk_cost(const ddp_link *link, const ddp_shape *shape, const ddp_plan *plan,
                                     int node, size_t number, size_t chunk)
{
	const double byte_seconds = shape->channels * link->byte_seconds;
	chunk_cost cost = { .through = 0 };

	for (int round = 0; round < plan->rounds; round++) {
		const ddp_exchange e = ddp_plan_round(plan, node, number, round);
		const size_t element = round < plan->reductions ? shape->wide : shape->element;
		const size_t bytes = ddp_halving_elements(shape, plan, e.send, e.share, chunk) * element;
		const size_t got = ddp_halving_elements(shape, plan, e.recv, e.share, chunk) * element;
		const double out = (double)bytes * byte_seconds, in = (double)got * byte_seconds;
		cost.through += link->latency_seconds + link->message_seconds + larger(out, in);
		cost.out += out;
		cost.in += in;
		cost.busy += out > 0 || in > 0 ? link->message_seconds : 0;
		cost.messages += bytes > 0;
		cost.largest = bytes > cost.largest ? bytes : cost.largest;
	}
	return cost;
}

/* Adds what a kind of nodes needs. Those of a pair take turns: their chunks are of two kinds. */
static void add_kind(const ddp_link *link, const ddp_shape *shape, const ddp_plan *plan, int node,
                     size_t chunk, double chunks, double *through, double *between, ddp_cost *cost)
{
	const chunk_cost even = halving_chunk_cost(link, shape, plan, node, 0, chunk);
	const chunk_cost odd = node >= 2 * plan->pairs ? even
	                                               : halving_chunk_cost(link, shape, plan, node, 1, chunk);
	const double busy = even.busy + odd.busy;

	*through = larger(*through, larger(even.through, odd.through));
	*between = larger(*between, (busy + larger(even.out + odd.out, even.in + odd.in)) / 2);
	cost->messages = larger(cost->messages, (even.messages + odd.messages) / 2 * chunks);
	cost->message_bytes = even.largest > cost->message_bytes ? even.largest : cost->message_bytes;
}

static ddp_cost halving_cost(const ddp_link *link, const ddp_shape *shape, size_t chunk)
{
	/* The root has most to do, and the last node is looked at. */
	const ddp_plan plan = ddp_halving_plan(shape, shape->nodes - 1);
	const size_t count = longest_of(shape);
	const double chunks = (double)ddp_quotient_up(count, chunk);
	ddp_cost cost = { .connections = plan.reductions + (plan.pairs > 0 ? plan.reductions - 1 : 0) };
	/* A chunk is through with a round in this time, or in that of others beside it. */
	double between = link->latency_seconds / DDP_HALVING_LAG, through = 0;

	if (plan.pairs > 0)
		add_kind(link, shape, &plan, 0, ddp_least(chunk, count), chunks, &through, &between, &cost);
	add_kind(link, shape, &plan, shape->nodes - 1, ddp_least(chunk, count), chunks, &through, &between, &cost);
	cost.seconds = through + (chunks - 1) * between;
	return cost;
}

/* Chunks of half the size overlap better; chunks of twice the size have fewer messages, and
   wait less often for a process that has no core just then. */
size_t ddp_halving_chunk(const ddp_link *link, const ddp_shape *shape)
{
	const size_t rounds = (size_t)ddp_halving_plan(shape, 0).rounds, slices = slices_of_channel(shape);
	const size_t limit = ddp_least(DDP_BUDGET_BYTES / (2 * shape->wide * slices * DDP_HALVING_LAG * rounds),
	                           shape->stage_bytes / ((size_t)shape->channels * slices) / shape->element);
	const size_t most = ddp_least(MESSAGE_BYTES / (shape->wide * slices), longest_of(shape) + 63);
	const size_t room = ddp_least(limit, most > 64 ? most : 64);
	size_t chunk = room < 64 ? room : room / 64 * 64, best = chunk;
	double seconds = INFINITY;

	for (; chunk * slices * shape->wide >= link->chunk_bytes || chunk == best; chunk = chunk / 128 * 64) {
		const double now = chunk == 0 ? INFINITY : halving_cost(link, shape, chunk).seconds;
		if (now >= seconds)
			break;
		seconds = now;
		best = chunk;
	}
	return best;
}

size_t ddp_halving_depth(const ddp_shape *shape, size_t chunk, size_t longest)
{
	const size_t rounds = (size_t)ddp_halving_plan(shape, 0).rounds;

	return ddp_least(DDP_HALVING_LAG * rounds, ddp_quotient_up(longest, chunk) + 1);
}

ddp_cost ddp_recursive_halving_cost(const ddp_link *link, const ddp_shape *shape)
{
	const size_t chunk = ddp_halving_chunk(link, shape);

	return chunk > 0 ? halving_cost(link, shape, chunk) : (ddp_cost){ .seconds = INFINITY };
}

void ddp_recursive_halving_cut(ddp_reduction *x, size_t longest)
{
	const ddp_shape shape = ddp_shape_of(x);

	x->chunk_count = ddp_halving_chunk(&x->comm->hier.link, &shape);
	x->depth = ddp_halving_depth(&shape, x->chunk_count, longest);
}

/* The slices of this rank's channel: one; or, of reduce_scatter, a block of each rank of
   the channel, in the order of parts: a chunk has as much of each of them. Several chunks
   are in different rounds. */
typedef struct halving {
	ddp_reduction *x;
	ddp_plan plan;
	bool blocks;
	size_t first;        /* the number of this window's first chunk */
	size_t wide;         /* bytes of an element in accumulator form */
} halving;

/* A chunk under way. */
typedef struct flight {
	char *work, *incoming;    /* partial results, in accumulator form */
	char *output;             /* results: this rank's output, or over `incoming` */
	ddp_range range;          /* not of blocks */
	size_t *at;               /* [mine_count + 1]: where slices begin, in elements */
	ddp_transfer *recvs, *sends; /* [rounds] */
} flight;

/* ---- where parts lie --------------------------------------------------------------------------- */

static ddp_plan plan_of(const ddp_reduction *x)
{
	const ddp_shape shape = ddp_shape_of(x);

	return ddp_halving_plan(&shape, x->c->kind == DDP_REDUCE ? x->comm->topology.node_of[x->c->root] : 0);
}

static bool has_blocks(const ddp_reduction *x)
{
	return x->c->kind == DDP_REDUCE_SCATTER;
}

/* Sorts this channel's slices by part, and by node. */
static void put_in_order(ddp_reduction *x, const ddp_plan *plan)
{
	const ddp_hier_store *store = x->comm->hier.store;
	int begin = 0;

	memset(store->owned, 0, (size_t)x->nodes * sizeof(*store->owned));
	for (int m = 0; m < x->mine_count; m++)
		store->owned[x->slices[x->mine[m]].owner]++;
	for (int part = 0; part < plan->leaves; part++) {
		const ddp_range nodes = ddp_plan_nodes_of(plan, (size_t)part);
		store->part_begin[part] = begin;
		for (size_t node = nodes.begin; node < nodes.begin + nodes.count; node++) {
			store->node_begin[node] = begin;
			begin += store->owned[node];
		}
	}
	store->part_begin[plan->leaves] = begin;
	for (int m = 0; m < x->mine_count; m++)
		store->order[store->node_begin[x->slices[x->mine[m]].owner]++] = x->mine[m];
	for (int node = 0; node < x->nodes; node++)
		store->node_begin[node] -= store->owned[node];
}

/* Bytes for a chunk's partial results, and as many for its results. */
static size_t buffer_bytes(const ddp_reduction *x)
{
	const size_t slices = has_blocks(x) ? (size_t)x->mine_count : 1;
	const size_t bytes = slices * x->chunk_count * ddp_type_bytes(ddp_accumulator(x->c->type));

	return (bytes + 63) / 64 * 64;
}

static size_t flight_bytes(const ddp_reduction *x)
{
	const size_t places = has_blocks(x) ? ((size_t)x->mine_count + 1) * sizeof(size_t) : 0;

	return 2 * buffer_bytes(x) + (places + 63) / 64 * 64;
}

ddp_status ddp_recursive_halving_prepare(ddp_reduction *x)
{
	const ddp_plan plan = plan_of(x);

	if (has_blocks(x))
		put_in_order(x, &plan);
	return ddp_hier_store_grow(x->comm, x->depth * flight_bytes(x), x->depth * 2 * (size_t)plan.rounds);
}

static flight flight_of(const halving *h, size_t s)
{
	const ddp_reduction *x = h->x;
	const ddp_hier_store *store = x->comm->hier.store;
	const size_t rounds = (size_t)h->plan.rounds, at = s % x->depth;
	char *work = store->buffers + at * flight_bytes(x), *incoming = work + buffer_bytes(x);
	ddp_transfer *transfers = store->transfers + at * 2 * rounds;
	flight f = { .work = work, .incoming = incoming, .output = incoming,
	             .at = (size_t *)(void *)(incoming + buffer_bytes(x)),
	             .recvs = transfers, .sends = transfers + rounds };

	if (h->blocks)
		return f;
	const ddp_slice *slice = &x->slices[x->mine[0]];
	f.range = ddp_window(ddp_window_of(x, slice), x->chunk_count, s);
	if (ddp_rank_wants(x, slice, x->comm->rank))
		f.output = (char *)((uintptr_t)x->output + f.range.begin * x->element);
	return f;
}

/* This node's own slices, or another's: their place in `order`. */
static ddp_range slices_of(const halving *h, int node)
{
	const ddp_hier_store *store = h->x->comm->hier.store;

	return (ddp_range){ (size_t)store->node_begin[node], (size_t)store->owned[node] };
}

/* Elements of slices. */
static ddp_range place_of(const flight *f, ddp_range slices)
{
	const size_t begin = f->at[slices.begin];

	return (ddp_range){ begin, f->at[slices.begin + slices.count] - begin };
}

/* Elements of parts, or of what is `node`'s share of them. */
static ddp_range elements(const halving *h, const flight *f, ddp_range parts, bool share, int node)
{
	const int *begin = h->x->comm->hier.store->part_begin;

	if (!h->blocks)
		return ddp_plan_elements(&h->plan, parts, f->range.count);
	if (parts.count == 0)
		return (ddp_range){ 0, 0 };
	if (share)
		return place_of(f, slices_of(h, node));
	const size_t first = (size_t)begin[parts.begin];
	return place_of(f, (ddp_range){ first, (size_t)begin[parts.begin + parts.count] - first });
}

/* ---- rounds ------------------------------------------------------------------------------------ */

static ddp_exchange exchange_of(const halving *h, size_t s, int round)
{
	return ddp_plan_round(&h->plan, h->x->node, h->first + s, round);
}

static ddp_range own_parts(const halving *h, size_t s)
{
	return ddp_plan_own(&h->plan, h->x->node, h->first + s);
}

static ddp_range slice_range(const halving *h, size_t s, size_t slice)
{
	const ddp_reduction *x = h->x;

	return ddp_window(ddp_window_of(x, &x->slices[x->comm->hier.store->order[slice]]), x->chunk_count, s);
}

/* This node's partial result of chunk s. */
static void begin(const halving *h, size_t s)
{
	const ddp_reduction *x = h->x;
	const flight f = flight_of(h, s);
	size_t at = 0;

	for (int round = 0; round < h->plan.rounds; round++)
		f.recvs[round].done = f.sends[round].done = true;
	if (!h->blocks) {
		ddp_local_combine_wide(h->x, x->mine[0], f.range, f.incoming, f.work);
		return;
	}
	for (size_t slice = 0; slice < (size_t)x->mine_count; slice++) {
		const ddp_range range = slice_range(h, s, slice);
		f.at[slice] = at;
		if (range.count > 0)
			ddp_local_combine_wide(h->x, x->comm->hier.store->order[slice], range, f.incoming + at * h->wide,
			                       f.work + at * h->wide);
		at += range.count;
	}
	f.at[x->mine_count] = at;
}

/* Starts a round. */
static ddp_status exchange(const halving *h, size_t s, int round)
{
	ddp_comm *comm = h->x->comm;
	const ddp_exchange e = exchange_of(h, s, round);
	const flight f = flight_of(h, s);
	const bool results = round >= h->plan.reductions;
	const size_t element = results ? h->x->element : h->wide;
	const size_t number = (h->first + s) * (size_t)h->plan.rounds + (size_t)round;
	const uint64_t tag = ddp_message_tag(comm, number & 0xffffff);

	if (e.peer < 0)
		return DDP_OK;
	const ddp_range out = elements(h, &f, e.send, e.share, e.peer);
	const ddp_range in = elements(h, &f, e.recv, e.share, h->x->node);
	const int peer = ddp_channel_rank(comm, e.peer, comm->node.self);
	if (in.count > 0)
		ddp_message_recv(comm, peer, tag, (results ? f.output : f.incoming) + in.begin * element,
		                 in.count * element, &f.recvs[round]);
	if (out.count == 0)
		return DDP_OK;
	return ddp_message_send(comm, peer, tag, (results ? f.output : f.work) + out.begin * element,
	                        out.count * element, &f.sends[round]);
}

/* Rounds to `output` the elements that are complete on this node. */
static void round_elements(const halving *h, const flight *f, ddp_range range)
{
	void *place[1] = { f->output + range.begin * h->x->element };

	if (range.count > 0)
		ddp_local_round(h->x, f->work + range.begin * h->wide, range.count, place, 1);
}

/* This node's blocks are complete, here or, as elements, on the other node of the pair. */
static void place_blocks(const halving *h, size_t s, bool complete)
{
	ddp_reduction *x = h->x;
	const flight f = flight_of(h, s);
	const ddp_range own = slices_of(h, x->node);
	void **places = x->comm->node.dst;

	for (size_t slice = own.begin; slice < own.begin + own.count; slice++) {
		const ddp_range range = slice_range(h, s, slice);
		if (range.count == 0)
			continue;
		const int count = ddp_local_places(x, x->comm->hier.store->order[slice], range, places);
		if (complete)
			ddp_local_round(x, f.work + f.at[slice] * h->wide, range.count, places, count);
		for (int i = 0; i < count && !complete; i++)
			memcpy(places[i], f.output + f.at[slice] * x->element, range.count * x->element);
	}
}

/* The last reduction is done, on a node that acts for its leaf. */
static void round_results(const halving *h, size_t s)
{
	const flight f = flight_of(h, s);
	const ddp_range own = own_parts(h, s), nodes = ddp_plan_nodes_of(&h->plan, own.begin);

	if (!h->blocks) {
		round_elements(h, &f, elements(h, &f, own, false, 0));
		return;
	}
	place_blocks(h, s, true);
	if (nodes.count == 2)
		round_elements(h, &f, place_of(&f, slices_of(h, h->x->node ^ 1)));
}

/* Takes what a round brought. */
static ddp_status take(const halving *h, size_t s, int round)
{
	const ddp_operation *c = h->x->c;
	const flight f = flight_of(h, s);
	const ddp_exchange e = exchange_of(h, s, round);
	ddp_status status = ddp_await_transfers(h->x->comm, &f.recvs[round], 1);

	if (status == DDP_OK && round < h->plan.reductions && e.peer >= 0) {
		const ddp_range in = elements(h, &f, e.recv, e.share, h->x->node);
		char *ours = f.work + in.begin * h->wide, *theirs = f.incoming + in.begin * h->wide;
		if (in.count > 0)
			ddp_combine_pair(c->type, c->op, e.below ? theirs : ours, e.below ? ours : theirs, ours, in.count);
	}
	if (status == DDP_OK && round == h->plan.reductions - 1 && own_parts(h, s).count > 0)
		round_results(h, s);
	return status;
}

/* Results are where this node has them: they go to its ranks. */
static ddp_status finish(const halving *h, size_t s)
{
	ddp_comm *comm = h->x->comm;
	const flight f = flight_of(h, s);
	void **places = comm->node.dst;

	if (h->blocks && own_parts(h, s).count == 0)
		place_blocks(h, s, false);
	const int count = h->blocks ? 0 : ddp_local_places(h->x, h->x->mine[0], f.range, places);
	for (int i = 0; i < count; i++) {
		if (places[i] != f.output)
			memcpy(places[i], f.output, f.range.count * h->x->element);
	}
	return ddp_await_transfers(comm, f.sends, h->plan.rounds);
}

/* ---- the whole --------------------------------------------------------------------------------- */

/* Chunk s is in round r while chunk s + DDP_HALVING_LAG is in round r - 1: between the two,
   messages of others keep the network busy. */
ddp_status ddp_recursive_halving_run(ddp_reduction *x)
{
	halving h = { .x = x, .plan = plan_of(x), .blocks = has_blocks(x),
	              .first = x->window * (x->width / x->chunk_count),
	              .wide = ddp_type_bytes(ddp_accumulator(x->c->type)) };
	const size_t rounds = (size_t)h.plan.rounds;
	size_t longest = 0;
	ddp_status status = DDP_OK;

	for (int m = 0; m < x->mine_count; m++) {
		const size_t count = ddp_window_of(x, &x->slices[x->mine[m]]).count;
		longest = count > longest ? count : longest;
	}
	const size_t chunks = (longest + x->chunk_count - 1) / x->chunk_count;
	for (size_t step = 0; chunks > 0 && step < chunks + DDP_HALVING_LAG * rounds; step++) {
		for (size_t r = rounds + 1; r-- > 0 && status == DDP_OK;) {
			const size_t s = step - DDP_HALVING_LAG * r;
			if (step < DDP_HALVING_LAG * r || s >= chunks)
				continue;
			if (r == 0)
				begin(&h, s);
			else
				status = take(&h, s, (int)r - 1);
			if (status == DDP_OK)
				status = r < rounds ? exchange(&h, s, (int)r) : finish(&h, s);
		}
	}
	return status;
}
