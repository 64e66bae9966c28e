/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/hier.h"

#include <stdlib.h>

#include "base/error.h"
#include "comm/core/offsets.h"
#include "comm/ops/blocks.h"
#include "comm/shm/node_copy.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

typedef struct pair {
	bool sends, receives;
	const char *from;        /* of what this rank exposes, or of send_list */
	char *to;
	size_t sent, received;   /* elements */
} pair;

static pair with_rank(const ddp_comm *comm, const ddp_operation *c, const char *exposed, int r)
{
	const size_t element = ddp_type_bytes(c->type);
	bool root = c->root == comm->rank, theirs = c->root == r;
	pair p = { .sends = true, .receives = true, .from = exposed, .to = c->recv };

	if (c->kind == DDP_GATHER) {
		p.sends = theirs;
		p.receives = root;
		p.sent = ddp_block_count(c, comm->rank);
	} else {
		p.sends = root || c->kind != DDP_SCATTER;
		p.sent = ddp_block_count(c, r);
		if (p.sends)
			p.from = c->send_list != NULL ? c->send_list[r] : exposed + ddp_block_offset(comm, r) * element;
	}
	if (c->kind == DDP_SCATTER) {
		p.receives = theirs;
		p.received = ddp_block_count(c, comm->rank);
	} else if (p.receives) {
		p.received = c->kind == DDP_GATHER ? ddp_block_count(c, r) : ddp_recv_count(c, r);
		p.to = ddp_recv_block(comm, c, r);
	}
	return p;
}

/* The copy that runs between nodes while the ranks of each node work together. */
typedef struct copying {
	ddp_comm *comm;
	const ddp_operation *c;
	ddp_transfer *transfers;
	int count;
} copying;

static ddp_status begin(void *argument, const void *exposed)
{
	copying *copy = argument;
	ddp_comm *comm = copy->comm;
	const ddp_operation *c = copy->c;
	size_t element = ddp_type_bytes(c->type);
	ddp_status status = DDP_OK;

	copy->transfers = calloc(2 * (size_t)comm->size, sizeof(*copy->transfers));
	if (copy->transfers == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the messages of %d ranks", comm->size);
	/* Each rank begins with its successor, so that not all send to one. */
	for (int n = 1; n < comm->size && status == DDP_OK; n++) {
		int to = (comm->rank + n) % comm->size, from = (comm->rank + comm->size - n) % comm->size;
		const pair out = with_rank(comm, c, exposed, to), in = with_rank(comm, c, exposed, from);
		if (in.receives && !ddp_is_local(comm, from))
			ddp_message_recv(comm, from, ddp_message_tag(comm, 0), in.to, in.received * element,
			                 &copy->transfers[copy->count++]);
		if (out.sends && !ddp_is_local(comm, to))
			status = ddp_message_send(comm, to, ddp_message_tag(comm, 0), out.from, out.sent * element,
			                          &copy->transfers[copy->count++]);
	}
	return status;
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

ddp_status ddp_hier_pairwise(ddp_comm *comm, const ddp_operation *c)
{
	copying copy = { .comm = comm, .c = c };
	const ddp_between between = { .argument = &copy, .source = c->root, .begin = begin, .end = end };

	return ddp_node_copy(comm, c, &between);
}
