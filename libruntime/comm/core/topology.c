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
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	memcpy(t->world_ranks, world_ranks, bytes);
	return DDP_OK;
}

void ddp_topology_place(ddp_topology *t, int size, const ddp_peer *peers)
{
	int filled = 0;

	for (int r = 0; r < size; r++) {
		int key = peers[t->world_ranks[r]].node, first = 0;
		while (peers[t->world_ranks[first]].node != key)
			first++;
		t->node_of[r] = first < r ? t->node_of[first] : t->nodes++;
	}
	t->channels = size;
	for (int node = 0; node < t->nodes; node++) {
		int begin = t->node_begin[node] = filled;
		for (int r = 0; r < size; r++) {
			if (t->node_of[r] != node)
				continue;
			t->local_of[r] = filled - begin;
			t->node_ranks[filled++] = r;
		}
		if (filled - begin < t->channels)
			t->channels = filled - begin;
	}
	t->node_begin[t->nodes] = filled;
}

void ddp_topology_free(ddp_topology *t)
{
	free(t->world_ranks);
	free(t->node_of);
	free(t->local_of);
	free(t->node_ranks);
	free(t->node_begin);
}
