/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preflight/groups: how fast all_reduce of the ranks' GPUs is, on each node and over all, by NCCL as libddp calls it.
 */
#ifndef DDP_PREFLIGHT_GROUPS_H
#define DDP_PREFLIGHT_GROUPS_H

#include <ddp.h>

#include "preflight/finding.h"

enum { PREFLIGHT_GROUP_REPEATS = 5 };

/* Bus bandwidths in bytes per second: 2 (n - 1) / n of the buffer's bytes, for n ranks, per second. 0: not measured. */
struct preflight_groups {
	double node[PREFLIGHT_GROUP_REPEATS], all[PREFLIGHT_GROUP_REPEATS];
};

/* Measures. Collective; all ranks have a GPU, and `memory` has `bytes` on it. */
ddp_status preflight_groups_measure(struct preflight_groups *groups, ddp_comm *world, int node, void *memory, size_t bytes);

/* Names nodes whose GPUs are slower together than those of other nodes: node[n * repeats + repeat] of each node. Pure. */
void preflight_groups_judge(struct preflight_findings *findings, const double *node, int nodes, int repeats,
                            const char *const *names);

#endif
