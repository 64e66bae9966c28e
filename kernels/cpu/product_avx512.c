/* SPDX-License-Identifier: Apache-2.0 */
/* Packs operands of f32, and multiplies them, by AVX-512. */
#include <immintrin.h>

#include "cpu/numbers.h"
#include "cpu/product.h"
#include "cpu/transpose_avx512.h"

enum { LANES = 16 };

/* The first `count` lanes. */
static inline __mmask16 first_lanes(int64_t count)
{
	return count >= LANES ? (__mmask16)~0 : count <= 0 ? 0 : (__mmask16)((1 << count) - 1);
}

static inline void transpose(__m512 lines[LANES])
{
	__m512i x[LANES];

	DK_UNROLL
	for (int i = 0; i < LANES; i++)
		x[i] = _mm512_castps_si512(lines[i]);
	dk_transpose_words(x);
	DK_UNROLL
	for (int i = 0; i < LANES; i++)
		lines[i] = _mm512_castsi512_ps(x[i]);
}

/* Packs the first 16 of `lines` lines, if there are so many, each of which is in one piece, LANES of their depth at a
   time. From one depth to the next are `width` floats of `out`. If that is less than LANES, the next depth covers what
   is too much. */
static inline void pack_along(float *out, int width, const float *from, int64_t ld, int64_t lines, int64_t depth,
                              const float *factors)
{
	for (int64_t k = 0; k < depth; k += LANES, out += LANES * width, from += LANES) {
		const int64_t deep = dk_smaller(depth - k, LANES);
		const __mmask16 mask = first_lanes(deep);
		const float *at = from;
		__m512 x[LANES];
		DK_UNROLL
		for (int i = 0; i < LANES; i++, at += ld) {
			x[i] = i < lines ? _mm512_maskz_loadu_ps(mask, at) : _mm512_setzero_ps();
			if (factors != NULL && i < lines)
				x[i] = _mm512_mul_ps(x[i], _mm512_set1_ps(factors[i]));
		}
		transpose(x);
		if (deep == LANES) {
			DK_UNROLL
			for (int i = 0; i < LANES; i++)
				_mm512_storeu_ps(out + i * width, x[i]);
		} else {
			for (int i = 0; i < deep; i++)
				_mm512_storeu_ps(out + i * width, x[i]);
		}
	}
}

enum { PART = 4 };

/* Stores PART elements of each line, where x[i] has those of lines i, i + 4, i + 8 and i + 12. */
static inline void store_part(float *out, int width, const __m512 x[PART])
{
	const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
	const __m512d low2 = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
	const __m512d high = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
	const __m512d high2 = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));

	_mm512_storeu_pd(out, _mm512_unpacklo_pd(low, low2));
	_mm512_storeu_pd(out + width, _mm512_unpackhi_pd(low, low2));
	_mm512_storeu_pd(out + 2 * width, _mm512_unpacklo_pd(high, high2));
	_mm512_storeu_pd(out + 3 * width, _mm512_unpackhi_pd(high, high2));
}

/* Packs `full` lines, a constant, as pack_along() does, but without factors. The depth is a multiple of LANES. Loads
   bring parts of lines to their places: to shuffle all in registers takes one and a half times as long. */
static inline __attribute__((always_inline)) void pack_full(float *out, int width, const float *from, int64_t ld,
                                                             int full, int64_t depth)
{
	for (int64_t k = 0; k < depth; k += LANES, out += LANES * width) {
		const float *line = from + k;
		__m512 x[PART][PART];
		DK_UNROLL
		for (int i = 0; i < PART; i++, line += ld) {
			DK_UNROLL
			for (int part = 0; part < PART; part++) {
				const float *at = line + part * PART;
				__m512 y = _mm512_castps128_ps512(_mm_loadu_ps(at));
				y = _mm512_insertf32x4(y, _mm_loadu_ps(at + PART * ld), 1);
				y = _mm512_insertf32x4(y, _mm_loadu_ps(at + 2 * PART * ld), 2);
				if (i + 3 * PART < full)
					y = _mm512_insertf32x4(y, _mm_loadu_ps(at + 3 * PART * ld), 3);
				x[part][i] = y;
			}
		}
		DK_UNROLL
		for (int part = 0; part < PART; part++)
			store_part(out + part * PART * width, width, x[part]);
	}
}

/* Packs the first `most` of `lines` lines, a constant, if there are so many. */
static inline __attribute__((always_inline)) void pack_lines(float *out, int width, const float *from, int64_t ld,
                                                              int64_t lines, int most, int64_t depth,
                                                              const float *factors)
{
	const int64_t even = factors == NULL && lines >= most ? depth / LANES * LANES : 0;

	pack_full(out, width, from, ld, most, even);
	pack_along(out + even * width, width, from + even, ld, lines, depth - even, factors);
}

