/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "device/module.h"
#include "tests/bench/gpu_place.h"

static cudaStream_t stream;
static cudaEvent_t start, end;
static cublasHandle_t cublas;
static dk_queue *queue;
static dk_type type;

static void check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	fprintf(stderr, "gpu_kernels: %s: %s\n", what, cudaGetErrorString(error));
	exit(EXIT_FAILURE);
}

static void check_cublas(cublasStatus_t status, const char *what)
{
	if (status == CUBLAS_STATUS_SUCCESS)
		return;
	fprintf(stderr, "gpu_kernels: %s: %s\n", what, cublasGetStatusString(status));
	exit(EXIT_FAILURE);
}

static void *allocate(size_t bytes)
{
	void *memory = NULL;

	check(cudaMalloc(&memory, bytes), "cudaMalloc");
	return memory;
}

static void release(void *memory)
{
	check(cudaFree(memory), "cudaFree");
}

static void copy(void *to, const void *from, size_t bytes)
{
	check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
}

/* cuBLAS has columns where we have rows: its product is that of the transposed matrices in the
   other order. */
static void product(const dk_gemm_args *g)
{
	const cudaDataType_t narrow = type == DK_MIXED ? CUDA_R_16BF : CUDA_R_32F;
	const cublasComputeType_t by = type == DK_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	const float one = 1, zero = 0;

	check_cublas(cublasGemmEx(cublas, g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
	                          g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, (int)g->n, (int)g->m, (int)g->k, &one,
	                          g->b, narrow, (int)g->ldb, g->a, narrow, (int)g->lda, &zero, g->c, narrow,
	                          (int)g->ldc, by, CUBLAS_GEMM_DEFAULT), "cublasGemmEx");
}

static double time_of(void (*work)(const void *argument), const void *argument, int times)
{
	float milliseconds = 0;

	check(cudaEventRecord(start, stream), "cudaEventRecord");
	for (int i = 0; i < times; i++)
		work(argument);
	check(cudaEventRecord(end, stream), "cudaEventRecord");
	check(cudaEventSynchronize(end), "cudaEventSynchronize");
	check(cudaEventElapsedTime(&milliseconds, start, end), "cudaEventElapsedTime");
	return milliseconds * 1e-3 / times;
}

static void close_place(void)
{
	queue->table->close(queue);
	check_cublas(cublasDestroy(cublas), "cublasDestroy");
	check(cudaEventDestroy(start), "cudaEventDestroy");
	check(cudaEventDestroy(end), "cudaEventDestroy");
	check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

bool bench_place_open_gpu(dk_type chosen, bench_place *place, const char **why)
{
	struct cudaDeviceProp properties;
	const cudaError_t found = cudaGetDeviceProperties(&properties, 0);

	if (found != cudaSuccess) {
		*why = cudaGetErrorString(found);
		return false;
	}
	const dk_table *table;
	if (ddp_device_cuda_kernels(&table) != DDP_OK) {
		*why = ddp_last_error();
		return false;
	}
	check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
	check(cudaEventCreate(&start), "cudaEventCreate");
	check(cudaEventCreate(&end), "cudaEventCreate");
	check_cublas(cublasCreate(&cublas), "cublasCreate");
	check_cublas(cublasSetStream(cublas, stream), "cublasSetStream");
	type = chosen;
	queue = table->open(0, stream, type, why);
	if (queue == NULL)
		return false;
	*place = (bench_place){ .queue = queue, .type = type, .alloc = allocate, .free = release, .copy = copy,
		.product = product, .time = time_of, .close = close_place };
	snprintf(place->name, sizeof(place->name), "%s", properties.name);
	return true;
}
