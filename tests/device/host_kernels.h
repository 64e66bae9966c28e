/* SPDX-License-Identifier: Apache-2.0 */
/* host_kernels: the host's kernels (kernels/cpu) on the streams of the fake GPU. Each function of
   kernels.h is one piece of work, which finds its memory by fake_gpu_view(): so the GPU sees what it
   reads and writes, and in which order. */
#pragma once

#include "table.h"

/* What the table has for images, for optimizers of whole tensors, and for factors. */
extern const dk_image_table ddp_host_image_kernels;
extern const dk_whole_table ddp_host_whole_kernels;
extern const dk_factor_table ddp_host_factor_kernels;
