/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/store.h"

#include <stdlib.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/ops/combine_nodes.h"

ddp_status ddp_hier_store_open(ddp_comm *comm)
{
	size_t size = (size_t)comm->size, nodes = (size_t)comm->topology.nodes;

	if (comm->hier.store != NULL)
		return DDP_OK;
	ddp_hier_store *store = comm->hier.store = calloc(1, sizeof(*store));
	if (store == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for reductions between %zu nodes", nodes);
	store->slices = calloc(size, sizeof(*store->slices));
	store->mine = calloc(size, sizeof(*store->mine));
	store->parts = calloc(nodes, sizeof(*store->parts));
	store->owned = calloc(nodes, sizeof(*store->owned));
	store->order = calloc(size, sizeof(*store->order));
	store->part_begin = calloc(nodes + 1, sizeof(*store->part_begin));
	store->node_begin = calloc(nodes, sizeof(*store->node_begin));
	store->scratch = malloc(ddp_combine_scratch_bytes(comm->topology.nodes));
	if (store->slices != NULL && store->mine != NULL && store->parts != NULL &&
	    store->owned != NULL && store->order != NULL && store->part_begin != NULL &&
	    store->node_begin != NULL && store->scratch != NULL)
		return DDP_OK;
	ddp_hier_store_close(comm);
	return ddp_fail(DDP_ERR_NOMEM, "no memory for reductions between %zu nodes", nodes);
}

ddp_status ddp_hier_store_grow(ddp_comm *comm, size_t buffer_bytes, size_t transfers)
{
	ddp_hier_store *store = comm->hier.store;

	if (buffer_bytes > store->buffer_bytes) {
		free(store->buffers);
		store->buffer_bytes = 0;
		store->buffers = malloc(buffer_bytes);
		if (store->buffers == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of buffers", buffer_bytes);
		store->buffer_bytes = buffer_bytes;
	}
	if (transfers > store->transfer_count) {
		free(store->transfers);
		store->transfer_count = 0;
		store->transfers = calloc(transfers, sizeof(*store->transfers));
		if (store->transfers == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu messages of a reduction", transfers);
		store->transfer_count = transfers;
	}
	return DDP_OK;
}

void ddp_hier_store_close(ddp_comm *comm)
{
	ddp_hier_store *store = comm->hier.store;

	if (store == NULL)
		return;
	free(store->slices);
	free(store->mine);
	free(store->parts);
	free(store->owned);
	free(store->order);
	free(store->part_begin);
	free(store->node_begin);
	free(store->scratch);
	free(store->buffers);
	free(store->transfers);
	free(store);
	comm->hier.store = NULL;
}
