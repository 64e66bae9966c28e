/* SPDX-License-Identifier: Apache-2.0 */
/* functions: those of table.h, on a queue of CUDA's, and the matrix product. */
#pragma once

#include "cuda/device.cuh"

/* A product may pass through GELU before it is written. */
enum dk_product_gelu {
	DK_NO_GELU,
	DK_GELU,       /* d = its GELU, and it is kept itself: `before` = a b + bias */
	DK_GELU_SLOPE, /* d = a b times the slope of GELU at `before` */
};

/* d [m, n] = a b + beta c + bias, row-major, of the queue's type, or with c and d, but no
   bias, of the type of parameters' gradients; a, b and the leading dimensions as in kernels.h.
   c may be d, bias [n] may be NULL, but for DK_GELU. `before` is laid out as d. */
struct dk_product_args {
	bool transpose_a, transpose_b;
	int64_t m, n, k;
	const void *a;
	int64_t lda;
	const void *b;
	int64_t ldb;
	float beta;
	const void *c;
	void *d;
	int64_t ldc;
	const void *bias;
	bool wide; /* c and d are f32, whatever a and b are */
	dk_product_gelu gelu = DK_NO_GELU;
	void *before = NULL;
};

/* cuBLASLt computes these products; in tests without a GPU, its stand-in does. Failures are the queue's. */
bool dk_cuda_product_open(dk_cuda_queue *queue);
void dk_cuda_product_close(dk_cuda_queue *queue);
/* False: not with GELU here, where two functions are quicker or cuBLASLt cannot; nothing is done. */
bool dk_cuda_product(dk_cuda_queue *queue, const dk_product_args *args);

bool dk_cuda_graph_begin(dk_queue *queue);
dk_graph *dk_cuda_graph_end(dk_queue *queue, const char **why);
void dk_cuda_graph_launch(dk_queue *queue, const dk_graph *graph);
void dk_cuda_graph_free(dk_queue *queue, dk_graph *graph);
/* When all graphs of the queue are free. */
void dk_cuda_graphs_close(dk_cuda_queue *queue);

/* Its GPU becomes the calling thread's, and the one before again; in tests without a GPU, by
   the test. */
bool dk_cuda_gpu_open(dk_cuda_queue *queue, int device);
void dk_cuda_gpu_close(dk_cuda_queue *queue);
void dk_cuda_enter(dk_queue *queue);
void dk_cuda_leave(dk_queue *queue);

/* The module exports this table. */
extern "C" __attribute__((visibility("default"))) const dk_table dk_cuda_table;

void dk_cuda_copy(dk_queue *queue, void *to, const void *from, size_t bytes);
void dk_cuda_zero(dk_queue *queue, float *x, int64_t n);
void dk_cuda_update(dk_queue *queue, float *param, float *grad, float *first, float *second, int64_t n,
		const dk_update_args *args);
float dk_cuda_largest(dk_queue *queue, const float *x, int64_t n);
double dk_cuda_sum_squares(dk_queue *queue, const float *x, int64_t n);
void dk_cuda_largest_at(dk_queue *queue, float *largest, const dk_array *arrays, int64_t count);
void dk_cuda_squares_at(dk_queue *queue, double *sums, const dk_array *arrays, int64_t count, int64_t piece);
void dk_cuda_checksum_at(dk_queue *queue, uint64_t *sums, const float *x, int64_t n, int64_t piece);
void dk_cuda_mix(dk_queue *queue, float *x, const float *y, float a, double b, const dk_ratio *ratio,
		int64_t n);
void dk_cuda_adamw_direction(dk_queue *queue, const float *param, float *grad, float *m, float *v,
		int64_t n, const dk_update_args *args);
void dk_cuda_sum_squares_at(dk_queue *queue, double *sum, const float *x, int64_t n);
void dk_cuda_mix_squares(dk_queue *queue, float *x, const float *y, float a, float b, int64_t n);
void dk_cuda_column_squares(dk_queue *queue, double *sums, const float *x, int64_t matrices,
		int64_t rows, int64_t columns);
