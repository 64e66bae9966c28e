/* SPDX-License-Identifier: Apache-2.0 */
/* Networks for images use these besides products: pooling, normalisation, ReLU, dropout. */
#include <math.h>

#include "cpu/inner.h"
#include "cpu/vec.h"

void DK_NAME(relu)(float *out, const float *in, int64_t n)
{
	FOR_VECTORS(i, part, n)
		vf_store_some(out + i, part, vf_max(vf_set(0), vf_load_some(in + i, part)));
}

void DK_NAME(relu_grad)(float *grad, const float *out, int64_t n)
{
	FOR_VECTORS(i, part, n) {
		vf x = vf_load_some(out + i, part);
		vf_store_some(grad + i, part, vf_select(x <= vf_set(0), vf_set(0), vf_load_some(grad + i, part)));
	}
}

/* ---- dropout ------------------------------------------------------------------------ */

enum { COUNTERS = 16 };

/* words[4 i + k] = word k of what Philox4x32-10 gives for counter + i. In loops of a fixed
   length, which the compiler turns into vectors. */
static inline void philox(uint64_t seed, uint64_t counter, uint32_t words[4 * COUNTERS])
{
	uint32_t c[4][COUNTERS], key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);

	for (int i = 0; i < COUNTERS; i++) {
		c[0][i] = (uint32_t)(counter + (uint64_t)i);
		c[1][i] = (uint32_t)((counter + (uint64_t)i) >> 32);
		c[2][i] = c[3][i] = 0;
	}
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < COUNTERS; i++) {
			uint64_t a = (uint64_t)c[0][i] * 0xd2511f53u;
			uint64_t b = (uint64_t)c[2][i] * 0xcd9e8d57u;
			uint32_t first = (uint32_t)(b >> 32) ^ c[1][i] ^ key0;
			uint32_t third = (uint32_t)(a >> 32) ^ c[3][i] ^ key1;
			c[0][i] = first;
			c[1][i] = (uint32_t)b;
			c[2][i] = third;
			c[3][i] = (uint32_t)a;
		}
		key0 += 0x9e3779b9u;
		key1 += 0xbb67ae85u;
	}
	for (int i = 0; i < COUNTERS; i++)
		for (int k = 0; k < 4; k++)
			words[4 * i + k] = c[k][i];
}

void DK_NAME(dropout)(float *out, const float *in, int64_t first, int64_t last, const dk_dropping *d)
{
	/* Compared as signed numbers, which have vectors everywhere, moved by half their range. */
	const vi limit = (int32_t)(d->threshold ^ 0x80000000u) - (vi){0}, half = INT32_MIN - (vi){0};
	uint32_t words[4 * COUNTERS];

	for (int64_t i = first; i < last; i += 4 * COUNTERS) {
		const int64_t count = last - i < 4 * COUNTERS ? last - i : 4 * COUNTERS;
		philox(d->seed, d->counter + (uint64_t)(i / 4), words);
		FOR_VECTORS(k, part, count) {
			vi word;
			memcpy(&word, words + k, sizeof(word));
			const vf kept = vf_load_some(in + i + k, part) * d->scale;
			vf_store_some(out + i + k, part, vf_select((word ^ half) < limit, vf_set(0), kept));
		}
	}
}

/* ---- pooling ---------------------------------------------------------------------------- */

/* The part of the window at a place that lies in the image. */
struct seen {
	int64_t top, bottom, left, right; /* lines and columns of the window */
	int64_t corner;                   /* where its first number would be, from the image's start */
};

static inline struct seen look(const dk_window *w, int64_t line, int64_t column)
{
	const int64_t y = line * w->stride - w->padding, x = column * w->stride - w->padding;

	return (struct seen){
		.top = y < 0 ? -y : 0, .bottom = w->height - y < w->size ? w->height - y : w->size,
		.left = x < 0 ? -x : 0, .right = w->width - x < w->size ? w->width - x : w->size,
		.corner = (y * w->width + x) * w->channels,
	};
}

/* Runs the statement behind it for each line and column (y, x) of the window that lies in
   the image, `at` being its offset from the image's start. */
