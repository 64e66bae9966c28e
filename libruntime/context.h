/* SPDX-License-Identifier: Apache-2.0 */
/* ddp_init() opens this context, and the library's floors share it. */
#ifndef DDP_CONTEXT_H
#define DDP_CONTEXT_H

#include "comm/api.h"
#include "ddp.h"
#include "job/job.h"
#include "wireup/wireup.h"

struct ddp_watch; /* watch/watch.h */

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
};

#endif
