/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of softmax, for attention and for the classifier. */
#include <float.h>

#include "cpu/inner.h"
#include "cpu/vec.h"

float DK_NAME(highest)(const float *x, int64_t n)
{
	vf a = vf_set(-FLT_MAX), b = a;
	int64_t i = 0;

	for (; i + 2 * VF <= n; i += 2 * VF) {
		a = vf_max(a, vf_load(x + i));
		b = vf_max(b, vf_load(x + i + VF));
	}
	a = vf_max(a, b);
	for (; i + VF <= n; i += VF)
		a = vf_max(a, vf_load(x + i));
	if (i < n)
		a = vf_max(a, vf_load_part(x + i, n - i, -FLT_MAX));
	return vf_highest(a);
}

float DK_NAME(exp_row)(float *x, int64_t n, float factor, float shift)
{
	vf a = vf_set(0), b = a, f = vf_set(factor), s = vf_set(-shift);
	int64_t i = 0;

	for (; i + 2 * VF <= n; i += 2 * VF) {
		vf p = vf_exp(vf_fma(vf_load(x + i), f, s));
		vf q = vf_exp(vf_fma(vf_load(x + i + VF), f, s));
		vf_store(x + i, p);
		vf_store(x + i + VF, q);
		a = a + p;
		b = b + q;
	}
	for (; i + VF <= n; i += VF) {
		vf p = vf_exp(vf_fma(vf_load(x + i), f, s));
		vf_store(x + i, p);
		a = a + p;
	}
	float sum = vf_sum(a + b);
	if (i < n) {
		vf p = vf_exp(vf_fma(vf_load_part(x + i, n - i, 0), f, s));
		vf_store_part(x + i, n - i, p);
		for (int64_t k = 0; k < n - i; k++)
			sum += p[k];
	}
	return sum;
}

float DK_NAME(softmax_row)(float *x, int64_t n, float *sum)
{
	float top = DK_NAME(highest)(x, n);

	*sum = DK_NAME(exp_row)(x, n, 1, top);
	return top;
}

void DK_NAME(scale)(float *x, int64_t n, float factor)
{
	int64_t i = 0;

	for (; i + VF <= n; i += VF)
		vf_store(x + i, vf_load(x + i) * factor);
	for (; i < n; i++)
		x[i] *= factor;
}

float DK_NAME(dot)(const float *a, const float *b, int64_t n)
{
	vf sum = vf_set(0);
	int64_t i = 0;

	for (; i + VF <= n; i += VF)
		sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
	float total = vf_sum(sum);
	for (; i < n; i++)
		total += a[i] * b[i];
	return total;
}

void DK_NAME(softmax_grad)(float *dscore, const float *prob, int64_t n, float shift,
                           float factor)
{
	int64_t i = 0;

	for (; i + VF <= n; i += VF)
		vf_store(dscore + i, vf_load(prob + i) * (vf_load(dscore + i) - shift) * factor);
	for (; i < n; i++)
		dscore[i] = prob[i] * (dscore[i] - shift) * factor;
}
