/* SPDX-License-Identifier: Apache-2.0 */
/* SLURM ends a job, and a step, when one of its nodes fails, unless it was submitted with --no-kill. A step with
   restart= goes on without the node. So srun, sbatch and salloc are told --no-kill by their own variables, before they
   read them. libc only. */
#pragma once

#include <stdbool.h>

#include "spank/options/site.h"

/* In slurm_spank_init(), before options are read: looks for --ddp in this process's own command line, and, in srun,
   for what sbatch or salloc has handed on. Sets the variables if that asks for restarts, or the site does. */
void no_kill_begin(const struct request *request, bool allocator);

/* A list of --ddp was read, as in a line of a script that begins with #SBATCH. */
void no_kill_read_list(const struct request *request, bool allocator);

/* Once options are read: takes the variables out again, so that no task and no job inherits them. */
void no_kill_end(void);