enum { DEPTH_AT_ONCE = 8 }; /* so many streams the processor follows */

void dk_pack_tiles_avx512(float *out, const dk_lines *lines)
{
	const int64_t depth = lines->depth, ld = lines->ld;

	if (!lines->across) {
		for (int64_t i = 0; i < lines->count; i += DK_TILE_ROWS)
			pack_lines(out + i * depth, DK_TILE_ROWS, lines->from + i * ld, ld,
			           dk_smaller(DK_TILE_ROWS, lines->count - i), DK_TILE_ROWS, depth,
			           lines->factors != NULL ? lines->factors + i : NULL);
		return;
	}
	for (int64_t k = 0; k < depth; k += DEPTH_AT_ONCE) {
		const int64_t deep = dk_smaller(DEPTH_AT_ONCE, depth - k);
		for (int64_t i = 0; i < lines->count; i += DK_TILE_ROWS) {
			const __mmask16 mask = first_lanes(dk_smaller(DK_TILE_ROWS, lines->count - i));
			const float *from = lines->from + k * ld + i;
			float *to = out + i * depth + k * DK_TILE_ROWS;
			for (int64_t d = 0; d < deep; d++, from += ld, to += DK_TILE_ROWS) {
				const __m512 x = _mm512_maskz_loadu_ps(mask, from);
				_mm512_mask_storeu_ps(to, mask, lines->factors == NULL ? x
					: _mm512_mul_ps(x, _mm512_set1_ps(lines->factors[k + d])));
			}
		}
	}
}

static inline void add_sums(float *to, __mmask16 low, __mmask16 high, const __m512 sums[2])
{
	_mm512_mask_storeu_ps(to, low, _mm512_add_ps(_mm512_maskz_loadu_ps(low, to), sums[0]));
	if (high != 0)
		_mm512_mask_storeu_ps(to + LANES, high, _mm512_add_ps(_mm512_maskz_loadu_ps(high, to + LANES), sums[1]));
}

void dk_pack_panels_avx512(float *out, const dk_lines *lines)
{
	const int64_t depth = lines->depth, ld = lines->ld;

	if (!lines->across) {
		for (int64_t i = 0; i < lines->count; i += DK_PANEL) {
			for (int64_t half = 0; half < DK_PANEL; half += LANES)
				pack_lines(out + i * depth + half, DK_PANEL, lines->from + (i + half) * ld, ld,
				           lines->count - i - half, LANES, depth, NULL);
		}
		return;
	}
	for (int64_t k = 0; k < depth; k += DEPTH_AT_ONCE) {
		const int64_t deep = dk_smaller(DEPTH_AT_ONCE, depth - k);
		for (int64_t i = 0; i < lines->count; i += DK_PANEL) {
			const __mmask16 low = first_lanes(lines->count - i), high = first_lanes(lines->count - i - LANES);
			const float *from = lines->from + k * ld + i;
			float *to = out + i * depth + k * DK_PANEL;
			__m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
			for (int64_t d = 0; d < deep; d++, from += ld, to += DK_PANEL) {
				const __m512 x = _mm512_maskz_loadu_ps(low, from);
				const __m512 y = high != 0 ? _mm512_maskz_loadu_ps(high, from + LANES) : _mm512_setzero_ps();
				_mm512_store_ps(to, x);
				_mm512_store_ps(to + LANES, y);
				sums[0] = _mm512_add_ps(sums[0], x);
				sums[1] = _mm512_add_ps(sums[1], y);
			}
			if (lines->sums != NULL)
				add_sums(lines->sums + i, low, high, sums);
		}
	}
}

/* Both add *a times b[] to sum[]. In C the compiler would load *a once, always, and keep more in registers than there
   are. */
static inline void add_loaded_once(__m512 sum[2], const float *a, const __m512 b[2])
{
	__m512 x;

	__asm__("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
	        : "+v"(sum[0]), "+v"(sum[1]), "=&v"(x) : "m"(*a), "v"(b[0]), "v"(b[1]));
}

static inline void add_loaded_twice(__m512 sum[2], const float *a, const __m512 b[2])
{
	__asm__("vfmadd231ps %2%{1to16%}, %3, %0\n\tvfmadd231ps %2%{1to16%}, %4, %1"
	        : "+v"(sum[0]), "+v"(sum[1]) : "m"(*a), "v"(b[0]), "v"(b[1]));
}

/* Adds one element of each row of a times one of each column of b. Next to the multiplications, of which the processor
   begins two in each cycle, it should decode few other instructions, above all where another thread shares its core. So
   the multiplications load the elements of a themselves, each twice. That would be more than two loads in each cycle,
   which are the most that can be: so those of some rows are loaded once. */
