/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/plan: who exchanges what with whom, round by round, in recursive doubling
   and in recursive halving. All ranks know it from the number of nodes alone.

   2^k + e nodes are 2^k leaves of a tree: each of the first e is a pair of nodes, as in
   comm/ops/combine_nodes. One node of a pair acts for both: in a round more, at the
   beginning, it gets what the other one has; at the end it gives that one the result.
   Which of the two it is changes from chunk to chunk, so that both have as much to do.

   Recursive halving cuts data into a part per leaf. The leaves that exchange in round
   k differ in bit k of their number, and each keeps half of the parts it still has; so
   parts are numbered in the order of reversed bits, in which what is kept, and what is
   given away, lies together. Then results go the same way back, to all nodes or to one;
   or they stay, if each leaf's part is what its nodes want. */
#pragma once

#include <stdbool.h>

#include "comm/ops/blocks.h"

typedef enum ddp_wanted {
	DDP_WANTED_BY_ALL,
	DDP_WANTED_BY_ROOT,
	DDP_WANTED_BY_OWNERS /* a node's own share of its leaf's part */
} ddp_wanted;

typedef struct ddp_plan {
	bool halves;     /* recursive halving; else doubling */
	ddp_wanted wanted;
	int root;        /* a node */
	int nodes, leaves, pairs;
	int rounds;      /* in all */
	int reductions;  /* of these, the first ones, after which parts are complete */
} ddp_plan;

/* A node does one exchange in a round. */
typedef struct ddp_exchange {
	int peer;             /* a node; -1: nothing */
	bool below;           /* the peer's values come first in the order of combination */
	ddp_range send, recv; /* parts; maybe none */
	bool share;           /* of these, the share of who gets them */
} ddp_exchange;

/* The plan of recursive halving, whose result all nodes want, or one, or each its own share of it;
   or of recursive doubling. */
ddp_plan ddp_plan_halving(int nodes);
ddp_plan ddp_plan_halving_to_root(int nodes, int root);
ddp_plan ddp_plan_halving_to_owners(int nodes);
ddp_plan ddp_plan_doubling(int nodes);

ddp_exchange ddp_plan_round(const ddp_plan *plan, int node, size_t chunk, int round);

/* The part that is complete on a node after the reductions: none on one that does not
   act for its leaf, in this chunk. */
ddp_range ddp_plan_own(const ddp_plan *plan, int node, size_t chunk);

/* The nodes of the leaf that has this part at the end: one or two. */
ddp_range ddp_plan_nodes_of(const ddp_plan *plan, size_t part);
/* How many nodes there are in parts that are exchanged, or complete, together. */
size_t ddp_plan_node_count(const ddp_plan *plan, ddp_range parts);

/* Parts as elements, of `count`. */
static inline ddp_range ddp_plan_elements(const ddp_plan *plan, ddp_range parts, size_t count)
{
	const size_t leaves = (size_t)plan->leaves, end = parts.begin + parts.count;
	const size_t begin = count * parts.begin / leaves;

	return (ddp_range){ begin, count * end / leaves - begin };
}
