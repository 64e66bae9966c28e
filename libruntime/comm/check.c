/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/check.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/options.h"
#include "comm/core/comm.h"
#include "comm/ops/blocks.h"
#include "comm/p2p/match.h"

static bool takes_counts(ddp_operation_kind kind)
{
	return kind == DDP_REDUCE_SCATTER || kind == DDP_ALL_GATHER || kind == DDP_GATHER ||
	       kind == DDP_SCATTER || kind == DDP_ALL_TO_ALL;
}

static ddp_status invalid(const ddp_operation *c, const char *why)
{
	return ddp_fail(DDP_ERR_INVALID, "%s: %s", ddp_kind_name(c->kind), why);
}

/* Sums of counts must not overflow, also not in bytes. */
static bool count_fits(const ddp_comm *comm, const size_t *counts, size_t count, size_t element)
{
	size_t limit = SIZE_MAX / 4, sum = 0;

	if (counts == NULL)
		return !__builtin_mul_overflow(count, element * (size_t)comm->size, &sum) && sum <= limit;
	limit /= element;
	for (int r = 0; r < comm->size; r++) {
		if (counts[r] > limit - sum)
			return false;
		sum += counts[r];
	}
	return true;
}

/* Whether the type has such a reduction. */
static ddp_status check_reduction(const ddp_operation *c)
{
	const bool bitwise = ddp_op_is_bitwise(c->op);

	if ((unsigned int)c->op > DDP_BXOR)
		return ddp_fail(DDP_ERR_INVALID, "%s: %d is no ddp_op", ddp_kind_name(c->kind), (int)c->op);
	if (bitwise && !ddp_type_is_integer(c->type) && c->type != DDP_BOOL)
		return ddp_fail(DDP_ERR_INVALID, "%s: %s has no %s, which integers and bool have", ddp_kind_name(c->kind),
		                ddp_type_name(c->type), ddp_op_name(c->op));
	if (c->type == DDP_BOOL && c->op == DDP_AVG)
		return invalid(c, "bool has no avg: reduce another type");
	if (c->scaled && (bitwise || c->type == DDP_BOOL))
		return ddp_fail(DDP_ERR_INVALID, "%s: %s of %s takes no scale", ddp_kind_name(c->kind), ddp_op_name(c->op),
		                ddp_type_name(c->type));
	if (!isfinite(c->scale) && ddp_type_is_integer(c->type))
		return invalid(c, "the scale of integers must be finite");
	return DDP_OK;
}

static bool is_rank(const ddp_comm *comm, int rank)
{
	return rank >= 0 && rank < comm->size;
}

static ddp_status no_rank(const ddp_comm *comm, const ddp_operation *c)
{
	return ddp_fail(DDP_ERR_INVALID, "%s: rank %d is not among the communicator's %d", ddp_kind_name(c->kind),
	                c->root, comm->size);
}

/* Checks the peer of a message and its tag. */
static ddp_status check_message(const ddp_comm *comm, const ddp_operation *c)
{
	const bool receives = c->kind == DDP_RECV;

	if (c->received != NULL && !receives)
		return invalid(c, "`received` belongs to a recv");
	if (!is_rank(comm, c->root) && !(receives && c->root == DDP_ANY_SOURCE))
		return no_rank(comm, c);
	if (c->tag < 0 && !(receives && c->tag == DDP_ANY_TAG))
		return invalid(c, "the tag must not be negative");
	if (ddp_match_is_open(c) && c->memory == DDP_MEMORY_DEVICE)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "recv: DDP_ANY_SOURCE, DDP_ANY_TAG and `received` are for the host's memory: "
		                "receive into a device's memory by source, tag and size");
	return DDP_OK;
}

/* Which kinds give or take a block of each rank. */
static bool sends_blocks(ddp_operation_kind kind)
{
	return kind == DDP_SCATTER || kind == DDP_ALL_TO_ALL || kind == DDP_REDUCE_SCATTER;
}

