/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/group/build.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/attend.h"
#include "comm/core/liveness.h"
#include "comm/core/offsets.h"
#include "comm/hier/plan.h"
#include "comm/hier/store.h"
#include "comm/net/net.h"
#include "comm/p2p/ring.h"
#include "comm/shm/borrow.h"
#include "comm/shm/node.h"
#include "comm/wait/await.h"
#include "wireup/wireup.h"

/* ---- the connections between nodes that most operations use -------------------------------- */

/* This rank connects with these ranks, and each of them connects with this rank. */
typedef struct neighbours {
	int *ranks;
	int count;
} neighbours;

static void find_all(const ddp_comm *comm, neighbours *n)
{
	for (int rank = 0; rank < comm->size; rank++) {
		if (!ddp_is_local(comm, rank))
			n->ranks[n->count++] = rank;
	}
}

/* The rank of that node with this one's index; each once. */
static void add(const ddp_comm *comm, int node, neighbours *n)
{
	if (comm->node.self >= ddp_node_size(comm, node))
		return;
	const int rank = ddp_channel_rank(comm, node, comm->node.self);
	for (int i = 0; i < n->count; i++) {
		if (n->ranks[i] == rank)
			return;
	}
	n->ranks[n->count++] = rank;
}

/* Finds the partners of recursive doubling and halving, which work on even and on odd chunks. */
static void find_partners(const ddp_comm *comm, neighbours *n)
{
	const ddp_plan plan = ddp_plan_halving(comm->topology.nodes);

	for (int k = 0; k < 2 * plan.rounds; k++) {
		const ddp_exchange exchange = ddp_plan_round(&plan, comm->topology.node_of[comm->rank], (size_t)k % 2, k / 2);
		if (exchange.peer >= 0)
			add(comm, exchange.peer, n);
	}
}

