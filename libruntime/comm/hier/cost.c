/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/cost.h"

#include <math.h>
#include <string.h>

enum {
	BUDGET_BYTES = 32 * 1024 * 1024, /* for buffers of one operation */
	UNDER_WAY_BYTES = 1024 * 1024,   /* so much keeps links busy while a rank has no core */
	DEPTH_MIN = 4,
	/* A chunk of recursive halving goes whole, or half, in one message: UCX 1.13 sends
	   megabytes over sockets in one direction at a time (measured: half the rate). */
	HALVING_BYTES = 512 * 1024
};

/* A round waits for a process of another node, which may have no core just then; the model
   knows links only, so an algorithm of rounds has to be cheaper by more than that. */
static const double ROUNDS_MARGIN = 0.98;

static const char *const names[DDP_ALGORITHMS] = {
	[DDP_DIRECT] = "direct", [DDP_SCATTER_GATHER] = "scatter_gather",
	[DDP_RECURSIVE_DOUBLING] = "recursive_doubling", [DDP_RECURSIVE_HALVING] = "recursive_halving",
};

const char *ddp_algorithm_name(ddp_algorithm algorithm)
{
	return names[algorithm];
}

ddp_algorithm ddp_algorithm_named(const char *name)
{
	ddp_algorithm i = 0;

	while (i < DDP_ALGORITHMS && strcmp(name, names[i]) != 0)
		i++;
	return i;
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

static size_t quotient_up(size_t a, size_t b)
{
	return (a + b - 1) / b;
}

/* ---- direct exchange ------------------------------------------------------------------------ */

size_t ddp_direct_chunk(const ddp_link *link, const ddp_shape *shape, size_t slices, size_t buffers,
                        size_t longest)
{
	const size_t limit = least(BUDGET_BYTES / DEPTH_MIN / (buffers + 1), link->chunk_bytes);

	return ddp_chunk_count(limit, shape->stage_bytes / slices, shape->element, shape->travel, longest);
}

size_t ddp_direct_depth(const ddp_shape *shape, size_t chunk, size_t slices)
{
	const size_t depth = UNDER_WAY_BYTES / (chunk * shape->travel * slices + 1);

	return depth < DEPTH_MIN ? DEPTH_MIN : least(depth, DDP_CHUNKS_MAX);
}

static ddp_cost direct_cost(const ddp_link *link, const ddp_shape *shape, bool every)
{
	const size_t nodes = (size_t)shape->nodes, parts = every ? 1 : nodes;
	const size_t slices = (size_t)shape->channels * parts, longest = quotient_up(shape->count, slices);
	const size_t chunk = ddp_direct_chunk(link, shape, slices, every ? 2 + nodes : 3 * nodes, longest);
	const bool once = every || shape->kind == DDP_REDUCE_SCATTER;
	const double peers = shape->nodes - 1, exchanges = once ? 1 : 2;

	if (chunk == 0)
		return (ddp_cost){ .seconds = INFINITY };
	const double messages = exchanges * (double)quotient_up(longest, chunk);
	const double bytes = (double)(longest * (shape->travel + (once ? 0 : shape->element))) * shape->channels;
	return (ddp_cost){
		.seconds = exchanges * link->latency_seconds +
			peers * (messages * link->message_seconds + bytes * link->byte_seconds),
		.messages = peers * messages, .connections = shape->nodes - 1,
		.message_bytes = least(chunk, longest) * shape->travel,
	};
}

/* ---- recursive doubling ---------------------------------------------------------------------- */

static ddp_cost doubling_cost(const ddp_link *link, const ddp_shape *shape)
{
	const ddp_plan plan = ddp_plan_doubling(shape->nodes);
	const double bytes = (double)(shape->count * shape->wide);
	/* If all pairs are in one half, the other half does not wait for their first round: its
	   values are there when the halves meet, and that round takes pairs no time. */
	const int waits = plan.rounds - (plan.pairs > 0 && plan.pairs <= plan.leaves / 2);

	return (ddp_cost){
		.seconds = waits * (link->latency_seconds + link->message_seconds + bytes * link->byte_seconds),
		.messages = plan.rounds - (plan.pairs > 0), .connections = plan.reductions,
		.message_bytes = shape->count * shape->wide,
	};
}

/* ---- recursive halving ------------------------------------------------------------------------ */

/* What a chunk costs a node. */
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
	return quotient_up(owners * shape->blocks, (size_t)shape->nodes) * count;
}

