/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_emulation: stands for CUDA's runtime and its device side, in one thread of the
   host, so that kernels/cuda is compiled by a plain C++ compiler and tried without a GPU.
   A block's threads are fibers; one runs until it comes to a barrier or a shuffle. The
   order in which they run is drawn anew after each, so that a missing barrier shows as
   another result, and shared memory is an allocation of its own, filled with NaN, so
   that the sanitizers see who goes beyond it. A kernel that CUDA leaves undefined ends
   the program: threads at unlike barriers, or a barrier without all of a warp. */
#pragma once

#include <functional>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __launch_bounds__(...)

struct dim3 {
	unsigned x, y, z;
	dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* Of the thread that runs. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

typedef struct CUstream_st *cudaStream_t; /* NULL: the default one, which captures nothing */

/* The stream runs the kernel, by the function, once for each thread; the seed of cuda_emulation_seed()
   decides the order. A launch that a GPU refuses is cudaGetLastError()'s. */
void emulate(const void *kernel, cudaStream_t stream, dim3 blocks, int threads, size_t shared,
             const std::function<void()> &function);
void cuda_emulation_seed(uint64_t seed);
/* Ends the program: CUDA leaves undefined what a kernel or the program does. */
[[noreturn]] void cuda_emulation_undefined(const char *what);

void *launch_memory();
void __syncthreads();
int __syncthreads_or(int predicate);
void __syncwarp();
unsigned __ballot_sync(unsigned lanes, bool predicate);

/* Of 8 bytes at most, which the lane `from` gave. */
uint64_t cuda_emulation_shuffle(uint64_t mine, int from);

template <typename T> T __shfl_xor_sync(unsigned, T mine, int lane)
{
	uint64_t bits = 0;
	memcpy(&bits, &mine, sizeof(mine));
	bits = cuda_emulation_shuffle(bits, (int)(threadIdx.x % 32) ^ lane);
	memcpy(&mine, &bits, sizeof(mine));
	return mine;
}

template <typename T> T __shfl_sync(unsigned, T mine, int from)
{
	uint64_t bits = 0;
	memcpy(&bits, &mine, sizeof(mine));
	bits = cuda_emulation_shuffle(bits, from);
	memcpy(&mine, &bits, sizeof(mine));
	return mine;
}

/* What kernels/cuda/tensor_cores.cuh says of them. A copy's bytes are NaN until copies_arrived(), which
   the thread has to call before it ends. */
void multiply_add(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4]);
void load_matrices(uint32_t m[4], uint32_t at);
void load_matrices_transposed(uint32_t m[4], uint32_t at);
void copy_piece(uint32_t at, const void *from, bool there);
void copy_word(uint32_t at, const void *from, bool there);
void copies_arrived();
float power_of_2(float x);

static inline int atomicMax(int *at, int value)
{
	const int before = *at;
	*at = value > before ? value : before;
	return before;
}

static inline float __fmul_rn(float a, float b)
{
	return a * b;
}

static inline float __fadd_rn(float a, float b)
{
	return a + b;
}

static inline double __dmul_rn(double a, double b)
{
	return a * b;
}

static inline double __dadd_rn(double a, double b)
{
	return a + b;
}

static inline float __fdiv_rn(float a, float b)
{
	return a / b;
}

static inline float __fsqrt_rn(float a)
{
	return sqrtf(a);
}

static inline int __ffs(int x)
{
	return __builtin_ffs(x);
}

static inline int __popc(unsigned x)
{
	return __builtin_popcount(x);
}

