/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 and back, and products of it by plain vectors. */
#include "cpu/inner.h"
#include "cpu/vec.h"

typedef uint32_t vu __attribute__((vector_size(DK_VECTOR_BYTES)));
typedef uint16_t vh __attribute__((vector_size(DK_VECTOR_BYTES / 2)));

/* Rounds to the nearest, ties to even. A NaN whose payload is in the lower half only would become an infinity. */
static inline vh narrow(vf x)
{
	const vu bits = (vu)x;
	const vi nan = (vi)(bits & 0x7fffffffu) > 0x7f800000;
	const vu near = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, kept = bits >> 16 | 0x40u;

	return __builtin_convertvector((near & ~(vu)nan) | (kept & (vu)nan), vh);
}

static inline vf widen(vh x)
{
	return (vf)(__builtin_convertvector(x, vu) << 16);
}

static inline vh load(const uint16_t *p, int64_t count)
{
	vh x = {0};

	memcpy(&x, p, (size_t)count * sizeof(*p));
	return x;
}

static inline void store(uint16_t *p, int64_t count, vh x)
{
	memcpy(p, &x, (size_t)count * sizeof(*p));
}

void DK_NAME(to_bf16)(uint16_t *out, const float *in, int64_t n)
{
	int64_t i = 0;

	for (; i + VF <= n; i += VF)
		store(out + i, VF, narrow(vf_load(in + i)));
	if (i < n)
		store(out + i, n - i, narrow(vf_load_part(in + i, n - i, 0)));
}

void DK_NAME(from_bf16)(float *out, const uint16_t *in, int64_t n)
{
	int64_t i = 0;

	for (; i + VF <= n; i += VF)
		vf_store(out + i, widen(load(in + i, VF)));
	if (i < n)
		vf_store_part(out + i, n - i, widen(load(in + i, n - i)));
}

void DK_NAME(scale_bf16)(uint16_t *x, int64_t n, float factor)
{
	int64_t i = 0;

	for (; i + VF <= n; i += VF)
		store(x + i, VF, narrow(widen(load(x + i, VF)) * factor));
	if (i < n)
		store(x + i, n - i, narrow(widen(load(x + i, n - i)) * factor));
}

enum { ROWS = 4, VECTORS = DK_STRIP / VF };

/* Multiplies so many rows of a strip. */
static inline void rows_tile(float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int64_t depth,
                             bool adds)
{
	vf sums[ROWS][VECTORS];

	DK_UNROLL
	for (int r = 0; r < ROWS; r++)
		DK_UNROLL
		for (int v = 0; v < VECTORS; v++)
			sums[r][v] = adds ? vf_load(c + r * ldc + v * VF) : vf_set(0);
	for (int64_t p = 0; p < depth * DK_STRIP; p++) {
		const uint16_t *pair = a + p / DK_STRIP * DK_TILE + p % DK_STRIP * 2;
		DK_UNROLL
		for (int v = 0; v < VECTORS; v++) {
			vu both;
			memcpy(&both, b + (p * DK_STRIP + v * VF) * 2, sizeof(both));
			const vf low = (vf)(both << 16), high = (vf)(both & 0xffff0000u);
			DK_UNROLL
			for (int r = 0; r < ROWS; r++) {
				const vu x = (uint32_t)pair[r * DK_DEPTH] - (vu){0};
				const vu y = (uint32_t)pair[r * DK_DEPTH + 1] - (vu){0};
				sums[r][v] = vf_fma(high, (vf)(y << 16), vf_fma(low, (vf)(x << 16), sums[r][v]));
			}
		}
	}
	DK_UNROLL
	for (int r = 0; r < ROWS; r++)
		DK_UNROLL
		for (int v = 0; v < VECTORS; v++)
			vf_store(c + r * ldc + v * VF, sums[r][v]);
}

void DK_NAME(bf16_tile)(float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int64_t depth,
                        bool adds)
{
	for (int r = 0; r < DK_STRIP; r += ROWS)
		rows_tile(c + r * ldc, ldc, a + r * DK_DEPTH, b, depth, adds);
}