/* Of a channel: as many slices as it has blocks, or one. */
static size_t slices_of(const ddp_shape *shape)
{
	return shape->kind == DDP_REDUCE_SCATTER ? shape->blocks : 1;
}

static size_t longest_of(const ddp_shape *shape)
{
	return quotient_up(shape->count, (size_t)shape->channels * slices_of(shape));
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
	const double chunks = (double)quotient_up(count, chunk);
	ddp_cost cost = { .connections = plan.reductions + (plan.pairs > 0 ? plan.reductions - 1 : 0) };
	/* A chunk is through with a round in this time, or in that of others beside it. */
	double between = link->latency_seconds / DDP_HALVING_LAG, through = 0;

	if (plan.pairs > 0)
		add_kind(link, shape, &plan, 0, least(chunk, count), chunks, &through, &between, &cost);
	add_kind(link, shape, &plan, shape->nodes - 1, least(chunk, count), chunks, &through, &between, &cost);
	cost.seconds = through + (chunks - 1) * between;
	return cost;
}

/* Of half the size, chunks overlap better; of twice the size, they have fewer messages, and
   wait less often for a process that has no core just then. */
size_t ddp_halving_chunk(const ddp_link *link, const ddp_shape *shape)
{
	const size_t rounds = (size_t)ddp_halving_plan(shape, 0).rounds, slices = slices_of(shape);
	const size_t limit = least(BUDGET_BYTES / (2 * shape->wide * slices * DDP_HALVING_LAG * rounds),
	                           shape->stage_bytes / ((size_t)shape->channels * slices) / shape->element);
	const size_t most = least(HALVING_BYTES / (shape->wide * slices), longest_of(shape) + 63);
	const size_t room = least(limit, most > 64 ? most : 64);
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

	return least(DDP_HALVING_LAG * rounds, quotient_up(longest, chunk) + 1);
}

/* ---- all of them ------------------------------------------------------------------------------- */

ddp_cost ddp_cost_of(ddp_algorithm algorithm, const ddp_link *link, const ddp_shape *shape)
{
	switch (algorithm) {
	case DDP_RECURSIVE_DOUBLING: return doubling_cost(link, shape);
	case DDP_RECURSIVE_HALVING: {
		const size_t chunk = ddp_halving_chunk(link, shape);
		return chunk > 0 ? halving_cost(link, shape, chunk) : (ddp_cost){ .seconds = INFINITY };
	}
	default: return direct_cost(link, shape, algorithm == DDP_DIRECT);
	}
}

unsigned int ddp_cost_candidates(ddp_operation_kind kind, bool small)
{
	if (kind == DDP_REDUCE_SCATTER)
		return 1u << DDP_SCATTER_GATHER | 1u << DDP_RECURSIVE_HALVING;
	if (small)
		return 1u << DDP_DIRECT | 1u << DDP_RECURSIVE_DOUBLING;
	return 1u << DDP_DIRECT | 1u << DDP_SCATTER_GATHER | 1u << DDP_RECURSIVE_HALVING;
}

ddp_algorithm ddp_cost_cheapest(const ddp_link *link, const ddp_shape *shape, unsigned int candidates)
{
	ddp_algorithm best = DDP_ALGORITHMS;
	double seconds = INFINITY;

	for (ddp_algorithm i = 0; i < DDP_ALGORITHMS; i++) {
		if ((candidates >> i & 1) == 0)
			continue;
		if (shape->nodes == 2)
			return i;
		const double now = ddp_cost_of(i, link, shape).seconds;
		const bool by_rounds = i == DDP_RECURSIVE_DOUBLING || i == DDP_RECURSIVE_HALVING;
		if (best == DDP_ALGORITHMS || now < (by_rounds ? ROUNDS_MARGIN : 1) * seconds) {
			best = i;
			seconds = now;
		}
	}
	return best;
}
