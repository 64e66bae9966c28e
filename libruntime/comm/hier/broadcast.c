/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/hier.h"

#include <stdlib.h>

#include "base/error.h"
#include "comm/hier/tree.h"
#include "comm/ops/blocks.h"
#include "comm/shm/node_copy.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

enum {
	DEPTH = 4,                  /* chunks under way */
	CHUNK_BYTES = 256 * 1024
};

static int source_of(const ddp_comm *comm, const ddp_operation *c, int node)
{
	return comm->topology.node_of[c->root] == node ? c->root : ddp_channel_rank(comm, node, 0);
}

static int node_behind(const ddp_comm *comm, const ddp_operation *c, int count)
{
	return (comm->topology.node_of[c->root] + count) % comm->topology.nodes;
}

/* This node's neighbours, as ranks. */
static ddp_tree plant(const ddp_comm *comm, const ddp_operation *c, size_t chunks)
{
	const int nodes = comm->topology.nodes;
	const int self = (comm->topology.node_of[comm->rank] - comm->topology.node_of[c->root] + nodes) % nodes;
	ddp_tree t = ddp_tree_of(ddp_tree_choose(nodes, chunks), nodes, self);

	t.parent = t.parent >= 0 ? source_of(comm, c, node_behind(comm, c, t.parent)) : DDP_NOBODY;
	for (int i = 0; i < t.count; i++)
		t.children[i] = source_of(comm, c, node_behind(comm, c, t.children[i]));
	return t;
}

static ddp_status pass_on(ddp_comm *comm, const ddp_tree *t, size_t s, const char *data, size_t bytes,
                          ddp_transfer *sends)
{
	/* The chunk that used these before has long gone. */
	ddp_status status = s >= DEPTH ? ddp_await_transfers(comm, sends, t->count) : DDP_OK;

	for (int i = 0; i < t->count && status == DDP_OK; i++)
		status = ddp_message_send(comm, t->children[i], ddp_message_tag(comm, s & 0xffffff), data, bytes,
		                      &sends[i]);
	return status;
}

static size_t chunks_of(size_t bytes)
{
	return (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

static ddp_status flow(ddp_comm *comm, const ddp_tree *t, char *data, size_t bytes,
                       ddp_transfer (*sends)[DDP_TREE_DEGREE])
{
	ddp_transfer recvs[DEPTH];
	size_t chunks = chunks_of(bytes), posted = 0;
	ddp_status status = DDP_OK;

	for (size_t s = 0; s < chunks && status == DDP_OK; s++) {
		const ddp_range part = ddp_window((ddp_range){ 0, bytes }, CHUNK_BYTES, s);
		for (; t->parent != DDP_NOBODY && posted < chunks && posted < s + DEPTH; posted++) {
			const ddp_range ahead = ddp_window((ddp_range){ 0, bytes }, CHUNK_BYTES, posted);
			ddp_message_recv(comm, t->parent, ddp_message_tag(comm, posted & 0xffffff), data + ahead.begin,
			                 ahead.count, &recvs[posted % DEPTH]);
		}
		if (t->parent != DDP_NOBODY)
			status = ddp_await_transfers(comm, &recvs[s % DEPTH], 1);
		if (status == DDP_OK)
			status = pass_on(comm, t, s, data + part.begin, part.count, sends[s % DEPTH]);
	}
	for (size_t i = 0; i < DEPTH && i < chunks && status == DDP_OK; i++)
		status = ddp_await_transfers(comm, sends[i], t->count);
	/* The transfers of `recvs` end before `recvs` is gone. */
	return status == DDP_OK ? DDP_OK : ddp_message_give_up(comm, status);
}

typedef struct broadcasting {
	ddp_comm *comm;
	const ddp_operation *c;
} broadcasting;

/* Brings the data to the rank that spreads it on this node; its other ranks have
   nothing to do here. */
static ddp_status begin(void *argument, const void *exposed)
{
	const broadcasting *b = argument;
	ddp_comm *comm = b->comm;
	const ddp_operation *c = b->c;
	const size_t bytes = c->count * ddp_type_bytes(c->type);

	(void)exposed;
	if (source_of(comm, c, comm->topology.node_of[comm->rank]) != comm->rank)
		return DDP_OK;
	ddp_transfer (*sends)[DDP_TREE_DEGREE] = calloc(DEPTH, sizeof(*sends));
	if (sends == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d messages of a broadcast", DEPTH * DDP_TREE_DEGREE);
	const ddp_tree t = plant(comm, c, chunks_of(bytes));
	ddp_status status = flow(comm, &t, c->recv, bytes, sends);
	free(sends);
	return status;
}

static ddp_status end(void *argument, ddp_status status)
{
	const broadcasting *b = argument;

	return status == DDP_OK ? DDP_OK : ddp_message_give_up(b->comm, status);
}

ddp_status ddp_hier_broadcast(ddp_comm *comm, const ddp_operation *c)
{
	broadcasting b = { .comm = comm, .c = c };
	const ddp_between between = { .argument = &b, .begin = begin, .end = end,
	                              .source = source_of(comm, c, comm->topology.node_of[comm->rank]) };

	return ddp_node_copy(comm, c, &between);
}