static bool receives_blocks(ddp_operation_kind kind)
{
	return kind == DDP_GATHER || kind == DDP_ALL_TO_ALL || kind == DDP_ALL_GATHER;
}

static ddp_status check_lists(const ddp_comm *comm, const ddp_operation *c)
{
	const bool here = !ddp_kind_has_root(c->kind) || c->root == comm->rank;

	if ((c->send_list != NULL && !sends_blocks(c->kind)) || (c->recv_list != NULL && !receives_blocks(c->kind)))
		return ddp_fail(DDP_ERR_INVALID, "%s: %s is not for this kind of operation, which has one buffer there",
		                ddp_kind_name(c->kind), c->send_list != NULL && !sends_blocks(c->kind) ? "send_list" : "recv_list");
	if ((c->send_list != NULL && c->send != NULL) || (c->recv_list != NULL && c->recv != NULL))
		return invalid(c, "a buffer and a list of buffers are given, where one of the two is wanted");
	if (c->memory == DDP_MEMORY_DEVICE)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "%s: lists of buffers are for the host's memory: give one buffer of a device's",
		                ddp_kind_name(c->kind));
	if (c->kind == DDP_ALL_TO_ALL && c->send == NULL && c->send_list == NULL)
		return invalid(c, "it does not work in place with a list: give send or send_list");
	for (int r = 0; r < comm->size && here; r++) {
		if ((c->send_list != NULL && c->send_list[r] == NULL && ddp_block_count(c, r) > 0) ||
		    (c->recv_list != NULL && c->recv_list[r] == NULL && ddp_recv_count(c, r) > 0))
			return ddp_fail(DDP_ERR_INVALID, "%s: the list's buffer of rank %d is NULL", ddp_kind_name(c->kind), r);
	}
	return DDP_OK;
}

static ddp_status check_shape(const ddp_comm *comm, const ddp_operation *c)
{
	size_t element = ddp_type_bytes(c->type);

	if ((unsigned int)c->kind > DDP_BARRIER)
		return ddp_fail(DDP_ERR_INVALID, "%d is no ddp_operation_kind", (int)c->kind);
	if (c->stream != NULL && c->memory == DDP_MEMORY_HOST)
		return invalid(c, "a stream is given, but the memory is the host's");
	if (c->timeout_ms < 0)
		return invalid(c, "a negative timeout_ms");
	ddp_status status = ddp_reserved_check(ddp_kind_name(c->kind), c);
	if (status != DDP_OK || c->kind == DDP_BARRIER)
		return status;
	if (element == 0)
		return ddp_fail(DDP_ERR_INVALID, "%s: %d is no ddp_type", ddp_kind_name(c->kind), (int)c->type);
	if (c->scale != 0 && !c->scaled)
		return invalid(c, "a scale is given, but `scaled` is false");
	if (ddp_kind_reduces(c->kind) && (status = check_reduction(c)) != DDP_OK)
		return status;
	if ((c->counts != NULL || c->recv_counts != NULL) && !takes_counts(c->kind))
		return invalid(c, "has no v-form, counts must be NULL");
	if (c->kind == DDP_ALL_TO_ALL && (c->counts == NULL) != (c->recv_counts == NULL))
		return invalid(c, "counts and recv_counts go together");
	if (!count_fits(comm, c->counts, c->count, element) ||
	    (c->recv_counts != NULL && !count_fits(comm, c->recv_counts, c->count, element)))
		return invalid(c, "the counts are too large");
	if (c->kind == DDP_ALL_TO_ALL && c->counts != NULL &&
	    c->counts[comm->rank] != c->recv_counts[comm->rank])
		return invalid(c, "counts and recv_counts differ in what this rank gives itself");
	if (ddp_kind_is_message(c->kind) || c->received != NULL)
		return check_message(comm, c);
	if (ddp_kind_has_root(c->kind) && !is_rank(comm, c->root))
		return no_rank(comm, c);
	if (c->kind == DDP_ALL_TO_ALL && c->counts != NULL && c->send_list == NULL && (c->send == NULL || c->send == c->recv))
		return invalid(c, "the v-form does not work in place");
	return c->send_list != NULL || c->recv_list != NULL ? check_lists(comm, c) : DDP_OK;
}

