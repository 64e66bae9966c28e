/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of Winograd's convolution, compiled once per instruction set: files.mk says for which. The compiler's own
   macros do not tell, because flags such as -march=native may allow more than the set has. */
#include <immintrin.h>
#include <string.h>

#include "cpu/bf16.h"
#include "cpu/numbers.h"
#include "cpu/winograd.h"

#ifdef DK_WINOGRAD_AVX512
#define SET dk_winograd_avx512
#define NAME "AVX-512"
enum { LANES = 16, VECTORS = 4 /* in a row of a product's block */ };
typedef float vec __attribute__((vector_size(64)));
#else
#define SET dk_winograd_avx2
#define NAME "AVX2"
enum { LANES = 8, VECTORS = 2 };
typedef float vec __attribute__((vector_size(32)));
#endif

/* A block's sums, the row of b and what is multiplied with that row fill the registers. */
enum { ACROSS = VECTORS * LANES, BLOCK_ROWS = 6 };

static inline vec load(const float *p)
{
	vec x;

	memcpy(&x, p, sizeof(x));
	return x;
}

static inline void store(float *p, vec x)
{
	memcpy(p, &x, sizeof(x));
}

static inline vec each(float x)
{
#ifdef DK_WINOGRAD_AVX512
	return (vec)_mm512_set1_ps(x);
#else
	return (vec)_mm256_set1_ps(x);
#endif
}

static inline vec multiply_add(vec a, vec b, vec c)
{
#ifdef DK_WINOGRAD_AVX512
	return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
	return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
}

/* ---- into planes and back ------------------------------------------------------------- */

static void see(float *to, int64_t plane, const float *const from[DK_PLANES], int64_t n)
{
	for (int64_t i = 0; i < n; i += LANES) {
		vec lines[DK_SEEN][DK_SEEN];
		DK_UNROLL
		for (int x = 0; x < DK_SEEN; x++) {
			const vec a = load(from[x] + i), b = load(from[4 + x] + i), c = load(from[8 + x] + i), d = load(from[12 + x] + i);
			lines[0][x] = a - c;
			lines[1][x] = b + c;
			lines[2][x] = c - b;
			lines[3][x] = b - d;
		}
		DK_UNROLL
		for (int y = 0; y < DK_SEEN; y++) {
			const vec *line = lines[y];
			float *at = to + 4 * y * plane + i;
			store(at, line[0] - line[2]);
			store(at + plane, line[1] + line[2]);
			store(at + 2 * plane, line[2] - line[1]);
			store(at + 3 * plane, line[1] - line[3]);
		}
	}
}

static inline void spread_line(float *to, int64_t plane, vec left, vec right)
{
	store(to, left);
	store(to + plane, left + right);
	store(to + 2 * plane, left - right);
	store(to + 3 * plane, -right);
}

static void spread(float *to, int64_t plane, const float *const from[DK_TILE_PLACES], int64_t n)
{
	for (int64_t i = 0; i < n; i += LANES) {
		const vec a = load(from[0] + i), b = load(from[1] + i), c = load(from[2] + i), d = load(from[3] + i);
		spread_line(to + i, plane, a, b);
		spread_line(to + 4 * plane + i, plane, a + c, b + d);
		spread_line(to + 8 * plane + i, plane, a - c, b - d);
		spread_line(to + 12 * plane + i, plane, -c, -d);
	}
}

static void join(float *const to[DK_TILE_PLACES], const float *from, int64_t plane, const float *bias, int64_t n)
{
	for (int64_t i = 0; i < n; i += LANES) {
		const vec more = bias != NULL ? load(bias + i) : each(0);
		vec upper[DK_SEEN], lower[DK_SEEN];
		DK_UNROLL
		for (int x = 0; x < DK_SEEN; x++) {
			const float *at = from + x * plane + i;
			const vec a = load(at), b = load(at + 4 * plane), c = load(at + 8 * plane), d = load(at + 12 * plane);
			upper[x] = a + (b + c);
			lower[x] = (b - c) - d;
		}
		store(to[0] + i, upper[0] + (upper[1] + upper[2]) + more);
		store(to[1] + i, (upper[1] - upper[2]) - upper[3] + more);
		store(to[2] + i, lower[0] + (lower[1] + lower[2]) + more);
		store(to[3] + i, (lower[1] - lower[2]) - lower[3] + more);
	}
}

static inline void weigh_three(vec to[DK_SEEN], vec a, vec b, vec c)
{
	const vec ends = a + c, half = each(0.5f);

	to[0] = a;
	to[1] = (ends + b) * half;
	to[2] = (ends - b) * half;
	to[3] = c;
}

static void weigh(float *to, int64_t plane, const float *from, int64_t step, int64_t n)
{
	for (int64_t i = 0; i < n; i += LANES) {
		vec columns[3][DK_SEEN];
		DK_UNROLL
		for (int x = 0; x < 3; x++) {
			const float *at = from + x * step + i;
			weigh_three(columns[x], load(at), load(at + 3 * step), load(at + 6 * step));
		}
		DK_UNROLL
		for (int y = 0; y < DK_SEEN; y++) {
			vec line[DK_SEEN];
			weigh_three(line, columns[0][y], columns[1][y], columns[2][y]);
			DK_UNROLL
			for (int x = 0; x < DK_SEEN; x++)
				store(to + (4 * y + x) * plane + i, line[x]);
		}
	}
}

