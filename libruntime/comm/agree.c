/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/agree.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/request.h"

/* Reduces `values`, which this rank has filled, in place. */
static ddp_status all_reduce(ddp_comm *comm, void *values, size_t count, ddp_type type, ddp_op op)
{
	return ddp_comm_run(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = values, .count = count,
	                                             .type = type, .op = op });
}

/* A rank and its status in one number: the least is the first rank's. */
ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what)
{
	enum { STATUSES = 64 };
	int64_t first = mine == DDP_OK ? INT64_MAX : (int64_t)comm->rank * STATUSES + (int64_t)mine;
	ddp_kept_error own;

	ddp_error_keep(&own, mine);
	ddp_status status = all_reduce(comm, &first, 1, DDP_I64, DDP_MIN);
	if (mine != DDP_OK)
		return ddp_error_return(&own);
	if (status != DDP_OK || first == INT64_MAX)
		return status;
	const ddp_status failed = (ddp_status)(first % STATUSES);
	const int rank = (int)(first / STATUSES);
	ddp_fail(failed, "%s could not %s (%s); its own error says why", ddp_rank_text(comm, rank), what,
	         ddp_status_name(failed));
	ddp_error_about(failed, comm->topology.world_ranks[rank]);
	return ddp_error_told(failed, true);
}

ddp_status ddp_comm_same(ddp_comm *comm, int64_t own, bool *same)
{
	int64_t ends[2] = { own, -own };

	ddp_status status = all_reduce(comm, ends, 2, DDP_I64, DDP_MIN);
	*same = ends[0] == -ends[1];
	return status;
}

/* ---- who is wrong -------------------------------------------------------------------------- */

/* A rank's number: how many have it, and the first rank that has another, or `size`. */
typedef struct vote {
	double value;
	int64_t same, other;
} vote;

static ddp_status hold_vote(ddp_comm *comm, double own, int rank, vote *v)
{
	v->value = own;
	ddp_status status = ddp_comm_run(comm, &(ddp_operation){ .kind = DDP_BROADCAST, .recv = &v->value, .count = 1,
	                                                          .type = DDP_F64, .root = rank });
	const bool same = memcmp(&own, &v->value, sizeof(own)) == 0;

	v->same = same ? 1 : 0;
	v->other = same ? comm->size : comm->rank;
	if (status == DDP_OK)
		status = all_reduce(comm, &v->same, 1, DDP_I64, DDP_SUM);
	if (status == DDP_OK)
		status = all_reduce(comm, &v->other, 1, DDP_I64, DDP_MIN);
	return status;
}

/* The first rank, from `rank` on, that had none of the numbers voted on before: `mine` says whether
   this rank had. */
static ddp_status find_next(ddp_comm *comm, bool mine, int *rank)
{
	int64_t next = mine ? comm->size : comm->rank;

	ddp_status status = all_reduce(comm, &next, 1, DDP_I64, DDP_MIN);
	*rank = (int)next;
	return status;
}

/* Finds the number that most ranks have. The candidates are rank 0's number, that of the first rank with another
   one, and so on. */
static ddp_status elect(ddp_comm *comm, double own, int *usual, vote *winner)
{
	enum { CANDIDATES = 8 }; /* of further ones, few ranks have theirs */
	bool voted = false;
	vote first, v;
	int rank = 0;

	*usual = 0;
	ddp_status status = hold_vote(comm, own, 0, &first);
	*winner = v = first;
	for (int i = 1; i < CANDIDATES && status == DDP_OK && 2 * winner->same <= comm->size; i++) {
		voted = voted || memcmp(&own, &v.value, sizeof(own)) == 0;
		status = find_next(comm, voted, &rank);
		if (status != DDP_OK || rank == comm->size)
			break;
		status = hold_vote(comm, own, rank, &v);
		if (status == DDP_OK && 2 * v.same > comm->size) {
			*winner = v;
			*usual = rank;
		}
	}
	return status;
}

