#include "comm/group.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/await.h"
#include "comm/net.h"
#include "comm/node.h"

/* ---- building ------------------------------------------------------------------- */

/* What a member gives the others; the UCX address follows. */
typedef struct offer {
	int32_t status;     /* a ddp_status: it could not make its part */
	int32_t control_fd; /* of its node's segment, if it is the first there */
	int32_t doorbell;
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
	ddp_status status = ddp_comm_place(comm);

	if (status != DDP_OK)
		return status;
	if (comm->node.self == 0) {
		b->control_fd = ddp_segment_create(DDP_SEGMENT_START_BYTES);
		if (b->control_fd < 0)
			return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make a shared memory segment");
	}
	if (comm->nodes > 1)
		return ddp_net_open(comm, &b->address, &b->address_bytes);
	return DDP_OK;
}

/* Without memory for it, nothing is offered. */
static ddp_status exchange_offers(building *b, ddp_status made)
{
	offer mine = { .status = made, .control_fd = b->control_fd, .doorbell = -1 };
	size_t bytes = sizeof(mine) + b->address_bytes;
	char *blob = malloc(bytes);

	if (blob == NULL) {
		made = ddp_fail(DDP_ERR_NOMEM, "out of memory");
		bytes = 0;
	} else {
		if (made == DDP_OK && b->comm->net != NULL)
			mine.doorbell = ddp_net_doorbell(b->comm);
		memcpy(blob, &mine, sizeof(mine));
		if (b->address_bytes > 0)
			memcpy(blob + sizeof(mine), b->address, b->address_bytes);
	}
	ddp_status status = b->opening->exchange(b->opening->exchanger, blob, bytes, b->blobs, b->sizes);
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

	memcpy(&theirs, b->blobs[leader], sizeof(theirs));
	int fd = comm->node.self == 0
		? b->control_fd
		: ddp_segment_open(comm->roster->peers[comm->world_ranks[leader]].pid, theirs.control_fd);
	if (fd < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open the shared memory of %s",
		                      ddp_rank_text(comm, leader));
	ddp_status status = ddp_node_map(comm, fd);
	if (comm->node.self != 0)
		close(fd);
	return status;
}

