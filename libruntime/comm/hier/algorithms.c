/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/algorithms.h"

#include <math.h>
#include <string.h>

/* The model knows links only: that a process of another node may have no core just then is worth so
   much of the time. */
static const double ROUNDS_MARGIN = 0.98;

static bool reduces_all(ddp_operation_kind kind, bool small)
{
	(void)small;
	return kind != DDP_REDUCE_SCATTER;
}

static bool is_large(ddp_operation_kind kind, bool small)
{
	(void)kind;
	return !small;
}

static bool is_small(ddp_operation_kind kind, bool small)
{
	return small && kind != DDP_REDUCE_SCATTER;
}

static const ddp_algorithm_row rows[] = {
	[DDP_DIRECT] = {
		.name = "direct", .can = reduces_all, .cost = ddp_direct_cost, .cut = ddp_direct_cut,
		.prepare = ddp_direct_prepare, .run = ddp_direct_run,
	},
	[DDP_SCATTER_GATHER] = {
		.name = "scatter_gather", .can = is_large, .cost = ddp_scatter_gather_cost, .by_node = true,
		.cut = ddp_direct_cut, .prepare = ddp_direct_prepare, .run = ddp_direct_run,
	},
	[DDP_RECURSIVE_DOUBLING] = {
		.name = "recursive_doubling", .can = is_small, .cost = ddp_recursive_doubling_cost, .by_rounds = true,
		.cut = ddp_recursive_doubling_cut, .run = ddp_recursive_doubling,
	},
	[DDP_RECURSIVE_HALVING] = {
		.name = "recursive_halving", .can = is_large, .cost = ddp_recursive_halving_cost, .by_rounds = true,
		.chunks_overlap = true, .cut = ddp_recursive_halving_cut, .prepare = ddp_recursive_halving_prepare,
		.run = ddp_recursive_halving_run,
	},
};
_Static_assert(sizeof(rows) / sizeof(rows[0]) == DDP_ALGORITHMS, "each algorithm has a row");
_Static_assert((int)DDP_ALGORITHMS <= (int)DDP_WANTED_MAX, "DDP_ALGORITHM may name all of them");

const ddp_algorithm_row *ddp_algorithm_of(ddp_algorithm algorithm)
{
	return &rows[algorithm];
}

ddp_algorithm ddp_algorithm_named(const char *name)
{
	ddp_algorithm i = 0;

	while (i < DDP_ALGORITHMS && strcmp(name, rows[i].name) != 0)
		i++;
	return i;
}

unsigned int ddp_algorithm_candidates(ddp_operation_kind kind, bool small)
{
	unsigned int set = 0;

	for (ddp_algorithm i = 0; i < DDP_ALGORITHMS; i++)
		set |= rows[i].can(kind, small) ? 1u << i : 0;
	return set;
}

ddp_algorithm ddp_algorithm_cheapest(const ddp_link *link, const ddp_shape *shape, unsigned int candidates)
{
	ddp_algorithm best = DDP_ALGORITHMS;
	double seconds = INFINITY;

	for (ddp_algorithm i = 0; i < DDP_ALGORITHMS; i++) {
		if ((candidates >> i & 1) == 0)
			continue;
		if (shape->nodes == 2)
			return i;
		const double now = rows[i].cost(link, shape).seconds;
		if (best == DDP_ALGORITHMS || now < (rows[i].by_rounds ? ROUNDS_MARGIN : 1) * seconds) {
			best = i;
			seconds = now;
		}
	}
	return best;
}
