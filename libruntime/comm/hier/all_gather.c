/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/hier.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/core/offsets.h"
#include "comm/hier/algorithms.h"
#include "comm/hier/store.h"
#include "comm/net/net.h"
#include "comm/ops/blocks.h"
#include "comm/shm/memory.h"
#include "comm/shm/node.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

typedef struct all_gather {
	ddp_comm *comm;
	const ddp_operation *c;
	size_t element;
	size_t width;      /* elements per window */
} all_gather;

/* Does the node's i-th rank bring rank r's block to this node? */
static bool brings(const all_gather *g, int i, int r)
{
	const ddp_comm *comm = g->comm;

	if (ddp_is_local(comm, r))
		return comm->node.ranks[i] == r;
	return comm->topology.local_of[r] % comm->node.size == i;
}

static ddp_status exchange(all_gather *g, ddp_transfer *transfers, int *count)
{
	ddp_comm *comm = g->comm;
	const size_t mine = ddp_block_count(g->c, comm->rank);
	int node = comm->topology.node_of[comm->rank];
	ddp_status status = DDP_OK;

	for (int r = 0; r < comm->size; r++) {
		if (!ddp_is_local(comm, r) && brings(g, comm->node.self, r))
			ddp_message_recv(comm, r, ddp_message_tag(comm, 0), ddp_recv_block(comm, g->c, r),
			                 ddp_block_count(g->c, r) * g->element, &transfers[(*count)++]);
	}
	for (int n = 1; n < comm->topology.nodes && status == DDP_OK; n++) {
		int other = (node + n) % comm->topology.nodes;
		int to = ddp_channel_rank(comm, other, comm->node.self % ddp_node_size(comm, other));
		status = ddp_message_send(comm, to, ddp_message_tag(comm, 0), ddp_recv_block(comm, g->c, comm->rank),
		                          mine * g->element, &transfers[(*count)++]);
	}
	return status == DDP_OK ? ddp_await_transfers(comm, transfers, *count) : status;
}

/* Elements that the node's i-th rank brings. */
static size_t brought(const all_gather *g, int i)
{
	size_t total = 0;

	for (int r = 0; r < g->comm->size; r++)
		total += brings(g, i, r) ? ddp_block_count(g->c, r) : 0;
	return total;
}

/* Copies, between the slot of window w and recv, the part of what the i-th
   rank brings, block behind block, that is in the window. */
static void copy_window(const all_gather *g, int i, size_t w, bool into_slot)
{
	char *slot = ddp_stage_slot(g->comm, i, w);
	size_t begin = w * g->width, end = begin + g->width, at = 0;

	for (int r = 0; r < g->comm->size && at < end; r++) {
		const size_t count = ddp_block_count(g->c, r);
		if (!brings(g, i, r))
			continue;
		size_t from = at > begin ? at : begin, to = at + count < end ? at + count : end;
		if (from < to) {
			char *place = ddp_recv_block(g->comm, g->c, r) + (from - at) * g->element;
			char *staged = slot + (from - begin) * g->element;
			memcpy(into_slot ? staged : place, into_slot ? place : staged, (to - from) * g->element);
		}
		at += count;
	}
}

static bool is_shared(const all_gather *g, int i)
{
	return (ddp_node_header(g->comm, i)->flags & DDP_HEADER_RECV_SHARED) != 0;
}

/* Copies everything that ranks with shared memory bring. */
static void copy_shared(const all_gather *g)
{
	ddp_comm *comm = g->comm;

	for (int n = 1; n < comm->node.size; n++) {
		int i = (comm->node.self + n) % comm->node.size;
		if (!is_shared(g, i))
			continue;
		const char *theirs = ddp_memory_at(comm, i, &ddp_node_header(comm, i)->recv);
		for (int r = 0; r < comm->size; r++) {
			const size_t count = ddp_block_count(g->c, r);
			if (brings(g, i, r) && count > 0)
				memcpy(ddp_recv_block(comm, g->c, r), theirs + ddp_block_offset(comm, r) * g->element, count * g->element);
		}
	}
}

