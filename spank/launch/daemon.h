/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons by which an MPI launcher starts its ranks on a node. Pure. */
#ifndef SPANK_DAEMON_H
#define SPANK_DAEMON_H

#include <stdbool.h>

/*
 * Whether a step's command is such a daemon: mpirun starts one on each node by
 * srun, which inherits --ddp from the job, and the daemon hands its environment
 * on to all of its ranks.
 */
bool daemon_is_launched(int count, char *const words[]);

#endif
