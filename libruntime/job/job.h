/* SPDX-License-Identifier: Apache-2.0 */
/* job: derives a struct ddp_job. The order is ddp_spawn(), then the plugin's
   (or another launcher's) environment, then PMIx, then a world of one. A
   source that is there but incomplete or contradictory is an error, never a
   reason to fall back. */
#pragma once

#include "ddp.h"

/* Takes over the identity that a program gives to ddp_init(), without a look at the environment. What the program
   leaves out is DDP_UNKNOWN. */
ddp_status ddp_job_take(const ddp_job *given, ddp_job *job);

enum { DDP_KEY_BYTES = 32 };

/* The step's secret, from DDP_KEY (64 hex digits) or ddp_spawn(). */
typedef struct ddp_key {
	bool present;
	unsigned char bytes[DDP_KEY_BYTES];
} ddp_key;

/* A launcher need not tell local_rank with local_world_size, or node_rank, or
   nnodes (torchrun has no NNODES, PMIx under Slurm a wrong node id). Those are
   DDP_UNKNOWN here and are filled in by ddp_agree() (wireup/agreement.h). */
enum { DDP_UNKNOWN = -1 };

ddp_status ddp_job_discover(ddp_job *job, ddp_key *key);
