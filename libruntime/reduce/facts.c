#include "reduce/facts.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "comm/agree.h"
#include "comm/api.h"

ddp_status ddp_facts_range(ddp_comm *comm, double *values, size_t count)
{
	/* Each number travels with its negative: one MIN gives both ends. */
	for (size_t i = 0; i < count; i++)
		values[count + i] = -values[i];
	return ddp_all_reduce(comm, NULL, values, 2 * count, DDP_F64, DDP_MIN);
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
	return ddp_error_told(DDP_ERR_MISMATCH, ddp_comm_rank(comm) != 0);
}

ddp_status ddp_facts_agree(ddp_comm *comm, ddp_status mine, const char *what,
                           const ddp_fact *facts, int count, int *differs)
{
	double range[2 * (DDP_FACTS_MAX + 1)] = { 0 };
	const int failed = count; /* behind the facts: the first rank that failed */
	char reason[512];

	*differs = DDP_FACTS_MAX;
	if (mine != DDP_OK)
		snprintf(reason, sizeof(reason), "%s", ddp_last_error());
	for (int i = 0; i < count && mine == DDP_OK; i++)
		range[i] = facts[i].value;
	range[failed] = mine != DDP_OK ? ddp_comm_rank(comm) : INFINITY;
	ddp_status status = ddp_facts_range(comm, range, (size_t)count + 1);
	if (mine != DDP_OK)
		return ddp_fail(mine, "%s", reason);
	if (status != DDP_OK)
		return ddp_fail_context(status, "while comparing the %s with other ranks'", what);
	if (isfinite(range[failed]))
		return ddp_error_told(ddp_fail(DDP_ERR_MISMATCH, "rank %d could not make its %s; its own error says why",
		                               ddp_comm_world_rank(comm, (int)range[failed]), what), true);
	for (int i = 0; i < count; i++) {
		if (range[i] == -range[count + 1 + i])
			continue;
		*differs = i;
		return name_outlier(comm, what, &facts[i]);
	}
	return DDP_OK;
}

/* A rank and its status in one number: the least is the first rank's. */
ddp_status ddp_status_agree(ddp_comm *comm, ddp_status mine, const char *what)
{
	enum { STATUSES = 64 };
	int64_t first = INT64_MAX;
	char reason[512];

	if (mine != DDP_OK) {
		snprintf(reason, sizeof(reason), "%s", ddp_last_error());
		first = (int64_t)ddp_comm_rank(comm) * STATUSES + (int64_t)mine;
	}
	ddp_status status = ddp_all_reduce(comm, NULL, &first, 1, DDP_I64, DDP_MIN);
	if (mine != DDP_OK)
		return ddp_fail(mine, "%s", reason);
	if (status != DDP_OK || first == INT64_MAX)
		return status;
	ddp_status worst = (ddp_status)(first % STATUSES);
	return ddp_error_told(ddp_fail(worst, "rank %d cannot %s (%s); its own error says why",
	                               ddp_comm_world_rank(comm, (int)(first / STATUSES)), what, ddp_status_name(worst)), true);
}