ddp_status ddp_comm_outlier(ddp_comm *comm, double own, ddp_outlier *outlier, double *odd, double *usual)
{
	vote most, other = { .value = 0 };
	int first;

	ddp_status status = elect(comm, own, &first, &most);
	if (status != DDP_OK)
		return status;
	*outlier = (ddp_outlier){ .ranks = comm->size, .usual = first, .usual_count = (int)most.same, .odd = -1 };
	*usual = *odd = most.value;
	if (most.other == comm->size)
		return DDP_OK;
	status = hold_vote(comm, own, (int)most.other, &other);
	outlier->odd = (int)most.other;
	outlier->odd_count = (int)other.same;
	*odd = other.value;
	return status;
}

void ddp_comm_outlier_names(const ddp_comm *comm, const ddp_outlier *o, char odd[DDP_OUTLIER_TEXT],
                            char usual[DDP_OUTLIER_TEXT])
{
	ddp_outlier in_world = *o;

	in_world.odd = comm->topology.world_ranks[o->odd];
	in_world.usual = comm->topology.world_ranks[o->usual];
	ddp_outlier_names(&in_world, odd, usual);
}

/* ---- facts --------------------------------------------------------------------------------- */

ddp_status ddp_facts_range(ddp_comm *comm, double *values, size_t count)
{
	/* Each number travels with its negative: one MIN gives both ends. */
	for (size_t i = 0; i < count; i++)
		values[count + i] = -values[i];
	return all_reduce(comm, values, 2 * count, DDP_F64, DDP_MIN);
}

/* All ranks come here together, and say the same. */
static ddp_status name_outlier(ddp_comm *comm, const char *what, const ddp_fact *fact)
{
	char odd_ranks[DDP_OUTLIER_TEXT], usual_ranks[DDP_OUTLIER_TEXT];
	ddp_outlier outlier;
	double odd, usual;

	ddp_status status = ddp_comm_outlier(comm, fact->value, &outlier, &odd, &usual);
	if (status != DDP_OK)
		return ddp_fail_context(status, "while comparing the %s with other ranks'", what);
	ddp_comm_outlier_names(comm, &outlier, odd_ranks, usual_ranks);
	ddp_fail(DDP_ERR_MISMATCH, "ranks gave different %ss: %s is %.17g on %s, and %.17g on %s; give all "
	         "ranks the same", what, fact->name, odd, odd_ranks, usual, usual_ranks);
	return ddp_error_told(DDP_ERR_MISMATCH, comm->rank != 0);
}

ddp_status ddp_facts_agree(ddp_comm *comm, ddp_status mine, const char *what,
                           const ddp_fact *facts, int count, int *differs)
{
	double range[2 * (DDP_FACTS_MAX + 1)] = { 0 };
	const int failed = count; /* behind the facts: the first rank that failed */
	ddp_kept_error own;

	*differs = DDP_FACTS_MAX;
	ddp_error_keep(&own, mine);
	for (int i = 0; i < count && mine == DDP_OK; i++)
		range[i] = facts[i].value;
	range[failed] = mine != DDP_OK ? comm->rank : INFINITY;
	ddp_status status = ddp_facts_range(comm, range, (size_t)count + 1);
	if (mine != DDP_OK)
		return ddp_error_return(&own);
	if (status != DDP_OK)
		return ddp_fail_context(status, "while comparing the %s with other ranks'", what);
	if (isfinite(range[failed]))
		return ddp_error_told(ddp_fail(DDP_ERR_MISMATCH, "rank %d could not make its %s; its own error says why",
		                               comm->topology.world_ranks[(int)range[failed]], what), true);
	for (int i = 0; i < count; i++) {
		if (range[i] == -range[count + 1 + i])
			continue;
		*differs = i;
		return name_outlier(comm, what, &facts[i]);
	}
	return DDP_OK;
}
