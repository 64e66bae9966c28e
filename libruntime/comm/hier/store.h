/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/store: what reductions between nodes need each time, kept with the
   communicator: fresh memory would be given back and faulted in each time. */
#pragma once

#include "comm/hier/reduction.h"

typedef struct ddp_hier_store {
	ddp_slice *slices;  /* [size]: no operation has more */
	int *mine;          /* [size] */
	void **parts;       /* [nodes] */
	int *owned;         /* [nodes] */
	int *order;         /* [size]: of recursive halving, this channel's slices by part */
	int *part_begin;    /* [nodes + 1]: where a part's begin there, */
	int *node_begin;    /* [nodes]: and a node's */
	void *scratch;      /* of comm/ops/combine_nodes */
	char *buffers;
	size_t buffer_bytes;
	ddp_transfer *transfers;
	size_t transfer_count;
	uint64_t coalesce_ns; /* for how long messages may coalesce; learnt */
} ddp_hier_store;

/* Makes the store at its first use. */
ddp_status ddp_hier_store_open(ddp_comm *comm);
/* No transfer is under way: makes buffers and transfers large enough; their
   contents are lost. */
ddp_status ddp_hier_store_grow(ddp_comm *comm, size_t buffer_bytes, size_t transfers);

/* Frees it. */
void ddp_hier_store_close(ddp_comm *comm);
