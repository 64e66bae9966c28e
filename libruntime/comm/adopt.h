/* SPDX-License-Identifier: Apache-2.0 */
/* comm/adopt: what a new world (renewal.h) takes over from the former one: its device, and memory there. */
#pragma once

#include "comm/api.h"

/* Operations of `comm` run on the device of `former`, and take as much of it. */
void ddp_comm_use_device_of(ddp_comm *comm, const ddp_comm *former);

/* ddp_mem_alloc_on() has given the memory of a device by `former`, which may have failed. From now on it is as if
   `comm` had given it; address and content stay. Collective over `comm`. */
ddp_status ddp_mem_adopt(ddp_comm *comm, ddp_comm *former, void *memory);

/* Memory of a model is of the communicator (1), or no more (-1): it is not freed meanwhile. */
void ddp_comm_hold(ddp_comm *comm, int change);
