/* SPDX-License-Identifier: Apache-2.0 */
/* vec: short vectors, by the extension that gcc and clang share, as wide as
   the instruction set that this file is compiled for. Contraction is off in
   this folder (-ffp-contract=off), so that both compilers give the same bits;
   where a fused multiply-add is wanted it is asked for. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define DK_VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define DK_VECTOR_BYTES 32
#else
#define DK_VECTOR_BYTES 16
#endif

enum {
	VF = DK_VECTOR_BYTES / 4, /* floats in a vector */
	VD = DK_VECTOR_BYTES / 8  /* doubles in a vector */
};

typedef float vf __attribute__((vector_size(DK_VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(DK_VECTOR_BYTES)));
typedef double vd __attribute__((vector_size(DK_VECTOR_BYTES)));
typedef uint64_t vul __attribute__((vector_size(DK_VECTOR_BYTES)));
typedef float vf_half __attribute__((vector_size(DK_VECTOR_BYTES / 2)));

static inline vf vf_load(const float *p)
{
	vf x;

	memcpy(&x, p, sizeof(x));
	return x;
}

/* Returns half a vector of floats as doubles. gcc 12 takes __builtin_convertvector() of half a vector apart. */
static inline vd vd_load_floats(const float *p)
{
#if DK_VECTOR_BYTES == 64
	return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif DK_VECTOR_BYTES == 32
	return (vd)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
	vf_half part;

	memcpy(&part, p, sizeof(part));
	return __builtin_convertvector(part, vd);
#endif
}

static inline void vf_store(float *p, vf x)
{
	memcpy(p, &x, sizeof(x));
}

/* The first `count` < VF floats; `fill` in the other lanes. */
static inline vf vf_load_part(const float *p, int64_t count, float fill)
{
	vf x = fill - (vf){0};

#if DK_VECTOR_BYTES == 64
	return (vf)_mm512_mask_loadu_ps((__m512)x, (__mmask16)((1 << count) - 1), p);
#else
	memcpy(&x, p, (size_t)count * sizeof(float));
	return x;
#endif
}

static inline void vf_store_part(float *p, int64_t count, vf x)
{
#if DK_VECTOR_BYTES == 64
	_mm512_mask_storeu_ps(p, (__mmask16)((1 << count) - 1), (__m512)x);
#else
	memcpy(p, &x, (size_t)count * sizeof(float));
#endif
}

static inline vf vf_set(float x)
{
	return x - (vf){0};
}

/* a * b + c, rounded once where the hardware can. */
static inline vf vf_fma(vf a, vf b, vf c)
{
#if DK_VECTOR_BYTES == 64
	return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif DK_VECTOR_BYTES == 32
	return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
	return a * b + c;
#endif
}

/* mask lanes are all ones or all zeroes, as comparisons give them. */
static inline vf vf_select(vi mask, vf yes, vf no)
{
	return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* b where either is not a number. */
static inline vf vf_max(vf a, vf b)
{
#if DK_VECTOR_BYTES == 64
	return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif DK_VECTOR_BYTES == 32
	return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
	return vf_select(a > b, a, b);
#endif
}

static inline vf vf_min(vf a, vf b)
{
#if DK_VECTOR_BYTES == 64
	return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif DK_VECTOR_BYTES == 32
	return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
	return vf_select(a < b, a, b);
#endif
}

static inline vi vi_max(vi a, vi b)
{
#if DK_VECTOR_BYTES == 64
	return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif DK_VECTOR_BYTES == 32
	return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
	vi above = a > b;

	return (a & above) | (b & ~above);
#endif
}

/* e^x within 2 ulp for -87 <= x <= 88; held at the ends beyond, so that there
   is neither a denormal nor an infinity. x = n ln 2 + r, and a polynomial
   (Cephes' coefficients) for e^r. NaN stays NaN. */
static inline vf vf_exp(vf x)
{
	const vf magic = vf_set(12582912.0f); /* 1.5 * 2^23: rounds to an integer */

	x = vf_max(vf_set(-87.0f), vf_min(vf_set(88.0f), x));
	vf shifted = vf_fma(x, vf_set(1.44269504088896341f), magic);
	vf n = shifted - magic;
	vf r = vf_fma(n, vf_set(-0.693359375f), x);
	r = vf_fma(n, vf_set(2.12194440e-4f), r);
	vf y = vf_set(1.9875691500e-4f);
	y = vf_fma(y, r, vf_set(1.3981999507e-3f));
	y = vf_fma(y, r, vf_set(8.3334519073e-3f));
	y = vf_fma(y, r, vf_set(4.1665795894e-2f));
	y = vf_fma(y, r, vf_set(1.6666665459e-1f));
	y = vf_fma(y, r, vf_set(5.0000001201e-1f));
	y = vf_fma(y, r * r, r) + 1.0f;
	vi power = ((vi)shifted - (vi)magic + 127) << 23;
	return y * (vf)power;
}

static inline vf vf_sqrt(vf x)
{
#if DK_VECTOR_BYTES == 64
	return (vf)_mm512_sqrt_ps((__m512)x);
#elif DK_VECTOR_BYTES == 32
	return (vf)_mm256_sqrt_ps((__m256)x);
#else
	for (int i = 0; i < VF; i++)
		x[i] = __builtin_sqrtf(x[i]);
	return x;
#endif
}

/* Returns 1 / x within 1 ulp, for 1 <= x <= 2^126. A division of a wide vector takes twice as long. */
static inline vf vf_reciprocal(vf x)
{
#if DK_VECTOR_BYTES == 64
	const vf y = (vf)_mm512_rcp14_ps((__m512)x);

	return vf_fma(y, vf_fma(-x, y, vf_set(1)), y);
#else
	return 1.0f / x;
#endif
}

#if DK_VECTOR_BYTES > 16
/* The second half of a vector. */
static inline __m128 dk_upper(__m256 x)
{
	return _mm256_extractf128_ps(x, 1);
}

#if DK_VECTOR_BYTES == 64
static inline __m256 dk_lower_half(vf x)
{
	return _mm512_castps512_ps256((__m512)x);
}

static inline __m256 dk_upper_half(vf x)
{
	return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)x), 1));
}
#endif
#endif

