/* SPDX-License-Identifier: Apache-2.0 */
/* agreement: compares what each rank knows of the job. */
#pragma once

#include "wireup/wireup.h"

/* Exchanges the ranks' identities, checks that ranks are dense and sizes and
   node ranks agree everywhere (DDP_ERR_JOB, naming both sides), and fills in
   what was DDP_UNKNOWN: ranks with the same node form a node, and nodes count
   in the order of their lowest rank. Every rank comes to the same verdict. */
ddp_status ddp_agree(ddp_wireup *wireup, ddp_job *job, uint64_t deadline_ns);

/* One rank's belief; what ddp_agree() computes with, for tests. */
typedef struct ddp_belief {
	const char *version, *hostname;
	const char *node;    /* its name, which tells nodes of a machine apart */
	const char *boot_id; /* of the machine; NULL or "": not known */
	int rank, world_size, local_rank, local_world_size, node_rank, nnodes;
} ddp_belief;

/* Completes and checks beliefs[0 .. count - 1], in the order of ranks. */
ddp_status ddp_beliefs_agree(ddp_belief *beliefs, int count);
