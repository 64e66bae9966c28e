/* SPDX-License-Identifier: Apache-2.0 */
/* inner: the loops that gain from wide vectors, compiled once per instruction
   set and chosen when first used. Each works on one thread's share; the
   drivers (optim.c, layers.c, ...) cut the work up. */
#pragma once

#include <stdint.h>

#include "cpu/bf16.h"
#include "kernels.h"
#include "update.h"

/* A use of dropout: those whose number is below `threshold` are dropped. */
typedef struct dk_dropping {
	uint32_t threshold;
	float scale;
	uint64_t seed, counter;
} dk_dropping;

static inline dk_dropping dk_dropping_of(double probability, const dk_random *random,
		uint64_t ahead)
{
	return (dk_dropping){.threshold = (uint32_t)(probability * 0x1p32),
		.scale = (float)(1 / (1 - probability)), .seed = random->seed,
		.counter = random->counter + ahead};
}

typedef void dk_update_fn(float *param, float *grad, float *first, float *second, int64_t n,
		const dk_update_consts *c);
/* grad = what AdamW subtracts; `coupled` is the weight decay */
typedef void dk_adamw_direction_fn(const float *param, float *grad, float *m, float *v, int64_t n,
		const dk_update_consts *c);
/* x = a x + b y */
typedef void dk_mix_fn(float *x, const float *y, float a, float b, int64_t n);
/* x = a x + b y y */
typedef void dk_mix_squares_fn(float *x, const float *y, float a, float b, int64_t n);
typedef void dk_divide_by_roots_fn(float *x, const float *squares, float factor, float least,
		int64_t n);
typedef double dk_sum_squares_fn(const float *x, int64_t n);
typedef uint64_t dk_checksum_fn(const float *x, int64_t n);
/* of the largest magnitude */
typedef int32_t dk_largest_bits_fn(const float *x, int64_t n);
/* out [rows, columns] = residual + bias; residual NULL: bias alone */
typedef void dk_bias_rows_fn(float *out, const float *residual, const float *bias,
		int64_t rows, int64_t columns);
/* sums [first .. last) += the columns of x [rows, columns] */
typedef void dk_column_sums_fn(float *sums, const float *x, int64_t rows,
		int64_t columns, int64_t first, int64_t last);
/* out = a + b */
typedef void dk_add_fn(float *out, const float *a, const float *b, int64_t n);
typedef void dk_layernorm_fn(float *out, float *mean, float *rstd, const float *in,
		const float *gain, const float *bias, int64_t rows, int64_t width);
/* din += */
typedef void dk_layernorm_input_fn(float *din, const float *dout, const float *in,
		const float *mean, const float *rstd, const float *gain, int64_t rows,
		int64_t width);
/* dgain, dbias [first .. last) += */
typedef void dk_layernorm_params_fn(float *dgain, float *dbias, const float *dout,
		const float *in, const float *mean, const float *rstd, int64_t rows,
		int64_t width, int64_t first, int64_t last);
typedef void dk_gelu_fn(float *out, const float *in, int64_t n);
/* grad *= gelu'(in) */
typedef void dk_gelu_grad_fn(float *grad, const float *in, int64_t n);
/* first is a multiple of 4 */
typedef void dk_dropout_fn(float *out, const float *in, int64_t first, int64_t last,
		const dk_dropping *d);
/* x = exp(x - highest); returns highest, and the sum of x in *sum */
typedef float dk_softmax_row_fn(float *x, int64_t n, float *sum);
/* x *= factor */
typedef void dk_scale_fn(float *x, int64_t n, float factor);
/* x = exp(factor x - shift); returns the sum */
typedef float dk_exp_row_fn(float *x, int64_t n, float factor, float shift);
typedef float dk_highest_fn(const float *x, int64_t n);
typedef float dk_dot_fn(const float *a, const float *b, int64_t n);
/* dscore = prob (dscore - shift) factor */
typedef void dk_softmax_grad_fn(float *dscore, const float *prob, int64_t n,
		float shift, float factor);

/* ---- images: rows are places, columns are channels ---- */
typedef void dk_relu_fn(float *out, const float *in, int64_t n);
/* grad = 0 where out is not above 0 */
typedef void dk_relu_grad_fn(float *grad, const float *out, int64_t n);
/* Works on images first .. last - 1. */
typedef void dk_max_pool_fn(float *out, int32_t *which, const float *in, const dk_window *w,
		int64_t first, int64_t last);
/* din += */
typedef void dk_max_pool_grad_fn(float *din, const float *dout, const int32_t *which,
		const dk_window *w, int64_t first, int64_t last);
typedef void dk_average_pool_fn(float *out, const float *in, const dk_window *w, int64_t first,
		int64_t last);
/* din += */
typedef void dk_average_pool_grad_fn(float *din, const float *dout, const dk_window *w,
		int64_t first, int64_t last);
/* mean = the columns' means, squares = the sums of squared differences from them */
typedef void dk_moments_fn(float *mean, float *squares, const float *x, int64_t rows,
		int64_t columns);
/* out = (in - mean) scale + bias, and ReLU's of it if `relu` */
typedef void dk_norm_rows_fn(float *out, const float *in, const float *mean, const float *scale,
		const float *bias, int64_t rows, int64_t columns, bool relu);
/* sum = the columns' sums of dout, dot = those of dout (in - mean). Unless bias is NULL, ReLU was behind:
   dout counts as 0 where (in - mean) scale + bias is not above 0; otherwise scale may be NULL. */
typedef void dk_norm_sums_fn(float *sum, float *dot, const float *dout, const float *in,
		const float *mean, const float *scale, const float *bias, int64_t rows,
		int64_t columns);
