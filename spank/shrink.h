/* SPDX-License-Identifier: Apache-2.0 */
/* srun takes a node that does not answer out of its job, as the user may. */
#ifndef SPANK_SHRINK_H
#define SPANK_SHRINK_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/error.h"

/* Asks slurmctld, and waits for its answer. When the node has left the job, the running step ends without that node,
   and a later step does not wait for the node. False, with the reason: the node stays in the job, as a batch host and a
   heterogeneous job's nodes do, or all where slurm.conf says SchedulerParameters=disable_job_shrink. */
bool shrink_job(uint32_t job_id, const char *node, struct error *error);

#endif