void dk_cuda_move_means(dk_queue *queue, float *means, double *mean, const double *sums,
		int64_t matrices, int64_t n, int64_t each, double weight);
void dk_cuda_divide_by_roots(dk_queue *queue, float *x, const dk_estimate *estimate);
void dk_cuda_random_rows(dk_queue *queue, float *values, int64_t rows, int64_t columns, uint64_t stream);
void dk_cuda_orthonormalize(dk_queue *queue, float *factor, int64_t rank, int64_t length, bool refill,
		uint64_t stream);
void dk_cuda_restore(dk_queue *queue, float *values, float *rest, float share, const dk_factors *factors);
void dk_cuda_scale(dk_queue *queue, float *x, int64_t n, float factor);
void dk_cuda_to_bf16(dk_queue *queue, uint16_t *out, const float *in, int64_t n);
void dk_cuda_from_bf16(dk_queue *queue, float *out, const uint16_t *in, int64_t n);
void dk_cuda_to_f16(dk_queue *queue, uint16_t *out, const float *in, int64_t n, float factor);
void dk_cuda_from_f16(dk_queue *queue, float *out, const uint16_t *in, int64_t n, float factor);
void dk_cuda_gemm(dk_queue *queue, const dk_gemm_args *args);
void dk_cuda_linear_forward(dk_queue *queue, float *out, const float *in, const float *weight,
		const float *bias, const float *residual, int64_t rows, int64_t inputs,
		int64_t outputs);
void dk_cuda_linear_backward_params(dk_queue *queue, float *dweight, float *dbias,
		const float *dout, const float *in, int64_t rows, int64_t inputs, int64_t outputs);
void dk_cuda_linear_backward_input(dk_queue *queue, float *din, const float *dout,
		const float *weight, int64_t rows, int64_t inputs, int64_t outputs);
bool dk_cuda_linear_gelu_forward(dk_queue *queue, float *out, float *before, const float *in,
		const float *weight, const float *bias, int64_t rows, int64_t inputs, int64_t outputs);
bool dk_cuda_linear_gelu_backward(dk_queue *queue, float *dbefore, const float *dout,
		const float *weight, const float *before, int64_t rows, int64_t inputs, int64_t outputs);
void dk_cuda_embedding_forward(dk_queue *queue, float *out, const int32_t *tokens, const float *wte,
		const float *wpe, int64_t batch, int64_t length, int64_t width);
void dk_cuda_embedding_backward(dk_queue *queue, float *dwte, float *dwpe, const float *dout,
		const int32_t *tokens, int64_t batch, int64_t length, int64_t width);
void dk_cuda_add_rows(dk_queue *queue, float *out, const int32_t *rows, const float *values,
		int64_t count, int64_t width);
void dk_cuda_layernorm_forward(dk_queue *queue, float *out, float *mean, float *rstd,
		const float *in, const float *gain, const float *bias, int64_t rows, int64_t width);
void dk_cuda_layernorm_backward(dk_queue *queue, float *din, float *dgain, float *dbias,
		const float *dout, const float *in, const float *mean, const float *rstd,
		const float *gain, int64_t rows, int64_t width);
void dk_cuda_gelu_forward(dk_queue *queue, float *out, const float *in, int64_t n);
void dk_cuda_gelu_backward(dk_queue *queue, float *grad, const float *in, int64_t n);
void dk_cuda_add(dk_queue *queue, float *out, const float *a, const float *b, int64_t n);
void dk_cuda_dropout(dk_queue *queue, float *out, const float *in, int64_t n, double probability,
		const dk_random *random, uint64_t ahead);
void dk_cuda_attention_forward(dk_queue *queue, float *out, float *lse, const float *qkv,
		int64_t batch, int64_t length, int64_t heads, int64_t width);
