/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of CUDA's: what its kernels need beside it, copies, and the table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/functions.cuh"

/* Each function keeps its partial sums there, and cuts its work so that this suffices. */
enum { SCRATCH_BYTES = 32 << 20 };

bool dk_cuda_check(dk_cuda_queue *q, cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return true;
	if (q->failure[0] == '\0')
		snprintf(q->failure, sizeof(q->failure), "CUDA: %s: %s", what, cudaGetErrorString(error));
	return false;
}

float *dk_cuda_scratch(dk_cuda_queue *q, int64_t size)
{
	if (size <= q->scratch_size)
		return q->scratch;
	if (q->failure[0] == '\0')
		snprintf(q->failure, sizeof(q->failure),
		         "CUDA: a function needs %lld floats of scratch, and its queue has %lld", (long long)size,
		         (long long)q->scratch_size);
	return NULL;
}

double dk_cuda_fetch(dk_cuda_queue *q)
{
	if (q->failure[0] == '\0' &&
	    dk_cuda_check(q, cudaMemcpyAsync(q->host_result, q->result, sizeof(double),
	                                     cudaMemcpyDeviceToHost, q->stream), "copy of a result") &&
	    dk_cuda_check(q, cudaStreamSynchronize(q->stream), "a kernel"))
		return *q->host_result;
	return NAN;
}

static void release(dk_cuda_queue *q)
{
	dk_cuda_graphs_close(q);
	dk_cuda_product_close(q);
	cudaFree(q->scratch);
	cudaFree(q->result);
	cudaFreeHost(q->host_result);
}

/* The queue may be open in part only. */
static void let_go(dk_cuda_queue *q)
{
	dk_cuda_enter(&q->base);
	if (q->entered > 0)
		release(q);
	dk_cuda_leave(&q->base);
	dk_cuda_gpu_close(q);
	free(q);
}

static bool make(dk_cuda_queue *q)
{
	return dk_cuda_check(q, cudaMalloc(reinterpret_cast<void **>(&q->scratch), SCRATCH_BYTES), "memory") &&
	       dk_cuda_check(q, cudaMalloc(reinterpret_cast<void **>(&q->result), sizeof(double)), "memory") &&
	       dk_cuda_check(q, cudaMallocHost(reinterpret_cast<void **>(&q->host_result), sizeof(double)),
	                     "pinned memory") &&
	       dk_cuda_product_open(q);
}

static dk_queue *open_queue(int device, void *stream, dk_type type, const char **why)
{
	static thread_local char reason[sizeof(dk_cuda_queue::failure)];

	dk_cuda_queue *q = static_cast<dk_cuda_queue *>(calloc(1, sizeof(*q)));
	if (q == NULL) {
		*why = "the host is out of memory for a queue";
		return NULL;
	}
	q->base.table = &dk_cuda_table;
	q->base.type = type;
	q->stream = static_cast<cudaStream_t>(stream);
	q->scratch_size = SCRATCH_BYTES / sizeof(float);
	bool made = dk_cuda_gpu_open(q, device);
	dk_cuda_enter(&q->base);
	made = made && q->failure[0] == '\0' && make(q);
	dk_cuda_leave(&q->base);
	if (made)
		return &q->base;
	memcpy(reason, q->failure, sizeof(reason));
	*why = reason;
	let_go(q);
	return NULL;
}

static void close_queue(dk_queue *queue)
{
	dk_cuda_enter(queue);
	cudaStreamSynchronize(own(queue)->stream);
	dk_cuda_leave(queue);
	let_go(own(queue));
}

static bool is_on_gpu(const void *address)
{
	cudaPointerAttributes attributes;

	if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess)
		return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
	cudaGetLastError();
	return false;
}

/* CUDA captures copies from and to the host's memory, too, but keeps its address: what a launch finds there
   is seldom what the caller meant. */
static bool may_copy(dk_cuda_queue *q, const void *to, const void *from)
{
	if (!q->captures || (is_on_gpu(to) && is_on_gpu(from)))
		return true;
	snprintf(q->failure, sizeof(q->failure), "a copy from or to the host's memory, which is not for graphs");
	return false;
}

void dk_cuda_copy(dk_queue *queue, void *to, const void *from, size_t bytes)
{
	dk_cuda_queue *q = own(queue);

	if (bytes > 0 && q->failure[0] == '\0' && may_copy(q, to, from))
		dk_cuda_check(q, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream), "copy");
}

void dk_cuda_zero(dk_queue *queue, float *x, int64_t n)
{
	dk_cuda_queue *q = own(queue);
	const size_t bytes = (size_t)n * (dk_cuda_narrow(q) ? sizeof(bf16) : sizeof(float));

	if (n > 0 && q->failure[0] == '\0')
		dk_cuda_check(q, cudaMemsetAsync(x, 0, bytes, q->stream), "zero");
}

dk_cuda_queue *dk_cuda_of_images(dk_queue *queue)
{
	dk_cuda_queue *q = own(queue);

	if (dk_cuda_narrow(q) && q->failure[0] == '\0')
		snprintf(q->failure, sizeof(q->failure), "kernels for images work in f32: use a queue of DK_F32 or DK_TF32");
	return q;
}

