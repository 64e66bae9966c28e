#include "comm/hier/recursive_doubling.h"

#include <string.h>

#include "comm/ops/combine_nodes.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

typedef struct doubling {
	ddp_comm *comm;
	const ddp_collective *c;
	void *mine, *theirs;
	size_t count, bytes;
	uint32_t round;
} doubling;

static ddp_status swap_with(doubling *d, int node, bool send, bool receive)
{
	ddp_transfer pair[2];
	int peer = ddp_channel_rank(d->comm, node, 0), count = 0;
	uint64_t tag = ddp_message_tag(d->comm, d->round);
	ddp_status status = DDP_OK;

	if (receive)
		ddp_message_recv(d->comm, peer, tag, d->theirs, d->bytes, &pair[count++]);
	if (send)
		status = ddp_message_send(d->comm, peer, tag, d->mine, d->bytes, &pair[count++]);
	return status == DDP_OK ? ddp_await_transfers(d->comm, pair, count) : status;
}

/* `lower` says whether ours comes first. */
static void combine(doubling *d, bool lower)
{
	ddp_combine_pair(d->c->type, d->c->op, lower ? d->mine : d->theirs, lower ? d->theirs : d->mine,
	                 d->mine, d->count);
}

ddp_status ddp_recursive_doubling(ddp_comm *comm, const ddp_collective *c, void *mine, void *theirs,
                                  size_t count, size_t bytes)
{
	doubling d = { .comm = comm, .c = c, .mine = mine, .theirs = theirs, .count = count, .bytes = bytes };
	int node = comm->topology.node_of[comm->rank], power = ddp_nodes_power(comm->topology.nodes);
	int extra = comm->topology.nodes - power;
	bool paired = node < 2 * extra, idle = paired && node % 2 == 1;
	ddp_status status = DDP_OK;

	/* The nodes beyond a power of two go in with a neighbour. */
	if (paired) {
		status = swap_with(&d, node ^ 1, idle, !idle);
		if (status == DDP_OK && !idle)
			combine(&d, true);
	}
	int index = paired ? node / 2 : node - extra;
	for (int bit = 1; bit < power && !idle && status == DDP_OK; bit *= 2) {
		int other = index ^ bit;
		d.round++;
		status = swap_with(&d, other < extra ? 2 * other : other + extra, true, true);
		if (status == DDP_OK)
			combine(&d, other > index);
	}
	d.round = 64;
	if (paired && status == DDP_OK)
		status = swap_with(&d, node ^ 1, !idle, idle);
	if (idle && status == DDP_OK)
		memcpy(mine, theirs, bytes);
	return status;
}
