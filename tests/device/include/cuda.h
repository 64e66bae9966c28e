/* SPDX-License-Identifier: Apache-2.0 */
/* What device/cuda takes of CUDA's driver, for the fake GPU (tests/device/fake_gpu.h); with CUDA's toolkit, its own
   header takes the place of this one where libddp_cuda.so is compiled. */
#ifndef TESTS_DEVICE_CUDA_H
#define TESTS_DEVICE_CUDA_H

#define CUDAAPI

typedef enum cudaError_enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
} CUresult;

typedef struct CUctx_st *CUcontext;
typedef int CUdevice;

#endif
