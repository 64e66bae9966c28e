/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators made by their members alone: the other ranks of the parent take no part. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/core/comm.h"
#include "comm/group/build.h"
#include "comm/p2p/match.h"
#include "comm/request.h"

enum { BLOB_MAX = 64 };

/* A member tells the others this in a round. */
typedef struct record {
	uint64_t list;      /* a hash of the ranks that it was given */
	int32_t status;     /* a ddp_status */
	uint32_t bytes;
	char blob[BLOB_MAX];
} record;

typedef struct member_exchange {
	ddp_comm *parent;
	const int *ranks;   /* [count]: the members, in the parent */
	int count, self, tag;
	uint64_t list;
	record *records;    /* [count] */
	record *incoming;   /* the same */
} member_exchange;

/* A member that cannot take part says so to all: the others would wait for it. */
static ddp_status fail_all(ddp_comm *parent, ddp_status status)
{
	return ddp_comm_break(parent, status, parent->rank, "%s", ddp_last_error());
}

/* Records go `apart` members down, and come from as many up. */
static ddp_status pass(member_exchange *e, int apart, int count)
{
	const int to = e->ranks[(e->self + e->count - apart) % e->count], from = e->ranks[(e->self + apart) % e->count];
	const size_t bytes = (size_t)count * sizeof(record);
	ddp_request *sent, *received;

	ddp_status status = ddp_comm_issue_own(e->parent, &(ddp_operation){
		.kind = DDP_RECV, .recv = e->incoming, .count = bytes, .type = DDP_U8, .root = from,
		.tag = ddp_match_own_tag(e->tag) }, &received);
	if (status != DDP_OK)
		return fail_all(e->parent, status);
	status = ddp_comm_issue_own(e->parent, &(ddp_operation){
		.kind = DDP_SEND, .send = e->records, .count = bytes, .type = DDP_U8, .root = to,
		.tag = ddp_match_own_tag(e->tag) }, &sent);
	/* The buffers must stay until the messages have come. */
	if (status != DDP_OK)
		(void)fail_all(e->parent, status);
	else
		status = ddp_wait(sent);
	const ddp_status came = ddp_wait(received);
	return status != DDP_OK ? status : came;
}

/* Ranks with other lists would wait for other members than these. */
static ddp_status compare(const member_exchange *e, int begin, int end)
{
	for (int i = begin; i < end; i++) {
		if (e->records[i].list != e->list)
			return ddp_comm_break(e->parent, DDP_ERR_MISMATCH, DDP_NOBODY,
			                      "ddp_comm_create_group() or new_group(), tag %d: %s and %s list different ranks, or in another order",
			                      e->tag, ddp_rank_text(e->parent, e->parent->rank),
			                      ddp_rank_text(e->parent, e->ranks[(e->self + i) % e->count]));
	}
	return DDP_OK;
}

/* All members' records become known to all, `records` in the order of members from this one on: in each
   round a member has twice as many (Bruck et al. 1997). */
static ddp_status tell_all(member_exchange *e, const record *mine)
{
	ddp_status status = DDP_OK;

	e->records[0] = *mine;
	for (int known = 1; known < e->count && status == DDP_OK; known *= 2) {
		const int now = known < e->count - known ? known : e->count - known;
		status = pass(e, known, now);
		memcpy(e->records + known, e->incoming, (size_t)now * sizeof(record));
		if (status == DDP_OK)
			status = compare(e, known, known + now);
	}
	return status;
}

static ddp_status exchange(void *argument, const void *blob, size_t bytes, void **blobs, size_t *sizes)
{
	member_exchange *e = argument;
	record mine = { .list = e->list, .bytes = (uint32_t)bytes };
	ddp_status status;

	if (bytes > sizeof(mine.blob))
		return ddp_fail(DDP_ERR_UNSUPPORTED, "ddp_comm_create_group(): %zu bytes to tell", bytes);
	if (bytes > 0)
		memcpy(mine.blob, blob, bytes);
	status = tell_all(e, &mine);
	for (int i = 0; i < e->count && status == DDP_OK && blobs != NULL; i++) {
		const int member = (e->self + i) % e->count;
		const size_t size = e->records[i].bytes < BLOB_MAX ? e->records[i].bytes : BLOB_MAX;
		sizes[member] = size;
		blobs[member] = malloc(size + 1);
		if (blobs[member] == NULL)
			status = ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes that a rank tells", size);
		else
			memcpy(blobs[member], e->records[i].blob, size);
	}
	return status;
}