#define FOR_SEEN(s, w) \
	for (int64_t y = (s).top; y < (s).bottom; y++) \
		for (int64_t x = (s).left, at = (s).corner + (y * (w)->width + x) * (w)->channels; \
		     x < (s).right; x++, at += (w)->channels)

/* Runs the statement behind it for each place of images first .. last - 1. The place is number `place` of all
   places, and its window lies in the image that begins at `image`. */
#define FOR_PLACES(w, first, last) \
	for (int64_t down = dk_window_places(w, (w)->height), across = dk_window_places(w, (w)->width), \
	             place = (first) * down * across, image = 0; \
	     place < (last) * down * across && \
	     (image = place / (down * across) * (w)->height * (w)->width * (w)->channels, true); place++)

static inline vi vi_load_some(const int32_t *p, int64_t part)
{
	return (vi)vf_load_some((const float *)p, part);
}

void DK_NAME(max_pool)(float *out, int32_t *which, const float *in, const dk_window *w,
                       int64_t first, int64_t last)
{
	FOR_PLACES(w, first, last) {
		const struct seen s = look(w, place / across % down, place % across);
		const float *from = in + image;
		FOR_VECTORS(i, part, w->channels) {
			vf best = vf_set(-INFINITY);
			vi chosen = (int32_t)(s.top * w->size + s.left) - (vi){0};
			FOR_SEEN(s, w) {
				const vf v = vf_load_some(from + at + i, part);
				const vi better = (v > best) | (v != v);
				const vi number = (int32_t)(y * w->size + x) - (vi){0};
				best = vf_select(better, v, best);
				chosen = (better & number) | (~better & chosen);
			}
			vf_store_some(out + place * w->channels + i, part, best);
			vf_store_some((float *)which + place * w->channels + i, part, (vf)chosen);
		}
	}
}

void DK_NAME(max_pool_grad)(float *din, const float *dout, const int32_t *which,
                            const dk_window *w, int64_t first, int64_t last)
{
	FOR_PLACES(w, first, last) {
		const struct seen s = look(w, place / across % down, place % across);
		FOR_VECTORS(i, part, w->channels) {
			const vf d = vf_load_some(dout + place * w->channels + i, part);
			const vi chosen = vi_load_some(which + place * w->channels + i, part);
			FOR_SEEN(s, w) {
				float *to = din + image + at + i;
				const vi here = chosen == (int32_t)(y * w->size + x);
				vf_store_some(to, part, vf_load_some(to, part) + (vf)(here & (vi)d));
			}
		}
	}
}

void DK_NAME(average_pool)(float *out, const float *in, const dk_window *w, int64_t first,
                           int64_t last)
{
	const float share = 1 / (float)(w->size * w->size);

	FOR_PLACES(w, first, last) {
		const struct seen s = look(w, place / across % down, place % across);
		FOR_VECTORS(i, part, w->channels) {
			vf sum = vf_set(0);
			FOR_SEEN(s, w)
				sum += vf_load_some(in + image + at + i, part);
			vf_store_some(out + place * w->channels + i, part, sum * share);
		}
	}
}

void DK_NAME(average_pool_grad)(float *din, const float *dout, const dk_window *w,
                                int64_t first, int64_t last)
{
	const float share = 1 / (float)(w->size * w->size);

	FOR_PLACES(w, first, last) {
		const struct seen s = look(w, place / across % down, place % across);
		FOR_VECTORS(i, part, w->channels) {
			const vf d = vf_load_some(dout + place * w->channels + i, part) * share;
			FOR_SEEN(s, w) {
				float *to = din + image + at + i;
				vf_store_some(to, part, vf_load_some(to, part) + d);
			}
		}
	}
}

/* ---- batch normalisation ---------------------------------------------------------------- */

void DK_NAME(moments)(float *mean, float *squares, const float *x, int64_t rows,
                      int64_t columns)
{
	memset(mean, 0, (size_t)columns * sizeof(float));
	memset(squares, 0, (size_t)columns * sizeof(float));
	DK_NAME(column_sums)(mean, x, rows, columns, 0, columns);
	DK_NAME(scale)(mean, columns, 1 / (float)rows);
	for (int64_t r = 0; r < rows; r++, x += columns)
		FOR_VECTORS(i, part, columns) {
			const vf d = vf_load_some(x + i, part) - vf_load_some(mean + i, part);
			vf_store_some(squares + i, part, vf_fma(d, d, vf_load_some(squares + i, part)));
		}
}

