/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_queue: the functions of kernels.h where a device's memory is. A queue of theirs stands
   on a queue of the device: what they enqueue there is in order with the program's other
   work of that queue, and events order it with other queues. So:

     cpu    is no queue, but of DK_MIXED and DK_MIXED_F16: the functions run at once, in the thread that calls
            them;
     cuda   launches those of the module libddp_kernels_cuda.so on the stream. */
#pragma once

#include "device/device.h"
#include "kernels.h"

/* For dk_use(), until it is closed; one thread at a time. `device` NULL: the host. NULL is
   what *queue becomes for the host's kernels of f32. `stream` NULL: the device's default queue.
   DDP_ERR_UNSUPPORTED: the module is not there, is another version's, or cannot do `type`. */
ddp_status ddp_kernel_queue_open(ddp_device *device, ddp_device_queue *stream, dk_type type,
                                 dk_queue **queue);

/* Waits for the work of its queue. NULL is fine. */
void ddp_kernel_queue_close(dk_queue *queue);
