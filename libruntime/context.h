/* SPDX-License-Identifier: Apache-2.0 */
/* ddp_init() opens this context, and the library's floors share it. */
#pragma once

#include "comm/api.h"
#include "ddp.h"
#include "job/job.h"
#include "wireup/wireup.h"

struct ddp_watch; /* watch/watch.h */

/* In a step with restart=, ranks that have kept their processes meet again with those that srun has started for dead
   ones (renewal.h). */
typedef struct ddp_renewal {
	bool possible;       /* srun may deal the ranks that stay a new identity */
	bool barred;         /* it may, but these meet in a way of their own */
	bool joins;          /* the process was started to join the others. Until then it is a world of one: */
	ddp_job alone;
	uint32_t generation; /* of the identity */
	ddp_comm *former;    /* the world before, and its wire-up, until nobody needs them; NULL: there is none */
	ddp_wireup *former_wireup;
} ddp_renewal;

struct ddp_context {
	ddp_job job;
	ddp_key key;
	uint32_t requeues; /* how often Slurm has started the job again */
	int timeout_ms;
	int silence_ms;
	ddp_wireup *wireup;
	ddp_comm *world;
	struct ddp_device *device; /* NULL: none */
	struct ddp_watch *watch;
	ddp_renewal renewal;
};
