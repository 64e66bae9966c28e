/* SPDX-License-Identifier: Apache-2.0 */
/* A queue's GPU. */
#include <stdlib.h>

#include "cuda/functions.cuh"
#include "cuda/gpu.h"

bool dk_cuda_gpu_open(dk_cuda_queue *q, int device)
{
	q->gpu = static_cast<dk_gpu *>(calloc(1, sizeof(*q->gpu)));
	return dk_cuda_check(q, q->gpu == NULL ? cudaErrorMemoryAllocation : dk_gpu_open(q->gpu, device), "its GPU") &&
	       dk_cuda_check(q, cudaDeviceGetAttribute(&q->capability, cudaDevAttrComputeCapabilityMajor, device),
	                     "its compute capability");
}

void dk_cuda_gpu_close(dk_cuda_queue *q)
{
	free(q->gpu);
}

/* One that could not be opened, or whose context is gone, has failed. */
void dk_cuda_enter(dk_queue *queue)
{
	dk_cuda_queue *q = own(queue);

	const cudaError_t error = q->gpu != NULL && q->gpu->context != NULL ? dk_gpu_enter(q->gpu)
	                                                                     : cudaErrorDeviceUninitialized;
	if (error == cudaSuccess)
		q->entered++;
	else
		dk_cuda_check(q, error, "cuCtxPushCurrent");
}

void dk_cuda_leave(dk_queue *queue)
{
	dk_cuda_queue *q = own(queue);

	if (q->entered == 0)
		return;
	q->entered--;
	dk_gpu_leave(q->gpu);
}
