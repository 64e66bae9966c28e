/* comm/core/liveness: does a process of this node still run? */
#ifndef DDP_COMM_CORE_LIVENESS_H
#define DDP_COMM_CORE_LIVENESS_H

#include "comm/core/comm.h"

/* A process's start time in clock ticks since boot; 0 if there is none. */
uint64_t ddp_process_start(int64_t pid);

/* Begins to watch peer->pid, which started at peer->pid_start. */
void ddp_peer_watch(ddp_peer *peer);

/* False once the watched process has ended, also while it is a zombie. A
   stopped process is alive. */
bool ddp_peer_alive(const ddp_peer *peer);

#endif
