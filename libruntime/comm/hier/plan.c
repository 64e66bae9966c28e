/* SPDX-License-Identifier: Apache-2.0 */
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

ddp_plan ddp_plan_halving_to_root(int nodes, int root)
{
	ddp_plan plan = ddp_plan_halving(nodes);

	plan.wanted = DDP_WANTED_BY_ROOT;
	plan.root = root;
	return plan;
}

ddp_plan ddp_plan_halving_to_owners(int nodes)
{
	ddp_plan plan = ddp_plan_halving(nodes);

	plan.wanted = DDP_WANTED_BY_OWNERS;
	plan.rounds = plan.reductions + (plan.pairs > 0);
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
	const bool sends = acts(plan, node, chunk) == results;
	const bool share = results && plan->wanted == DDP_WANTED_BY_OWNERS;
	const ddp_range none = { 0, 0 };

	if (node >= 2 * plan->pairs)
		return (ddp_exchange){ .peer = -1 };
	if (results && plan->wanted == DDP_WANTED_BY_ROOT && (sends ? node ^ 1 : node) != plan->root)
		return (ddp_exchange){ .peer = -1 };
	const ddp_range parts = share ? (ddp_range){ part_of(plan, node / 2), 1 }
	                              : (ddp_range){ 0, (size_t)plan->leaves };
	return (ddp_exchange){ .peer = node ^ 1, .below = (node & 1) != 0, .send = sends ? parts : none,
	                       .recv = sends ? none : parts, .share = share };
}

/* Results on their way back to the root's leaf come from where the bits that are still to
   come differ from its own. */
static void keep_for_root(const ddp_plan *plan, int leaf, int bit, ddp_exchange *exchange)
{
	const int differing = leaf ^ leaf_of(plan, plan->root);
	const bool sends = (differing & 1 << bit) != 0;

	if (differing >> (bit + 1) != 0)
		*exchange = (ddp_exchange){ .peer = -1 };
	else
		*(sends ? &exchange->recv : &exchange->send) = (ddp_range){ 0, 0 };
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
	if (results && plan->wanted == DDP_WANTED_BY_ROOT)
		keep_for_root(plan, leaf, bit, &exchange);
	return exchange;
}

ddp_range ddp_plan_own(const ddp_plan *plan, int node, size_t chunk)
{
	if (!acts(plan, node, chunk))
		return (ddp_range){ 0, 0 };
	return (ddp_range){ part_of(plan, leaf_of(plan, node)), 1 };
}

ddp_range ddp_plan_nodes_of(const ddp_plan *plan, size_t part)
{
	/* Bits that are reversed twice are as they were. */
	const int leaf = (int)part_of(plan, (int)part);

	return leaf < plan->pairs ? (ddp_range){ 2 * (size_t)leaf, 2 } : (ddp_range){ (size_t)(leaf + plan->pairs), 1 };
}

size_t ddp_plan_node_count(const ddp_plan *plan, ddp_range parts)
{
	/* Leaves of such parts are as far apart as there are groups of them. */
	const size_t pairs = (size_t)plan->pairs;

	if (parts.count == 0)
		return 0;
	const size_t apart = (size_t)plan->leaves / parts.count, first = part_of(plan, (int)parts.begin);
	return parts.count + (pairs > first ? (pairs - first + apart - 1) / apart : 0);
}
