/* SPDX-License-Identifier: Apache-2.0 */
/* table: what a backend of the kernels gives: the functions of kernels.h, each with the
   queue before its arguments. A module exports its table; it is compiled with this header
   of one release, and used by a program of maybe another: `version` and `bytes` stay first. */
#ifndef DK_TABLE_H
#define DK_TABLE_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with each change of this header, or of a function of kernels.h. */
enum { DK_TABLE_VERSION = 17 };

/* The table has the functions of images, in f32. CUDA's queues of DK_BF16 and DK_MIXED fail; the host's of
   DK_MIXED take f32, also on the fake GPU. */
typedef struct dk_image_table {
	bool needs_no_work; /* dk_convolution_work() is 0 */
	void (*convolution_forward)(dk_queue *queue, float *out, float *work, const float *in,
			const float *weight, const float *bias, const dk_window *window,
			int64_t outputs);
	void (*convolution_backward_params)(dk_queue *queue, float *dweight, float *dbias,
			float *work, const float *dout, const float *in, const dk_window *window,
			int64_t outputs);
	void (*convolution_backward_input)(dk_queue *queue, float *din, float *work,
			const float *dout, const float *weight, const dk_window *window,
			int64_t outputs);
	void (*max_pool_forward)(dk_queue *queue, float *out, int32_t *which, const float *in,
			const dk_window *window);
	void (*max_pool_backward)(dk_queue *queue, float *din, const float *dout,
			const int32_t *which, const dk_window *window);
	void (*average_pool_forward)(dk_queue *queue, float *out, const float *in,
			const dk_window *window);
	void (*average_pool_backward)(dk_queue *queue, float *din, const float *dout,
			const dk_window *window);
	void (*batch_norm_moments)(dk_queue *queue, double *moments, float *work, const float *in,
			int64_t rows, int64_t channels);
	void (*batch_norm_statistics)(dk_queue *queue, float *mean, float *rstd,
			float *running_mean, float *running_variance, double momentum,
			const double *moments, int64_t all_rows, int64_t channels);
	void (*batch_norm_apply)(dk_queue *queue, float *out, float *work, const float *in,
			const float *mean, const float *rstd, const float *gain, const float *bias,
			int64_t rows, int64_t channels);
	void (*batch_norm_sums)(dk_queue *queue, double *sums, float *dgain, float *dbias,
			float *work, const float *dout, const float *in, const float *mean,
			const float *rstd, int64_t rows, int64_t channels);
	void (*batch_norm_input)(dk_queue *queue, float *din, float *work, const float *dout,
			const float *in, const float *mean, const float *rstd, const float *gain,
			const double *sums, int64_t all_rows, int64_t rows, int64_t channels);
	void (*batch_norm_eval)(dk_queue *queue, float *out, const float *in, const float *gain,
			const float *bias, const float *running_mean, const float *running_variance,
			int64_t rows, int64_t channels);
	void (*relu_forward)(dk_queue *queue, float *out, const float *in, int64_t n);
	void (*relu_backward)(dk_queue *queue, float *grad, const float *out, int64_t n);
	double (*cross_entropy)(dk_queue *queue, float *logits, const int32_t *targets,
			int64_t rows, int64_t classes);
	void (*cross_entropy_loss)(dk_queue *queue, double *loss, float *logits,
			const int32_t *targets, int64_t rows, int64_t classes);
} dk_image_table;

/* The table has the functions of optimizers for whole tensors. */
typedef struct dk_whole_table {
	void (*mix)(dk_queue *queue, float *x, const float *y, float a, double b, const dk_ratio *ratio,
			int64_t n);
	void (*adamw_direction)(dk_queue *queue, const float *param, float *grad, float *m, float *v,
			int64_t n, const dk_update_args *args);
	void (*sum_squares_at)(dk_queue *queue, double *sum, const float *x, int64_t n);
	void (*mix_squares)(dk_queue *queue, float *x, const float *y, float a, float b, int64_t n);
	void (*column_squares)(dk_queue *queue, double *sums, const float *x, int64_t matrices,
			int64_t rows, int64_t columns);
	void (*move_means)(dk_queue *queue, float *means, double *mean, const double *sums,
			int64_t matrices, int64_t n, int64_t each, double weight);
	void (*divide_by_roots)(dk_queue *queue, float *x, const dk_estimate *estimate);
} dk_whole_table;

/* The table has the functions of factors of low rank. */
typedef struct dk_factor_table {
	void (*random_rows)(dk_queue *queue, float *values, int64_t rows, int64_t columns, uint64_t stream);
	void (*orthonormalize)(dk_queue *queue, float *factor, int64_t rank, int64_t length, bool refill,
			uint64_t stream);
	void (*restore)(dk_queue *queue, float *values, float *rest, float share, const dk_factors *factors);
} dk_factor_table;

