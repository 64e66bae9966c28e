/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/scratch: memory of the device for what cannot be done in place. */
#pragma once

#include "comm/nccl/lane.h"

/* Returns at least `bytes` for work on the lane's queue. The next operation gets the same memory. */
ddp_status ddp_nccl_scratch_get(ddp_nccl_lane *lane, size_t bytes, void **memory);
/* The queue has done its work. */
void ddp_nccl_scratch_free(ddp_nccl_lane *lane);
