/* SPDX-License-Identifier: Apache-2.0 */
/* Exposed is either the same for all readers (broadcast, all_gather, gather) or a
   block for each (scatter, all_to_all). */
#include "comm/shm/node_copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/core/offsets.h"
#include "comm/ops/blocks.h"
#include "comm/shm/memory.h"
#include "comm/shm/node.h"
#include "comm/wait/await.h"

typedef struct copying {
	ddp_comm *comm;
	const ddp_operation *c;
	size_t element;
	bool per_reader;      /* what is exposed differs by reader */
	const char *exposed;  /* NULL: this rank exposes nothing */
	size_t exposed_count; /* elements, of all blocks */
	size_t width;         /* elements of a block per window */
	int source;           /* the rank that spreads a broadcast on this node */
	const ddp_between *between; /* NULL on one node */
} copying;

/* all_to_all's v-form: only the sender knows where its blocks lie. */
static bool by_counts(const copying *k)
{
	return k->c->kind == DDP_ALL_TO_ALL && k->c->counts != NULL;
}

static bool is_root(const copying *k, int i)
{
	return k->comm->node.ranks[i] == (k->c->kind == DDP_BROADCAST ? k->source : k->c->root);
}

/* Does the node's i-th rank expose anything, in this kind of operation? */
static bool exposes(const copying *k, int i)
{
	if (k->c->kind == DDP_BROADCAST || k->c->kind == DDP_SCATTER)
		return is_root(k, i);
	return true;
}

/* Does the i-th rank read from the others? */
static bool reads(const copying *k, int i)
{
	if (k->c->kind == DDP_GATHER)
		return is_root(k, i);
	if (k->c->kind == DDP_BROADCAST || k->c->kind == DDP_SCATTER)
		return !is_root(k, i);
	return true;
}

/* Elements of this rank's exposed memory that the i-th rank reads. */
static size_t count_for(const copying *k, int i)
{
	return k->per_reader ? ddp_block_count(k->c, k->comm->node.ranks[i]) : k->exposed_count;
}

/* How many elements this rank reads from the i-th. */
static size_t count_from(const copying *k, int i)
{
	const ddp_operation *c = k->c;
	const int rank = k->comm->node.ranks[i];

	switch (c->kind) {
	case DDP_BROADCAST: return c->count;
	case DDP_SCATTER: return ddp_block_count(c, k->comm->rank);
	case DDP_ALL_TO_ALL: return ddp_recv_count(c, rank);
	default: return ddp_block_count(c, rank);
	}
}

/* Returns where these elements go, from element `skip` on. */
static char *place_of(const copying *k, int i, size_t skip)
{
	const ddp_operation *c = k->c;
	const bool whole = c->kind == DDP_BROADCAST || c->kind == DDP_SCATTER;

	return (whole ? (char *)c->recv : ddp_recv_block(k->comm, c, k->comm->node.ranks[i])) + skip * k->element;
}

/* Returns the part of this rank's exposed memory that the i-th rank reads. */
static const char *exposed_to(const copying *k, int i)
{
	if (!k->per_reader)
		return k->exposed;
	const int rank = k->comm->node.ranks[i];
	return k->c->send_list != NULL ? k->c->send_list[rank]
	                               : k->exposed + ddp_block_offset(k->comm, rank) * k->element;
}

static bool has_exposed(const copying *k)
{
	return k->exposed != NULL || (k->per_reader && k->c->send_list != NULL && exposes(k, k->comm->node.self));
}

/* Returns the element at which this rank's block starts in what the i-th rank exposes. */
static size_t source_offset(const copying *k)
{
	if (k->c->kind == DDP_SCATTER || k->c->kind == DDP_ALL_TO_ALL)
		return ddp_block_offset(k->comm, k->comm->rank);
	return 0;
}

static void copy_own(const copying *k)
{
	const ddp_operation *c = k->c;
	const size_t count = count_from(k, k->comm->node.self);

	if (count == 0 || !has_exposed(k) || c->kind == DDP_BROADCAST || (c->recv == NULL && c->recv_list == NULL) ||
	    (c->kind == DDP_GATHER && !is_root(k, k->comm->node.self)))
		return;
	const char *from = exposed_to(k, k->comm->node.self);
	char *place = place_of(k, k->comm->node.self, 0);
	if (from != place)
		memmove(place, from, count * k->element);
}

/* All ranks of the node have come: lets the other nodes' data move. */
static ddp_status enter(copying *k, const ddp_entry *entry)
{
	ddp_status status = ddp_node_enter(k->comm, k->c, entry);

	if (status != DDP_OK || k->between == NULL)
		return status;
	return k->between->begin(k->between->argument, k->exposed);
}

/* ---- small ------------------------------------------------------------------------ */

