/*
 * The choice among algorithms that give the same bits, and of the size of
 * messages, from what the network was measured to do. It is measured once,
 * between the first two nodes, and told to all ranks, so that they choose
 * alike. DDP_ALGORITHM=every, owner or doubling, the same in all ranks'
 * environment, overrules the choice where that algorithm can be used, for tests
 * and measurements.
 *
 * There is no ring. Owners' exchange moves the same 2 (nodes - 1) / nodes of
 * the data in and out of each node, which is the least that is possible, in 2
 * message times instead of 2 (nodes - 1); and a ring adds each of its blocks in
 * another order, so that the bits would depend on the algorithm. Nor is there
 * recursive halving: the same bytes again, in 2 log2(nodes) message times; it
 * posts fewer messages, which counts where a message's own cost times the
 * number of nodes exceeds the latency.
 */
#include "comm/hier/tune.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/core/comm.h"
#include "comm/shm/node.h"
#include "comm/shm/stage.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

enum {
	PINGS = 8,
	LARGE_BYTES = 1 << 20,
	/* A message of the smaller size, with its envelope, is a single packet of
	   UCX over sockets, which is received without being put together first. */
	CHUNK_BYTES = 60 * 1024,
	LARGE_CHUNK_BYTES = 256 * 1024,
	MESSAGES = LARGE_BYTES / CHUNK_BYTES + 1,
	TAGS = 0xfff000         /* beyond those of any operation's first chunks */
};

/* Messages between the first two nodes' first ranks. */
typedef struct trial {
	ddp_comm *comm;
	int peer;
	bool first;             /* sends, the other one answers */
	char *buffer;           /* [LARGE_BYTES] */
	uint32_t tag;
} trial;

/* `bytes` there, in messages of `each` bytes, and nothing back. */
static ddp_status ping(trial *t, size_t bytes, size_t each, double *seconds, double *post_seconds)
{
	ddp_transfer transfers[MESSAGES + 1];
	ddp_status status = DDP_OK;
	int count = 0;
	uint32_t answer = t->tag++;
	uint64_t start = ddp_now_ns();

	if (t->first)
		ddp_message_recv(t->comm, t->peer, ddp_message_tag(t->comm, answer), NULL, 0, &transfers[count++]);
	for (size_t at = 0; at < bytes && status == DDP_OK; at += each) {
		size_t now = bytes - at < each ? bytes - at : each;
		uint64_t tag = ddp_message_tag(t->comm, t->tag++);
		if (t->first)
			status = ddp_message_send(t->comm, t->peer, tag, t->buffer + at, now, &transfers[count++]);
		else
			ddp_message_recv(t->comm, t->peer, tag, t->buffer + at, now, &transfers[count++]);
	}
	*post_seconds = ddp_seconds_since(start);
	if (status == DDP_OK)
		status = ddp_await_transfers(t->comm, transfers, count);
	if (!t->first && status == DDP_OK) {
		status = ddp_message_send(t->comm, t->peer, ddp_message_tag(t->comm, answer), NULL, 0, transfers);
		if (status == DDP_OK)
			status = ddp_await_transfers(t->comm, transfers, 1);
	}
	*seconds = ddp_seconds_since(start);
	return status;
}

static ddp_status shortest(trial *t, int repeats, size_t bytes, size_t each, double *seconds,
                           double *post_seconds)
{
	double now, post;
	ddp_status status = DDP_OK;

	*seconds = *post_seconds = 1e9;
	for (int i = 0; i < repeats && status == DDP_OK; i++) {
		status = ping(t, bytes, each, &now, &post);
		*seconds = now < *seconds ? now : *seconds;
		*post_seconds = post < *post_seconds ? post : *post_seconds;
	}
	return status;
}

static ddp_status measure(ddp_comm *comm, ddp_link *link)
{
	bool first = comm->topology.node_of[comm->rank] == 0;
	trial t = { .comm = comm, .first = first, .peer = ddp_channel_rank(comm, first ? 1 : 0, 0),
	            .buffer = calloc(1, LARGE_BYTES), .tag = TAGS };
	double round_trip = 0, fine = 0, coarse = 0, unused;
	ddp_status status = t.buffer != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "out of memory");

	if (status == DDP_OK)
		status = shortest(&t, PINGS, 8, 8, &round_trip, &link->post_seconds);
	if (status == DDP_OK)
		status = shortest(&t, 2, LARGE_BYTES, CHUNK_BYTES, &fine, &unused);
	if (status == DDP_OK)
		status = shortest(&t, 2, LARGE_BYTES, LARGE_CHUNK_BYTES, &coarse, &unused);
	double large = coarse < fine ? coarse : fine;
	link->latency_seconds = round_trip / 2;
	link->byte_seconds = (large > round_trip ? large - round_trip : 0) / LARGE_BYTES;
	link->chunk_bytes = coarse < 0.9 * fine ? LARGE_CHUNK_BYTES : CHUNK_BYTES;
	free(t.buffer);
	return status;
}