static inline float __uint_as_float(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

static inline uint32_t __float_as_uint(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

/* ---- the runtime: all memory is the host's, all work but copies to the host is done at once, or captured ---- */

typedef enum cudaError_t {
	cudaSuccess,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorInvalidConfiguration = 9,
	cudaErrorStreamCaptureUnsupported = 900,
	cudaErrorStreamCaptureInvalidated = 901,
} cudaError_t;
enum cudaMemcpyKind { cudaMemcpyDeviceToHost = 2, cudaMemcpyDefault = 4 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

/* The GPU that the thread's calls are for, and the only one on which they work. */
enum { CUDA_EMULATION_GPU = 3 };
extern int cuda_emulation_gpu;

/* Does it now, or captures it. */
void cuda_emulation_work(cudaStream_t stream, const std::function<void()> &work);
/* A call that no capture survives; true if there is one. */
bool cuda_emulation_spoils_capture();

/* Memory that a test takes for the GPU's, of that size so that the sanitizers see its end; all other is
   the host's. */
void *cuda_emulation_allocate(size_t bytes);
void cuda_emulation_free(void *memory);

enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
	cudaMemoryType type;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *address);

static inline cudaError_t cudaMalloc(void **memory, size_t bytes)
{
	if (cuda_emulation_spoils_capture())
		return cudaErrorStreamCaptureUnsupported;
	if (cuda_emulation_gpu != CUDA_EMULATION_GPU)
		return cudaErrorMemoryAllocation;
	*memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
	return *memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

static inline cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
	return cudaMalloc(memory, bytes);
}

/* What work may be using is destroyed: the host has to have waited for it. Some of CUDA's calls do so
   themselves, but not all say it. */
void cuda_emulation_give_back(const char *what);

static inline cudaError_t cudaFree(void *memory)
{
	cuda_emulation_give_back("memory is freed that work under way may use");
	free(memory);
	return cudaSuccess;
}

static inline cudaError_t cudaFreeHost(void *memory)
{
	return cudaFree(memory);
}

/* To the host: all bits are set there until the host has waited for it. */
void cuda_emulation_copy_to_host(void *to, const void *from, size_t bytes);
void cuda_emulation_wait();

static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                          cudaStream_t stream)
{
	if (kind == cudaMemcpyDeviceToHost)
		cuda_emulation_work(stream, [=] { cuda_emulation_copy_to_host(to, from, bytes); });
	else
		cuda_emulation_work(stream, [=] { memcpy(to, from, bytes); });
	return cudaSuccess;
}

static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	cuda_emulation_work(stream, [=] { memset(to, value, bytes); });
	return cudaSuccess;
}

static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
	if (cuda_emulation_spoils_capture())
		return cudaErrorStreamCaptureUnsupported;
	cuda_emulation_wait();
	return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute what, int bytes);

/* ---- captures ---- */

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
enum { cudaStreamNonBlocking = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };

/* The so-manieth of these calls from now on fails, but for those that destroy; 0: none. */
extern int cuda_emulation_fails;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made);

cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error);

/* ---- cuBLASLt, as far as kernels/cuda uses it, by plain loops (cublas_emulation.cc). What it leaves undefined or cannot
   do is refused: other combinations of types, an algorithm that was chosen for another product, and addresses less
   aligned than it was told; with GELU, any but bf16, and a matrix of what it was applied to that is not as is
   documented. ---- */

enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasLtEpilogue_t {
	CUBLASLT_EPILOGUE_DEFAULT = 1,
	CUBLASLT_EPILOGUE_BIAS = 4,
	CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164,
	CUBLASLT_EPILOGUE_DGELU = 192,
};
enum cublasLtMatmulDescAttributes_t {
	CUBLASLT_MATMUL_DESC_TRANSA,
	CUBLASLT_MATMUL_DESC_TRANSB,
	CUBLASLT_MATMUL_DESC_EPILOGUE,
	CUBLASLT_MATMUL_DESC_BIAS_POINTER,
	CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
	CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
};
enum cublasLtMatmulPreferenceAttributes_t {
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
};

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublas_description *cublasLtMatmulDesc_t;
typedef struct cublas_layout *cublasLtMatrixLayout_t;
typedef struct cublas_preference *cublasLtMatmulPreference_t;

/* For which product it is: of A, B, C, D. */
struct cublasLtMatmulAlgo_t {
	cublasLtMatmulDesc_t description;
	cublasLtMatrixLayout_t layouts[4];
	uint32_t alignments[4];
	uintptr_t bias_alignment, aux_alignment;
};

struct cublasLtMatmulHeuristicResult_t {
	cublasLtMatmulAlgo_t algo;
	cublasStatus_t state;
};

/* No algorithm is found with GELU, or the product is refused that has one; and how many there were with it. */
extern bool cublas_emulation_refuses_gelu, cublas_emulation_fails_gelu;
extern int cublas_emulation_gelus;

const char *cublasLtGetStatusString(cublasStatus_t status);
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t compute,
		cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
		cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
		uint64_t columns, int64_t stride);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
		cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
		cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
		cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most,
		cublasLtMatmulHeuristicResult_t *results, int *count);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha,
		const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
		cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
		cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
		const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
		cudaStream_t stream);