/* din = (dout - dmean - (in - mean) slope) scale; bias as above */
typedef void dk_norm_input_fn(float *din, const float *dout, const float *in, const float *mean,
		const float *dmean, const float *slope, const float *scale, const float *bias,
		int64_t rows, int64_t columns);
typedef void dk_to_bf16_fn(uint16_t *out, const float *in, int64_t n);
typedef void dk_from_bf16_fn(float *out, const uint16_t *in, int64_t n);
/* x *= factor */
typedef void dk_scale_bf16_fn(uint16_t *x, int64_t n, float factor);
/* c [DK_STRIP, ldc], + if `adds`: a strip of a by one of b, `depth` tiles of each */
typedef void dk_bf16_tile_fn(float *c, int64_t ldc, const uint16_t *a, const uint16_t *b,
		int64_t depth, bool adds);

struct dk_inner {
	dk_update_fn *const *update; /* [DK_RULES] */
	dk_adamw_direction_fn *adamw_direction;
	dk_mix_fn *mix;
	dk_mix_squares_fn *mix_squares;
	dk_divide_by_roots_fn *divide_by_roots;
	dk_sum_squares_fn *sum_squares;
	dk_checksum_fn *checksum;
	dk_largest_bits_fn *largest_bits;
	dk_bias_rows_fn *bias_rows;
	dk_column_sums_fn *column_sums;
	dk_add_fn *add;
	dk_layernorm_fn *layernorm;
	dk_layernorm_input_fn *layernorm_input;
	dk_layernorm_params_fn *layernorm_params;
	dk_gelu_fn *gelu;
	dk_gelu_grad_fn *gelu_grad;
	dk_softmax_row_fn *softmax_row;
	dk_scale_fn *scale;
	dk_exp_row_fn *exp_row;
	dk_highest_fn *highest;
	dk_dot_fn *dot;
	dk_softmax_grad_fn *softmax_grad;
	dk_relu_fn *relu;
	dk_relu_grad_fn *relu_grad;
	dk_dropout_fn *dropout;
	dk_max_pool_fn *max_pool;
	dk_max_pool_grad_fn *max_pool_grad;
	dk_average_pool_fn *average_pool;
	dk_average_pool_grad_fn *average_pool_grad;
	dk_moments_fn *moments;
	dk_norm_rows_fn *norm_rows;
	dk_norm_sums_fn *norm_sums;
	dk_norm_input_fn *norm_input;
	dk_to_bf16_fn *to_bf16;
	dk_from_bf16_fn *from_bf16;
	dk_scale_bf16_fn *scale_bf16;
	dk_bf16_tile_fn *bf16_tile;
};

extern const struct dk_inner dk_inner_base;
#ifdef HAVE_AVX2_KERNELS
extern const struct dk_inner dk_inner_avx2;
#endif
#ifdef HAVE_AVX512_KERNELS
extern const struct dk_inner dk_inner_avx512;
#endif

/* The best for this processor. */
static inline const struct dk_inner *dk_inner(void)
{
#ifdef HAVE_AVX512_KERNELS
	if (__builtin_cpu_supports("avx512f"))
		return &dk_inner_avx512;
#endif
#ifdef HAVE_AVX2_KERNELS
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return &dk_inner_avx2;
#endif
	return &dk_inner_base;
}

#ifdef DK_ISA
/* The functions' names in one instruction set: mix_avx2. */
#define DK_JOIN(name, isa) dk_##name##_##isa
#define DK_EXPAND(name, isa) DK_JOIN(name, isa)
#define DK_NAME(name) DK_EXPAND(name, DK_ISA)

extern dk_update_fn *const DK_NAME(update)[DK_RULES];
dk_adamw_direction_fn DK_NAME(adamw_direction);
dk_mix_fn DK_NAME(mix);
dk_mix_squares_fn DK_NAME(mix_squares);
dk_divide_by_roots_fn DK_NAME(divide_by_roots);
dk_sum_squares_fn DK_NAME(sum_squares);
dk_checksum_fn DK_NAME(checksum);
dk_largest_bits_fn DK_NAME(largest_bits);
dk_bias_rows_fn DK_NAME(bias_rows);
dk_column_sums_fn DK_NAME(column_sums);
dk_add_fn DK_NAME(add);
dk_layernorm_fn DK_NAME(layernorm);
dk_layernorm_input_fn DK_NAME(layernorm_input);
dk_layernorm_params_fn DK_NAME(layernorm_params);
dk_gelu_fn DK_NAME(gelu);
dk_gelu_grad_fn DK_NAME(gelu_grad);
dk_softmax_row_fn DK_NAME(softmax_row);
dk_scale_fn DK_NAME(scale);
dk_exp_row_fn DK_NAME(exp_row);
dk_highest_fn DK_NAME(highest);
dk_dot_fn DK_NAME(dot);
dk_softmax_grad_fn DK_NAME(softmax_grad);
dk_relu_fn DK_NAME(relu);
dk_relu_grad_fn DK_NAME(relu_grad);
dk_dropout_fn DK_NAME(dropout);
dk_max_pool_fn DK_NAME(max_pool);
dk_max_pool_grad_fn DK_NAME(max_pool_grad);
dk_average_pool_fn DK_NAME(average_pool);
dk_average_pool_grad_fn DK_NAME(average_pool_grad);
dk_moments_fn DK_NAME(moments);
dk_norm_rows_fn DK_NAME(norm_rows);
dk_norm_sums_fn DK_NAME(norm_sums);
dk_norm_input_fn DK_NAME(norm_input);
dk_to_bf16_fn DK_NAME(to_bf16);
dk_from_bf16_fn DK_NAME(from_bf16);
dk_scale_bf16_fn DK_NAME(scale_bf16);
dk_bf16_tile_fn DK_NAME(bf16_tile);
#endif