/* Blocks go with the header as they would lie in one buffer. */
static const char *pack(const copying *k, char *packed)
{
	if (k->exposed != NULL || !has_exposed(k))
		return k->exposed;
	for (int r = 0; r < k->comm->size; r++) {
		const size_t count = ddp_block_count(k->c, r);
		if (count > 0)
			memcpy(packed + ddp_block_offset(k->comm, r) * k->element, k->c->send_list[r], count * k->element);
	}
	return packed;
}

static ddp_status run_small(copying *k)
{
	ddp_comm *comm = k->comm;
	char packed[DDP_SMALL_BYTES];
	const ddp_entry entry = { .payload = pack(k, packed), .payload_bytes = k->exposed_count * k->element };
	ddp_status status = enter(k, &entry);

	if (status != DDP_OK)
		return status;
	if (!reads(k, comm->node.self))
		return DDP_OK;
	for (int i = 0; i < comm->node.size; i++) {
		const size_t count = count_from(k, i);
		if (i == comm->node.self || !exposes(k, i) || count == 0)
			continue;
		size_t bytes = k->per_reader ? ddp_block_offset(comm, comm->size) : count;
		const char *from = ddp_node_payload(comm, i, bytes * k->element);
		memcpy(place_of(k, i, 0), from + source_offset(k) * k->element, count * k->element);
	}
	return DDP_OK;
}

/* ---- large ------------------------------------------------------------------------- */

static void stage_window(const copying *k, size_t window)
{
	const ddp_comm *comm = k->comm;
	char *slot = ddp_stage_slot(comm, comm->node.self, window);

	if (!has_exposed(k) || (ddp_node_header(comm, comm->node.self)->flags & DDP_HEADER_SEND_SHARED) != 0)
		return;
	for (int i = 0; i < (k->per_reader ? comm->node.size : 1); i++) {
		const ddp_range part = ddp_window((ddp_range){ 0, count_for(k, i) }, k->width, window);
		if (part.count > 0 && !(k->per_reader && i == comm->node.self))
			memcpy(slot + (size_t)i * k->width * k->element, exposed_to(k, i) + part.begin * k->element,
			       part.count * k->element);
	}
}

static const char *shared_source(const copying *k, int i, const ddp_header *h)
{
	size_t offset = source_offset(k);

	return (char *)ddp_memory_at(k->comm, i, &h->send) + offset * k->element;
}

/* Pulls window `window` of the staged blocks, or, all at once with the first
   window, those in shared memory. */
static void pull_window(const copying *k, size_t window)
{
	ddp_comm *comm = k->comm;

	if (!reads(k, comm->node.self))
		return;
	for (int n = 1; n < comm->node.size; n++) {
		int i = (comm->node.self + n) % comm->node.size;
		const ddp_header *h = ddp_node_header(comm, i);
		ddp_range to = { 0, count_from(k, i) };
		const char *from;

		if (!exposes(k, i))
			continue;
		if ((h->flags & DDP_HEADER_SEND_SHARED) != 0) {
			if (window > 0)
				continue;
			from = shared_source(k, i, h);
		} else {
			to = ddp_window(to, k->width, window);
			from = ddp_stage_slot(comm, i, window) +
				(k->per_reader ? (size_t)comm->node.self * k->width * k->element : 0);
		}
		if (to.count > 0)
			memcpy(place_of(k, i, to.begin), from, to.count * k->element);
	}
}

/* ---- all_to_all by counts: does each receiver expect what is sent? ----------------- */

enum { TOLD_MAX = DDP_SMALL_BYTES / sizeof(uint64_t) };

static int told_ranks(const ddp_comm *comm)
{
	return comm->node.size < TOLD_MAX ? comm->node.size : TOLD_MAX;
}

/* The counts that this rank sends to each rank of its node go with its header; `told`
   holds TOLD_MAX. */
static void tell_counts(const copying *k, uint64_t *told, ddp_entry *entry)
{
	for (int i = 0; i < told_ranks(k->comm); i++)
		told[i] = ddp_block_count(k->c, k->comm->node.ranks[i]);
	entry->payload = told;
	entry->payload_bytes = (size_t)told_ranks(k->comm) * sizeof(*told);
}

static ddp_status check_counts(const copying *k)
{
	ddp_comm *comm = k->comm;
	int self = comm->node.self;

	for (int i = 0; i < comm->node.size && self < TOLD_MAX; i++) {
		int rank = comm->node.ranks[i];
		const uint64_t *told = ddp_node_payload(comm, i, (size_t)told_ranks(comm) * sizeof(*told));
		if (told[self] == ddp_recv_count(k->c, rank))
			continue;
		return ddp_comm_break(comm, DDP_ERR_MISMATCH, rank,
		                      "all_to_all #%llu differs: %s sends %llu elements of %s to %s, which expects %zu",
		                      (unsigned long long)comm->run.sequence, ddp_rank_text(comm, rank),
		                      (unsigned long long)told[self], ddp_type_name(k->c->type),
		                      ddp_rank_text(comm, comm->rank), ddp_recv_count(k->c, rank));
	}
	return DDP_OK;
}

