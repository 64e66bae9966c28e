/* SPDX-License-Identifier: Apache-2.0 */
/* The callback's work in a task, as the user, just before the program. */
#pragma once

#include <slurm/spank.h>

#include "spank/stepd.h"

/* Writes the task's environment. Ends the process after an error: in a
   plugstack.conf that calls the plugin optional, Slurm would run the program
   without ranks. */
void task_begin(spank_t spank, struct stepd *stepd);
