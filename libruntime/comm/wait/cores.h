/* SPDX-License-Identifier: Apache-2.0 */
/* comm/wait/cores: who else wants the core of a rank that waits, and how two ranks part that wait for each other
   on one core though another is idle. */
#pragma once

#include "comm/wait/await.h"

/* Gives up the core, and learns who has wanted it. False if it is time to sleep, as the scheduler looks for an
   idle core when a sleeper wakes. */
bool ddp_core_give_up(ddp_comm *comm, const ddp_condition *wait);

/* Has this machine had, within the last millisecond, a core for each thread that wants to run? Threads that share
   few cores of a larger machine may wait for them all the same. */
bool ddp_cores_suffice(ddp_comm *comm);

/* Moves this thread to another one of the cores that it may use, if there is any. Affects no other thread. */
void ddp_core_leave(void);
