/* SPDX-License-Identifier: Apache-2.0 */
/* comm/ops/kernels for x86-64 with AVX2 and F16C; chosen at run time. */
#include "comm/ops/kernels_table.h"

#ifdef __x86_64__
#include <immintrin.h>

#define KERNEL __attribute__((target("avx2,f16c")))
#define KERNEL_TABLE ddp_kernels_avx2
#define KERNEL_NAME "AVX2"
#define VECTOR_BYTES 32

/* See kernels_template.h and kernels_narrow_template.h. */
#define WIDEN_U16(x) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(x)))
#define WIDEN_U8(x) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(x)))
#define NARROW_U16(to, x) \
	_mm_storeu_si128((__m128i *)(void *)(to), \
	                 _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)(x), (__m256i)(x)), 8)))
#define NARROW_U8(to, x) do { \
	const __m256i bytes = _mm256_and_si256((__m256i)(x), _mm256_set1_epi32(0xff)); \
	const __m256i pairs = _mm256_packus_epi32(bytes, bytes), fours = _mm256_packus_epi16(pairs, pairs); \
	_mm_storel_epi64((__m128i *)(void *)(to), \
	                 _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1))); \
} while (0)
#define WIDEN_F16(x) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x)))
#define NARROW_F16(x, a) \
	_mm_storeu_si128((__m128i *)(void *)(x), _mm256_cvtps_ph((__m256)(a), _MM_FROUND_TO_NEAREST_INT))
#define HALVES(low, high) _mm256_blend_epi16((__m256i)(low), (__m256i)(high), 0xaa)
#define MIDDLE(a, b) ((a) >> 16 | (b) << 16)
#define ROUND_UP(x, rest) \
	_mm256_adds_epu16((__m256i)(x), _mm256_srli_epi16(_mm256_avg_epu16((__m256i)(rest), _mm256_set1_epi16(0x7ffe)), 15))
#define UPPER_PRODUCT(x, factor) _mm256_mulhi_epu16((__m256i)(x), _mm256_set1_epi16((short)(factor)))
#define LEAST(a, b) _mm256_min_epu16((__m256i)(a), (__m256i)(b))
#define MOST(a, b) _mm256_max_epu16((__m256i)(a), (__m256i)(b))
#define TRUNCATE(x) _mm256_round_pd((__m256d)(x), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)
#define PRODUCT(half, y) _mm256_cvttpd_epi32(_mm256_mul_pd(_mm256_cvtepi32_pd(half), _mm256_set1_pd(y)))
#define TIMES_DOUBLE(x, y) \
	_mm256_set_m128i(PRODUCT(_mm256_extracti128_si256((__m256i)(x), 1), y), \
	                 PRODUCT(_mm256_castsi256_si128((__m256i)(x)), y))
#define IS_ZERO(x) _mm256_testz_si256((__m256i)(x), (__m256i)(x))

#include "comm/ops/kernels_template.h"
#else
typedef int ddp_kernels_avx2_is_for_x86_64;
#endif
