/* SPDX-License-Identifier: Apache-2.0 */
/* The input is cut into one slice per rank, its owner; the owner combines its slice
   of all inputs, in the order of ranks, and stores the result where it is wanted. */
#include "comm/shm/node_reduce.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/core/offsets.h"
#include "comm/ops/blocks.h"
#include "comm/ops/kernels.h"
#include "comm/shm/memory.h"
#include "comm/shm/node.h"
#include "comm/wait/await.h"

typedef struct reduction {
	ddp_comm *comm;
	const ddp_operation *c;
	size_t element;
	size_t total;        /* elements of each rank's input */
	const char *input;
	char *output;        /* of this rank, addressed like its input */
	char *spare;         /* malloc'd output that is copied at the end, or NULL */
	bool wanted;         /* this rank wants a result */
	size_t width;        /* elements of a slice per window */
	const void **src;    /* [node size] */
	void **dst;          /* [node size + 1] */
	ddp_combination combination;
} reduction;

static ddp_range slice(const reduction *r, int owner)
{
	if (r->c->kind == DDP_REDUCE_SCATTER) {
		int rank = r->comm->node.ranks[owner];
		return (ddp_range){ ddp_block_offset(r->comm, rank), ddp_block_count(r->c, rank) };
	}
	return ddp_part(r->total, r->comm->node.size, owner, 64 / r->element);
}

/* Does the node's i-th rank get results of other owners? */
static bool wants_all(const reduction *r, int i)
{
	return r->c->kind == DDP_ALL_REDUCE ||
	       (r->c->kind == DDP_REDUCE && r->comm->node.ranks[i] == r->c->root);
}

/* `base` such that element `begin` lies at `memory`; may point nowhere. */
static void *rebase(const void *memory, size_t begin, size_t element)
{
	return (void *)((uintptr_t)memory - begin * element);
}

/* All but sources and destinations. */
static void set_up_combination(ddp_comm *comm, const ddp_operation *c, ddp_combination *combination)
{
	ddp_node *node = &comm->node;

	*combination = (ddp_combination){
		.type = c->type, .op = c->op, .nsrc = node->size, .src = node->src, .dst = node->dst,
		.divisor = c->op == DDP_AVG ? comm->size : 0,
	};
	for (int i = 0; i < node->size; i++) {
		const ddp_header *h = ddp_node_header(comm, i);
		bool scaled = (h->flags & DDP_HEADER_SCALED) != 0;
		node->scales[i] = scaled ? h->scale : 1;
		if (scaled)
			combination->scale = node->scales;
	}
}

/* This rank's input for an owner's slice, addressed like the whole input. */
static const char *input_for(const reduction *r, int owner)
{
	const ddp_operation *c = r->c;

	return c->send_list == NULL ? r->input
	                            : rebase(c->send_list[r->comm->node.ranks[owner]], slice(r, owner).begin, r->element);
}

/* The input as one buffer; a list's blocks go to `packed`. */
static const void *pack(const ddp_comm *comm, const ddp_operation *c, char *packed)
{
	const size_t element = ddp_type_bytes(c->type);

	for (int r = 0; r < comm->size && c->send_list != NULL; r++) {
		if (ddp_block_count(c, r) > 0)
			memcpy(packed + ddp_block_offset(comm, r) * element, c->send_list[r], ddp_block_count(c, r) * element);
	}
	return c->send_list != NULL ? packed : c->send;
}

/* Everybody combines what it wants from all payloads; no second round. */
static ddp_status run_small(ddp_comm *comm, const ddp_operation *c, size_t bytes)
{
	ddp_node *node = &comm->node;
	char packed[DDP_SMALL_BYTES];
	const ddp_entry entry = { .payload = pack(comm, c, packed), .payload_bytes = bytes };
	size_t first = 0, count = c->count, element = ddp_type_bytes(c->type);
	ddp_status status = ddp_node_enter(comm, c, &entry);
	ddp_combination combination;

	if (status != DDP_OK || (c->kind == DDP_REDUCE && c->root != comm->rank))
		return status;
	set_up_combination(comm, c, &combination);
	for (int i = 0; i < node->size; i++)
		node->src[i] = ddp_node_payload(comm, i, bytes);
	if (c->kind == DDP_REDUCE_SCATTER) {
		first = ddp_block_offset(comm, comm->rank);
		count = ddp_block_count(c, comm->rank);
	}
	node->dst[0] = rebase(c->recv, first, element);
	combination.ndst = 1;
	/* The only reader of a slot writes to it: see ddp_take(). */
	if (node->size == 2 && bytes > DDP_INLINE_BYTES && c->kind == DDP_ALL_REDUCE) {
		node->src[node->self] = c->send;
		node->dst[combination.ndst++] = (void *)(uintptr_t)node->src[1 - node->self];
	}
	ddp_combine(&combination, first, count);
	return DDP_OK;
}

