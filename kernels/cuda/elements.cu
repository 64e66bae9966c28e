/* SPDX-License-Identifier: Apache-2.0 */
/* Work element by element. */
#include "cuda/functions.cuh"
#include "half.h"

enum { THREADS = 256, VECTOR_BYTES = 16 };

/* ---- one function of an element of x, and of another array where there is one ---- */

struct f16 {
	uint16_t bits;
};

__device__ inline float wide(f16 x)
{
	return dk_half_to_float(x.bits);
}

__device__ inline void put(f16 *to, float x)
{
	to->bits = dk_half_of(x);
}

struct gelu_gate {
	float gate, slope; /* gelu(x) = x gate; slope: of the exponent */
};

/* The tanh form is x times a logistic function: 0.5 (1 + tanh u) = 1 / (1 + e^-2u). */
__device__ inline gelu_gate gelu_at(float x)
{
	const float cube = 0.044715f, slope = 1.5957691216057308f; /* 2 sqrt(2 / pi) */
	const float u = x * (x * x * (slope * cube) + slope);
	const gelu_gate g = {1 / (1 + expf(-u)), x * x * (3 * slope * cube) + slope};

	return g;
}

struct gelu_function {
	__device__ float operator()(float, float in) const
	{
		return in * gelu_at(in).gate;
	}
};

struct gelu_slope_function {
	__device__ float operator()(float grad, float in) const
	{
		const gelu_gate g = gelu_at(in);
		/* Far out, the slope is infinite where the gate is 0 or 1. */
		const float inner = g.gate * (1 - g.gate);
		return grad * (inner == 0 ? g.gate : in * inner * g.slope + g.gate);
	}
};

struct scale_function {
	float factor;
	__device__ float operator()(float x, float) const
	{
		return x * factor;
	}
};

struct scale_in_function {
	float factor;
	__device__ float operator()(float, float in) const
	{
		return in * factor;
	}
};

struct copy_function {
	__device__ float operator()(float, float in) const
	{
		return in;
	}
};

/* x = f(x, in), N elements a thread; `whole` are the packs, and what is left is single.
   READS: whether f wants x. */
template <typename T, typename I, int N, bool READS, class F>
__global__ void map_kernel(T *x, const I *in, int64_t n, F f)
{
	const int64_t first = grid_thread() * N;

	if (first + N <= n) {
		pack<T, N> p;
		pack<I, N> q;
		if (READS)
			p = *reinterpret_cast<const pack<T, N> *>(x + first);
		q = *reinterpret_cast<const pack<I, N> *>(in + first);
		for (int k = 0; k < N; k++)
			put(&p.at[k], f(READS ? wide(p.at[k]) : 0, wide(q.at[k])));
		*reinterpret_cast<pack<T, N> *>(x + first) = p;
		return;
	}
	for (int64_t i = first; i < n; i++)
		put(x + i, f(READS ? wide(x[i]) : 0, wide(in[i])));
}

template <bool READS, typename T, typename I, class F>
static void map(dk_cuda_queue *q, const char *name, T *x, const I *in, int64_t n, F f)
{
	enum { N = VECTOR_BYTES / (sizeof(T) > sizeof(I) ? sizeof(T) : sizeof(I)) };
	const bool aligned = reinterpret_cast<uintptr_t>(x) % (N * sizeof(T)) == 0 &&
	                     reinterpret_cast<uintptr_t>(in) % (N * sizeof(I)) == 0;

	if (n == 0)
		return;
	if (aligned)
		launch(q, name, map_kernel<T, I, N, READS, F>, dim3((unsigned)ceil_div(n, THREADS * N)), THREADS,
		       0, x, in, n, f);
	else
		launch(q, name, map_kernel<T, I, 1, READS, F>, dim3((unsigned)ceil_div(n, THREADS)), THREADS, 0,
		       x, in, n, f);
}

template <typename T>
static void gelu(T *, dk_cuda_queue *q, void *out, const void *in, int64_t n)
{
	map<false>(q, "gelu", static_cast<T *>(out), static_cast<const T *>(in), n, gelu_function());
}

void dk_cuda_gelu_forward(dk_queue *queue, float *out, const float *in, int64_t n)
{
	FOR_TYPE(queue, gelu, own(queue), out, in, n);
}

