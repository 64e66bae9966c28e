/* SPDX-License-Identifier: Apache-2.0 */
/* Packing by AVX-512, and products by its dot products of bf16. */
#include <immintrin.h>

#include "cpu/bf16.h"
#include "cpu/numbers.h"
#include "cpu/transpose_avx512.h"

/* Row by row: [rows][pairs]. */
static inline void load_rows(__m512i x[DK_STRIP], const dk_side *side, int64_t row, int64_t k)
{
	const uint16_t *from = side->from + row * side->ld + k;
	const int64_t rows = dk_smaller(side->rows - row, DK_STRIP), depth = dk_smaller(side->depth - k, DK_DEPTH);
	const __mmask32 mask = depth == DK_DEPTH ? ~(__mmask32)0 : ((__mmask32)1 << depth) - 1;

	DK_UNROLL
	for (int i = 0; i < DK_STRIP; i++)
		x[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, from + i * side->ld) : _mm512_setzero_si512();
}

/* Two of the depth at a time: [pairs][rows]. */
static inline void load_pairs(__m512i x[DK_STRIP], const dk_side *side, int64_t row, int64_t k)
{
	const uint16_t *from = side->from + k * side->ld + row;
	const int64_t rows = dk_smaller(side->rows - row, DK_STRIP), depth = dk_smaller(side->depth - k, DK_DEPTH);
	const __mmask16 mask = rows == DK_STRIP ? (__mmask16)~0 : (__mmask16)((1 << rows) - 1);

	DK_UNROLL
	for (int i = 0; i < DK_STRIP; i++) {
		const uint16_t *pair = from + 2 * i * side->ld;
		const __m256i low = 2 * i < depth ? _mm256_maskz_loadu_epi16(mask, pair) : _mm256_setzero_si256();
		const __m256i high = 2 * i + 1 < depth ? _mm256_maskz_loadu_epi16(mask, pair + side->ld)
		                                       : _mm256_setzero_si256();
		x[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(low),
		                       _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
	}
}

void dk_pack_avx512(uint16_t *tile, const dk_side *side, int64_t row, int64_t k)
{
	__m512i x[DK_STRIP];

	if (row >= side->rows) {
		DK_UNROLL
		for (int i = 0; i < DK_STRIP; i++)
			x[i] = _mm512_setzero_si512();
	} else if (side->across) {
		load_pairs(x, side, row, k);
	} else {
		load_rows(x, side, row, k);
	}
	if (side->across != side->pairs)
		dk_transpose_words(x);
	DK_UNROLL
	for (int i = 0; i < DK_STRIP; i++)
		_mm512_storeu_si512(tile + i * DK_DEPTH, x[i]);
}

enum { ROWS = 8 }; /* of c in registers */

/* Rows of one strip, from `a` on, by two strips. What was in c is fetched meanwhile, and added last. */
static inline void rows_block(float *c, int64_t ldc, const uint16_t *a, int64_t row, int64_t tile,
                              const uint16_t *b, int64_t b_next, int64_t depth, bool adds)
{
	__m512 sums[ROWS][2];

	DK_UNROLL
	for (int r = 0; r < ROWS; r++) {
		DK_UNROLL
		for (int j = 0; j < 2; j++) {
			sums[r][j] = _mm512_setzero_ps();
			if (adds)
				__builtin_prefetch(c + r * ldc + j * DK_STRIP, 1);
		}
	}
	for (int64_t d = 0; d < depth; d++, a += tile - DK_DEPTH) {
		for (int p = 0; p < DK_STRIP; p++, a += 2, b += 2 * DK_STRIP) {
			const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
			const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + b_next);
			DK_UNROLL
			for (int r = 0; r < ROWS; r++) {
				int32_t both;
				__builtin_memcpy(&both, a + r * row, sizeof(both));
				const __m512bh x = (__m512bh)_mm512_set1_epi32(both);
				sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, b0);
				sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, b1);
			}
		}
	}
	DK_UNROLL
	for (int r = 0; r < ROWS; r++) {
		DK_UNROLL
		for (int j = 0; j < 2; j++) {
			float *at = c + r * ldc + j * DK_STRIP;
			_mm512_storeu_ps(at, adds ? _mm512_add_ps(_mm512_loadu_ps(at), sums[r][j]) : sums[r][j]);
		}
	}
}

static void block(float *c, int64_t ldc, const dk_strip_range *a, const dk_strip_range *b, int64_t depth,
                  bool adds)
{
	for (int64_t r = 0; r < DK_BLOCK; r += ROWS)
		rows_block(c + r * ldc, ldc, a->first + r / DK_STRIP * a->next + r % DK_STRIP * a->row, a->row, a->tile,
		           b->first, b->next, depth, adds);
}

/* A sum, as to_bf16() of inner.h has it: the processor's own conversion takes subnormal numbers for 0. */
static inline __m256i rounded(__m512 x)
{
	const __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
	const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
	const __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
	const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

	return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(near, 16), nan, high));
}

static void narrow(uint16_t *out, int64_t ld, const float *c, const float *bias, const uint16_t *before,
                   float beta)
{
	for (int64_t i = 0; i < DK_BLOCK * DK_BLOCK; i += DK_STRIP) {
		const int64_t at = i / DK_BLOCK * ld + i % DK_BLOCK;
		__m512 x = _mm512_loadu_ps(c + i);
		if (bias != NULL)
			x = _mm512_add_ps(x, _mm512_loadu_ps(bias + i % DK_BLOCK));
		if (before != NULL) {
			const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(before + at)));
			const __m512 y = _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
			x = _mm512_add_ps(x, _mm512_mul_ps(y, _mm512_set1_ps(beta)));
		}
		_mm256_storeu_si256((void *)(out + at), rounded(x));
	}
}

const dk_bf16_set dk_bf16_avx512 = {
	.name = "avx512_bf16", .in_place = true, .narrow = narrow, .pack = dk_pack_avx512, .block = block,
};
