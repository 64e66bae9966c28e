/* SPDX-License-Identifier: Apache-2.0 */
/* cpu: the functions of kernels.h on the host; what dk_x() does there is dk_cpu_x(). */
#pragma once

#include "kernels.h"

void dk_cpu_copy(void *to, const void *from, size_t bytes);
void dk_cpu_zero(float *x, int64_t n);
void dk_cpu_update(float *param, float *grad, float *first, float *second, int64_t n,
		const dk_update_args *args);
void dk_cpu_mix(float *x, const float *y, float a, double b, const dk_ratio *ratio, int64_t n);
void dk_cpu_adamw_direction(const float *param, float *grad, float *m, float *v, int64_t n,
		const dk_update_args *args);
void dk_cpu_sum_squares_at(double *sum, const float *x, int64_t n);
void dk_cpu_mix_squares(float *x, const float *y, float a, float b, int64_t n);
void dk_cpu_column_squares(double *sums, const float *x, int64_t matrices, int64_t rows,
		int64_t columns);
void dk_cpu_move_means(float *means, double *mean, const double *sums, int64_t matrices, int64_t n,
		int64_t each, double weight);
void dk_cpu_divide_by_roots(float *x, const dk_estimate *estimate);
void dk_cpu_random_rows(float *values, int64_t rows, int64_t columns, uint64_t stream);
void dk_cpu_orthonormalize(float *factor, int64_t rank, int64_t length, bool refill, uint64_t stream);
void dk_cpu_restore(float *values, float *rest, float share, const dk_factors *factors);
float dk_cpu_largest(const float *x, int64_t n);
double dk_cpu_sum_squares(const float *x, int64_t n);
void dk_cpu_largest_at(float *largest, const dk_array *arrays, int64_t count);
void dk_cpu_squares_at(double *sums, const dk_array *arrays, int64_t count, int64_t piece);
void dk_cpu_checksum_at(uint64_t *sums, const float *x, int64_t n, int64_t piece);
void dk_cpu_scale(float *x, int64_t n, float factor);
void dk_cpu_to_bf16(uint16_t *out, const float *in, int64_t n);
void dk_cpu_from_bf16(float *out, const uint16_t *in, int64_t n);
void dk_cpu_to_f16(uint16_t *out, const float *in, int64_t n, float factor);
void dk_cpu_from_f16(float *out, const uint16_t *in, int64_t n, float factor);
void dk_cpu_gemm(const dk_gemm_args *args);
void dk_cpu_linear_forward(float *out, const float *in, const float *weight, const float *bias,
		const float *residual, int64_t rows, int64_t inputs, int64_t outputs);
void dk_cpu_linear_backward_params(float *dweight, float *dbias, const float *dout, const float *in,
		int64_t rows, int64_t inputs, int64_t outputs);
void dk_cpu_linear_backward_input(float *din, const float *dout, const float *weight, int64_t rows,
		int64_t inputs, int64_t outputs);
void dk_cpu_linear_gelu_forward(float *out, float *before, const float *in, const float *weight,
		const float *bias, int64_t rows, int64_t inputs, int64_t outputs);
void dk_cpu_linear_gelu_backward(float *dbefore, const float *dout, const float *weight,
		const float *before, int64_t rows, int64_t inputs, int64_t outputs);
void dk_cpu_embedding_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe,
		int64_t batch, int64_t length, int64_t width);
void dk_cpu_embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
		int64_t batch, int64_t length, int64_t width);
void dk_cpu_add_rows(float *out, const int32_t *rows, const float *values, int64_t count,
		int64_t width);
void dk_cpu_layernorm_forward(float *out, float *mean, float *rstd, const float *in,
		const float *gain, const float *bias, int64_t rows, int64_t width);
void dk_cpu_layernorm_backward(float *din, float *dgain, float *dbias, const float *dout,
		const float *in, const float *mean, const float *rstd, const float *gain,
		int64_t rows, int64_t width);
void dk_cpu_gelu_forward(float *out, const float *in, int64_t n);
void dk_cpu_gelu_backward(float *grad, const float *in, int64_t n);
void dk_cpu_add(float *out, const float *a, const float *b, int64_t n);
void dk_cpu_dropout(float *out, const float *in, int64_t n, double probability,
		const dk_random *random, uint64_t ahead);
