/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/hier.h"

#include <stdlib.h>

#include "base/error.h"
#include "comm/ops/blocks.h"
#include "comm/shm/node_copy.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

enum {
	DEPTH = 4,                  /* chunks under way */
	CHUNK_BYTES = 256 * 1024,
	TREE_DEGREE = 32            /* at most, of a binomial tree of nodes */
};

static int source_of(const ddp_comm *comm, const ddp_operation *c, int node)
{
	return comm->topology.node_of[c->root] == node ? c->root : ddp_channel_rank(comm, node, 0);
}

/* A node's neighbours in the tree of a broadcast, as ranks. */
typedef struct tree {
	int parent;   /* DDP_NOBODY at the root */
	int children[TREE_DEGREE];
	int count;
} tree;

static void plant(const ddp_comm *comm, const ddp_operation *c, bool chain, tree *t)
{
	int nodes = comm->topology.nodes, root = comm->topology.node_of[c->root];
	int self = (comm->topology.node_of[comm->rank] - root + nodes) % nodes;

	t->parent = DDP_NOBODY;
	t->count = 0;
	if (chain) {
		if (self > 0)
			t->parent = source_of(comm, c, (self - 1 + root) % nodes);
		if (self + 1 < nodes)
			t->children[t->count++] = source_of(comm, c, (self + 1 + root) % nodes);
		return;
	}
	int bit = 1;
	for (; bit < nodes && (self & bit) == 0; bit *= 2)
		continue;
	if (self > 0)
		t->parent = source_of(comm, c, ((self & ~bit) + root) % nodes);
	/* The children with the largest subtrees first. */
	for (bit /= 2; bit > 0; bit /= 2) {
		if (self + bit < nodes)
			t->children[t->count++] = source_of(comm, c, (self + bit + root) % nodes);
	}
}

static ddp_status pass_on(ddp_comm *comm, const tree *t, size_t s, const char *data, size_t bytes,
                          ddp_transfer *sends)
{
	/* The chunk that used these before has long gone. */
	ddp_status status = s >= DEPTH ? ddp_await_transfers(comm, sends, t->count) : DDP_OK;

	for (int i = 0; i < t->count && status == DDP_OK; i++)
		status = ddp_message_send(comm, t->children[i], ddp_message_tag(comm, s & 0xffffff), data, bytes,
		                      &sends[i]);
	return status;
}

static ddp_status flow(ddp_comm *comm, const tree *t, char *data, size_t bytes,
                       ddp_transfer (*sends)[TREE_DEGREE])
{
	ddp_transfer recvs[DEPTH];
	size_t chunks = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES, posted = 0;
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
	tree t;

	(void)exposed;
	if (source_of(comm, c, comm->topology.node_of[comm->rank]) != comm->rank)
		return DDP_OK;
	ddp_transfer (*sends)[TREE_DEGREE] = calloc(DEPTH, sizeof(*sends));
	if (sends == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d messages of a broadcast", DEPTH * TREE_DEGREE);
	plant(comm, c, comm->topology.nodes > 2 && bytes / CHUNK_BYTES > (size_t)comm->topology.nodes, &t);
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
