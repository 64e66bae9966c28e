/* SPDX-License-Identifier: Apache-2.0 */
/* device: what the kernels of CUDA are written with. The same sources are compiled by
   nvcc, and by a plain C++ compiler over tests/support/cuda_emulation.h, which is then
   included before: blocks, threads, barriers and shuffles on the host. So shared memory
   is always that of the launch (shared_memory()), and launches go through launch(). */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "table.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

extern __shared__ __align__(128) unsigned char dk_launch_memory[];

__device__ inline void *launch_memory()
{
	return dk_launch_memory;
}
#endif

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll") /* arrays that are to be registers need it */
#else
#define UNROLL
#endif
#define EVERY_LANE 0xffffffffu
enum { WARP = 32 };

/* ---- element types ---- */

struct bf16 {
	uint16_t bits;
};

__device__ inline float wide(float x)
{
	return x;
}

__device__ inline float wide(bf16 x)
{
	return __uint_as_float((uint32_t)x.bits << 16);
}

/* Rounds to the nearest, ties to even. A NaN stays one. */
__device__ inline bf16 to_bf16(float x)
{
#ifdef __CUDACC__
	bf16 narrow;

	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
#else
	const uint32_t bits = __float_as_uint(x);
	const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
	const bf16 narrow = {(uint16_t)(nan ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif

	return narrow;
}

__device__ inline void put(float *to, float x)
{
	*to = x;
}

__device__ inline void put(bf16 *to, float x)
{
	*to = to_bf16(x);
}

/* So many elements move at once. Their memory is aligned to all of them. */
template <typename T, int N> struct alignas(N * sizeof(T)) pack {
	T at[N];
};

/* ---- a warp's and a block's sums: the same order in each run ---- */

template <typename N> __device__ inline N warp_sum(N x)
{
	for (int lane = WARP / 2; lane > 0; lane /= 2)
		x += __shfl_xor_sync(EVERY_LANE, x, lane);
	return x;
}

__device__ inline float warp_max(float x)
{
	for (int lane = WARP / 2; lane > 0; lane /= 2)
		x = fmaxf(x, __shfl_xor_sync(EVERY_LANE, x, lane));
	return x;
}

/* Gives each thread of a block the sum over all of them. `shared` has one number for each warp. */
template <typename N> __device__ inline N block_sum(N x, N *shared)
{
	const int warps = blockDim.x / WARP;

	x = warp_sum(x);
	if (threadIdx.x % WARP == 0)
		shared[threadIdx.x / WARP] = x;
	__syncthreads();
	x = 0;
	for (int w = 0; w < warps; w++)
		x += shared[w];
	__syncthreads();
	return x;
}

__device__ inline float block_max(float x, float *shared)
{
	const int warps = blockDim.x / WARP;

	x = warp_max(x);
	if (threadIdx.x % WARP == 0)
		shared[threadIdx.x / WARP] = x;
	__syncthreads();
	x = shared[0];
	for (int w = 1; w < warps; w++)
		x = fmaxf(x, shared[w]);
	__syncthreads();
	return x;
}

/* Which of the grid's threads this is, in one dimension. */
__device__ inline int64_t grid_thread()
{
	return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* ---- queues and launches ---- */

struct dk_product; /* what matrix products keep */

/* Scratch, in f32, is for one function at a time: the queue keeps them in order. */
struct dk_cuda_queue {
	dk_queue base;
	cudaStream_t stream;  /* where work goes: the program's, or `capture` while there is a capture */
	cudaStream_t program, capture; /* graph.cu */
	bool captures;
	char why_no_graph[256];
	float *scratch;
	int64_t scratch_size;
	double *result;      /* on the device, for functions that have one */
	double *host_result; /* pinned, where it is fetched to */
	dk_product *product;
	struct dk_gpu *gpu;
	int capability;      /* the major number of the GPU's */
	int entered;         /* how often it is the thread's GPU */
	char failure[256];   /* the first; empty: none */
};

static inline dk_cuda_queue *own(dk_queue *queue)
{
	return reinterpret_cast<dk_cuda_queue *>(queue);
}

/* Keeps the first error: `what` was tried. Whether all is well. */
bool dk_cuda_check(dk_cuda_queue *queue, cudaError_t error, const char *what);
/* Returns scratch of this size. NULL: there is none, and the queue keeps the failure. */
float *dk_cuda_scratch(dk_cuda_queue *queue, int64_t size);
/* Waits for *queue->result; NaN after a failure. */
double dk_cuda_fetch(dk_cuda_queue *queue);

static inline int64_t ceil_div(int64_t n, int64_t by)
{
	return (n + by - 1) / by;
}

/* A kernel of so many blocks and threads, with so much shared memory for each block. */
template <typename... P, typename... A>
static void launch(dk_cuda_queue *q, const char *name, void (*kernel)(P...), dim3 blocks,
                   int threads, size_t shared, A... args)
{
	enum { ALWAYS_ALLOWED = 48 * 1024 };

	if (q->failure[0] != '\0')
		return;
	if (shared > ALWAYS_ALLOWED &&
	    !dk_cuda_check(q, cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
	                                           cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), name))
		return;
#ifdef __CUDACC__
	kernel<<<blocks, threads, shared, q->stream>>>(static_cast<P>(args)...);
#else
	emulate(reinterpret_cast<const void *>(kernel), q->stream, blocks, threads, shared,
	        [=] { kernel(static_cast<P>(args)...); });
#endif
	dk_cuda_check(q, cudaGetLastError(), name);
}

/* f(i) of each i from 0 to n - 1, in a thread of its own. */
template <class F> __global__ void each_kernel(int64_t n, F f)
{
	const int64_t i = grid_thread();

	if (i < n)
		f(i);
}

template <class F> static void for_each(dk_cuda_queue *q, const char *name, int64_t n, F f)
{
	enum { THREADS = 256 };

	if (n > 0)
		launch(q, name, each_kernel<F>, dim3((unsigned)ceil_div(n, THREADS)), THREADS, 0, n, f);
}

/* Whether its tensors are bf16. */
static inline bool dk_cuda_narrow(const dk_cuda_queue *queue)
{
	return queue->base.type == DK_BF16 || queue->base.type == DK_MIXED;
}

/* Calls `function` with a null pointer of the queue's type: its instance is chosen so. */
#define FOR_TYPE(queue, function, ...) \
	(dk_cuda_narrow(own(queue)) ? function((bf16 *)NULL, __VA_ARGS__) : function((float *)NULL, __VA_ARGS__))

/* Chooses likewise by the type of parameters' gradients. */
#define FOR_GRADIENT(queue, function, ...) \
	((queue)->type == DK_BF16 ? function((bf16 *)NULL, __VA_ARGS__) : function((float *)NULL, __VA_ARGS__))

/* Calls the function with two types: that of the gradients, then that of the queue. */
#define FOR_TYPES(queue, function, ...) \
	((queue)->type == DK_MIXED ? function((float *)NULL, (bf16 *)NULL, __VA_ARGS__) : \
	 (queue)->type == DK_BF16  ? function((bf16 *)NULL, (bf16 *)NULL, __VA_ARGS__) : \
	                             function((float *)NULL, (float *)NULL, __VA_ARGS__))
