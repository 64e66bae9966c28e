/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_nets.h"

static ddp_net **bucket_of(ddp_worker *worker, uint64_t id)
{
	return &worker->nets[(id ^ id >> 32) % DDP_NET_BUCKETS];
}

void ddp_ucx_add(ddp_net *net)
{
	ddp_net **bucket = bucket_of(net->worker, net->id);

	net->next = *bucket;
	*bucket = net;
}

void ddp_ucx_remove(ddp_net *net)
{
	for (ddp_net **link = bucket_of(net->worker, net->id); *link != NULL; link = &(*link)->next) {
		if (*link == net) {
			*link = net->next;
			return;
		}
	}
}

ddp_net *ddp_ucx_find(const ddp_worker *worker, uint64_t id)
{
	ddp_net *net = worker->nets[(id ^ id >> 32) % DDP_NET_BUCKETS];

	while (net != NULL && net->id != id)
		net = net->next;
	return net;
}

bool ddp_ucx_is_rank(const ddp_net *net, int rank, const connection *c)
{
	return rank >= 0 && rank < net->comm->size && net->comm->topology.world_ranks[rank] == c->peer;
}

int ddp_ucx_rank_of(const ddp_net *net, const connection *c)
{
	for (int rank = 0; rank < net->comm->size; rank++) {
		if (net->comm->topology.world_ranks[rank] == c->peer)
			return rank;
	}
	return DDP_NOBODY;
}

void ddp_ucx_for_each(ddp_worker *worker, void (*visit)(ddp_net *net))
{
	for (int i = 0; i < DDP_NET_BUCKETS; i++) {
		for (ddp_net *net = worker->nets[i]; net != NULL; net = net->next)
			visit(net);
	}
}
