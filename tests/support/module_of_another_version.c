/* SPDX-License-Identifier: Apache-2.0 */
/* Modules as a later libddp might have them: for the refusals of test_device. */
#include "device/backend.h"
#include "table.h"

DDP_API extern const ddp_device_backend ddp_device_module;
const ddp_device_backend ddp_device_module = {
	.version = DDP_DEVICE_VERSION + 1, .bytes = sizeof(ddp_device_module) + 8, .kind = "cuda",
};

DDP_API extern const dk_table dk_cuda_table;
const dk_table dk_cuda_table = { .version = DK_TABLE_VERSION + 1, .bytes = sizeof(dk_cuda_table) };
