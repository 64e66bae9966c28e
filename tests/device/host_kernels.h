/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_kernels: the host's kernels (kernels/cpu) on the queues of a device that runs
 * functions of the host: the asynchronous test device. Each function of kernels.h is one
 * piece of work, which finds its memory by ddp_device_view(): so the device sees what it
 * reads and writes, and in which order.
 */
#ifndef TESTS_DEVICE_HOST_KERNELS_H
#define TESTS_DEVICE_HOST_KERNELS_H

#include "device/device.h"
#include "table.h"

/* As open() of kernels/table.h. The work has the threads and the floating-point control
   of the thread that enqueues it. DDP_ERR_NOMEM. DDP_ERR_UNSUPPORTED: of DK_BF16. */
ddp_status ddp_host_kernels_open(ddp_device *device, ddp_device_queue *stream, dk_type type,
                                 dk_queue **queue);

/* What its table has for images, for optimizers of whole tensors, and for factors. */
extern const dk_image_table ddp_host_image_kernels;
extern const dk_whole_table ddp_host_whole_kernels;
extern const dk_factor_table ddp_host_factor_kernels;

#endif
