/* SPDX-License-Identifier: Apache-2.0 */
/* comm/attend: looks after communicators of several nodes while no operation runs on
   them: one thread of the process lets messages move, takes failures over, and tells
   other nodes of them. */
#pragma once

#include "ddp.h"

/* The thread exists from the first communicator until the end of the last one. */
ddp_status ddp_attend(ddp_comm *comm);
/* When this returns, the communicator is not looked at any more. */
void ddp_attend_end(ddp_comm *comm);
