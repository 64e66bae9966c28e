/* SPDX-License-Identifier: Apache-2.0 */
/* Networks for images do this element by element: ReLU. */
#include <stdio.h>

#include "cuda/functions.cuh"

dk_cuda_queue *dk_cuda_of_images(dk_queue *queue)
{
	dk_cuda_queue *q = own(queue);

	if (dk_cuda_narrow(q) && q->failure[0] == '\0')
		snprintf(q->failure, sizeof(q->failure), "kernels for images work in f32: use a queue of DK_F32 or DK_TF32");
	return q;
}

struct relu_function {
	float *out;
	const float *in;

	__device__ void operator()(int64_t i) const
	{
		out[i] = in[i] <= 0 ? 0 : in[i]; /* a NaN stays one */
	}
};

void dk_cuda_relu_forward(dk_queue *queue, float *out, const float *in, int64_t n)
{
	const relu_function f = {out, in};

	for_each(dk_cuda_of_images(queue), "ReLU", n, f);
}

struct relu_slope_function {
	float *grad;
	const float *out;

	__device__ void operator()(int64_t i) const
	{
		if (out[i] <= 0)
			grad[i] = 0;
	}
};

void dk_cuda_relu_backward(dk_queue *queue, float *grad, const float *out, int64_t n)
{
	const relu_slope_function f = {grad, out};

	for_each(dk_cuda_of_images(queue), "ReLU's gradient", n, f);
}