/* Lanes in pairs of halves: a fixed order. */
static inline float vf_sum(vf x)
{
#if DK_VECTOR_BYTES > 16
#if DK_VECTOR_BYTES == 64
	const __m256 y = _mm256_add_ps(dk_lower_half(x), dk_upper_half(x));
#else
	const __m256 y = (__m256)x;
#endif
	const __m128 four = _mm_add_ps(_mm256_castps256_ps128(y), dk_upper(y));
	const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
	float lanes[VF];

	memcpy(lanes, &x, sizeof(x));
	for (int width = VF / 2; width > 0; width /= 2)
		for (int i = 0; i < width; i++)
			lanes[i] += lanes[i + width];
	return lanes[0];
#endif
}

/* Returns the highest lane; if one is not a number, any lane may be returned. */
static inline float vf_highest(vf x)
{
#if DK_VECTOR_BYTES > 16
#if DK_VECTOR_BYTES == 64
	const __m256 y = _mm256_max_ps(dk_lower_half(x), dk_upper_half(x));
#else
	const __m256 y = (__m256)x;
#endif
	const __m128 four = _mm_max_ps(_mm256_castps256_ps128(y), dk_upper(y));
	const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
	float highest = x[0];

	for (int i = 1; i < VF; i++)
		highest = x[i] > highest ? x[i] : highest;
	return highest;
#endif
}

/* Goes through the vectors of 0 .. n - 1. Each begins at i, and `part` is VF, or what is left. */
#define FOR_VECTORS(i, part, n) \
	for (int64_t i = 0, part; i < (n) && (part = (n) - i < VF ? (n) - i : VF); i += VF)

static inline vf vf_load_some(const float *p, int64_t part)
{
	return part == VF ? vf_load(p) : vf_load_part(p, part, 0);
}

static inline void vf_store_some(float *p, int64_t part, vf x)
{
	if (part == VF)
		vf_store(p, x);
	else
		vf_store_part(p, part, x);
}
