/* SPDX-License-Identifier: Apache-2.0 */
/* given: the identity that a program gives to ddp_init(). */
#ifndef DDP_JOB_GIVEN_H
#define DDP_JOB_GIVEN_H

#include "job/job.h"

/* Takes it over, without a look at the environment. What the program leaves out is DDP_UNKNOWN. */
ddp_status ddp_job_take(const ddp_job *given, ddp_job *job);

#endif
