/* SPDX-License-Identifier: Apache-2.0 */
#include "device/kernel_queue.h"

#include "base/error.h"
#include "device/module.h"
#include "table.h"

/* The kernels of kernels/cuda use instructions that are there from Ampere on. */
enum { OLDEST_CAPABILITY = 80 };

static ddp_status open_cuda(const ddp_device *device, ddp_device_queue *stream, dk_type type, dk_queue **queue)
{
	const dk_table *table;
	const ddp_device_info *info = ddp_device_describe(device);
	const char *why;

	if (info->capability < OLDEST_CAPABILITY)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device cuda:%d: %s has compute capability %d.%d, and libddp's kernels need "
		                "%d.%d or later: use a newer GPU, or device cpu", info->index, info->name,
		                info->capability / 10, info->capability % 10, OLDEST_CAPABILITY / 10,
		                OLDEST_CAPABILITY % 10);
	ddp_status status = ddp_device_cuda_kernels(&table);
	if (status != DDP_OK)
		return status;
	*queue = table->open(info->index, stream, type, &why);
	return *queue != NULL ? DDP_OK
	                      : ddp_fail(DDP_ERR_UNSUPPORTED, "device cuda:%d: its kernels have no queue: %s", info->index,
	                                 why);
}

static ddp_status open_host(dk_type type, dk_queue **queue)
{
	if (type == DK_BF16)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "the host's kernels have no DK_BF16; take DK_MIXED");
	if (type != DK_MIXED && type != DK_MIXED_F16)
		return DDP_OK;
	*queue = type == DK_MIXED ? dk_open_mixed() : dk_open_f16();
	return *queue != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "out of memory for a queue of kernels");
}

ddp_status ddp_kernel_queue_open(ddp_device *device, ddp_device_queue *stream, dk_type type,
                                 dk_queue **queue)
{
	*queue = NULL;
	if (device == NULL || ddp_device_describe(device)->is_host_memory)
		return open_host(type, queue);
	if (type == DK_MIXED_F16)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device %s: libddp's kernels have no f16 there; take DK_MIXED, which is "
		                "bf16, or device cpu", ddp_device_describe(device)->name);
	return open_cuda(device, stream, type, queue);
}

void ddp_kernel_queue_close(dk_queue *queue)
{
	if (queue != NULL)
		queue->table->close(queue);
}
