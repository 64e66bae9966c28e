/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/groups.h"

#include <stdlib.h>

#include "base/clock.h"
#include "preflight/statistics.h"

static const double ODD = 0.7;

static ddp_status all_reduce(ddp_comm *comm, void *memory, size_t bytes)
{
	const ddp_operation operation = { .kind = DDP_ALL_REDUCE, .recv = memory, .count = bytes / sizeof(float), .type = DDP_F32,
		                          .op = DDP_MAX, .memory = DDP_MEMORY_DEVICE };

	return ddp_run(comm, &operation);
}

static ddp_status measure(double *values, ddp_comm *comm, void *memory, size_t bytes)
{
	int ranks = ddp_comm_size(comm);
	/* The first one opens NCCL's communicator. */
	ddp_status status = ranks > 1 ? all_reduce(comm, memory, bytes) : DDP_OK;

	for (int i = 0; status == DDP_OK && ranks > 1 && i < PREFLIGHT_GROUP_REPEATS; i++) {
		uint64_t begin_ns;
		status = ddp_barrier(comm);
		begin_ns = ddp_now_ns();
		if (status == DDP_OK)
			status = all_reduce(comm, memory, bytes);
		values[i] = 2.0 * (ranks - 1) / ranks * (double)bytes / ddp_seconds_since(begin_ns);
	}
	return status;
}

ddp_status preflight_groups_measure(struct preflight_groups *groups, ddp_comm *world, int node, void *memory, size_t bytes)
{
	ddp_comm *local;
	ddp_status status, freed;

	*groups = (struct preflight_groups){ { 0 }, { 0 } };
	status = ddp_comm_split(world, node, 0, &local);
	if (status != DDP_OK)
		return status;
	status = measure(groups->node, local, memory, bytes);
	freed = ddp_comm_free(local);
	if (status == DDP_OK)
		status = freed;
	if (status == DDP_OK)
		status = measure(groups->all, world, memory, bytes);
	return status;
}

void preflight_groups_judge(struct preflight_findings *findings, const double *node, int nodes, int repeats,
                            const char *const *names)
{
	double *best = calloc((size_t)nodes + 1, sizeof(*best)), usual;

	for (int n = 0; best != NULL && n < nodes; n++)
		best[n] = preflight_best(&node[n * repeats], repeats);
	usual = best != NULL ? preflight_median(best, nodes) : 0;
	for (int n = 0; best != NULL && n < nodes; n++) {
		const struct preflight_finding f = { .odd = true, .about = "gpu", .node = n, .rank = -1, .peer = -1, .value = best[n],
			                             .usual = usual };
		if (best[n] > 0 && best[n] < ODD * usual)
			preflight_find(findings, &f, "%s: all_reduce of its GPUs has a bandwidth of %.3g GB/s, and others have %.3g (%.0f%%)",
			               names[n], best[n] * 1e-9, usual * 1e-9, 100 * best[n] / usual);
	}
	free(best);
}
