/* Of networks for images, what is done element by element: sums, ReLU, dropout. */
#include <stdio.h>

#include "cuda/functions.cuh"

enum { THREADS = 256, DRAWN = 4 /* numbers of a counter */ };

dk_cuda_queue *dk_cuda_of_images(dk_queue *queue)
{
	dk_cuda_queue *q = own(queue);

	if (dk_cuda_narrow(q) && q->failure[0] == '\0')
		snprintf(q->failure, sizeof(q->failure), "kernels for images work in f32: use a queue of DK_F32 or DK_TF32");
	return q;
}

template <class F> __global__ void each_kernel(int64_t n, F f)
{
	const int64_t i = grid_thread();

	if (i < n)
		f(i);
}

template <class F> static void for_each_of(dk_queue *queue, const char *name, int64_t n, F f)
{
	if (n > 0)
		launch(dk_cuda_of_images(queue), name, each_kernel<F>, dim3((unsigned)ceil_div(n, THREADS)), THREADS, 0, n, f);
}

struct add_function {
	float *out;
	const float *a, *b;

	__device__ void operator()(int64_t i) const
	{
		out[i] = a[i] + b[i];
	}
};

void dk_cuda_add(dk_queue *queue, float *out, const float *a, const float *b, int64_t n)
{
	const add_function f = {out, a, b};

	for_each_of(queue, "sum", n, f);
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

	for_each_of(queue, "ReLU", n, f);
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

	for_each_of(queue, "ReLU's gradient", n, f);
}

/* What Philox4x32-10 gives for the counter. */
__device__ inline void philox(uint64_t seed, uint64_t counter, uint32_t words[DRAWN])
{
	uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);

	words[0] = (uint32_t)counter;
	words[1] = (uint32_t)(counter >> 32);
	words[2] = words[3] = 0;
	for (int round = 0; round < 10; round++, key0 += 0x9e3779b9u, key1 += 0xbb67ae85u) {
		const uint64_t a = (uint64_t)words[0] * 0xd2511f53u, b = (uint64_t)words[2] * 0xcd9e8d57u;
		words[0] = (uint32_t)(b >> 32) ^ words[1] ^ key0;
		words[1] = (uint32_t)b;
		words[2] = (uint32_t)(a >> 32) ^ words[3] ^ key1;
		words[3] = (uint32_t)a;
	}
}

/* A thread has the elements of a counter. */
struct dropout_function {
	float *out;
	const float *in;
	int64_t n;
	uint32_t threshold;
	float scale;
	uint64_t seed, counter;

	__device__ void operator()(int64_t i) const
	{
		uint32_t words[DRAWN];
		philox(seed, counter + (uint64_t)i, words);
		for (int k = 0; k < DRAWN && i * DRAWN + k < n; k++)
			out[i * DRAWN + k] = words[k] < threshold ? 0 : in[i * DRAWN + k] * scale;
	}
};

void dk_cuda_dropout(dk_queue *queue, float *out, const float *in, int64_t n, double probability, uint64_t seed,
                     uint64_t counter)
{
	const dropout_function f = {out, in, n, (uint32_t)(probability * 0x1p32), (float)(1 / (1 - probability)), seed,
		counter};

	for_each_of(queue, "dropout", ceil_div(n, DRAWN), f);
}