template <typename T>
static void gelu_slope(T *, dk_cuda_queue *q, void *grad, const void *in, int64_t n)
{
	map<true>(q, "gelu's gradient", static_cast<T *>(grad), static_cast<const T *>(in), n,
	          gelu_slope_function());
}

void dk_cuda_gelu_backward(dk_queue *queue, float *grad, const float *in, int64_t n)
{
	FOR_TYPE(queue, gelu_slope, own(queue), grad, in, n);
}

template <typename T> static void scale(T *, dk_cuda_queue *q, void *x, int64_t n, float factor)
{
	const scale_function f = {factor};

	map<true>(q, "scale", static_cast<T *>(x), static_cast<const T *>(x), n, f);
}

void dk_cuda_scale(dk_queue *queue, float *x, int64_t n, float factor)
{
	FOR_GRADIENT(queue, scale, own(queue), x, n, factor);
}

void dk_cuda_to_bf16(dk_queue *queue, uint16_t *out, const float *in, int64_t n)
{
	map<false>(own(queue), "f32 to bf16", reinterpret_cast<bf16 *>(out), in, n, copy_function());
}

void dk_cuda_from_bf16(dk_queue *queue, float *out, const uint16_t *in, int64_t n)
{
	map<false>(own(queue), "bf16 to f32", out, reinterpret_cast<const bf16 *>(in), n, copy_function());
}

void dk_cuda_to_f16(dk_queue *queue, uint16_t *out, const float *in, int64_t n, float factor)
{
	const scale_in_function f = {factor};

	map<false>(own(queue), "f32 to f16", reinterpret_cast<f16 *>(out), in, n, f);
}

void dk_cuda_from_f16(dk_queue *queue, float *out, const uint16_t *in, int64_t n, float factor)
{
	const scale_in_function f = {factor};

	map<false>(own(queue), "f16 to f32", out, reinterpret_cast<const f16 *>(in), n, f);
}

/* ---- sums and dropout ---- */

template <typename T> struct add_function {
	T *out;
	const T *a, *b;

	__device__ void operator()(int64_t i) const
	{
		put(out + i, wide(a[i]) + wide(b[i]));
	}
};

template <typename T>
static void add(T *, dk_cuda_queue *q, void *out, const void *a, const void *b, int64_t n)
{
	const add_function<T> f = {static_cast<T *>(out), static_cast<const T *>(a), static_cast<const T *>(b)};

	for_each(q, "sum", n, f);
}

void dk_cuda_add(dk_queue *queue, float *out, const float *a, const float *b, int64_t n)
{
	FOR_TYPE(queue, add, own(queue), out, a, b, n);
}

enum { DRAWN = 4 /* numbers of a counter */ };

/* Writes the words that Philox4x32-10 gives for the counter. */
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
template <typename T> struct dropout_function {
	T *out;
	const T *in;
	int64_t n;
	uint32_t threshold;
	float scale;
	const dk_random *random;
	uint64_t ahead;

	__device__ void operator()(int64_t i) const
	{
		uint32_t words[DRAWN];
		philox(random->seed, random->counter + ahead + (uint64_t)i, words);
		for (int k = 0; k < DRAWN && i * DRAWN + k < n; k++)
			put(out + i * DRAWN + k, words[k] < threshold ? 0 : wide(in[i * DRAWN + k]) * scale);
	}
};

template <typename T>
static void dropout(T *, dk_cuda_queue *q, void *out, const void *in, int64_t n, double probability,
                    const dk_random *random, uint64_t ahead)
{
	const dropout_function<T> f = {static_cast<T *>(out), static_cast<const T *>(in), n,
		(uint32_t)(probability * 0x1p32), (float)(1 / (1 - probability)), random, ahead};

	for_each(q, "dropout", ceil_div(n, DRAWN), f);
}

void dk_cuda_dropout(dk_queue *queue, float *out, const float *in, int64_t n, double probability,
                     const dk_random *random, uint64_t ahead)
{
	FOR_TYPE(queue, dropout, own(queue), out, in, n, probability, random, ahead);
}

/* ---- ReLU, of networks for images ---- */

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
