/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/memory: memory of the device that NCCL sends from without a copy. */
#pragma once

#include "comm/nccl/lane.h"

/* These do what a backend's alloc, free and adopt do. */
ddp_status ddp_nccl_memory_alloc(ddp_nccl_lane *lane, size_t bytes, void **memory);
ddp_status ddp_nccl_memory_free(ddp_nccl_lane *lane, void *memory);
void ddp_nccl_memory_adopt(ddp_nccl_lane *lane, ddp_nccl_lane *former, void *memory);

/* NCCL forgets what memory is left; before its communicator ends. */
void ddp_nccl_memory_forget(ddp_nccl_lane *lane);
/* Memory that the program has not freed stays the program's, but is not known here any more. */
void ddp_nccl_memory_close(ddp_nccl_lane *lane);
