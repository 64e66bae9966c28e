/* SPDX-License-Identifier: Apache-2.0 */
/* comm/ops/kernels for x86-64 with vectors of 64 bytes; chosen at run time, and only
   where they do not slow the core down for a while, as on the first processors that
   had them. There is no use here for the conversions of AVX512_BF16, which take
   subnormal numbers for zero: results must not depend on a node's processor. */
#include "comm/ops/kernels_table.h"

#ifdef __x86_64__
#include <immintrin.h>

#define KERNEL __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2")))
#define KERNEL_TABLE ddp_kernels_avx512
#define KERNEL_NAME "AVX-512"
#define VECTOR_BYTES 64

/* See kernels_template.h and kernels_narrow_template.h. */
#define WIDEN_U16(x) _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(x)))
#define WIDEN_U8(x) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(x)))
#define NARROW_U16(to, x) _mm256_storeu_si256((__m256i *)(void *)(to), _mm512_cvtepi32_epi16((__m512i)(x)))
#define NARROW_U8(to, x) _mm_storeu_si128((__m128i *)(void *)(to), _mm512_cvtepi32_epi8((__m512i)(x)))
#define WIDEN_F16(x) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(x)))
#define NARROW_F16(x, a) \
	_mm256_storeu_si256((__m256i *)(void *)(x), _mm512_cvtps_ph((__m512)(a), _MM_FROUND_TO_NEAREST_INT))
#define HALVES(low, high) _mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)(low), (__m512i)(high))
#define MIDDLE(a, b) (v_u32)_mm512_shrdi_epi32((__m512i)(a), (__m512i)(b), 16)
#define CUT_NAN(x) \
	_mm512_mask_ternarylogic_epi32((__m512i)(x), _mm512_cmp_ps_mask((__m512)(x), (__m512)(x), _CMP_UNORD_Q), \
	                               _mm512_set1_epi32((int)0xffff0000), _mm512_set1_epi32(0x400000), 0xea)
#define UNWEAVE(x) \
	_mm512_permutexvar_epi16(_mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, \
	                                          30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0), (__m512i)(x))
#define ROUND_UP(x, rest) \
	_mm512_mask_adds_epu16((__m512i)(x), _mm512_cmpgt_epu16_mask((__m512i)(rest), _mm512_set1_epi16((short)0x8000)), \
	                       (__m512i)(x), _mm512_set1_epi16(1))
#define UPPER_PRODUCT(x, factor) _mm512_mulhi_epu16((__m512i)(x), _mm512_set1_epi16((short)(factor)))
#define LEAST(a, b) _mm512_min_epu16((__m512i)(a), (__m512i)(b))
#define MOST(a, b) _mm512_max_epu16((__m512i)(a), (__m512i)(b))
#define TRUNCATE(x) _mm512_roundscale_pd((__m512d)(x), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)
#define PRODUCT(half, y) _mm512_cvttpd_epi32(_mm512_mul_pd(_mm512_cvtepi32_pd(half), _mm512_set1_pd(y)))
#define TIMES_DOUBLE(x, y) \
	_mm512_inserti64x4(_mm512_castsi256_si512(PRODUCT(_mm512_castsi512_si256((__m512i)(x)), y)), \
	                   PRODUCT(_mm512_extracti64x4_epi64((__m512i)(x), 1), y), 1)
#define IS_ZERO(x) (_mm512_test_epi64_mask((__m512i)(x), (__m512i)(x)) == 0)

#include "comm/ops/kernels_template.h"
#else
typedef int ddp_kernels_avx512_is_for_x86_64;
#endif