void dk_cuda_attention_backward(dk_queue *queue, float *dqkv, const float *dout, const float *qkv,
		const float *out, const float *lse, int64_t batch, int64_t length, int64_t heads,
		int64_t width);
double dk_cuda_classifier_forward(dk_queue *queue, float *work, const float *in,
		const float *weight, const int32_t *targets, int64_t rows, int64_t width,
		int64_t vocab);
void dk_cuda_classifier_loss(dk_queue *queue, double *loss, float *work, const float *in,
		const float *weight, const int32_t *targets, int64_t rows, int64_t width, int64_t vocab);
void dk_cuda_classifier_backward(dk_queue *queue, float *din, float *dweight, float *work,
		const float *in, const float *weight, const int32_t *targets, int64_t rows,
		int64_t width, int64_t vocab);

/* These work on images. dk_cuda_of_images() returns the queue of such a function; with bf16 it fails, and starts
   nothing. dk_cuda_add_columns(): to [width] += the columns' sums of x [rows, width]. */
dk_cuda_queue *dk_cuda_of_images(dk_queue *queue);
void dk_cuda_add_columns(dk_cuda_queue *queue, float *to, const float *x, int64_t rows, int64_t width);
void dk_cuda_convolution_forward(dk_queue *queue, float *out, float *work, const float *in,
		const float *weight, const float *bias, const dk_window *window, int64_t outputs);
void dk_cuda_convolution_backward_params(dk_queue *queue, float *dweight, float *dbias, float *work,
		const float *dout, const float *in, const dk_window *window, int64_t outputs);
void dk_cuda_convolution_backward_input(dk_queue *queue, float *din, float *work, const float *dout,
		const float *weight, const dk_window *window, int64_t outputs);
void dk_cuda_max_pool_forward(dk_queue *queue, float *out, int32_t *which, const float *in,
		const dk_window *window);
void dk_cuda_max_pool_backward(dk_queue *queue, float *din, const float *dout, const int32_t *which,
		const dk_window *window);
void dk_cuda_average_pool_forward(dk_queue *queue, float *out, const float *in,
		const dk_window *window);
void dk_cuda_average_pool_backward(dk_queue *queue, float *din, const float *dout,
		const dk_window *window);
void dk_cuda_batch_norm_moments(dk_queue *queue, double *moments, float *work, const float *in,
		int64_t rows, int64_t channels);
void dk_cuda_batch_norm_statistics(dk_queue *queue, float *mean, float *rstd, float *running_mean,
		float *running_variance, double momentum, const double *moments, int64_t all_rows,
		int64_t channels);
void dk_cuda_batch_norm_apply(dk_queue *queue, float *out, float *work, const float *in,
		const float *mean, const float *rstd, const float *gain, const float *bias,
		int64_t rows, int64_t channels);
void dk_cuda_batch_norm_sums(dk_queue *queue, double *sums, float *dgain, float *dbias, float *work,
		const float *dout, const float *in, const float *mean, const float *rstd,
		int64_t rows, int64_t channels);
void dk_cuda_batch_norm_input(dk_queue *queue, float *din, float *work, const float *dout,
		const float *in, const float *mean, const float *rstd, const float *gain,
		const double *sums, int64_t all_rows, int64_t rows, int64_t channels);
void dk_cuda_batch_norm_eval(dk_queue *queue, float *out, const float *in, const float *gain,
		const float *bias, const float *running_mean, const float *running_variance,
		int64_t rows, int64_t channels);
void dk_cuda_relu_forward(dk_queue *queue, float *out, const float *in, int64_t n);
void dk_cuda_relu_backward(dk_queue *queue, float *grad, const float *out, int64_t n);
double dk_cuda_cross_entropy(dk_queue *queue, float *logits, const int32_t *targets, int64_t rows,
		int64_t classes);
void dk_cuda_cross_entropy_loss(dk_queue *queue, double *loss, float *logits,
		const int32_t *targets, int64_t rows, int64_t classes);

const char *dk_cuda_failure(dk_queue *queue);
