/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/buddies.h"

/* Ranks of `node` follow in order[from ..]. Returns where the next node's begin. */
static int append(const int *nodes, int ranks, int node, int *order, int from)
{
	for (int r = 0; r < ranks; r++) {
		if (nodes[r] == node)
			order[from++] = r;
	}
	return from;
}

/* order[ranks] becomes the ranks of one node after the other, the largest node first. Returns that node's number of
   ranks. */
static int order_ranks(const int *nodes, int ranks, int *order)
{
	int most = 0, largest = 0, end;

	for (int node = 0, at = 0; at < ranks; node++) {
		end = append(nodes, ranks, node, order, at);
		if (end - at > most) {
			most = end - at;
			largest = node;
		}
		at = end;
	}
	end = append(nodes, ranks, largest, order, 0);
	for (int node = 0; end < ranks; node++) {
		if (node != largest)
			end = append(nodes, ranks, node, order, end);
	}
	return most;
}

void ddp_buddy_choose(const int *nodes, int ranks, int *order, int *buddies)
{
	const int most = order_ranks(nodes, ranks, order);

	/* So many places further is another node, and each rank has one ward, if others have as many ranks as the largest. */
	for (int at = 0; at < ranks; at++) {
		int to = most == ranks ? (at + 1) % ranks : (at + most) % ranks;
		if (most < ranks && 2 * most > ranks)
			to = at < most ? most + at % (ranks - most) : at - most;
		buddies[order[at]] = order[to];
	}
}
