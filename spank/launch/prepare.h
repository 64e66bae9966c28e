/* SPDX-License-Identifier: Apache-2.0 */
/* srun's side: what is put into srun's own environment, from where it reaches
   the tasks. libc only; runs as the user. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "spank/base/text.h"
#include "spank/options/options.h"

/* Makes the step's key (once in the life of this srun, so that all components
   of a heterogeneous step get the same), notes the first host of
   the hostfile (NULL or "": there is none), and puts a sentence in place of the ranks, which a node
   without the plugin leaves there: no program can take it for a number. */
bool launch_prepare(const struct settings *settings, const char *hostfile, struct error *error);

/* Takes what environment_leave_step() names out of the caller's environment. */
void launch_leave_step(void);

/* A dry run: puts in place of the command, which srun is about to launch, one that cannot
   run. The plugin ends the tasks before; a node without it says the sentence as the name of
   a program that it does not find. `programs`: the words are those of --multi-prog. False if
   there is no such word, or no memory for it. */
bool launch_replace_command(int count, char *words[], bool programs);

/* "RANK=7 MASTER_ADDR=n9": what the caller's environment holds from elsewhere;
   "" if nothing. To be called before the others. */
void launch_list_stale(char *text, size_t bytes);

/* ---- plugstack's order ---- */

/* Whether this process has loaded Pyxis, which runs tasks in containers, behind this plugin. Pyxis sets in its
   task_init what the image and its hooks have set, over what plugins before it have: MASTER_ADDR, MASTER_PORT,
   WORLD_SIZE, OMP_NUM_THREADS. So it has to come before this plugin. */
bool container_plugin_comes_later(void);

/* Whether it has loaded a plugin before this one that has work to do in each task before
   its program runs, and may take long over it, as Pyxis does over an image. */
bool task_plugin_comes_before(void);
