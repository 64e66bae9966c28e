/* SPDX-License-Identifier: Apache-2.0 */
/* Pyxis, the plugin that runs tasks in containers, sets in its task_init what the
   image and its hooks have set, over what plugins before it have: MASTER_ADDR,
   MASTER_PORT, WORLD_SIZE, OMP_NUM_THREADS. It has to come before this plugin. */
#pragma once

#include <stdbool.h>

/* Daemons by which an MPI launcher starts its ranks on a node. Pure. */

/* Whether a step's command is such a daemon: mpirun starts one on each node by
   srun, which inherits --ddp from the job, and the daemon hands its environment
   on to all of its ranks. */
bool daemon_is_launched(int count, char *const words[]);

/* Whether this process has loaded Pyxis behind this plugin: plugstack's order. */
bool container_plugin_comes_later(void);

/* Whether it has loaded a plugin before this one that has work to do in each task before
   its program runs, and may take long over it, as Pyxis does over an image. */
bool task_plugin_comes_before(void);
