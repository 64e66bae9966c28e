/* SPDX-License-Identifier: Apache-2.0 */
/* program: the stand-in for CUDA's driver as a test's program uses it: it loads it as the program's
   CUDA would a real one. */
#pragma once

#include "tests/support/driver/driver.h"
#include "tests/support/netplugin_ranks.h"

typedef struct cuda_calls {
	cuda_driver_switches *switches;
	CUresult (*init)(unsigned int flags), (*retain)(CUcontext *context, CUdevice device);
	CUresult (*push)(CUcontext context);
	CUresult (*allocate)(CUdeviceptr *address, size_t bytes), (*free)(CUdeviceptr address);
	CUresult (*to_device)(CUdeviceptr to, const void *from, size_t bytes);
	CUresult (*to_host)(void *to, CUdeviceptr from, size_t bytes);
	CUresult (*copy)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
	CUresult (*make_stream)(CUstream *stream, unsigned int flags), (*end_stream)(CUstream stream);
	CUresult (*make_event)(CUevent *event, unsigned int flags), (*end_event)(CUevent event);
	CUresult (*record)(CUevent event, CUstream stream), (*query)(CUevent event);
} cuda_calls;

extern cuda_calls cuda;
extern const place cuda_on_device;

/* In a rank: fills `cuda` in. From then on UCX gets these libraries, not a real driver. The
   calling thread has the GPU's context. */
void cuda_load_driver(void);
CUdeviceptr cuda_address(const void *data);
