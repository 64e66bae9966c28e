/* SPDX-License-Identifier: Apache-2.0 */
/* transpose_avx512: what packs operands for products by AVX-512 transposes in registers. */
#pragma once

#include <immintrin.h>

#include "cpu/bf16.h"

/* Transposes 16 lines of 16 elements of 32 bits. */
static inline void dk_transpose_words(__m512i x[16])
{
	__m512i y[16];

	DK_UNROLL
	for (int i = 0; i < 16; i += 2) {
		y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
		y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
	}
	DK_UNROLL
	for (int i = 0; i < 16; i += 4) {
		x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
		x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
		x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
		x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
	}
	DK_UNROLL
	for (int i = 0; i < 4; i++) {
		y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
		y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
		y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
		y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
	}
	DK_UNROLL
	for (int i = 0; i < 4; i++) {
		x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
		x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
		x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
		x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
	}
}
