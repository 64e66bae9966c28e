/* SPDX-License-Identifier: Apache-2.0 */
/* given: the identity that a program gives to ddp_init(). */
#pragma once

#include "job/job.h"

/* Takes it over, without a look at the environment. What the program leaves out is DDP_UNKNOWN. */
ddp_status ddp_job_take(const ddp_job *given, ddp_job *job);
