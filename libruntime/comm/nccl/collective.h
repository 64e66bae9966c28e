/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/collective: an operation as calls of NCCL's, and copies of the device around. */
#pragma once

#include "comm/nccl/lane.h"

/* Enqueues the work before NCCL's part, and that part. NCCL is ready. */
ddp_status ddp_nccl_begin_collective(ddp_nccl_operation *operation);
/* Enqueues the work after NCCL's part, which is on the queue. */
ddp_status ddp_nccl_finish_collective(ddp_nccl_operation *operation);

/* Frees the device's memory for what could not be done in place. The queue has done its work. */
void ddp_nccl_scratch_free(ddp_nccl_lane *lane);