/* ---- large operations ---------------------------------------------------------- */

/* This rank's slice in the i-th rank's slot for window k, addressed like the
   input; the window begins at element `begin`. */
static void *in_slot(const reduction *r, int i, size_t begin, size_t k)
{
	char *slot = ddp_stage_slot(r->comm, i, k) + (size_t)r->comm->node.self * r->width * r->element;

	return rebase(slot, begin, r->element);
}

static void set_sources(reduction *r, size_t begin, size_t k)
{
	ddp_comm *comm = r->comm;

	for (int i = 0; i < comm->node.size; i++) {
		const ddp_header *h = ddp_node_header(comm, i);
		if (i == comm->node.self)
			r->src[i] = input_for(r, i);
		else if ((h->flags & DDP_HEADER_SEND_SHARED) != 0)
			r->src[i] = ddp_memory_at(comm, i, &h->send);
		else
			r->src[i] = in_slot(r, i, begin, k);
	}
}

/* Where ranks outnumber cores, an owner stores a result once, in its own slot, from which the others copy it: a
   result in each slot is as many more writes, and lines move between cores at each turn of the scheduler anyway. */
static bool stores_once(const reduction *r)
{
	return r->comm->node.oversubscribed;
}

/* The place of an owner's result in its own slot, which has no input there. */
static char *in_own_slot(const reduction *r, int owner, size_t k)
{
	return ddp_stage_slot(r->comm, owner, k) + (size_t)owner * r->width * r->element;
}

/* Results go where they are wanted. Unless they are stored once, a slot that was read
   is written to in any case: its rank will write to it faster then, see ddp_take(). */
static void set_destinations(reduction *r, size_t begin, size_t k)
{
	ddp_comm *comm = r->comm;
	bool copied = false;
	int n = 0;

	if (r->c->kind == DDP_REDUCE_SCATTER || wants_all(r, comm->node.self))
		r->dst[n++] = r->output;
	for (int i = 0; i < comm->node.size; i++) {
		const ddp_header *h = ddp_node_header(comm, i);
		if (i == comm->node.self)
			continue;
		if (wants_all(r, i) && (h->flags & DDP_HEADER_RECV_SHARED) != 0)
			r->dst[n++] = ddp_memory_at(comm, i, &h->recv);
		else if (stores_once(r))
			copied = copied || wants_all(r, i);
		else if (wants_all(r, i) || (h->flags & DDP_HEADER_SEND_SHARED) == 0)
			r->dst[n++] = in_slot(r, i, begin, k);
	}
	if (copied)
		r->dst[n++] = rebase(in_own_slot(r, comm->node.self, k), begin, r->element);
	r->combination.ndst = n;
}

static void combine_window(reduction *r, size_t k, size_t width)
{
	ddp_range window = ddp_window(slice(r, r->comm->node.self), width, k);

	if (window.count == 0)
		return;
	set_sources(r, window.begin, k);
	set_destinations(r, window.begin, k);
	ddp_combine(&r->combination, window.begin, window.count);
}

/* Copies what the other owners need of window k into this rank's slot. */
static void stage_window(reduction *r, size_t k)
{
	ddp_comm *comm = r->comm;
	char *slot = ddp_stage_slot(comm, comm->node.self, k);

	if ((ddp_node_header(comm, comm->node.self)->flags & DDP_HEADER_SEND_SHARED) != 0)
		return;
	for (int owner = 0; owner < comm->node.size; owner++) {
		ddp_range window = ddp_window(slice(r, owner), r->width, k);
		if (owner != comm->node.self && window.count > 0)
			memcpy(slot + (size_t)owner * r->width * r->element, input_for(r, owner) + window.begin * r->element,
			       window.count * r->element);
	}
}

/* Copies the other owners' results of window k, from this rank's slot or from theirs. */
static void pull_window(reduction *r, size_t k)
{
	ddp_comm *comm = r->comm;
	char *slot = ddp_stage_slot(comm, comm->node.self, k);

	if (!wants_all(r, comm->node.self) ||
	    (ddp_node_header(comm, comm->node.self)->flags & DDP_HEADER_RECV_SHARED) != 0)
		return;
	for (int owner = 0; owner < comm->node.size; owner++) {
		ddp_range window = ddp_window(slice(r, owner), r->width, k);
		char *place = r->output + window.begin * r->element;
		if (owner == comm->node.self || window.count == 0)
			continue;
		if (stores_once(r))
			memcpy(place, in_own_slot(r, owner, k), window.count * r->element);
		else
			ddp_take(place, slot + (size_t)owner * r->width * r->element, window.count * r->element);
	}
}

