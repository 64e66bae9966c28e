/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product: matrix products of f32 on the host by AVX-512. Operands are packed first: a in *tiles* of
 * DK_TILE_ROWS rows, and b in *panels* of DK_PANEL columns. In memory one element of each line of a tile
 * or panel follows the other, then the next ones of the depth (k). Each element of c is summed in the
 * same order, however many threads there are.
 */
#ifndef DK_PRODUCT_H
#define DK_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels.h"

enum {
	DK_TILE_ROWS = 14, /* with DK_PANEL columns they take 28 of the 32 registers */
	DK_PANEL = 32
};

/* Lines of an operand: rows of a, or columns of b. */
typedef struct dk_lines {
	const float *from;
	int64_t ld;
	bool across;          /* element k of a line is from[k * ld + line], else from[line * ld + k] */
	int64_t count, depth;
} dk_lines;

/* One tile by one panel. */
typedef struct dk_piece {
	const float *a, *b;
	int64_t depth;
	float *c;
	int64_t ldc, rows, columns;
	float beta;           /* of what was in c; 0: c is not read */
	const float *next;    /* of b, what is multiplied later: so many lines of the cache are fetched */
	int64_t next_lines;
} dk_piece;

/* c = a b + beta c. False: nothing was done, because the processor has no AVX-512, the product is small,
   or there is no memory. */
bool dk_product(const dk_gemm_args *args);

#ifdef HAVE_AVX512_KERNELS
/* Tiles or panels, one after the other, to `out`. Lines beyond the last are zero in panels, and anything in
   tiles. Behind `out` are DK_PANEL more floats, which may change. */
void dk_pack_tiles_avx512(float *out, const dk_lines *lines);
void dk_pack_panels_avx512(float *out, const dk_lines *lines);
void dk_multiply_avx512(const dk_piece *p);
#endif

#endif
