/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise and row-wise work of the layers. */
#include <math.h>

#include "cpu/inner.h"
#include "cpu/vec.h"

void DK_NAME(add)(float *out, const float *a, const float *b, int64_t n)
{
	FOR_VECTORS(i, part, n)
		vf_store_some(out + i, part, vf_load_some(a + i, part) + vf_load_some(b + i, part));
}

void DK_NAME(bias_rows)(float *out, const float *residual, const float *bias, int64_t rows,
                        int64_t columns)
{
	for (int64_t r = 0; r < rows; r++, out += columns) {
		if (residual == NULL) {
			memcpy(out, bias, (size_t)columns * sizeof(float));
			continue;
		}
		DK_NAME(add)(out, residual + r * columns, bias, columns);
	}
}

void DK_NAME(column_sums)(float *sums, const float *x, int64_t rows, int64_t columns,
                          int64_t first, int64_t last)
{
	enum { AT_ONCE = 4 };
	int64_t r = 0;

	sums += first;
	x += first;
	last -= first;
	for (; r + AT_ONCE <= rows; r += AT_ONCE, x += AT_ONCE * columns)
		FOR_VECTORS(i, part, last) {
			vf sum = vf_load_some(x + i, part) + vf_load_some(x + columns + i, part);
			sum = sum + (vf_load_some(x + 2 * columns + i, part) + vf_load_some(x + 3 * columns + i, part));
			vf_store_some(sums + i, part, vf_load_some(sums + i, part) + sum);
		}
	for (; r < rows; r++, x += columns)
		FOR_VECTORS(i, part, last)
			vf_store_some(sums + i, part, vf_load_some(sums + i, part) + vf_load_some(x + i, part));
}

static float row_sum(const float *x, int64_t n)
{
	vf sum = vf_set(0);

	FOR_VECTORS(i, part, n)
		sum = sum + vf_load_some(x + i, part);
	return vf_sum(sum);
}

static float row_variance(const float *x, int64_t n, float mean)
{
	vf sum = vf_set(0);

	FOR_VECTORS(i, part, n) {
		vf d = (part == VF ? vf_load(x + i) : vf_load_part(x + i, part, mean)) - mean;
		sum = vf_fma(d, d, sum);
	}
	return vf_sum(sum) / (float)n;
}

void DK_NAME(layernorm)(float *out, float *mean, float *rstd, const float *in,
                        const float *gain, const float *bias, int64_t rows, int64_t width)
{
	for (int64_t r = 0; r < rows; r++, in += width, out += width) {
		float m = row_sum(in, width) / (float)width;
		float s = 1 / sqrtf(row_variance(in, width, m) + 1e-5f);
		FOR_VECTORS(i, part, width) {
			vf norm = (vf_load_some(in + i, part) - m) * s;
			vf_store_some(out + i, part, vf_fma(norm, vf_load_some(gain + i, part), vf_load_some(bias + i, part)));
		}
		mean[r] = m;
		rstd[r] = s;
	}
}

void DK_NAME(layernorm_input)(float *din, const float *dout, const float *in,
                              const float *mean, const float *rstd, const float *gain,
                              int64_t rows, int64_t width)
{
	for (int64_t r = 0; r < rows; r++, din += width, dout += width, in += width) {
		vf sum = vf_set(0), dot = vf_set(0);
		FOR_VECTORS(i, part, width) {
			vf norm = (vf_load_some(in + i, part) - mean[r]) * rstd[r];
			vf dnorm = vf_load_some(dout + i, part) * vf_load_some(gain + i, part);
			sum = sum + dnorm;
			dot = vf_fma(dnorm, norm, dot);
		}
		float dnorm_mean = vf_sum(sum) / (float)width;
		float dot_mean = vf_sum(dot) / (float)width;
		FOR_VECTORS(i, part, width) {
			vf norm = (vf_load_some(in + i, part) - mean[r]) * rstd[r];
			vf dnorm = vf_load_some(dout + i, part) * vf_load_some(gain + i, part);
			vf d = (dnorm - dnorm_mean - norm * dot_mean) * rstd[r];
			vf_store_some(din + i, part, vf_load_some(din + i, part) + d);
		}
	}
}

void DK_NAME(layernorm_params)(float *dgain, float *dbias, const float *dout,
                               const float *in, const float *mean, const float *rstd,
                               int64_t rows, int64_t width, int64_t first, int64_t last)
{
	dgain += first;
	dbias += first;
	dout += first;
	in += first;
	for (int64_t r = 0; r < rows; r++, dout += width, in += width)
		FOR_VECTORS(i, part, last - first) {
			vf d = vf_load_some(dout + i, part);
			vf norm = (vf_load_some(in + i, part) - mean[r]) * rstd[r];
			vf_store_some(dgain + i, part, vf_fma(d, norm, vf_load_some(dgain + i, part)));
			vf_store_some(dbias + i, part, vf_load_some(dbias + i, part) + d);
		}
}

/* The tanh form is x times a logistic function: 0.5 (1 + tanh u) = 1 / (1 + e^-2u). */
#define GELU_SLOPE 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

static inline vf gelu_gate(vf x)
{
	vf u = x * vf_fma(x * x, vf_set(GELU_SLOPE * GELU_CUBE), vf_set(GELU_SLOPE));

	return vf_reciprocal(1.0f + vf_exp(-u));
}

void DK_NAME(gelu)(float *out, const float *in, int64_t n)
{
	FOR_VECTORS(i, part, n) {
		vf x = vf_load_some(in + i, part);
		vf_store_some(out + i, part, x * gelu_gate(x));
	}
}

void DK_NAME(gelu_grad)(float *grad, const float *in, int64_t n)
{
	FOR_VECTORS(i, part, n) {
		vf x = vf_load_some(in + i, part);
		vf gate = gelu_gate(x);
		vf slope = vf_fma(x * x, vf_set(3 * GELU_SLOPE * GELU_CUBE), vf_set(GELU_SLOPE));
		vf d = vf_fma(x * gate * (1.0f - gate), slope, gate);
		vf_store_some(grad + i, part, vf_load_some(grad + i, part) * d);
	}
}
