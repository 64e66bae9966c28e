/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/liveness: does a process of this node still run? */
#pragma once

#include "comm/core/comm.h"

/* A process's start time in clock ticks since boot; 0 if there is none. */
uint64_t ddp_process_start(int64_t pid);

/* Begins to watch peer->pid, which started at peer->pid_start. */
void ddp_peer_watch(ddp_peer *peer);

/* False once the watched process has ended, also while it is a zombie. A
   stopped process is alive. */
bool ddp_peer_alive(const ddp_peer *peer);

/* Lists the watched processes of the communicator's ranks on this node, in comm->node. */
ddp_status ddp_node_watch(ddp_comm *comm);
/* Looks after all of them at once; and had the i-th ended by then? */
void ddp_node_look(ddp_comm *comm);
bool ddp_node_ended(const ddp_comm *comm, int i);
