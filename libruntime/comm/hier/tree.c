/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/tree.h"

double ddp_tree_cost(ddp_tree_form form, int nodes, size_t chunks, double chunk_seconds, double latency_seconds)
{
	const double count = chunks > 0 ? (double)chunks : 1;
	double sent = count + nodes - 2, hops = nodes - 1; /* of a chain */

	if (form != DDP_TREE_CHAIN) {
		int rounds = 0, depth = 0;
		while (1 << rounds < nodes)
			rounds++;
		while (2 << depth <= nodes)
			depth++;
		sent = form == DDP_TREE_BINARY ? 2 * (count + depth - 1) : count * rounds;
		hops = depth;
	}
	return sent * chunk_seconds + hops * latency_seconds;
}

ddp_tree_form ddp_tree_choose(int nodes, size_t chunks)
{
	ddp_tree_form best = DDP_TREE_BINOMIAL;

	for (ddp_tree_form form = best; form < DDP_TREE_FORMS; form++)
		if (ddp_tree_cost(form, nodes, chunks, 1, 1) < ddp_tree_cost(best, nodes, chunks, 1, 1))
			best = form;
	return best;
}

const char *ddp_tree_name(ddp_tree_form form)
{
	return form == DDP_TREE_BINOMIAL ? "binomial tree" : form == DDP_TREE_BINARY ? "binary tree" : "chain";
}

static void add(ddp_tree *tree, int nodes, int child)
{
	if (child < nodes)
		tree->children[tree->count++] = child;
}

ddp_tree ddp_tree_of(ddp_tree_form form, int nodes, int node)
{
	ddp_tree tree = { .parent = node - 1 };
	int bit = 1;

	switch (form) {
	case DDP_TREE_BINOMIAL:
		while (bit < nodes && (node & bit) == 0)
			bit *= 2;
		if (node > 0)
			tree.parent = node & ~bit;
		/* The children with the largest subtrees first. */
		for (bit /= 2; bit > 0; bit /= 2)
			add(&tree, nodes, node + bit);
		break;
	case DDP_TREE_BINARY:
		if (node > 0)
			tree.parent = (node - 1) / 2;
		add(&tree, nodes, 2 * node + 1);
		add(&tree, nodes, 2 * node + 2);
		break;
	default:
		add(&tree, nodes, node + 1);
	}
	return tree;
}
