/* SPDX-License-Identifier: Apache-2.0 */
/* With log=, in a task, as the user: makes the file of the task's start, DIR/JOB.STEP/rank-R.start-S.log, and gives
   what the program will write to ddp-log (pump.h). libc only. */
#pragma once

#include <stdbool.h>

#include "spank/base/text.h"
#include "spank/identity/identity.h"

/* `control` is pump_make()'s. A relative `dir` is one of the working directory. Nothing is cut or overwritten: an
   earlier file of that name grows. A terminal of srun --pty stays as it is. False, with a sentence: the task must not
   run. */
bool redirect_output(int control, const char *dir, const struct identity *identity, struct error *error);