void dk_cpu_attention_forward(float *out, float *lse, const float *qkv, int64_t batch,
		int64_t length, int64_t heads, int64_t width);
void dk_cpu_attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out,
		const float *lse, int64_t batch, int64_t length, int64_t heads, int64_t width);
/* Joins the parts of a row that the tiles of a classifier's vocabulary gave. */
double dk_join_tiles(float *tops, const float *sums, int64_t tiles, int64_t rows, int64_t row);
double dk_cpu_classifier_forward(float *work, const float *in, const float *weight,
		const int32_t *targets, int64_t rows, int64_t width, int64_t vocab);
void dk_cpu_classifier_loss(double *loss, float *work, const float *in, const float *weight,
		const int32_t *targets, int64_t rows, int64_t width, int64_t vocab);
void dk_cpu_classifier_backward(float *din, float *dweight, float *work, const float *in,
		const float *weight, const int32_t *targets, int64_t rows, int64_t width,
		int64_t vocab);
size_t dk_cpu_convolution_work(const dk_window *window, int64_t outputs);
void dk_cpu_convolution_forward(float *out, float *work, const float *in, const float *weight,
		const float *bias, const dk_window *window, int64_t outputs);
void dk_cpu_convolution_backward_params(float *dweight, float *dbias, float *work,
		const float *dout, const float *in, const dk_window *window, int64_t outputs);
void dk_cpu_convolution_backward_input(float *din, float *work, const float *dout,
		const float *weight, const dk_window *window, int64_t outputs);
void dk_cpu_max_pool_forward(float *out, int32_t *which, const float *in, const dk_window *window);
void dk_cpu_max_pool_backward(float *din, const float *dout, const int32_t *which,
		const dk_window *window);
void dk_cpu_average_pool_forward(float *out, const float *in, const dk_window *window);
void dk_cpu_average_pool_backward(float *din, const float *dout, const dk_window *window);
/* Returns [2, channels] f64 for a call that does without other processes. They lie in `work` behind what
   _moments() and the like use. */
double *dk_cpu_batch_norm_own_sums(float *work, int64_t rows, int64_t channels);
void dk_cpu_batch_norm_relu_forward(float *out, float *mean, float *rstd, float *running_mean,
		float *running_variance, double momentum, float *work, const float *in, const float *gain,
		const float *bias, int64_t rows, int64_t channels);
void dk_cpu_batch_norm_relu_backward(float *din, float *dgain, float *dbias, float *work,
		const float *dout, const float *in, const float *mean, const float *rstd, const float *gain,
		const float *bias, int64_t rows, int64_t channels);
void dk_cpu_batch_norm_moments(double *moments, float *work, const float *in, int64_t rows,
		int64_t channels);
void dk_cpu_batch_norm_statistics(float *mean, float *rstd, float *running_mean,
		float *running_variance, double momentum, const double *moments, int64_t all_rows,
		int64_t channels);
void dk_cpu_batch_norm_apply(float *out, float *work, const float *in, const float *mean,
		const float *rstd, const float *gain, const float *bias, int64_t rows,
		int64_t channels);
void dk_cpu_batch_norm_sums(double *sums, float *dgain, float *dbias, float *work,
		const float *dout, const float *in, const float *mean, const float *rstd,
		int64_t rows, int64_t channels);
void dk_cpu_batch_norm_input(float *din, float *work, const float *dout, const float *in,
		const float *mean, const float *rstd, const float *gain, const double *sums,
		int64_t all_rows, int64_t rows, int64_t channels);
void dk_cpu_batch_norm_eval(float *out, const float *in, const float *gain, const float *bias,
		const float *running_mean, const float *running_variance, int64_t rows,
		int64_t channels);
void dk_cpu_relu_forward(float *out, const float *in, int64_t n);
void dk_cpu_relu_backward(float *grad, const float *out, int64_t n);
double dk_cpu_cross_entropy(float *logits, const int32_t *targets, int64_t rows, int64_t classes);
void dk_cpu_cross_entropy_loss(double *loss, float *logits, const int32_t *targets, int64_t rows,
		int64_t classes);
const char *dk_cpu_failure(void);
/* From now on dk_cpu_failure() says this. */
void dk_cpu_fail(const char *why);
