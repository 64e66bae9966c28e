/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of an srun, or another command of Slurm's, that is started beside a job's own steps. Pure, but for
   memory. */
#ifndef SPANK_SRUN_ENVIRONMENT_H
#define SPANK_SRUN_ENVIRONMENT_H

#include <stdbool.h>

/*
 * Returns a list of the entries of `environment` without those that srun takes for its options: SLURM_* and SRUN_*, which
 * are of the job or step in which the caller runs. What finds slurmctld stays. With `binds`, what decides on which CPUs and
 * GPUs tasks run stays, too. `more` is added behind, unless it is NULL. The caller frees the list; the texts stay where
 * they are. NULL: no memory.
 */
char **srun_environment(char *const environment[], bool binds, char *more);

#endif
