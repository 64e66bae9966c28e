/* SPDX-License-Identifier: Apache-2.0 */
/* comm/front: the calls of ddp.h for operations, over the backends. Which of them runs an
   operation follows from where its buffers lie. */
#pragma once

#include "ddp.h"

/* Closes the lanes of a communicator; collective unless it has failed. */
void ddp_lanes_close(ddp_comm *comm);
