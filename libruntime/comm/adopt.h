/* SPDX-License-Identifier: Apache-2.0 */
/* comm/adopt: what a new world (renewal.h) takes over from the former one: its device, and memory there. */
#pragma once

#include "comm/api.h"

/* Operations of `comm` run on the device of `former`, and take as much of it. */
void ddp_comm_use_device_of(ddp_comm *comm, const ddp_comm *former);

/* ddp_mem_alloc_on() has given the memory of a device by `former`, which may have failed. From now on it is as if
   `comm` had given it; address and content stay. Collective over `comm`. */
ddp_status ddp_mem_adopt(ddp_comm *comm, ddp_comm *former, void *memory);

/* A model begins (1) or ends (-1) to have device memory of the communicator. ddp_comm_free() refuses while a model has
   some. */
void ddp_comm_hold(ddp_comm *comm, int change);
