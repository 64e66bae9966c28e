/* SPDX-License-Identifier: Apache-2.0 */
/* stacks: lets the plugin's flight recorder, and `ddp-status --stack`, see the stacks of this process's threads. */
#pragma once

/* With record= of --ddp (DDP_RECORD_DIR), installs a handler of a real-time signal that nobody handles, once in a
   process. On that signal each thread adds its stack to a memory file, whose name tells the signal, as slurm_ddp does
   for Python (spank/witness/dump.h reads both). Threads that block the signal are left out. Without memory, nothing
   is installed. */
void ddp_stacks_install(void);
