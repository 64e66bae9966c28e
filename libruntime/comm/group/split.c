/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators made from another one, all of whose ranks take part. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/agree.h"
#include "comm/core/comm.h"
#include "comm/group/build.h"
#include "comm/request.h"

/* `count` integers of each rank. */
static ddp_status gather(ddp_comm *comm, const void *own, void *all, size_t count)
{
	return ddp_comm_run(comm, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = own, .recv = all,
	                                             .count = count, .type = DDP_I64 });
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
	ddp_status status = gather(e->parent, &own, e->lengths, 1);
	size_t total = 0;

	if (status != DDP_OK)
		return status;
	for (int r = 0; r < e->parent->size; r++)
		total += e->counts[r] = (size_t)e->lengths[r];
	*all = malloc(total + 1);
	if (*all == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes that ranks tell each other", total);
	status = ddp_comm_agree(e->parent, status, "get the memory to make a communicator");
	if (status != DDP_OK)
		return status;
	return ddp_comm_run(e->parent, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = bytes > 0 ? blob : *all,
	                                                  .recv = *all, .counts = e->counts, .type = DDP_U8 });
}

/* All ranks of the parent take part; the members' blobs are kept. */
static ddp_status exchange_by_parent(void *argument, const void *blob, size_t bytes, void **blobs,
                                     size_t *sizes)
{
	parent_exchange *e = argument;
	char *all = NULL;
	ddp_status status = gather_blobs(e, blob, bytes, &all);

	for (int m = 0; m < e->count && status == DDP_OK && blobs != NULL; m++) {
		size_t offset = 0;
		for (int r = 0; r < e->members[m]; r++)
			offset += e->counts[r];
		sizes[m] = e->counts[e->members[m]];
		blobs[m] = malloc(sizes[m] + 1);
		if (blobs[m] == NULL)
			status = ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes that a rank tells", sizes[m]);
		else
			memcpy(blobs[m], all + offset, sizes[m]);
	}
	free(all);
	return status;
}

static ddp_status confirm_by_parent(void *argument, ddp_status mine)
{
	const parent_exchange *e = argument;

	return ddp_comm_agree(e->parent, mine, "make its part of the communicator");
}

static ddp_status build_from_parent(ddp_comm *parent, const int *members, int count, ddp_comm **part)
{
	parent_exchange exchanger = { .parent = parent, .members = members, .count = count,
	                              .lengths = calloc((size_t)parent->size, sizeof(*exchanger.lengths)),
	                              .counts = calloc((size_t)parent->size, sizeof(*exchanger.counts)) };
	const ddp_opening opening = { .exchange = exchange_by_parent, .argument = &exchanger,
	                              .confirm = confirm_by_parent, .confirms_parts = true,
	                              .confirms_all = true, .control_fd = -1 };
	int *world_ranks = malloc(((size_t)count + 1) * sizeof(int));
	ddp_status status = DDP_OK;
	int rank = DDP_NOBODY;

	if (exchanger.lengths == NULL || exchanger.counts == NULL || world_ranks == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory to split off %d ranks", count);
	status = ddp_comm_agree(parent, status, "get the memory to make a communicator");
	for (int m = 0; m < count && status == DDP_OK; m++) {
		world_ranks[m] = parent->topology.world_ranks[members[m]];
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
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for the colours and keys of %d ranks", comm->size);
	status = ddp_comm_agree(comm, status, "get the memory to split the communicator");
	if (status != DDP_OK || (status = gather(comm, &mine, wishes, 3)) != DDP_OK)
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

static ddp_status name_other_list(ddp_comm *comm, int64_t hash)
{
	char odd_ranks[DDP_OUTLIER_TEXT], usual_ranks[DDP_OUTLIER_TEXT];
	ddp_outlier outlier;
	double odd, usual;

	/* The shift leaves as many bits of the hash as a double holds. */
	ddp_status status = ddp_comm_outlier(comm, (double)(hash >> 11), &outlier, &odd, &usual);
	if (status != DDP_OK)
		return status;
	ddp_comm_outlier_names(comm, &outlier, odd_ranks, usual_ranks);
	ddp_fail(DDP_ERR_MISMATCH, "ddp_comm_group(): %s %s other ranks than %s, or in another order; all ranks must "
	         "give one list", odd_ranks, outlier.odd_count == 1 ? "lists" : "list", usual_ranks);
	return ddp_error_told(DDP_ERR_MISMATCH, comm->rank != 0);
}

/* All ranks must give the same list, or they would wait for each other. */
static ddp_status compare_lists(ddp_comm *comm, const int *ranks, int count)
{
	int64_t hash = (int64_t)(ddp_hash(ranks, (size_t)count * sizeof(*ranks)) >> 2);
	bool same;

	ddp_status status = ddp_comm_same(comm, hash, &same);
	return status == DDP_OK && !same ? name_other_list(comm, hash) : status;
}

ddp_status ddp_comm_group(ddp_comm *comm, const int *ranks, int count, ddp_comm **part)
{
	if (comm == NULL || part == NULL || (ranks == NULL && count > 0) || count < 0)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_group(): a NULL argument or a negative count");
	ddp_status status = ddp_group_check(comm, "ddp_comm_group()", ranks, count);
	if (status == DDP_OK)
		status = compare_lists(comm, ranks, count);
	return status == DDP_OK ? build_from_parent(comm, ranks, count, part) : status;
}
