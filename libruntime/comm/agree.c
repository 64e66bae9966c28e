#include "comm/agree.h"

#include <string.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/request.h"

ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what)
{
	const int64_t own = mine == DDP_OK ? 0 : (int64_t)mine << 32 | comm->rank;
	int64_t worst;
	ddp_status status = ddp_comm_run(comm, &(ddp_collective){ .kind = DDP_ALL_REDUCE, .send = &own,
	                                                          .recv = &worst, .count = 1,
	                                                          .type = DDP_I64, .op = DDP_MAX });

	if (status != DDP_OK || mine != DDP_OK || worst == 0)
		return status != DDP_OK ? status : mine;
	const int rank = (int)(worst & INT32_MAX);
	ddp_fail((ddp_status)(worst >> 32), "%s could not %s (%s)", ddp_rank_text(comm, rank), what,
	         ddp_status_name((ddp_status)(worst >> 32)));
	ddp_error_about((ddp_status)(worst >> 32), comm->topology.world_ranks[rank]);
	return ddp_error_told((ddp_status)(worst >> 32), true);
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
	ddp_status status = ddp_comm_run(comm, &(ddp_collective){ .kind = DDP_BROADCAST, .recv = &v->value, .count = 1,
	                                                          .type = DDP_F64, .root = rank });
	const bool same = memcmp(&own, &v->value, sizeof(own)) == 0;

	v->same = same ? 1 : 0;
	v->other = same ? comm->size : comm->rank;
	if (status == DDP_OK)
		status = ddp_comm_run(comm, &(ddp_collective){ .kind = DDP_ALL_REDUCE, .recv = &v->same, .count = 1,
		                                               .type = DDP_I64, .op = DDP_SUM });
	if (status == DDP_OK)
		status = ddp_comm_run(comm, &(ddp_collective){ .kind = DDP_ALL_REDUCE, .recv = &v->other, .count = 1,
		                                               .type = DDP_I64, .op = DDP_MIN });
	return status;
}

/* The first rank, from `rank` on, that had none of the numbers voted on before: `mine` says whether
   this rank had. */
static ddp_status find_next(ddp_comm *comm, bool mine, int *rank)
{
	int64_t next = mine ? comm->size : comm->rank;

	ddp_status status = ddp_comm_run(comm, &(ddp_collective){ .kind = DDP_ALL_REDUCE, .recv = &next, .count = 1,
	                                                          .type = DDP_I64, .op = DDP_MIN });
	*rank = (int)next;
	return status;
}

/* Whose number most have: that of rank 0, or of the first that has another one, and so on. */
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