/* The sum of the first `ranks` counts; without counts, all are `count`. */
static size_t sum_of(const size_t *counts, size_t count, int ranks)
{
	size_t sum = 0;

	if (counts == NULL)
		return count * (size_t)ranks;
	for (int r = 0; r < ranks; r++)
		sum += counts[r];
	return sum;
}

/* Returns where the input lies in `recv` if `send` is NULL. */
static const void *input_of(const ddp_comm *comm, const ddp_operation *c)
{
	size_t offset = 0;

	if (c->recv_list != NULL && c->send == NULL && c->kind != DDP_ALL_TO_ALL && (c->kind != DDP_GATHER || c->root == comm->rank))
		return c->recv_list[comm->rank];
	if (c->send != NULL || c->send_list != NULL || c->recv == NULL)
		return c->send;
	if (c->kind == DDP_ALL_GATHER || (c->kind == DDP_GATHER && c->root == comm->rank))
		offset = sum_of(c->counts, c->count, comm->rank) * ddp_type_bytes(c->type);
	return (const char *)c->recv + offset;
}

/* ---- input and output in one place ------------------------------------------------------- */

/* MPI (MPI_IN_PLACE) and NCCL allow these cases. */
static bool is_in_place(const ddp_comm *comm, const ddp_operation *c)
{
	const char *send = c->send, *recv = c->recv;
	const size_t own = sum_of(c->counts, c->count, comm->rank) * ddp_type_bytes(c->type);

	switch (c->kind) {
	case DDP_REDUCE_SCATTER:
	case DDP_SCATTER: return recv == send || recv == send + own;
	case DDP_ALL_GATHER:
	case DDP_GATHER: return send == recv + own;
	default: return send == recv;
	}
}

static const char *rule_of(ddp_operation_kind kind)
{
	switch (kind) {
	case DDP_REDUCE_SCATTER:
	case DDP_SCATTER: return "in place, recv begins where send does, or is this rank's block of it";
	case DDP_ALL_GATHER:
	case DDP_GATHER: return "in place, send is this rank's block of recv";
	default: return "in place, send and recv are the same";
	}
}

/* The place of the input in `recv` differs from rank to rank, so one rank alone may be wrong. Its error breaks
   the communicator, because the other ranks would wait for it. */
static ddp_status refuse(ddp_comm *comm, const char *text)
{
	return comm->size == 1 ? ddp_fail(DDP_ERR_INVALID, "%s", text)
	                       : ddp_comm_break(comm, DDP_ERR_INVALID, comm->rank, "%s", text);
}

static ddp_status refuse_overlap(ddp_comm *comm, const ddp_operation *c)
{
	const char *rule = rule_of(c->kind);
	const ptrdiff_t apart = (const char *)c->send - (const char *)c->recv;
	char text[256];

	snprintf(text, sizeof(text), "%s: send and recv overlap, send begins %td bytes %s recv; %s (send NULL means "
	         "in place), otherwise give buffers apart", ddp_kind_name(c->kind), apart < 0 ? -apart : apart,
	         apart < 0 ? "before" : "behind", rule);
	return refuse(comm, text);
}

/* This rank gives `send` bytes and gets `recv` bytes. */
static ddp_status check_overlap(ddp_comm *comm, const ddp_operation *c, size_t send, size_t recv)
{
	const uintptr_t from = (uintptr_t)c->send, to = (uintptr_t)c->recv;

	if (send == 0 || recv == 0 || from >= to + recv || to >= from + send || is_in_place(comm, c))
		return DDP_OK;
	return refuse_overlap(comm, c);
}