typedef struct dk_table {
	uint32_t version; /* DK_TABLE_VERSION */
	uint32_t bytes;   /* of this table */

	/* `device` is the index of the device, and `stream` its own handle of the queue (a
	   cudaStream_t); what is made lives until `close`, which waits for its work. One
	   thread at a time uses it. NULL: it could not be made, and *why, which stays, says
	   why. */
	dk_queue *(*open)(int device, void *stream, dk_type type, const char **why);
	void (*close)(dk_queue *queue);
	/* The calling thread begins to use the queue, and ends. NULL: that takes nothing. */
	void (*enter)(dk_queue *queue);
	void (*leave)(dk_queue *queue);

	void (*copy)(dk_queue *queue, void *to, const void *from, size_t bytes);
	void (*zero)(dk_queue *queue, float *x, int64_t n);
	void (*update)(dk_queue *queue, float *param, float *grad, float *first, float *second, int64_t n,
			const dk_update_args *args);
	float (*largest)(dk_queue *queue, const float *x, int64_t n);
	double (*sum_squares)(dk_queue *queue, const float *x, int64_t n);
	void (*largest_at)(dk_queue *queue, float *largest, const dk_array *arrays, int64_t count);
	void (*squares_at)(dk_queue *queue, double *sums, const dk_array *arrays, int64_t count,
			int64_t piece);
	void (*checksum_at)(dk_queue *queue, uint64_t *sums, const float *x, int64_t n, int64_t piece);
	void (*scale)(dk_queue *queue, float *x, int64_t n, float factor);
	void (*to_bf16)(dk_queue *queue, uint16_t *out, const float *in, int64_t n);
	void (*from_bf16)(dk_queue *queue, float *out, const uint16_t *in, int64_t n);
	void (*to_f16)(dk_queue *queue, uint16_t *out, const float *in, int64_t n, float factor);
	void (*from_f16)(dk_queue *queue, float *out, const uint16_t *in, int64_t n, float factor);
	void (*gemm)(dk_queue *queue, const dk_gemm_args *args);
	void (*linear_forward)(dk_queue *queue, float *out, const float *in, const float *weight,
			const float *bias, const float *residual, int64_t rows, int64_t inputs,
			int64_t outputs);
	void (*linear_backward_params)(dk_queue *queue, float *dweight, float *dbias,
			const float *dout, const float *in, int64_t rows, int64_t inputs,
			int64_t outputs);
	void (*linear_backward_input)(dk_queue *queue, float *din, const float *dout,
			const float *weight, int64_t rows, int64_t inputs, int64_t outputs);
	/* Both are NULL, or return false without having done anything: then two functions do the work. */
	bool (*linear_gelu_forward)(dk_queue *queue, float *out, float *before, const float *in,
			const float *weight, const float *bias, int64_t rows, int64_t inputs,
			int64_t outputs);
	bool (*linear_gelu_backward)(dk_queue *queue, float *dbefore, const float *dout,
			const float *weight, const float *before, int64_t rows, int64_t inputs,
			int64_t outputs);
	void (*embedding_forward)(dk_queue *queue, float *out, const int32_t *tokens,
			const float *wte, const float *wpe, int64_t batch, int64_t length,
			int64_t width);
	void (*embedding_backward)(dk_queue *queue, float *dwte, float *dwpe, const float *dout,
			const int32_t *tokens, int64_t batch, int64_t length, int64_t width);
	void (*add_rows)(dk_queue *queue, float *out, const int32_t *rows, const float *values,
			int64_t count, int64_t width);
	void (*layernorm_forward)(dk_queue *queue, float *out, float *mean, float *rstd,
			const float *in, const float *gain, const float *bias, int64_t rows,
			int64_t width);
	void (*layernorm_backward)(dk_queue *queue, float *din, float *dgain, float *dbias,
			const float *dout, const float *in, const float *mean, const float *rstd,
			const float *gain, int64_t rows, int64_t width);
	void (*gelu_forward)(dk_queue *queue, float *out, const float *in, int64_t n);
	void (*gelu_backward)(dk_queue *queue, float *grad, const float *in, int64_t n);
	void (*add)(dk_queue *queue, float *out, const float *a, const float *b, int64_t n);
	void (*dropout)(dk_queue *queue, float *out, const float *in, int64_t n, double probability,
			const dk_random *random, uint64_t ahead);
	void (*attention_forward)(dk_queue *queue, float *out, float *lse, const float *qkv,
			int64_t batch, int64_t length, int64_t heads, int64_t width);
	void (*attention_backward)(dk_queue *queue, float *dqkv, const float *dout,
			const float *qkv, const float *out, const float *lse, int64_t batch,
			int64_t length, int64_t heads, int64_t width);
	double (*classifier_forward)(dk_queue *queue, float *work, const float *in,
			const float *weight, const int32_t *targets, int64_t rows, int64_t width,
			int64_t vocab);
	void (*classifier_loss)(dk_queue *queue, double *loss, float *work, const float *in,
			const float *weight, const int32_t *targets, int64_t rows, int64_t width,
			int64_t vocab);
	void (*classifier_backward)(dk_queue *queue, float *din, float *dweight, float *work,
			const float *in, const float *weight, const int32_t *targets, int64_t rows,
			int64_t width, int64_t vocab);
	const dk_image_table *images; /* NULL: they are the host's, done at once */
	const dk_whole_table *whole;  /* likewise */
	const dk_factor_table *factors; /* likewise */
	const char *(*failure)(dk_queue *queue);
	/* All NULL: the queue captures no graphs. */
	bool (*graph_begin)(dk_queue *queue);
	dk_graph *(*graph_end)(dk_queue *queue, const char **why);
	void (*graph_launch)(dk_queue *queue, const dk_graph *graph);
	void (*graph_free)(dk_queue *queue, dk_graph *graph);
} dk_table;

/* Each backend's queue begins with this. */
struct dk_queue {
	const dk_table *table;
	dk_type type;
};

/* Each backend's graph begins with this. */
struct dk_graph {
	dk_queue *queue;
};

#ifdef __cplusplus
}
#endif

#endif
