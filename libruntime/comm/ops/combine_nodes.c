/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/ops/combine_nodes.h"

#include <stdint.h>

#include "comm/ops/names.h"

/* Elements that are combined at a time: a few levels of the tree stay in L1. */
enum { BLOCK = 512 };

ddp_type ddp_travel_type(ddp_type type, ddp_op op)
{
	/* Sums and products of 8 bits are cut to 8 bits all along, with the same result, and single bits do
	   not grow. */
	if ((type == DDP_U8 || type == DDP_I8) && (op == DDP_AVG || op == DDP_MIN || op == DDP_MAX))
		return ddp_accumulator(type);
	return type;
}

int ddp_nodes_power(int nodes)
{
	int power = 1;

	while (power * 2 <= nodes)
		power *= 2;
	return power;
}

void ddp_combine_pair(ddp_type type, ddp_op op, const void *lower, const void *upper, void *result,
                      size_t count)
{
	const void *src[2] = { lower, upper };
	void *dst[1] = { result };
	const ddp_combination pair = { .type = ddp_accumulator(type), .op = op, .nsrc = 2, .src = src,
	                               .ndst = 1, .dst = dst };

	ddp_combine(&pair, 0, count);
}

/* A block of elements; on the way down the tree, each level keeps a value. */
typedef struct combining {
	const ddp_combination *last;
	ddp_type travel;
	void *const *parts;
	int extra;
	size_t element; /* bytes, as it travels */
	size_t first, count;
	double (*values)[BLOCK];
} combining;

size_t ddp_combine_scratch_bytes(int nodes)
{
	size_t levels = 1;

	for (int leaves = ddp_nodes_power(nodes); leaves > 1; leaves /= 2)
		levels++;
	return levels * BLOCK * sizeof(double);
}

static const char *part_at(const combining *m, int node)
{
	return (const char *)m->parts[node] + m->first * m->element;
}

/* Combines one or two parts as they came. */
static const void *combine_parts(combining *m, int low, int count, int level)
{
	const void *src[2] = { part_at(m, low), count == 2 ? part_at(m, low + 1) : NULL };
	void *dst[1] = { m->values[level] };
	const ddp_combination pair = { .type = m->travel, .op = m->last->op, .wide_dst = true, .nsrc = count,
	                               .src = src, .ndst = 1, .dst = dst };

	if (count == 1 && ddp_accumulator(m->travel) == m->travel)
		return src[0];
	ddp_combine(&pair, 0, m->count);
	return dst[0];
}

/* The value of `leaves` leaves of the tree, a power of two, in accumulator form. */
static const void *value_of(combining *m, int leaf, int leaves, int level)
{
	if (leaves == 1 && leaf < m->extra)
		return combine_parts(m, 2 * leaf, 2, level);
	if (leaves == 1)
		return combine_parts(m, leaf + m->extra, 1, level);
	if (leaves == 2 && leaf >= m->extra)
		return combine_parts(m, leaf + m->extra, 2, level);
	const void *lower = value_of(m, leaf, leaves / 2, level);
	const void *upper = value_of(m, leaf + leaves / 2, leaves / 2, level + 1);
	ddp_combine_pair(m->travel, m->last->op, lower, upper, m->values[level], m->count);
	return m->values[level];
}

/* The last pair of the tree's values goes to the destinations at once. */
static void combine_block(combining *m, int power)
{
	/* Addressed like them. */
	const size_t behind = m->first * ddp_type_bytes(ddp_accumulator(m->last->type));
	const void *src[2] = {
		(const void *)((uintptr_t)value_of(m, 0, power / 2, 0) - behind),
		(const void *)((uintptr_t)value_of(m, power / 2, power / 2, 1) - behind),
	};
	ddp_combination last = *m->last;

	last.wide_src = true;
	last.src = src;
	last.nsrc = 2;
	ddp_combine(&last, m->first, m->count);
}

void ddp_combine_nodes(const ddp_combination *last, ddp_type travel, void *const *parts, int nodes, size_t count,
                       void *scratch)
{
	const int power = ddp_nodes_power(nodes);
	combining m = { .last = last, .travel = travel, .parts = parts, .extra = nodes - power,
	                .element = ddp_type_bytes(travel), .values = scratch };

	if (nodes == 2) {
		const void *src[2] = { parts[0], parts[1] };
		ddp_combination both = *last;
		both.wide_src = travel != last->type;
		both.src = src;
		both.nsrc = 2;
		ddp_combine(&both, 0, count);
		return;
	}
	for (m.first = 0; m.first < count; m.first += BLOCK) {
		m.count = count - m.first < BLOCK ? count - m.first : BLOCK;
		combine_block(&m, power);
	}
}
