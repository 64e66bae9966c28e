/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/topology.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

ddp_status ddp_topology_make(ddp_topology *t, const int *world_ranks, int size)
{
	const size_t bytes = (size_t)size * sizeof(int);

	*t = (ddp_topology){ .world_ranks = malloc(bytes), .node_of = malloc(bytes),
	                     .local_of = malloc(bytes), .node_ranks = malloc(bytes),
	                     .node_begin = malloc(bytes + sizeof(int)) };
	if (t->world_ranks == NULL || t->node_of == NULL || t->local_of == NULL ||
	    t->node_ranks == NULL || t->node_begin == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the places of %d ranks", size);
	memcpy(t->world_ranks, world_ranks, bytes);
	return DDP_OK;
}

ddp_status ddp_topology_place(ddp_topology *t, int size, const ddp_roster *roster)
{
	/* Numbers of nodes that have come, from 1, by their names. */
	int *number = calloc((size_t)roster->size, sizeof(*number));

	if (number == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the nodes of %d ranks", roster->size);
	for (int r = 0; r < size; r++) {
		int *known = &number[roster->peers[t->world_ranks[r]].node];
		if (*known == 0)
			*known = ++t->nodes;
		t->node_of[r] = *known - 1;
	}
	free(number);
	/* How many each has, then where it begins; its ranks in their order. */
	memset(t->node_begin, 0, ((size_t)t->nodes + 1) * sizeof(int));
	for (int r = 0; r < size; r++)
		t->local_of[r] = t->node_begin[t->node_of[r] + 1]++;
	t->channels = size;
	for (int node = 0; node < t->nodes; node++) {
		if (t->node_begin[node + 1] < t->channels)
			t->channels = t->node_begin[node + 1];
		t->node_begin[node + 1] += t->node_begin[node];
	}
	for (int r = 0; r < size; r++)
		t->node_ranks[t->node_begin[t->node_of[r]] + t->local_of[r]] = r;
	return DDP_OK;
}

void ddp_topology_free(ddp_topology *t)
{
	free(t->world_ranks);
	free(t->node_of);
	free(t->local_of);
	free(t->node_ranks);
	free(t->node_begin);
}
