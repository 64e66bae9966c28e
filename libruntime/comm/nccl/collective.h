/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/collective: an operation as calls of NCCL's, and copies of the device around. */
#pragma once

#include "comm/nccl/lane.h"

/* Enqueues the work before NCCL's part, and that part. NCCL is ready. */
ddp_status ddp_nccl_begin_collective(ddp_nccl_operation *operation);
/* Enqueues the work after NCCL's part, which is on the queue. */
ddp_status ddp_nccl_finish_collective(ddp_nccl_operation *operation);

/* Memory of the device for what cannot be done in place. */

/* Returns at least `bytes` for work on the lane's queue. The next operation gets the same memory. */
ddp_status ddp_nccl_scratch_get(ddp_nccl_lane *lane, size_t bytes, void **memory);
/* The queue has done its work. */
void ddp_nccl_scratch_free(ddp_nccl_lane *lane);
