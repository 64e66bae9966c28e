/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce, reduce and reduce_scatter between nodes: what an operation is
   made of, and its windows. */
#include "comm/hier/hier.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/core/offsets.h"
#include "comm/hier/local.h"
#include "comm/hier/slices.h"
#include "comm/hier/store.h"
#include "comm/hier/tune.h"
#include "comm/ops/combine_nodes.h"
#include "comm/shm/memory.h"
#include "comm/shm/node.h"
#include "comm/wait/message.h"

/* ---- windows ----------------------------------------------------------------------------------- */

static ddp_status run_windows(ddp_reduction *x, size_t windows)
{
	ddp_comm *comm = x->comm;
	bool staged = !x->small && !x->direct;
	bool shared = (ddp_node_header(comm, comm->node.self)->flags & DDP_HEADER_SEND_SHARED) != 0;
	ddp_status status = DDP_OK;

	for (x->window = 0; x->window < windows && status == DDP_OK; x->window++) {
		if (staged) {
			if (!shared)
				ddp_local_stage(x);
			status = ddp_node_step(comm);
		}
		if (status == DDP_OK && x->mine_count > 0)
			status = x->algorithm->run(x);
		if (status == DDP_OK && comm->node.size > 1)
			status = ddp_node_step(comm);
		if (status == DDP_OK && !x->direct)
			ddp_local_pull(x);
	}
	return status;
}

static ddp_status run(ddp_reduction *x)
{
	size_t windows = 0;
	ddp_status status = ddp_slices_cut(x, &windows);

	if (status == DDP_OK && x->algorithm->prepare != NULL)
		status = x->algorithm->prepare(x);
	return status == DDP_OK ? run_windows(x, windows) : status;
}

/* ---- set-up ------------------------------------------------------------------------------------- */

/* All ranks of a node get the same answer. */
static bool all_direct(const ddp_reduction *x)
{
	if (x->comm->node.size == 1)
		return true;
	for (int i = 0; i < x->comm->node.size; i++) {
		const ddp_header *h = ddp_node_header(x->comm, i);
		bool reads = x->c->kind == DDP_ALL_REDUCE || x->comm->node.ranks[i] == x->c->root;
		if ((h->flags & DDP_HEADER_SEND_SHARED) == 0 ||
		    (reads && (h->flags & DDP_HEADER_RECV_SHARED) == 0))
			return false;
	}
	/* Blocks are passed on through the slots: only their readers know where
	   they go. */
	return x->c->kind != DDP_REDUCE_SCATTER;
}

/* Ranks of the largest node, or a little more: the power of two by which partial
   sums are divided if a mean is wanted, since they travel in the range of the type.
   That changes no digits, but of the smallest numbers. 0: they are not divided. */
static double divisor_on_node(const ddp_reduction *x)
{
	int most = 1, power = 1;

	if (x->c->op != DDP_AVG || x->travel == ddp_accumulator(x->c->type))
		return 0;
	for (int node = 0; node < x->nodes; node++)
		most = ddp_node_size(x->comm, node) > most ? ddp_node_size(x->comm, node) : most;
	while (power < most)
		power *= 2;
	return power > 1 ? power : 0;
}

static void set_up_combination(ddp_reduction *x)
{
	ddp_comm *comm = x->comm;
	bool scaled = false;

	for (int i = 0; i < comm->node.size; i++) {
		const ddp_header *h = ddp_node_header(comm, i);
		bool own = (h->flags & DDP_HEADER_SCALED) != 0;
		comm->node.scales[i] = own ? h->scale : 1;
		scaled = scaled || own;
	}
	x->combination = (ddp_combination){
		.type = x->c->type, .op = x->c->op, .wide_dst = x->travel != x->c->type,
		.nsrc = comm->node.size, .scale = scaled ? comm->node.scales : NULL,
		.divisor = divisor_on_node(x),
	};
	x->divisor = x->c->op == DDP_AVG ? comm->size : 0;
	if (x->combination.divisor != 0)
		x->divisor /= x->combination.divisor;
	x->plain = comm->node.size == 1 && !scaled && !x->combination.wide_dst && x->combination.divisor == 0;
}

static ddp_status place_output(ddp_reduction *x)
{
	const ddp_operation *c = x->c;
	char *place = c->recv;

	x->output = c->recv;
	if (c->kind != DDP_REDUCE_SCATTER)
		return DDP_OK;
	size_t begin = ddp_block_offset(x->comm, x->comm->rank);
	size_t bytes = ddp_block_count(c, x->comm->rank) * x->element;
	if (bytes > 0 && c->send_list == NULL && place < x->input + x->total * x->element && x->input < place + bytes) {
		place = x->spare = malloc(bytes);
		if (place == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of results", bytes);
	}
	x->output = (char *)((uintptr_t)place - begin * x->element);
	return DDP_OK;
}

static void set_up_entry(const ddp_reduction *x, ddp_entry *entry)
{
	const ddp_operation *c = x->c;
	size_t bytes = x->total * x->element;

	if (x->small && x->comm->node.size == 1)
		return;
	if (x->small) {
		entry->payload = c->send;
		entry->payload_bytes = bytes;
		return;
	}
	entry->send = ddp_memory_find(x->comm, c->send, bytes);
	if (c->kind == DDP_ALL_REDUCE || (c->kind == DDP_REDUCE && x->comm->rank == c->root))
		entry->recv = ddp_memory_find(x->comm, c->recv, bytes);
}

ddp_status ddp_hier_reduction(ddp_comm *comm, const ddp_operation *c)
{
	ddp_reduction x = { .comm = comm, .c = c, .element = ddp_type_bytes(c->type),
	                    .travel = ddp_travel_type(c->type, c->op), .input = c->send,
	                    .node = comm->topology.node_of[comm->rank], .nodes = comm->topology.nodes };
	ddp_entry entry = { .payload = NULL };

	x.travel_bytes = ddp_type_bytes(x.travel);
	x.total = c->kind == DDP_REDUCE_SCATTER ? ddp_block_offset(comm, comm->size) : c->count;
	x.small = x.total * x.element <= DDP_SMALL_BYTES && c->kind != DDP_REDUCE_SCATTER;
	ddp_status status = place_output(&x);
	if (status == DDP_OK)
		status = ddp_hier_store_open(comm);
	if (status != DDP_OK) {
		free(x.spare);
		return ddp_comm_break(comm, status, comm->rank, "%s", ddp_last_error());
	}
	set_up_entry(&x, &entry);
	status = ddp_node_enter(comm, c, &entry);
	if (status == DDP_OK)
		status = ddp_hier_tune(comm, x.total * x.element);
	if (status == DDP_OK && (status = ddp_hier_choose(&x, &x.algorithm)) != DDP_OK)
		status = ddp_comm_break(comm, status, comm->rank, "%s", ddp_last_error());
	if (status == DDP_OK) {
		x.direct = !x.small && all_direct(&x);
		set_up_combination(&x);
		status = run(&x);
	}
	if (status != DDP_OK)
		status = ddp_message_give_up(comm, status);
	if (status == DDP_OK && x.spare != NULL)
		memcpy(c->recv, x.spare, ddp_block_count(c, comm->rank) * x.element);
	free(x.spare);
	return status;
}