/* Constants decide what is left of these, so each is inlined twice. */
#define TWICE __attribute__((always_inline)) static inline

TWICE vf normalise(const float *in, const float *mean, const float *scale, const float *bias, int64_t i, int64_t part)
{
	const vf d = vf_load_some(in + i, part) - vf_load_some(mean + i, part);

	return vf_fma(d, vf_load_some(scale + i, part), vf_load_some(bias + i, part));
}

TWICE void norm_rows(float *out, const float *in, const float *mean, const float *scale, const float *bias,
                     int64_t rows, int64_t columns, bool relu)
{
	for (int64_t r = 0; r < rows; r++, in += columns, out += columns)
		FOR_VECTORS(i, part, columns) {
			const vf x = normalise(in, mean, scale, bias, i, part);
			vf_store_some(out + i, part, relu ? vf_max(vf_set(0), x) : x);
		}
}

void DK_NAME(norm_rows)(float *out, const float *in, const float *mean, const float *scale,
                        const float *bias, int64_t rows, int64_t columns, bool relu)
{
	if (relu)
		norm_rows(out, in, mean, scale, bias, rows, columns, true);
	else
		norm_rows(out, in, mean, scale, bias, rows, columns, false);
}

/* ReLU lets a part of dout through. Forward's sign is found again, from the same numbers by the same
   operations: that is less work than reading what forward has left. */
TWICE vf passed(const float *dout, const float *in, const float *mean, const float *scale, const float *bias,
                int64_t i, int64_t part, bool relu)
{
	const vf d = vf_load_some(dout + i, part);

	return relu ? vf_select(normalise(in, mean, scale, bias, i, part) <= vf_set(0), vf_set(0), d) : d;
}

TWICE void norm_sums(float *sum, float *dot, const float *dout, const float *in, const float *mean,
                     const float *scale, const float *bias, int64_t rows, int64_t columns, bool relu)
{
	memset(sum, 0, (size_t)columns * sizeof(float));
	memset(dot, 0, (size_t)columns * sizeof(float));
	for (int64_t r = 0; r < rows; r++, in += columns, dout += columns)
		FOR_VECTORS(i, part, columns) {
			const vf d = passed(dout, in, mean, scale, bias, i, part, relu);
			const vf x = vf_load_some(in + i, part) - vf_load_some(mean + i, part);
			vf_store_some(sum + i, part, vf_load_some(sum + i, part) + d);
			vf_store_some(dot + i, part, vf_fma(d, x, vf_load_some(dot + i, part)));
		}
}

void DK_NAME(norm_sums)(float *sum, float *dot, const float *dout, const float *in,
                        const float *mean, const float *scale, const float *bias, int64_t rows,
                        int64_t columns)
{
	if (bias != NULL)
		norm_sums(sum, dot, dout, in, mean, scale, bias, rows, columns, true);
	else
		norm_sums(sum, dot, dout, in, mean, NULL, NULL, rows, columns, false);
}

TWICE void norm_input(float *din, const float *dout, const float *in, const float *mean, const float *dmean,
                      const float *slope, const float *scale, const float *bias, int64_t rows, int64_t columns,
                      bool relu)
{
	for (int64_t r = 0; r < rows; r++, in += columns, dout += columns, din += columns)
		FOR_VECTORS(i, part, columns) {
			const vf x = vf_load_some(in + i, part) - vf_load_some(mean + i, part);
			const vf d = passed(dout, in, mean, scale, bias, i, part, relu) - vf_load_some(dmean + i, part);
			vf_store_some(din + i, part, (d - x * vf_load_some(slope + i, part)) *
			                             vf_load_some(scale + i, part));
		}
}

void DK_NAME(norm_input)(float *din, const float *dout, const float *in, const float *mean,
                         const float *dmean, const float *slope, const float *scale, const float *bias,
                         int64_t rows, int64_t columns)
{
	if (bias != NULL)
		norm_input(din, dout, in, mean, dmean, slope, scale, bias, rows, columns, true);
	else
		norm_input(din, dout, in, mean, dmean, slope, scale, NULL, rows, columns, false);
}