/* From the first node's first rank to all other nodes'. */
static ddp_status tell_nodes(ddp_comm *comm, ddp_link *link)
{
	ddp_transfer transfer;
	ddp_status status = DDP_OK;
	uint64_t tag = ddp_message_tag(comm, TAGS - 1);

	if (comm->topology.node_of[comm->rank] != 0) {
		ddp_message_recv(comm, ddp_channel_rank(comm, 0, 0), tag, link, sizeof(*link), &transfer);
		return ddp_await_transfers(comm, &transfer, 1);
	}
	for (int node = 1; node < comm->topology.nodes && status == DDP_OK; node++) {
		status = ddp_message_send(comm, ddp_channel_rank(comm, node, 0), tag, link, sizeof(*link),
		                      &transfer);
		if (status == DDP_OK)
			status = ddp_await_transfers(comm, &transfer, 1);
	}
	return status;
}

ddp_status ddp_hier_tune(ddp_comm *comm, size_t bytes)
{
	ddp_link link = { .measured = true };
	char *slot = ddp_result_slot(comm, 0, 0);
	ddp_status status = DDP_OK;

	/* With two nodes, a small operation has nothing to choose. */
	if (comm->hier.link.measured || (comm->topology.nodes == 2 && bytes <= DDP_SMALL_BYTES)) {
		if (!comm->hier.link.measured)
			comm->hier.link.chunk_bytes = CHUNK_BYTES;
		return DDP_OK;
	}
	if (comm->node.self == 0) {
		if (comm->topology.node_of[comm->rank] < 2)
			status = measure(comm, &link);
		if (status == DDP_OK)
			status = tell_nodes(comm, &link);
		if (status == DDP_OK)
			memcpy(slot, &link, sizeof(link));
	}
	if (status == DDP_OK)
		status = ddp_node_step(comm);
	if (status != DDP_OK)
		return status;
	memcpy(&comm->hier.link, slot, sizeof(comm->hier.link));
	ddp_log(DDP_LOG_INFO, "between nodes: %.1f us, %.2f GB/s, messages of %zu KiB",
	        comm->hier.link.latency_seconds * 1e6,
	        comm->hier.link.byte_seconds > 0 ? 1e-9 / comm->hier.link.byte_seconds : 0,
	        comm->hier.link.chunk_bytes / 1024);
	/* The operation may use the slot now. */
	return ddp_node_step(comm);
}

static int rounds_of(int nodes)
{
	int rounds = 0;

	for (int reached = 1; reached < nodes; reached *= 2)
		rounds++;
	return rounds;
}

/* Everyone sends everything to everyone: one message time. */
static double every_seconds(const ddp_comm *comm, double bytes)
{
	const ddp_link *link = &comm->hier.link;

	return link->latency_seconds + (comm->topology.nodes - 1) * (link->post_seconds + bytes * link->byte_seconds);
}

static double doubling_seconds(const ddp_comm *comm, double bytes)
{
	/* A number of nodes that is no power of two costs two more messages. */
	int rounds = rounds_of(comm->topology.nodes) + ((comm->topology.nodes & (comm->topology.nodes - 1)) != 0);

	return rounds * (comm->hier.link.latency_seconds + bytes * comm->hier.link.byte_seconds);
}

/* Parts go to their owners, results come back. */
static double owner_seconds(const ddp_comm *comm, double bytes)
{
	const ddp_link *link = &comm->hier.link;
	double part = bytes / comm->topology.nodes;

	return 2 * (link->latency_seconds +
	            (comm->topology.nodes - 1) * (link->post_seconds + part * link->byte_seconds));
}

/* 1 or 0 if the environment names an algorithm, else -1. */
static int overruled(const char *algorithm)
{
	const char *wanted = getenv("DDP_ALGORITHM");

	return wanted == NULL ? -1 : strcmp(wanted, algorithm) == 0;
}

bool ddp_hier_by_owner(const ddp_comm *comm, size_t bytes)
{
	int forced = overruled("owner");

	if (comm->topology.nodes == 2 || forced >= 0)
		return comm->topology.nodes > 2 && forced == 1;
	return owner_seconds(comm, (double)bytes) < every_seconds(comm, (double)bytes);
}

bool ddp_hier_by_doubling(const ddp_comm *comm, size_t bytes, size_t wide_bytes)
{
	int forced = overruled("doubling");

	if (comm->topology.nodes == 2 || forced >= 0)
		return comm->topology.nodes > 2 && forced == 1;
	return doubling_seconds(comm, (double)wide_bytes) < every_seconds(comm, (double)bytes);
}