static ddp_status find_neighbours(const ddp_comm *comm, neighbours *n)
{
	*n = (neighbours){ .ranks = malloc((size_t)comm->size * sizeof(*n->ranks)) };
	if (n->ranks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the neighbours among %d ranks", comm->size);
	if (comm->size <= DDP_NET_FEW_RANKS)
		find_all(comm, n);
	else
		find_partners(comm, n);
	return DDP_OK;
}

/* One whose connection is lost is named first: for its sake others, with whom
   nothing is wrong, may have given up before they connected with this rank. */
static int missing_neighbour(const ddp_comm *comm, const neighbours *n, bool (*is_done)(const ddp_comm *, int peer))
{
	int missing = DDP_NOBODY, lost = DDP_NOBODY;

	for (int i = n->count - 1; i >= 0; i--) {
		if (!is_done(comm, n->ranks[i]))
			missing = n->ranks[i];
		if (ddp_net_lost(comm, n->ranks[i]))
			lost = n->ranks[i];
	}
	return missing != DDP_NOBODY && lost != DDP_NOBODY ? lost : missing;
}

static int missing_settled(ddp_comm *comm, const void *argument)
{
	return missing_neighbour(comm, argument, ddp_net_settled);
}

static int missing_ready(ddp_comm *comm, const void *argument)
{
	return missing_neighbour(comm, argument, ddp_net_ready);
}

static ddp_status settle(ddp_comm *comm, const neighbours *n)
{
	const ddp_condition settled = { .missing = missing_settled, .argument = n, .sleeps_for = DDP_SLEEPS_FOR_NET };
	ddp_status status = DDP_OK;

	for (int i = 0; i < n->count && status == DDP_OK; i++)
		status = ddp_net_connect(comm, n->ranks[i]);
	return status == DDP_OK ? ddp_comm_await(comm, &settled) : status;
}

/* Tells each neighbour once. */
static void say_ready(ddp_comm *comm, const neighbours *n)
{
	for (int i = 0; i < n->count; i++)
		ddp_net_say_ready(comm, n->ranks[i]);
}

/* All that this rank connects with are through with connecting. */
static ddp_status meet_ready(ddp_comm *comm, const neighbours *n)
{
	const ddp_condition ready = { .missing = missing_ready, .argument = n, .sleeps_for = DDP_SLEEPS_FOR_NET };

	say_ready(comm, n);
	return ddp_comm_await(comm, &ready);
}

static ddp_status connect_all(ddp_comm *comm, const neighbours *n)
{
	static const ddp_operation opening = { .kind = DDP_BARRIER };

	/* All that a part of the world needs may have been made for another. */
	if (missing_neighbour(comm, n, ddp_net_settled) == DDP_NOBODY &&
	    missing_neighbour(comm, n, ddp_net_ready) == DDP_NOBODY) {
		say_ready(comm, n);
		return DDP_OK;
	}
	comm->run.operation = &opening;
	comm->run.deadline_ns = ddp_ms_from_now(comm->timeout_ms);
	ddp_status status = settle(comm, n);
	if (status == DDP_OK) {
		ddp_net_await_connections(comm);
		status = meet_ready(comm, n);
	}
	if (status != DDP_OK)
		ddp_net_shut_down(comm);
	else if (comm->roster->size <= DDP_NET_FEW_RANKS)
		ddp_net_shut_listeners(comm);
	return status;
}

/* Begins the connections that the members of a part of the world lack, so that they are made while the members tell
   each other their offers. */
static ddp_status connect_early(ddp_comm *comm)
{
	neighbours n;
	ddp_status status = find_neighbours(comm, &n);

	for (int i = 0; i < n.count && status == DDP_OK; i++)
		ddp_net_begin_connection(comm, n.ranks[i]);
	free(n.ranks);
	return status;
}

/* Makes these connections, so that an unreachable node is found before the first operation: among few
   ranks all, among many those of recursive doubling, others when they are first used.
   Collective; of the world, once all ranks have all addresses. */
static ddp_status ddp_handshake(ddp_comm *comm)
{
	neighbours n;
	ddp_status status = find_neighbours(comm, &n);

	if (status == DDP_OK)
		status = connect_all(comm, &n);
	free(n.ranks);
	return status;
}

/* ---- a communicator without shared parts ----------------------------------------------- */

/* Releases its memory; nothing runs any more. */
static void destroy(ddp_comm *comm)
{
	ddp_ring_free(comm);
	ddp_net_close(comm);
	ddp_hier_store_close(comm);
	ddp_borrow_end(comm);
	ddp_node_unmap(comm);
	free(comm->run.question);
	free(comm->run.words);
	ddp_offsets_free(comm);
	free(comm->node.ranks);
	free(comm->node.watched);
	free(comm->node.src);
	free(comm->node.dst);
	free(comm->node.scales);
	ddp_topology_free(&comm->topology);
	pthread_mutex_destroy(&comm->run.lock);
	pthread_mutex_destroy(&comm->queue.lock);
	pthread_mutex_destroy(&comm->failure.lock);
	pthread_mutex_destroy(&comm->twins.lock);
	pthread_mutex_destroy(&comm->lanes.lock);
	pthread_cond_destroy(&comm->queue.unserved);
	ddp_roster_release(comm->roster);
	ddp_failure_debt_drop(comm->failure.debt);
	free(comm);
}

static ddp_comm *create(ddp_roster *roster, const int *world_ranks, int size, int rank, int timeout_ms)
{
	ddp_comm *comm = calloc(1, sizeof(*comm));

	if (comm == NULL)
		return NULL;
	comm->roster = roster;
	atomic_fetch_add(&roster->users, 1);
	comm->rank = rank;
	comm->size = size;
	comm->timeout_ms = timeout_ms;
	comm->failure.culprit = DDP_NOBODY;
	comm->run.chain.missing = comm->run.chain.end = DDP_NOBODY;
	pthread_mutex_init(&comm->run.lock, NULL);
	pthread_mutex_init(&comm->queue.lock, NULL);
	pthread_mutex_init(&comm->failure.lock, NULL);
	pthread_mutex_init(&comm->twins.lock, NULL);
	pthread_mutex_init(&comm->lanes.lock, NULL);
	pthread_cond_init(&comm->queue.unserved, NULL);
	comm->node.ranks = malloc((size_t)size * sizeof(int));
	ddp_status status = ddp_topology_make(&comm->topology, world_ranks, size);
	if (ddp_failure_debt_make(comm) && status == DDP_OK && comm->node.ranks != NULL)
		return comm;
	destroy(comm);
	return NULL;
}

/* Finds the ranks that are on this node. */
static ddp_status place(ddp_comm *comm)
{
	ddp_topology *t = &comm->topology;
	ddp_node *node = &comm->node;

	ddp_status status = ddp_topology_place(t, comm->size, comm->roster);
	if (status != DDP_OK)
		return status;
	int own = t->node_of[comm->rank], begin = t->node_begin[own];
	node->size = t->node_begin[own + 1] - begin;
	node->self = t->local_of[comm->rank];
	memcpy(node->ranks, t->node_ranks + begin, (size_t)node->size * sizeof(int));
	node->src = calloc((size_t)node->size, sizeof(*node->src));
	node->dst = calloc((size_t)node->size + 1, sizeof(*node->dst));
	node->scales = calloc((size_t)node->size, sizeof(*node->scales));
	if (node->src == NULL || node->dst == NULL || node->scales == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the %d ranks of a node", node->size);
	return ddp_node_watch(comm);
}

/* ---- its parts -------------------------------------------------------------------------- */

/* A member gives the others this offer; in the world, the UCX address follows it. */
typedef struct offer {
	int32_t status;     /* a ddp_status: it could not make its part */
	int32_t control_fd; /* of its node's segment, if it is the first there */
	int32_t doorbell;
	int32_t unused;
	uint64_t id;        /* that of the first member counts */
	ddp_link link;      /* that of the first member that has one counts */
} offer;

typedef struct building {
	ddp_comm *comm;
	const ddp_opening *opening;
	void **blobs;
	size_t *sizes;
	int control_fd;
	void *address;
	size_t address_bytes;
} building;

/* This member's own parts. */
static ddp_status make_parts(building *b)
{
	ddp_comm *comm = b->comm;
	ddp_status status = place(comm);

	if (status != DDP_OK)
		return status;
	if (comm->node.self == 0 && b->opening->control_fd < 0) {
		b->control_fd = ddp_segment_create(DDP_SEGMENT_START_BYTES);
		if (b->control_fd < 0)
			return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make a shared memory segment%s",
			                      ddp_segment_remedy(errno));
	}
	if (comm->topology.nodes > 1)
		status = ddp_doorbell_open(&comm->roster->doorbell);
	if (comm->topology.nodes > 1 && status == DDP_OK)
		status = ddp_net_open(comm, &b->address, &b->address_bytes);
	if (comm->topology.nodes > 1 && status == DDP_OK && b->address == NULL)
		status = connect_early(comm);
	return status;
}

/* A rank without memory for its offer offers nothing. */
static ddp_status exchange_offers(building *b, ddp_status made)
{
	offer mine = { .status = made, .control_fd = b->control_fd, .doorbell = b->comm->roster->doorbell.pipe[1],
	               .id = ddp_roster_new_id(b->comm->roster) };
	size_t bytes = sizeof(mine) + b->address_bytes;
	char *blob = malloc(bytes);

	if (b->opening->link != NULL)
		mine.link = *b->opening->link;
	if (blob == NULL) {
		made = ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes that a rank tells", bytes);
		bytes = 0;
	} else {
		memcpy(blob, &mine, sizeof(mine));
		if (b->address_bytes > 0)
			memcpy(blob + sizeof(mine), b->address, b->address_bytes);
	}
	ddp_status status = b->opening->exchange(b->opening->argument, blob, bytes, b->blobs, b->sizes);
	free(blob);
	for (int r = 0; r < b->comm->size && status == DDP_OK && made == DDP_OK; r++) {
		if (b->sizes[r] < sizeof(offer))
			return ddp_fail(DDP_ERR_PEER, "%s did not make its part", ddp_rank_text(b->comm, r));
		memcpy(&mine, b->blobs[r], sizeof(mine));
		if (mine.status != DDP_OK)
			status = ddp_fail((ddp_status)mine.status, "%s could not make its part of the communicator (%s)",
			                  ddp_rank_text(b->comm, r), ddp_status_name((ddp_status)mine.status));
	}
	return status == DDP_OK ? made : status;
}

static ddp_status map_control(building *b)
{
	ddp_comm *comm = b->comm;
	int leader = comm->node.ranks[0];
	offer theirs;

	if (b->opening->control_fd >= 0)
		return ddp_node_map(comm, b->opening->control_fd);
	memcpy(&theirs, b->blobs[leader], sizeof(theirs));
	int fd = comm->node.self == 0
		? b->control_fd
		: ddp_segment_open(comm->roster->peers[comm->topology.world_ranks[leader]].pid, theirs.control_fd);
	if (fd < 0)
		return ddp_segment_not_opened(comm, leader, errno);
	ddp_status status = ddp_node_map(comm, fd);
	if (comm->node.self != 0)
		close(fd);
	return status;
}

/* The world's members tell how they are reached; its parts use the same connections. */
static ddp_status take_addresses(building *b)
{
	ddp_comm *comm = b->comm;
	int *bells = malloc((size_t)comm->size * sizeof(int));
	offer theirs;

	if (bells == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the doorbells of %d ranks", comm->size);
	for (int r = 0; r < comm->size; r++) {
		memcpy(&theirs, b->blobs[r], sizeof(theirs));
		bells[r] = theirs.doorbell;
		b->sizes[r] -= sizeof(theirs);
		memmove(b->blobs[r], (char *)b->blobs[r] + sizeof(theirs), b->sizes[r]);
	}
	ddp_status status = ddp_net_set_addresses(comm, b->blobs, b->sizes);
	if (status == DDP_OK)
		status = ddp_doorbell_open_peers(comm, bells);
	free(bells);
	return status;
}

/* All members take the same figures, so that they choose the same algorithms. */
static void take_link(building *b)
{
	ddp_link *link = &b->comm->hier.link;
	offer theirs;

	for (int r = 0; r < b->comm->size && !link->measured; r++) {
		memcpy(&theirs, b->blobs[r], sizeof(theirs));
		*link = theirs.link;
	}
}

static ddp_status connect_members(building *b)
{
	offer first;

	memcpy(&first, b->blobs[0], sizeof(first));
	b->comm->id = first.id;
	take_link(b);
	ddp_net_join(b->comm);
	if (b->address == NULL)
		return DDP_OK;
	const ddp_status status = take_addresses(b);
	/* A rank that cannot watch other nodes goes on: others watch them, too. */
	if (status == DDP_OK && ddp_net_watch(b->comm) != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
	return status;
}

/* With one node whose control segment is open there is nothing to offer. */
static bool has_offers(const ddp_opening *o, bool several_nodes)
{
	return several_nodes || o->control_fd < 0;
}

static ddp_status confirm(const ddp_opening *o, bool wanted, ddp_status mine)
{
	return wanted ? o->confirm(o->argument, mine) : mine;
}

static ddp_status build_member(building *b)
{
	const ddp_opening *o = b->opening;
	ddp_comm *comm = b->comm;
	ddp_status status = make_parts(b);
	const bool offers = has_offers(o, comm->topology.nodes > 1);

	if (offers)
		status = exchange_offers(b, status);
	if (status == DDP_OK)
		status = map_control(b);
	if (status == DDP_OK && comm->topology.nodes > 1)
		status = connect_members(b);
	/* Nobody waits for the handshake of one that has failed; and all have let the
	   others in. */
	status = confirm(o, offers && o->confirms_parts, status);
	if (status == DDP_OK && comm->topology.nodes > 1)
		status = ddp_handshake(comm);
	if (status == DDP_OK && comm->topology.nodes > 1)
		status = ddp_attend(comm);
	/* Segments and doorbells stay open until all have opened them. */
	return confirm(o, o->confirms_all, status);
}

/* Are the members on several nodes? */
static bool spans_nodes(const ddp_roster *roster, const int *world_ranks, int size)
{
	for (int r = 1; r < size; r++) {
		if (roster->peers[world_ranks[r]].node != roster->peers[world_ranks[0]].node)
			return true;
	}
	return false;
}

/* Makes no part: a rank that is no member, or one that lacks the memory to be. It
   takes part in what build_member() exchanges, whatever comes of it. */
static ddp_status exchange_only(const ddp_opening *o, bool offers, ddp_status mine)
{
	ddp_status status = offers ? o->exchange(o->argument, NULL, 0, NULL, NULL) : DDP_OK;

	if (mine != DDP_OK)
		status = ddp_fail(mine, "no memory for a communicator");
	status = confirm(o, offers && o->confirms_parts, status);
	return confirm(o, o->confirms_all, status);
}

ddp_status ddp_comm_build(ddp_roster *roster, const int *world_ranks, int size, int rank,
                          int timeout_ms, const ddp_opening *opening, ddp_comm **part)
{
	building b = { .opening = opening, .control_fd = -1 };

	*part = NULL;
	bool offers = has_offers(opening, spans_nodes(roster, world_ranks, size));
	if (rank == DDP_NOBODY)
		return exchange_only(opening, offers, DDP_OK);
	b.blobs = calloc((size_t)size + 1, sizeof(*b.blobs));
	b.sizes = calloc((size_t)size + 1, sizeof(*b.sizes));
	if (b.blobs != NULL && b.sizes != NULL)
		b.comm = create(roster, world_ranks, size, rank, timeout_ms);
	ddp_status status = b.comm != NULL ? build_member(&b) : exchange_only(opening, offers, DDP_ERR_NOMEM);
	if (b.comm != NULL && status != DDP_OK) {
		ddp_attend_end(b.comm);
		destroy(b.comm);
	} else if (b.comm != NULL) {
		*part = b.comm;
	}
	if (b.control_fd >= 0)
		close(b.control_fd);
	if (b.blobs != NULL)
		ddp_blobs_free(b.blobs, size);
	free(b.blobs);
	free(b.sizes);
	free(b.address);
	return status;
}

ddp_status ddp_group_check(const ddp_comm *comm, const char *function, const int *ranks, int count)
{
	for (int i = 0; i < count; i++) {
		if (ranks[i] < 0 || ranks[i] >= comm->size)
			return ddp_fail(DDP_ERR_INVALID, "%s: rank %d is not among the communicator's %d", function, ranks[i],
			                comm->size);
		for (int k = 0; k < i; k++) {
			if (ranks[k] == ranks[i])
				return ddp_fail(DDP_ERR_INVALID, "%s: rank %d is listed twice", function, ranks[i]);
		}
	}
	return DDP_OK;
}

void ddp_comm_leave(ddp_comm *comm)
{
	ddp_attend_end(comm);
	/* An abort may have come too late for the thread to tell of it. */
	if (comm->net != NULL && ddp_comm_check(comm) != DDP_OK)
		ddp_net_shut_down(comm);
	atomic_store(&ddp_lines_own(comm)->left, 1);
	ddp_node_wake_all(comm);
	destroy(comm);
}
