/* SPDX-License-Identifier: Apache-2.0 */
/* srun takes nodes that do not answer out of its job, as the user may. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"

/* Asks slurmctld, waits for its answer, and asks again for some seconds if a later answer may be another one. When the
   nodes, named with commas, have left the job, the running step ends without them, and a later step does not wait for
   them. Nodes that are not in the job are left out. False, with the reason: the nodes stay in the job, as a batch host
   and a heterogeneous job's nodes do, or all where slurm.conf says SchedulerParameters=disable_job_shrink. */
bool shrink_job(uint32_t job_id, const char *nodes, struct error *error);

/* Returns the nodes of a list of SLURM's without those named with commas, likewise, for free(3); NULL: none is left,
   or there is no memory. */
char *shrink_list(const char *nodes, const char *without);
