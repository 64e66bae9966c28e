/* What goes between nodes in collectives that only move data. */
#include "comm/hier/copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/ops/blocks.h"
#include "comm/shm/node.h"
#include "comm/shm/node_copy.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

enum {
	DEPTH = 4,                  /* chunks of a broadcast under way */
	CHUNK_BYTES = 256 * 1024,
	TREE_DEGREE = 32            /* at most, of a binomial tree of nodes */
};

/* ---- barrier ---------------------------------------------------------------------- */

/* Dissemination: after round k each node has heard of 2^(k + 1) nodes. */
static ddp_status meet_nodes(ddp_comm *comm)
{
	ddp_transfer pair[2];
	int node = comm->topology.node_of[comm->rank], nodes = comm->topology.nodes, round = 0;

	for (int distance = 1; distance < nodes; distance *= 2, round++) {
		uint64_t tag = ddp_message_tag(comm, (uint32_t)round);
		ddp_message_recv(comm, ddp_channel_rank(comm, (node + nodes - distance) % nodes, 0), tag, NULL,
		                 0, &pair[0]);
		ddp_status status = ddp_message_send(comm, ddp_channel_rank(comm, (node + distance) % nodes, 0),
		                                     tag, NULL, 0, &pair[1]);
		if (status == DDP_OK)
			status = ddp_await_transfers(comm, pair, 2);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

ddp_status ddp_hier_barrier(ddp_comm *comm, const ddp_collective *c)
{
	const ddp_entry nothing = { .payload = NULL };
	ddp_status status = ddp_node_enter(comm, c, &nothing);

	if (status == DDP_OK && comm->node.self == 0)
		status = meet_nodes(comm);
	if (status == DDP_OK)
		status = ddp_node_step(comm);
	return status == DDP_OK ? status : ddp_message_give_up(comm, status);
}

/* ---- broadcast ---------------------------------------------------------------------- */

static int source_of(const ddp_comm *comm, const ddp_collective *c, int node)
{
	return comm->topology.node_of[c->root] == node ? c->root : ddp_channel_rank(comm, node, 0);
}

/* A node's neighbours in the tree of a broadcast, as ranks. */
typedef struct tree {
	int parent;   /* DDP_NOBODY at the root */
	int children[TREE_DEGREE];
	int count;
} tree;

/* A binomial tree sends each byte log2(nodes) times from its root, a chain
   once, but takes a chunk's time per node. */
static void plant(const ddp_comm *comm, const ddp_collective *c, bool chain, tree *t)
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
	return status;
}

static ddp_status broadcast(ddp_comm *comm, const ddp_collective *c)
{
	size_t bytes = c->count * ddp_type_bytes(c->type);
	ddp_transfer (*sends)[TREE_DEGREE] = calloc(DEPTH, sizeof(*sends));
	tree t;

	if (sends == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	plant(comm, c, comm->topology.nodes > 2 && bytes / CHUNK_BYTES > (size_t)comm->topology.nodes, &t);
	ddp_status status = flow(comm, &t, c->recv, bytes, sends);
	if (status != DDP_OK)
		status = ddp_message_give_up(comm, status);
	free(sends);
	return status;
}

/* ---- pairs: gather, scatter, all_to_all ------------------------------------------------- */

typedef struct pair {
	bool sends, receives;
	ddp_range send, recv; /* elements of exposed, and of recv */
} pair;

static pair with_rank(const ddp_comm *comm, const ddp_collective *c, int r)
{
	bool root = c->root == comm->rank, theirs = c->root == r;
	pair p = { .sends = false };

	switch (c->kind) {
	case DDP_GATHER:
		p.sends = theirs;
		p.receives = root;
		p.send = (ddp_range){ 0, ddp_block_count(c, comm->rank) };
		p.recv = (ddp_range){ ddp_block_offset(c, r), ddp_block_count(c, r) };
		break;
	case DDP_SCATTER:
		p.sends = root;
		p.receives = theirs;
		p.send = (ddp_range){ ddp_block_offset(c, r), ddp_block_count(c, r) };
		p.recv = (ddp_range){ 0, ddp_block_count(c, comm->rank) };
		break;
	default:
		p.sends = p.receives = true;
		p.send = (ddp_range){ ddp_block_offset(c, r), ddp_block_count(c, r) };
		p.recv = (ddp_range){ ddp_recv_offset(c, r), ddp_recv_count(c, r) };
		break;
	}
	return p;
}

/* What is under way between nodes while the ranks of each work together. */
typedef struct copying {
	ddp_comm *comm;
	const ddp_collective *c;
	ddp_transfer *transfers;
	int count;
} copying;

static ddp_status begin_pairs(copying *copy, const char *exposed)
{
	ddp_comm *comm = copy->comm;
	const ddp_collective *c = copy->c;
	size_t element = ddp_type_bytes(c->type);
	ddp_status status = DDP_OK;

	copy->transfers = calloc(2 * (size_t)comm->size, sizeof(*copy->transfers));
	if (copy->transfers == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	/* Each rank begins with its successor, so that not all send to one. */
	for (int n = 1; n < comm->size && status == DDP_OK; n++) {
		int to = (comm->rank + n) % comm->size, from = (comm->rank + comm->size - n) % comm->size;
		const pair out = with_rank(comm, c, to), in = with_rank(comm, c, from);
		if (in.receives && !ddp_is_local(comm, from))
			ddp_message_recv(comm, from, ddp_message_tag(comm, 0), (char *)c->recv + in.recv.begin * element,
			                 in.recv.count * element, &copy->transfers[copy->count++]);
		if (out.sends && !ddp_is_local(comm, to))
			status = ddp_message_send(comm, to, ddp_message_tag(comm, 0), exposed + out.send.begin * element,
			                          out.send.count * element, &copy->transfers[copy->count++]);
	}
	return status;
}

/* Broadcast: brings the data to the rank that spreads it on this node; its node's
   other ranks have nothing to do here. gather, scatter, all_to_all: starts the
   exchange of each pair of ranks on different nodes. */
static ddp_status begin(void *argument, const void *exposed)
{
	copying *copy = argument;
	const ddp_comm *comm = copy->comm;

	if (copy->c->kind != DDP_BROADCAST)
		return begin_pairs(copy, exposed);
	if (source_of(comm, copy->c, comm->topology.node_of[comm->rank]) != comm->rank)
		return DDP_OK;
	return broadcast(copy->comm, copy->c);
}

static ddp_status end(void *argument, ddp_status status)
{
	copying *copy = argument;

	if (status == DDP_OK)
		status = ddp_await_transfers(copy->comm, copy->transfers, copy->count);
	if (status != DDP_OK)
		status = ddp_message_give_up(copy->comm, status);
	free(copy->transfers);
	return status;
}

ddp_status ddp_hier_copy(ddp_comm *comm, const ddp_collective *c)
{
	copying copy = { .comm = comm, .c = c };
	const ddp_between between = {
		.argument = &copy, .begin = begin, .end = end,
		.source = c->kind == DDP_BROADCAST ? source_of(comm, c, comm->topology.node_of[comm->rank]) : c->root,
	};

	return ddp_node_copy(comm, c, &between);
}
