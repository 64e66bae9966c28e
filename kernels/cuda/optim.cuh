/* SPDX-License-Identifier: Apache-2.0 */
/* optim: what optim.cu, optim_whole.cu and factors.cu share. */
#pragma once

#include "cuda/device.cuh"
#include "update.h"

/* Each rounds, which a multiply-add does not. */
__device__ inline float times(float a, float b)
{
	return __fmul_rn(a, b);
}

__device__ inline float plus(float a, float b)
{
	return __fadd_rn(a, b);
}

/* The sum of the numbers of a block's so many threads, by halves; to each of them. `lanes` [threads]
   is shared, and theirs again. */
__device__ inline double sum_of_block(double *lanes, int threads, double number)
{
	const int lane = (int)threadIdx.x;

	lanes[lane] = number;
	__syncthreads();
	for (int width = threads / 2; width > 0; width /= 2) {
		if (lane < width)
			lanes[lane] += lanes[lane + width];
		__syncthreads();
	}
	const double sum = lanes[0];
	__syncthreads();
	return sum;
}
