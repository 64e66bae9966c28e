#include "comm/hier/plan.h"

#include "comm/ops/combine_nodes.h"

static ddp_plan plan_of(int nodes)
{
	ddp_plan plan = { .nodes = nodes, .leaves = ddp_nodes_power(nodes) };

	plan.pairs = nodes - plan.leaves;
	plan.reductions = plan.pairs > 0;
	for (int reached = 1; reached < plan.leaves; reached *= 2)
		plan.reductions++;
	return plan;
}

ddp_plan ddp_plan_halving(int nodes)
{
	ddp_plan plan = plan_of(nodes);

	plan.halves = true;
	plan.rounds = 2 * plan.reductions;
	return plan;
}

ddp_plan ddp_plan_doubling(int nodes)
{
	ddp_plan plan = plan_of(nodes);

	plan.rounds = plan.reductions + (plan.pairs > 0);
	return plan;
}

static bool acts(const ddp_plan *plan, int node, size_t chunk)
{
	return node >= 2 * plan->pairs || (size_t)(node & 1) == (chunk & 1);
}

static int leaf_of(const ddp_plan *plan, int node)
{
	return node < 2 * plan->pairs ? node / 2 : node - plan->pairs;
}

static int acting_node(const ddp_plan *plan, int leaf, size_t chunk)
{
	return leaf < plan->pairs ? 2 * leaf + (int)(chunk & 1) : leaf + plan->pairs;
}

/* The number of the part that the leaf has at the end. */
static size_t part_of(const ddp_plan *plan, int leaf)
{
	size_t part = 0;

	for (int bit = 1; bit < plan->leaves; bit *= 2)
		part = 2 * part + ((leaf & bit) != 0);
	return part;
}

static ddp_exchange with_other_of_pair(const ddp_plan *plan, int node, size_t chunk, bool results)
{
	const ddp_range all = { 0, (size_t)plan->leaves }, none = { 0, 0 };
	const bool sends = acts(plan, node, chunk) == results;

	if (node >= 2 * plan->pairs)
		return (ddp_exchange){ .peer = -1 };
	return (ddp_exchange){ .peer = node ^ 1, .below = (node & 1) != 0, .send = sends ? all : none,
	                       .recv = sends ? none : all };
}

ddp_exchange ddp_plan_round(const ddp_plan *plan, int node, size_t chunk, int round)
{
	const bool results = round >= plan->reductions;

	if (plan->pairs > 0 && (round == 0 || round == plan->rounds - 1))
		return with_other_of_pair(plan, node, chunk, results);
	if (!acts(plan, node, chunk))
		return (ddp_exchange){ .peer = -1 };

	/* Results go the way back. */
	const int bit = (results ? plan->rounds - 1 - round : round) - (plan->pairs > 0);
	const int leaf = leaf_of(plan, node), other = leaf ^ 1 << bit;
	ddp_exchange exchange = { .peer = acting_node(plan, other, chunk), .below = other < leaf,
	                          .send = { 0, (size_t)plan->leaves }, .recv = { 0, (size_t)plan->leaves } };

	if (plan->halves) {
		const size_t kept = (size_t)plan->leaves >> (bit + 1);
		const ddp_range ours = { part_of(plan, leaf) & ~(kept - 1), kept };
		const ddp_range theirs = { ours.begin ^ kept, kept };
		exchange.send = results ? ours : theirs;
		exchange.recv = results ? theirs : ours;
	}
	return exchange;
}

ddp_range ddp_plan_own(const ddp_plan *plan, int node, size_t chunk)
{
	if (!acts(plan, node, chunk))
		return (ddp_range){ 0, 0 };
	return (ddp_range){ part_of(plan, leaf_of(plan, node)), 1 };
}