/* One step per window; slots are double, as in comm/node_copy. */
static ddp_status spread(all_gather *g)
{
	ddp_comm *comm = g->comm;
	size_t windows = 1;
	bool stages = !is_shared(g, comm->node.self);
	ddp_status status;

	for (int i = 0; i < comm->node.size; i++) {
		size_t needed = is_shared(g, i) ? 0 : (brought(g, i) + g->width - 1) / g->width;
		windows = needed > windows ? needed : windows;
	}
	if (stages)
		copy_window(g, comm->node.self, 0, true);
	ddp_node_post_step(comm);
	for (size_t w = 0; w < windows; w++) {
		if ((status = ddp_node_wait_steps(comm)) != DDP_OK)
			return status;
		if (stages && w + 1 < windows)
			copy_window(g, comm->node.self, w + 1, true);
		for (int i = 0; i < comm->node.size; i++) {
			if (i != comm->node.self && !is_shared(g, i))
				copy_window(g, i, w, false);
		}
		if (w == 0)
			copy_shared(g);
		ddp_node_post_step(comm);
	}
	return ddp_node_wait_steps(comm);
}

/* ---- few bytes of many ranks ------------------------------------------------------------- */

/* Ranks of many are connected with some of the others. Each connection that is made for an operation takes longer than
   the rounds in which the first ranks of the nodes add what each has to zeros. */
static bool is_small(const all_gather *g)
{
	return g->comm->size > DDP_NET_FEW_RANKS && ddp_block_offset(g->comm, g->comm->size) * g->element <= DDP_SMALL_BYTES;
}

/* The first ranks put the blocks of all nodes into their slots. */
static ddp_status add_up(const all_gather *g)
{
	ddp_comm *comm = g->comm;
	const size_t total = ddp_block_offset(comm, comm->size) * g->element, words = (total + 7) / 8;
	ddp_status status = ddp_hier_store_open(comm);

	if (status == DDP_OK)
		status = ddp_hier_store_grow(comm, 2 * words * sizeof(int64_t), 0);
	if (status != DDP_OK)
		return status;
	char *all = comm->hier.store->buffers;
	memset(all, 0, words * sizeof(int64_t));
	for (int i = 0; i < comm->node.size; i++) {
		const int r = comm->node.ranks[i];
		const size_t bytes = ddp_block_count(g->c, r) * g->element;
		memcpy(all + ddp_block_offset(comm, r) * g->element, ddp_node_payload(comm, i, bytes), bytes);
	}
	status = ddp_recursive_doubling_of(comm, DDP_I64, DDP_SUM, all, all + words * sizeof(int64_t), words, 0);
	if (status == DDP_OK)
		memcpy(ddp_result_slot(comm, 0, 0), all, total);
	return status;
}

static ddp_status gather_small(const all_gather *g)
{
	ddp_comm *comm = g->comm;
	const ddp_entry entry = { .payload = ddp_recv_block(comm, g->c, comm->rank),
	                          .payload_bytes = ddp_block_count(g->c, comm->rank) * g->element };
	ddp_status status = ddp_node_enter(comm, g->c, &entry);

	if (status == DDP_OK && comm->node.self == 0)
		status = add_up(g);
	if (status == DDP_OK)
		status = ddp_node_step(comm);
	if (status != DDP_OK)
		return ddp_message_give_up(comm, status);
	for (int r = 0; r < comm->size; r++)
		memcpy(ddp_recv_block(comm, g->c, r), ddp_result_slot(comm, 0, 0) + ddp_block_offset(comm, r) * g->element,
		       ddp_block_count(g->c, r) * g->element);
	return DDP_OK;
}

static ddp_status gather(all_gather *g)
{
	ddp_comm *comm = g->comm;
	const ddp_operation *c = g->c;
	const size_t total = ddp_block_offset(comm, comm->size);
	/* Others read from one buffer, not from a list. */
	const ddp_entry entry = { .recv = ddp_memory_find(comm, c->recv_list == NULL ? c->recv : NULL, total * g->element) };
	ddp_transfer *transfers = calloc((size_t)comm->size + (size_t)comm->topology.nodes, sizeof(*transfers));
	int count = 0;

	if (transfers == NULL)
		return ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "no memory for the messages of %d ranks",
		                      comm->size);
	g->width = comm->node.stage_bytes / g->element;
	ddp_status status = ddp_node_enter(comm, c, &entry);
	if (status == DDP_OK)
		status = exchange(g, transfers, &count);
	if (status == DDP_OK)
		status = spread(g);
	if (status != DDP_OK)
		status = ddp_message_give_up(comm, status);
	free(transfers);
	return status;
}

ddp_status ddp_hier_all_gather(ddp_comm *comm, const ddp_operation *c)
{
	all_gather g = { .comm = comm, .c = c, .element = ddp_type_bytes(c->type) };
	const size_t mine = ddp_block_count(c, comm->rank);
	char *place = ddp_recv_block(comm, c, comm->rank);

	if (mine > 0 && place != c->send)
		memcpy(place, c->send, mine * g.element);
	return is_small(&g) ? gather_small(&g) : gather(&g);
}