static ddp_status connect_members(building *b)
{
	ddp_comm *comm = b->comm;
	int *bells = malloc((size_t)comm->size * sizeof(int));
	offer theirs;

	if (bells == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	for (int r = 0; r < comm->size; r++) {
		memcpy(&theirs, b->blobs[r], sizeof(theirs));
		bells[r] = theirs.doorbell;
		b->sizes[r] -= sizeof(theirs);
		memmove(b->blobs[r], (char *)b->blobs[r] + sizeof(theirs), b->sizes[r]);
	}
	ddp_status status = ddp_net_set_addresses(comm, b->blobs, b->sizes);
	if (status == DDP_OK)
		status = ddp_net_open_doorbells(comm, bells);
	free(bells);
	return status;
}

static ddp_status build_member(building *b)
{
	const ddp_opening *o = b->opening;
	ddp_status status = exchange_offers(b, make_parts(b));

	if (status == DDP_OK)
		status = map_control(b);
	if (status == DDP_OK && b->comm->nodes > 1)
		status = connect_members(b);
	/* Nobody waits for a greeting of one that has failed. */
	if (o->confirm_early)
		status = o->confirm(o->exchanger, status);
	if (status == DDP_OK && b->comm->nodes > 1)
		status = ddp_net_greet(b->comm);
	if (status == DDP_OK && b->comm->nodes > 1)
		status = ddp_comm_start(b->comm);
	/* Segments and doorbells stay open until all have opened them. */
	return o->confirm(o->exchanger, status);
}

/* Makes no part: a rank that is no member, or one that lacks the memory to be. It
   takes part in what build_member() exchanges, whatever comes of it. */
static ddp_status exchange_only(const ddp_opening *o, ddp_status mine)
{
	ddp_status status = o->exchange(o->exchanger, NULL, 0, NULL, NULL);

	if (mine != DDP_OK)
		status = ddp_fail(mine, "out of memory");
	if (o->confirm_early)
		status = o->confirm(o->exchanger, status);
	return o->confirm(o->exchanger, status);
}

ddp_status ddp_comm_build(ddp_roster *roster, const int *world_ranks, int size, int rank,
                          int timeout_ms, const ddp_opening *opening, ddp_comm **part)
{
	building b = { .opening = opening, .control_fd = -1 };
	ddp_status status = DDP_OK;

	*part = NULL;
	if (rank == DDP_NOBODY)
		return exchange_only(opening, DDP_OK);
	b.blobs = calloc((size_t)size + 1, sizeof(*b.blobs));
	b.sizes = calloc((size_t)size + 1, sizeof(*b.sizes));
	if (b.blobs == NULL || b.sizes == NULL)
		status = DDP_ERR_NOMEM;
	else
		status = ddp_comm_create(roster, world_ranks, size, rank, timeout_ms, &b.comm);
	status = b.comm != NULL ? build_member(&b) : exchange_only(opening, status);
	if (b.comm != NULL && status != DDP_OK) {
		ddp_comm_stop(b.comm);
		ddp_comm_destroy(b.comm);
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

/* ---- from a parent --------------------------------------------------------------- */

ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what)
{
	const int64_t own = mine == DDP_OK ? 0 : (int64_t)mine << 32 | comm->rank;
	int64_t worst;
	ddp_status status = ddp_all_reduce(comm, &own, &worst, 1, DDP_I64, DDP_MAX);

	if (status != DDP_OK || mine != DDP_OK || worst == 0)
		return status != DDP_OK ? status : mine;
	return ddp_fail((ddp_status)(worst >> 32), "%s could not %s (%s)",
	                ddp_rank_text(comm, (int)(worst & INT32_MAX)), what,
	                ddp_status_name((ddp_status)(worst >> 32)));
}

typedef struct parent_exchange {
	ddp_comm *parent;
	const int *members; /* [count]: ranks in the parent */
	int count;
	int64_t *lengths;   /* [size of the parent] */
	size_t *counts;     /* the same */
} parent_exchange;

static ddp_status gather_blobs(parent_exchange *e, const void *blob, size_t bytes, char **all)
{
	const int64_t own = (int64_t)bytes;
	ddp_status status = ddp_all_gather(e->parent, &own, e->lengths, 1, DDP_I64);
	size_t total = 0;

	if (status != DDP_OK)
		return status;
	for (int r = 0; r < e->parent->size; r++)
		total += e->counts[r] = (size_t)e->lengths[r];
	*all = malloc(total + 1);
	if (*all == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "out of memory");
	status = ddp_comm_agree(e->parent, status, "get the memory to make a communicator");
	if (status != DDP_OK)
		return status;
	return ddp_run(e->parent, &(ddp_collective){ .kind = DDP_ALL_GATHER, .send = bytes > 0 ? blob : *all,
	                                             .recv = *all, .counts = e->counts, .type = DDP_U8 });
}

/* All ranks of the parent take part; the members' blobs are kept. */
static ddp_status exchange_by_parent(void *exchanger, const void *blob, size_t bytes, void **blobs,
                                     size_t *sizes)
{
	parent_exchange *e = exchanger;
	char *all = NULL;
	ddp_status status = gather_blobs(e, blob, bytes, &all);

	for (int m = 0; m < e->count && status == DDP_OK && blobs != NULL; m++) {
		size_t offset = 0;
		for (int r = 0; r < e->members[m]; r++)
			offset += e->counts[r];
		sizes[m] = e->counts[e->members[m]];
		blobs[m] = malloc(sizes[m] + 1);
		if (blobs[m] == NULL)
			status = ddp_fail(DDP_ERR_NOMEM, "out of memory");
		else
			memcpy(blobs[m], all + offset, sizes[m]);
	}
	free(all);
	return status;
}

static ddp_status confirm_by_parent(void *exchanger, ddp_status mine)
{
	const parent_exchange *e = exchanger;

	return ddp_comm_agree(e->parent, mine, "make its part of the communicator");
}

static ddp_status build_from_parent(ddp_comm *parent, const int *members, int count, ddp_comm **part)
{
	parent_exchange exchanger = { .parent = parent, .members = members, .count = count,
	                              .lengths = calloc((size_t)parent->size, sizeof(*exchanger.lengths)),
	                              .counts = calloc((size_t)parent->size, sizeof(*exchanger.counts)) };
	const ddp_opening opening = { .exchange = exchange_by_parent, .exchanger = &exchanger,
	                              .confirm = confirm_by_parent, .confirm_early = true };
	int *world_ranks = malloc(((size_t)count + 1) * sizeof(int));
	ddp_status status = DDP_OK;
	int rank = DDP_NOBODY;

	if (exchanger.lengths == NULL || exchanger.counts == NULL || world_ranks == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "out of memory");
	status = ddp_comm_agree(parent, status, "get the memory to make a communicator");
	for (int m = 0; m < count && status == DDP_OK; m++) {
		world_ranks[m] = parent->world_ranks[members[m]];
		if (members[m] == parent->rank)
			rank = m;
	}
	if (status == DDP_OK)
		status = ddp_comm_build(parent->roster, world_ranks, count, rank, parent->timeout_ms, &opening,
		                        part);
	free(exchanger.lengths);
	free(exchanger.counts);
	free(world_ranks);
	return status;
}

/* A rank's wish in a split. */
typedef struct wish {
	int64_t colour, key, rank;
} wish;

static int compare_wishes(const void *left, const void *right)
{
	const wish *a = left, *b = right;

	if (a->key != b->key)
		return a->key < b->key ? -1 : 1;
	return a->rank < b->rank ? -1 : 1;
}

ddp_status ddp_comm_split(ddp_comm *comm, int colour, int key, ddp_comm **part)
{
	if (comm == NULL || part == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_split(): a NULL argument");
	const wish mine = { colour, key, comm->rank };
	wish *wishes = malloc((size_t)comm->size * sizeof(*wishes));
	int *members = malloc((size_t)comm->size * sizeof(*members));
	ddp_status status = DDP_OK;
	int count = 0;

	if (wishes == NULL || members == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "out of memory");
	status = ddp_comm_agree(comm, status, "get the memory to split the communicator");
	if (status != DDP_OK || (status = ddp_all_gather(comm, &mine, wishes, 3, DDP_I64)) != DDP_OK)
		goto out;
	qsort(wishes, (size_t)comm->size, sizeof(*wishes), compare_wishes);
	for (int r = 0; r < comm->size; r++) {
		if (colour >= 0 && wishes[r].colour == colour)
			members[count++] = (int)wishes[r].rank;
	}
	status = build_from_parent(comm, members, count, part);
out:
	free(wishes);
	free(members);
	return status;
}

static ddp_status check_list(const ddp_comm *comm, const int *ranks, int count)
{
	for (int i = 0; i < count; i++) {
		if (ranks[i] < 0 || ranks[i] >= comm->size)
			return ddp_fail(DDP_ERR_INVALID, "ddp_comm_group(): rank %d is not among the communicator's %d",
			                ranks[i], comm->size);
		for (int k = 0; k < i; k++) {
			if (ranks[k] == ranks[i])
				return ddp_fail(DDP_ERR_INVALID, "ddp_comm_group(): rank %d is listed twice", ranks[i]);
		}
	}
	return DDP_OK;
}

/* All ranks must give the same list, or they would wait for each other. */
static ddp_status compare_lists(ddp_comm *comm, const int *ranks, int count)
{
	int64_t hash = (int64_t)(ddp_hash(ranks, (size_t)count * sizeof(*ranks)) >> 2);
	int64_t extremes[2] = { hash, -hash };

	ddp_status status = ddp_all_reduce(comm, NULL, extremes, 2, DDP_I64, DDP_MAX);
	if (status == DDP_OK && (extremes[0] != hash || extremes[1] != -hash))
		status = ddp_fail(DDP_ERR_MISMATCH, "ddp_comm_group(): the ranks give different lists");
	return status;
}

ddp_status ddp_comm_group(ddp_comm *comm, const int *ranks, int count, ddp_comm **part)
{
	if (comm == NULL || part == NULL || (ranks == NULL && count > 0) || count < 0)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_group(): a NULL argument or a negative count");
	ddp_status status = check_list(comm, ranks, count);
	if (status == DDP_OK)
		status = compare_lists(comm, ranks, count);
	return status == DDP_OK ? build_from_parent(comm, ranks, count, part) : status;
}

ddp_status ddp_comm_free(ddp_comm *comm)
{
	if (comm == NULL)
		return DDP_OK;
	if (comm->is_world)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_free(): the world communicator belongs to its context");
	ddp_comm_close(comm);
	return DDP_OK;
}