static ddp_status confirm(void *argument, ddp_status mine)
{
	member_exchange *e = argument;
	const record word = { .list = e->list, .status = (int32_t)mine };
	ddp_kept_error kept;

	ddp_error_keep(&kept, mine);
	ddp_status status = tell_all(e, &word);
	if (mine != DDP_OK)
		return ddp_error_return(&kept);
	for (int i = 1; i < e->count && status == DDP_OK; i++) {
		const ddp_status theirs = (ddp_status)e->records[i].status;
		if (theirs != DDP_OK)
			status = ddp_fail(theirs, "%s could not make its part of the communicator (%s)",
			                  ddp_rank_text(e->parent, e->ranks[(e->self + i) % e->count]), ddp_status_name(theirs));
	}
	return status;
}

static ddp_status check(const ddp_comm *comm, const int *ranks, int count, int tag, int *self)
{
	ddp_status status = ddp_group_check(comm, "ddp_comm_create_group()", ranks, count);

	if (status == DDP_OK && (tag < 0 || tag >= DDP_BUDDY_NUMBER))
		status = ddp_fail(DDP_ERR_INVALID, "ddp_comm_create_group(): the tag is %d: it must be in 0 .. INT_MAX - 2", tag);
	*self = DDP_NOBODY;
	for (int i = 0; i < count && status == DDP_OK; i++) {
		if (ranks[i] == comm->rank)
			*self = i;
	}
	if (status == DDP_OK && *self == DDP_NOBODY)
		status = ddp_fail(DDP_ERR_INVALID, "ddp_comm_create_group(): this rank, %d, is not listed: only members call it",
		                  comm->rank);
	return status;
}

static ddp_status build(ddp_comm *comm, member_exchange *e, ddp_comm **part)
{
	const ddp_opening opening = { .argument = e, .exchange = exchange, .confirm = confirm, .confirms_parts = true,
	                              .confirms_all = true, .control_fd = -1 };
	int *world_ranks = malloc((size_t)e->count * sizeof(*world_ranks));

	e->records = calloc(2 * (size_t)e->count, sizeof(*e->records));
	if (world_ranks == NULL || e->records == NULL) {
		free(world_ranks);
		ddp_fail(DDP_ERR_NOMEM, "no memory for a communicator of %d ranks", e->count);
		return fail_all(comm, DDP_ERR_NOMEM);
	}
	e->incoming = e->records + e->count;
	for (int i = 0; i < e->count; i++)
		world_ranks[i] = comm->topology.world_ranks[e->ranks[i]];
	const ddp_status status = ddp_comm_build(comm->roster, world_ranks, e->count, e->self, comm->timeout_ms, &opening,
	                                         part);
	free(world_ranks);
	return status;
}

ddp_status ddp_comm_create_group(ddp_comm *comm, const int *ranks, int count, int tag, ddp_comm **part)
{
	member_exchange e = { .parent = comm, .ranks = ranks, .count = count, .tag = tag };

	if (part != NULL)
		*part = NULL;
	if (comm == NULL || part == NULL || ranks == NULL || count < 1)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_create_group(): a NULL argument, or no ranks");
	ddp_status status = check(comm, ranks, count, tag, &e.self);
	if (status == DDP_OK)
		status = ddp_request_may_wait("ddp_comm_create_group()");
	if (status == DDP_OK)
		status = ddp_roster_check_owner(comm->roster, "ddp_comm_create_group()");
	if (status != DDP_OK)
		return status;
	e.list = ddp_hash(ranks, (size_t)count * sizeof(*ranks));
	status = build(comm, &e, part);
	free(e.records);
	return status;
}