/* Windows that the longest staged block takes; the same on all ranks. */
static size_t window_count(const copying *k)
{
	size_t longest = 0;

	for (int i = 0; i < k->comm->node.size; i++) {
		const ddp_header *h = ddp_node_header(k->comm, i);
		if ((h->flags & DDP_HEADER_BLOCK) != 0 && h->largest_block > longest)
			longest = h->largest_block;
	}
	return (longest / k->element + k->width - 1) / k->width;
}

static ddp_status run_large(copying *k)
{
	ddp_comm *comm = k->comm;
	ddp_entry entry = { .payload = NULL };
	uint64_t told[TOLD_MAX];
	ddp_status status;

	if (by_counts(k))
		tell_counts(k, told, &entry);
	else
		entry.send = ddp_memory_find(comm, k->exposed, k->exposed_count * k->element);
	if (entry.send.allocation == 0 && has_exposed(k)) {
		for (int i = 0; i < comm->node.size; i++) {
			size_t bytes = count_for(k, i) * k->element;
			entry.largest_block = bytes > entry.largest_block ? bytes : entry.largest_block;
		}
	}
	status = enter(k, &entry);
	if (status == DDP_OK && by_counts(k))
		status = check_counts(k);
	if (status != DDP_OK)
		return status;

	size_t windows = window_count(k);
	stage_window(k, 0);
	if (windows > 0)
		ddp_node_post_step(comm);
	for (size_t w = 0; w < windows; w++) {
		if ((status = ddp_node_wait_steps(comm)) != DDP_OK)
			return status;
		if (w + 1 < windows)
			stage_window(k, w + 1);
		pull_window(k, w);
		ddp_node_post_step(comm);
	}
	if (windows > 0)
		return ddp_node_wait_steps(comm);
	/* The source has its data from another node after the headers. */
	if (k->c->kind == DDP_BROADCAST && k->between != NULL &&
	    (status = ddp_node_step(comm)) != DDP_OK)
		return status;
	pull_window(k, 0);
	return ddp_node_step(comm);
}

/* ---- set-up ------------------------------------------------------------------------- */

static bool is_small(const copying *k)
{
	const ddp_operation *c = k->c;
	size_t count = c->count;

	if (by_counts(k))
		return false;
	/* On the other nodes the data comes only after the headers. */
	if (c->kind == DDP_BROADCAST && k->between != NULL)
		return false;
	if (k->per_reader) {
		count = ddp_block_offset(k->comm, k->comm->size);
	} else if (c->counts != NULL) {
		for (int r = 0; r < k->comm->size; r++)
			count = c->counts[r] > count ? c->counts[r] : count;
	}
	return count * k->element <= ddp_small_bytes(k->comm);
}

static void set_exposed(copying *k)
{
	const ddp_operation *c = k->c;

	if (!exposes(k, k->comm->node.self))
		return;
	switch (c->kind) {
	case DDP_BROADCAST:
		k->exposed = c->recv;
		k->exposed_count = c->count;
		break;
	case DDP_SCATTER:
	case DDP_ALL_TO_ALL:
		k->exposed = c->send;
		k->exposed_count = ddp_block_offset(k->comm, k->comm->size);
		break;
	default:
		k->exposed = c->send;
		k->exposed_count = ddp_block_count(c, k->comm->rank);
		break;
	}
}

ddp_status ddp_node_copy(ddp_comm *comm, const ddp_operation *c, const ddp_between *between)
{
	copying k = { .comm = comm, .c = c, .element = ddp_type_bytes(c->type), .between = between,
	              .source = between != NULL ? between->source : c->root };
	char *spare = NULL;

	k.per_reader = c->kind == DDP_SCATTER || c->kind == DDP_ALL_TO_ALL;
	k.width = comm->node.stage_bytes / (k.per_reader ? (size_t)comm->node.size : 1) / 64 * 64 / k.element;
	set_exposed(&k);
	if (c->kind == DDP_ALL_TO_ALL && k.exposed != NULL && c->send == c->recv && k.exposed_count > 0) {
		size_t bytes = k.exposed_count * k.element;
		spare = malloc(bytes);
		if (spare == NULL)
			return ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank,
			                      "no memory for %zu bytes of an all_to_all in place", bytes);
		memcpy(spare, c->send, bytes);
		k.exposed = spare;
	}
	ddp_status status = is_small(&k) ? run_small(&k) : run_large(&k);
	if (between != NULL)
		status = between->end(between->argument, status);
	/* In a scatter in place, this block lands on blocks that were sent to other ranks. */
	if (status == DDP_OK)
		copy_own(&k);
	free(spare);
	return status;
}