const char *dk_cuda_failure(dk_queue *queue)
{
	return own(queue)->failure[0] != '\0' ? own(queue)->failure : NULL;
}

/* Each entry by its name: what is left out is NULL, which tests/unit/test_kernel_queue.c tells. */
static constexpr dk_image_table image_functions()
{
	dk_image_table t = {};

	t.needs_no_work = true;
	t.convolution_forward = dk_cuda_convolution_forward;
	t.convolution_backward_params = dk_cuda_convolution_backward_params;
	t.convolution_backward_input = dk_cuda_convolution_backward_input;
	t.max_pool_forward = dk_cuda_max_pool_forward;
	t.max_pool_backward = dk_cuda_max_pool_backward;
	t.average_pool_forward = dk_cuda_average_pool_forward;
	t.average_pool_backward = dk_cuda_average_pool_backward;
	t.batch_norm_moments = dk_cuda_batch_norm_moments;
	t.batch_norm_statistics = dk_cuda_batch_norm_statistics;
	t.batch_norm_apply = dk_cuda_batch_norm_apply;
	t.batch_norm_sums = dk_cuda_batch_norm_sums;
	t.batch_norm_input = dk_cuda_batch_norm_input;
	t.batch_norm_eval = dk_cuda_batch_norm_eval;
	t.relu_forward = dk_cuda_relu_forward;
	t.relu_backward = dk_cuda_relu_backward;
	t.cross_entropy = dk_cuda_cross_entropy;
	t.cross_entropy_loss = dk_cuda_cross_entropy_loss;
	return t;
}

static constexpr dk_whole_table whole_functions()
{
	dk_whole_table t = {};

	t.mix = dk_cuda_mix;
	t.adamw_direction = dk_cuda_adamw_direction;
	t.sum_squares_at = dk_cuda_sum_squares_at;
	t.mix_squares = dk_cuda_mix_squares;
	t.column_squares = dk_cuda_column_squares;
	t.move_means = dk_cuda_move_means;
	t.divide_by_roots = dk_cuda_divide_by_roots;
	return t;
}

static constexpr dk_factor_table factor_functions()
{
	dk_factor_table t = {};

	t.random_rows = dk_cuda_random_rows;
	t.orthonormalize = dk_cuda_orthonormalize;
	t.restore = dk_cuda_restore;
	return t;
}

static constexpr dk_image_table images = image_functions();
static constexpr dk_whole_table whole = whole_functions();
static constexpr dk_factor_table factors = factor_functions();

static constexpr dk_table functions()
{
	dk_table t = {};

	t.version = DK_TABLE_VERSION;
	t.bytes = sizeof(dk_table);
	t.images = &images;
	t.whole = &whole;
	t.factors = &factors;
	t.open = open_queue;
	t.close = close_queue;
	t.enter = dk_cuda_enter;
	t.leave = dk_cuda_leave;
	t.copy = dk_cuda_copy;
	t.zero = dk_cuda_zero;
	t.update = dk_cuda_update;
	t.largest = dk_cuda_largest;
	t.sum_squares = dk_cuda_sum_squares;
	t.largest_at = dk_cuda_largest_at;
	t.squares_at = dk_cuda_squares_at;
	t.checksum_at = dk_cuda_checksum_at;
	t.scale = dk_cuda_scale;
	t.to_bf16 = dk_cuda_to_bf16;
	t.from_bf16 = dk_cuda_from_bf16;
	t.to_f16 = dk_cuda_to_f16;
	t.from_f16 = dk_cuda_from_f16;
	t.gemm = dk_cuda_gemm;
	t.linear_forward = dk_cuda_linear_forward;
	t.linear_backward_params = dk_cuda_linear_backward_params;
	t.linear_backward_input = dk_cuda_linear_backward_input;
	t.linear_gelu_forward = dk_cuda_linear_gelu_forward;
	t.linear_gelu_backward = dk_cuda_linear_gelu_backward;
	t.embedding_forward = dk_cuda_embedding_forward;
	t.embedding_backward = dk_cuda_embedding_backward;
	t.add_rows = dk_cuda_add_rows;
	t.layernorm_forward = dk_cuda_layernorm_forward;
	t.layernorm_backward = dk_cuda_layernorm_backward;
	t.gelu_forward = dk_cuda_gelu_forward;
	t.gelu_backward = dk_cuda_gelu_backward;
	t.add = dk_cuda_add;
	t.dropout = dk_cuda_dropout;
	t.attention_forward = dk_cuda_attention_forward;
	t.attention_backward = dk_cuda_attention_backward;
	t.classifier_forward = dk_cuda_classifier_forward;
	t.classifier_loss = dk_cuda_classifier_loss;
	t.classifier_backward = dk_cuda_classifier_backward;
	t.failure = dk_cuda_failure;
	t.graph_begin = dk_cuda_graph_begin;
	t.graph_end = dk_cuda_graph_end;
	t.graph_launch = dk_cuda_graph_launch;
	t.graph_free = dk_cuda_graph_free;
	return t;
}

const dk_table dk_cuda_table = functions();
