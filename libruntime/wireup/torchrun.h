/* SPDX-License-Identifier: Apache-2.0 */
/* torchrun: tells the starts of one torchrun apart. All starts share DDP_KEY, and may share MASTER_ADDR,
   MASTER_PORT and the world's size. TORCHELASTIC_RESTART_COUNT does not tell them apart: each agent
   counts its own restarts, and a rank of a new agent begins with 0 again. A worker whose agent was killed
   goes on, and may still wait for ranks of its start when the ranks of the next start come. */
#pragma once

#include <sys/types.h>

#include "job/job.h"

/* Writes to *used what ranks prove to each other: the key itself, or under torchrun a key that
   follows from it, TORCHELASTIC_RUN_ID and MASTER_PORT. */
ddp_status ddp_torchrun_key(const ddp_job *job, const ddp_key *key, ddp_key *used);

/* The process of torchrun's agent that started this one; 0 without torchrun. */
pid_t ddp_torchrun_agent(void);
/* DDP_ERR_STATE once that agent has ended: it, or another one, starts new ranks. */
ddp_status ddp_torchrun_check(const ddp_job *job, pid_t agent);