static inline void unweigh_four(vec to[3], vec a, vec b, vec c, vec d)
{
	const vec half = each(0.5f), sum = (b + c) * half;

	to[0] = a + sum;
	to[1] = (b - c) * half;
	to[2] = sum + d;
}

static void unweigh(float *to, int64_t step, const float *from, int64_t plane, int64_t n)
{
	for (int64_t i = 0; i < n; i += LANES) {
		vec columns[DK_SEEN][3];
		DK_UNROLL
		for (int x = 0; x < DK_SEEN; x++) {
			const float *at = from + x * plane + i;
			unweigh_four(columns[x], load(at), load(at + 4 * plane), load(at + 8 * plane), load(at + 12 * plane));
		}
		DK_UNROLL
		for (int y = 0; y < 3; y++) {
			vec line[3];
			unweigh_four(line, columns[0][y], columns[1][y], columns[2][y], columns[3][y]);
			DK_UNROLL
			for (int x = 0; x < 3; x++) {
				float *at = to + (3 * y + x) * step + i;
				store(at, load(at) + line[x]);
			}
		}
	}
}

static void transpose(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t n)
{
	enum { SIDE = 4 };

	for (int64_t i = 0; i < n; i += SIDE)
		for (int k = 0; k < ACROSS; k += SIDE) {
			const float *at = from + k * ld_from + i;
			float *there = to + i * ld_to + k;
			__m128 a = _mm_loadu_ps(at), b = _mm_loadu_ps(at + ld_from), c = _mm_loadu_ps(at + 2 * ld_from),
				d = _mm_loadu_ps(at + 3 * ld_from);
			_MM_TRANSPOSE4_PS(a, b, c, d);
			_mm_storeu_ps(there, a);
			_mm_storeu_ps(there + ld_to, b);
			_mm_storeu_ps(there + 2 * ld_to, c);
			_mm_storeu_ps(there + 3 * ld_to, d);
		}
}

/* ---- products ----------------------------------------------------------------------------- */

/* `rows` is a constant where this is inlined. */
__attribute__((always_inline)) static inline void multiply(const dk_winograd_product *p, int64_t first, int rows)
{
	const float *low = p->a + first * p->a_row, *high = low + 3 * p->a_row, *b = p->b;
	const int64_t row = p->a_row, next = p->a_depth, ldc = p->ldc;
	float *c = p->c + first * p->ldc;
	vec sums[BLOCK_ROWS][VECTORS];

	DK_UNROLL
	for (int r = 0; r < rows; r++)
		DK_UNROLL
		for (int v = 0; v < VECTORS; v++)
			sums[r][v] = each(0);
	for (int64_t k = 0; k < p->depth; k++, low += next, high += next, b += ACROSS) {
		vec line[VECTORS];
		DK_UNROLL
		for (int v = 0; v < VECTORS; v++)
			line[v] = load(b + v * LANES);
		DK_UNROLL
		for (int r = 0; r < rows; r++) {
			const vec x = each(r < 3 ? low[r * row] : high[(r - 3) * row]);
			DK_UNROLL
			for (int v = 0; v < VECTORS; v++)
				sums[r][v] = multiply_add(x, line[v], sums[r][v]);
		}
	}
	DK_UNROLL
	for (int r = 0; r < rows; r++)
		DK_UNROLL
		for (int v = 0; v < VECTORS; v++) {
			float *at = c + r * ldc + v * LANES;
			store(at, p->adds ? load(at) + sums[r][v] : sums[r][v]);
		}
}

static void multiply_rows(const dk_winograd_product *p)
{
	int64_t row = 0;

	for (; row + BLOCK_ROWS <= p->rows; row += BLOCK_ROWS)
		multiply(p, row, BLOCK_ROWS);
	switch (p->rows - row) {
	case 5: multiply(p, row, 5); break;
	case 4: multiply(p, row, 4); break;
	case 3: multiply(p, row, 3); break;
	case 2: multiply(p, row, 2); break;
	case 1: multiply(p, row, 1); break;
	default: break;
	}
}

/* The depth is cut: sums of short sums lose fewer digits than one long sum. */
static void product(const dk_winograd_product *p)
{
	enum { DEPTH = 64 };

	for (int64_t k = 0; k < p->depth; k += DEPTH) {
		dk_winograd_product part = *p;
		part.a += k * p->a_depth;
		part.b += k * ACROSS;
		part.depth = dk_smaller(DEPTH, p->depth - k);
		part.adds = p->adds || k > 0;
		multiply_rows(&part);
	}
}

const dk_winograd_set SET = {
	.name = NAME, .across = ACROSS, .see = see, .spread = spread, .join = join, .weigh = weigh,
	.unweigh = unweigh, .transpose = transpose, .product = product,
};
