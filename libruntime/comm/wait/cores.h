/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/wait/cores: who else wants the core of a rank that waits, and how two ranks part that wait for each other
 * on one core though another is idle.
 */
#ifndef DDP_COMM_WAIT_CORES_H
#define DDP_COMM_WAIT_CORES_H

#include "comm/wait/await.h"

/* Gives up the core, and learns who has wanted it. False if it is time to sleep, as the scheduler looks for an
   idle core when a sleeper wakes. */
bool ddp_core_give_up(ddp_comm *comm, const ddp_condition *wait);

/* Do others want this core? Only waits between nodes learn that. */
bool ddp_core_is_wanted(const ddp_running *run);

/* Moves this thread to another one of the cores that it may use, if there is any. Affects no other thread. */
void ddp_core_leave(void);

#endif
