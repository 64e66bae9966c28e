/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/attend: looks after communicators of several nodes while no operation runs on
 * them: one thread of the process lets messages move, takes failures over, and tells
 * other nodes of them.
 */
#ifndef DDP_COMM_ATTEND_H
#define DDP_COMM_ATTEND_H

#include "ddp.h"

/* From the first communicator on there is the thread, until the end of the last. */
ddp_status ddp_attend(ddp_comm *comm);
/* When this returns, the communicator is not looked at any more. */
void ddp_attend_end(ddp_comm *comm);

#endif