static bool overlap(const void *a, size_t bytes, const void *b, size_t other_bytes)
{
	const uintptr_t from = (uintptr_t)a, to = (uintptr_t)b;

	return bytes > 0 && other_bytes > 0 && from < to + other_bytes && to < from + bytes;
}

/* Checks an operation that has a buffer on one side and a list on the other. In an all_to_all the program must
   see to that itself. A list counts on the root only. */
static ddp_status check_list_overlap(ddp_comm *comm, const ddp_operation *c)
{
	const size_t element = ddp_type_bytes(c->type), own = ddp_block_count(c, comm->rank) * element;
	const bool gathers = c->recv_list != NULL;
	const void *one = gathers ? c->send : c->recv;
	char text[160];

	if (one == NULL || c->kind == DDP_ALL_TO_ALL || (ddp_kind_has_root(c->kind) && c->root != comm->rank))
		return DDP_OK;
	for (int r = 0; r < comm->size; r++) {
		const void *block = gathers ? c->recv_list[r] : c->send_list[r];
		if ((gathers && r == comm->rank && block == one) || !overlap(one, own, block, ddp_block_count(c, r) * element))
			continue;
		snprintf(text, sizeof(text), "%s: %s and the list's buffer of rank %d overlap: give buffers apart",
		         ddp_kind_name(c->kind), gathers ? "send" : "recv", r);
		return refuse(comm, text);
	}
	return DDP_OK;
}

static ddp_status check_buffers(ddp_comm *comm, const ddp_operation *c)
{
	const size_t element = ddp_type_bytes(c->type);
	bool root = c->root == comm->rank;
	size_t mine = ddp_block_count(c, comm->rank), all = sum_of(c->counts, c->count, comm->size);
	size_t send = mine, recv = mine;

	switch (c->kind) {
	case DDP_BARRIER: return DDP_OK;
	case DDP_REDUCE: recv = root ? mine : 0; break;
	case DDP_BROADCAST: send = 0; break;
	case DDP_REDUCE_SCATTER: send = all; break;
	case DDP_ALL_GATHER: recv = all; break;
	case DDP_GATHER: recv = root ? all : 0; break;
	case DDP_SCATTER: send = root ? all : 0; recv = root ? 0 : mine; break;
	case DDP_ALL_TO_ALL: send = all; recv = sum_of(c->recv_counts, c->count, comm->size); break;
	case DDP_SEND: recv = 0; break;
	case DDP_RECV: send = 0; break;
	default: break;
	}
	/* Where the input may lie in place, recv is what is missing. */
	if (recv > 0 && c->recv == NULL && c->recv_list == NULL)
		return invalid(c, "recv is NULL");
	if (send > 0 && c->send == NULL && c->send_list == NULL)
		return invalid(c, c->kind == DDP_SEND || c->kind == DDP_SCATTER || c->kind == DDP_ALL_TO_ALL ? "send is NULL" :
		               "send is NULL, and so is recv, which has the input in place");
	if (c->send_list != NULL || c->recv_list != NULL)
		return check_list_overlap(comm, c);
	if (c->kind == DDP_SCATTER && root && c->recv != NULL)
		recv = mine;
	return check_overlap(comm, c, send * element, recv * element);
}

ddp_status ddp_collective_complete(ddp_comm *comm, const ddp_operation *given,
                                   ddp_operation *c)
{
	ddp_status status = check_shape(comm, given);

	if (status == DDP_OK)
		status = ddp_roster_check_owner(comm->roster, ddp_kind_name(given->kind));
	if (status != DDP_OK)
		return status;
	*c = *given;
	if (c->kind == DDP_BARRIER) {
		c->tag = 0;
		return DDP_OK;
	}
	if (c->counts != NULL)
		c->count = 0;
	if (!c->scaled)
		c->scale = 1;
	c->send = input_of(comm, given);
	return check_buffers(comm, c);
}
