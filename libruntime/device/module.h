/* SPDX-License-Identifier: Apache-2.0 */
/* Modules for a GPU, which are loaded when they are first asked for. */
#pragma once

#include "device/backend.h"
#include "table.h"

/* Loads libddp_cuda.so, once in a process: what DDP_CUDA_MODULE of the environment names,
   else the one in the folder slurm-ddp beside libddp, where it is installed.
   DDP_ERR_UNSUPPORTED: it is not there, does not load, or is of another version. */
ddp_status ddp_device_cuda(const ddp_device_backend **backend);

/* The same of libddp_kernels_cuda.so, or of what DDP_CUDA_KERNELS names. */
ddp_status ddp_device_cuda_kernels(const dk_table **table);
