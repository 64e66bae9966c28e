/* SPDX-License-Identifier: Apache-2.0 */
/* srun takes a node that does not answer out of its job, as the user may. */
#ifndef SPANK_SHRINK_H
#define SPANK_SHRINK_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/error.h"

/* Asks the controller, and waits for its answer. The step of a node that has left its job ends without the node, and a
   later step of the job does not wait for it. False, with the reason: the node stays in the job, as a batch host and a
   heterogeneous job's nodes do, or all where slurm.conf says SchedulerParameters=disable_job_shrink. */
bool shrink_job(uint32_t job_id, const char *node, struct error *error);

#endif