/* Returns how much of a slice goes into a window. */
static size_t slice_bytes(const reduction *r)
{
	const ddp_node *node = &r->comm->node;
	const size_t most = node->slot_bytes / (size_t)node->size;

	if (!stores_once(r))
		return node->stage_bytes / (size_t)node->size;
	return most < DDP_CROWDED_SLICE_BYTES ? most : DDP_CROWDED_SLICE_BYTES;
}

/* One step per window: the slots are double, so that a rank fills the next
   one while others still read the present one. */
static ddp_status run_staged(reduction *r)
{
	ddp_comm *comm = r->comm;
	size_t longest = 0;
	ddp_status status;

	for (int i = 0; i < comm->node.size; i++) {
		size_t count = slice(r, i).count;
		longest = count > longest ? count : longest;
	}
	r->width = slice_bytes(r) / 64 * 64 / r->element;
	size_t windows = (longest + r->width - 1) / r->width;

	stage_window(r, 0);
	ddp_node_post_step(comm);
	for (size_t k = 0; k < windows; k++) {
		if ((status = ddp_node_wait_steps(comm)) != DDP_OK)
			return status;
		if (k > 0)
			pull_window(r, k - 1);
		combine_window(r, k, r->width);
		if (k + 1 < windows)
			stage_window(r, k + 1);
		ddp_node_post_step(comm);
	}
	if ((status = ddp_node_wait_steps(comm)) != DDP_OK)
		return status;
	if (windows > 0)
		pull_window(r, windows - 1);
	return DDP_OK;
}

static ddp_status run_large(reduction *r)
{
	ddp_comm *comm = r->comm;
	size_t bytes = r->total * r->element;
	ddp_entry entry = { .payload = NULL };

	entry.send = ddp_memory_find(comm, r->input, bytes);
	if (r->wanted && r->c->kind != DDP_REDUCE_SCATTER)
		entry.recv = ddp_memory_find(comm, r->output, bytes);
	ddp_status status = ddp_node_enter(comm, r->c, &entry);
	if (status != DDP_OK)
		return status;
	set_up_combination(comm, r->c, &r->combination);

	bool direct = ddp_node_all_have(comm, DDP_HEADER_SEND_SHARED);
	for (int i = 0; i < comm->node.size && direct; i++)
		direct = !wants_all(r, i) ||
			(ddp_node_header(comm, i)->flags & DDP_HEADER_RECV_SHARED) != 0;
	if (!direct && comm->node.size > 1)
		return run_staged(r);
	combine_window(r, 0, SIZE_MAX);
	return ddp_node_step(comm);
}

/* ---- set-up ---------------------------------------------------------------------- */

static size_t total_count(const ddp_comm *comm, const ddp_operation *c)
{
	return c->kind == DDP_REDUCE_SCATTER ? ddp_block_offset(comm, comm->size) : c->count;
}

/* reduce_scatter's output may lie over its input: at this rank's own block
   nobody else reads it; elsewhere it needs a spare buffer. */
static ddp_status place_output(reduction *r)
{
	const ddp_operation *c = r->c;
	size_t offset, bytes;

	r->output = c->recv;
	if (c->kind != DDP_REDUCE_SCATTER)
		return DDP_OK;
	offset = ddp_block_offset(r->comm, r->comm->rank) * r->element;
	bytes = ddp_block_count(c, r->comm->rank) * r->element;
	char *place = c->recv;
	if (bytes > 0 && c->send_list == NULL && place != r->input + offset && place < r->input + r->total * r->element &&
	    r->input < place + bytes) {
		r->spare = malloc(bytes);
		if (r->spare == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of results", bytes);
		place = r->spare;
	}
	r->output = rebase(place, offset / r->element, r->element);
	return DDP_OK;
}

ddp_status ddp_node_reduction(ddp_comm *comm, const ddp_operation *c)
{
	size_t bytes = total_count(comm, c) * ddp_type_bytes(c->type);

	if (bytes <= ddp_small_bytes(comm))
		return run_small(comm, c, bytes);
	reduction r = {
		.comm = comm, .c = c, .element = ddp_type_bytes(c->type), .input = c->send,
		.total = total_count(comm, c), .wanted = c->kind != DDP_REDUCE || c->root == comm->rank,
		.src = comm->node.src, .dst = comm->node.dst,
	};
	ddp_status status = place_output(&r);

	if (status != DDP_OK)
		return ddp_comm_break(comm, status, comm->rank, "%s", ddp_last_error());
	status = run_large(&r);
	if (status == DDP_OK && r.spare != NULL)
		memcpy(c->recv, r.spare, ddp_block_count(c, comm->rank) * r.element);
	free(r.spare);
	return status;
}