static inline __attribute__((always_inline)) void add_products(__m512 sums[DK_TILE_ROWS][2], const float *a,
                                                                const float *b, int rows)
{
	enum { LOADED_ONCE = 2 };
	const __m512 both[2] = {_mm512_load_ps(b), _mm512_load_ps(b + LANES)};

	DK_UNROLL
	for (int r = 0; r < rows; r++) {
		if (r < LOADED_ONCE)
			add_loaded_once(sums[r], a + r, both);
		else
			add_loaded_twice(sums[r], a + r, both);
	}
}

/* `rows` is a constant where this is inlined. */
static inline __attribute__((always_inline)) void multiply(const dk_piece *p, int rows)
{
	enum {
		LINE = 16, DEPTH_PER_LINE = 8,          /* a line of the cache is fetched for each so many of the depth */
		A_STEP = DEPTH_PER_LINE * DK_TILE_ROWS, A_AHEAD = 2 * A_STEP
	};
	const __mmask16 low = first_lanes(p->columns), high = first_lanes(p->columns - LANES);
	const float *a = p->a, *b = p->b, *next = p->next;
	int64_t lines = p->next_lines, depth;
	float *c = p->c;
	__m512 sums[DK_TILE_ROWS][2];

	DK_UNROLL
	for (int r = 0; r < rows; r++) {
		sums[r][0] = sums[r][1] = _mm512_setzero_ps();
		for (int i = 0; i <= DK_PANEL; i += LANES)
			_mm_prefetch((const char *)(c + r * p->ldc + (i < DK_PANEL ? i : i - 1)), _MM_HINT_T1);
		if (p->residual != NULL) {
			_mm_prefetch((const char *)(p->residual + r * p->ldc), _MM_HINT_T1);
			_mm_prefetch((const char *)(p->residual + r * p->ldc + LANES), _MM_HINT_T1);
		}
	}
	for (depth = p->depth; depth >= DEPTH_PER_LINE; depth -= DEPTH_PER_LINE) {
		if (lines-- > 0) {
			_mm_prefetch((const char *)next, _MM_HINT_T1);
			next += LINE;
		}
		DK_UNROLL
		for (int i = 0; i < A_STEP; i += LINE)
			_mm_prefetch((const char *)(a + A_AHEAD + i), _MM_HINT_T0);
		DK_UNROLL
		for (int k = 0; k < DEPTH_PER_LINE; k++)
			add_products(sums, a + k * DK_TILE_ROWS, b + k * DK_PANEL, rows);
		a += A_STEP;
		b += DEPTH_PER_LINE * DK_PANEL;
	}
	for (; depth > 0; depth--, a += DK_TILE_ROWS, b += DK_PANEL)
		add_products(sums, a, b, rows);
	const __m512 beta = _mm512_set1_ps(p->beta);
	const __m512 bias0 = p->bias != NULL ? _mm512_maskz_loadu_ps(low, p->bias) : _mm512_setzero_ps();
	const __m512 bias1 = p->bias != NULL ? _mm512_maskz_loadu_ps(high, p->bias + LANES) : _mm512_setzero_ps();
	const float *residual = p->residual;
	DK_UNROLL
	for (int r = 0; r < rows; r++, c += p->ldc) {
		if (p->beta != 0) {
			sums[r][0] = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(low, c), sums[r][0]);
			sums[r][1] = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(high, c + LANES), sums[r][1]);
		} else if (residual != NULL) {
			sums[r][0] = _mm512_add_ps(sums[r][0], _mm512_add_ps(_mm512_maskz_loadu_ps(low, residual), bias0));
			sums[r][1] = _mm512_add_ps(sums[r][1], _mm512_add_ps(_mm512_maskz_loadu_ps(high, residual + LANES), bias1));
			residual += p->ldc;
		} else if (p->bias != NULL) {
			sums[r][0] = _mm512_add_ps(sums[r][0], bias0);
			sums[r][1] = _mm512_add_ps(sums[r][1], bias1);
		}
		_mm512_mask_storeu_ps(c, low, sums[r][0]);
		_mm512_mask_storeu_ps(c + LANES, high, sums[r][1]);
	}
}

void dk_multiply_avx512(const dk_piece *p)
{
	switch (p->rows) {
	case 1: multiply(p, 1); break;
	case 2: multiply(p, 2); break;
	case 3: multiply(p, 3); break;
	case 4: multiply(p, 4); break;
	case 5: multiply(p, 5); break;
	case 6: multiply(p, 6); break;
	case 7: multiply(p, 7); break;
	case 8: multiply(p, 8); break;
	case 9: multiply(p, 9); break;
	case 10: multiply(p, 10); break;
	case 11: multiply(p, 11); break;
	case 12: multiply(p, 12); break;
	case 13: multiply(p, 13); break;
	default: multiply(p, DK_TILE_ROWS); break;
	}
}
