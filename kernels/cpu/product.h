/* SPDX-License-Identifier: Apache-2.0 */
/* product: matrix products of f32 on the host by AVX-512. Operands are packed first: a in *tiles* of
   DK_TILE_ROWS rows, and b in *panels* of DK_PANEL columns. In memory one element of each line of a tile
   or panel follows the other, then the next ones of the depth (k). Each element of c is summed in the
   same order, however many threads there are. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels.h"

/* Memory in huge pages that kernels work in, and that is kept from one call to the next. */
typedef struct dk_scratch {
	int64_t floats;
	float *x;
} dk_scratch;

/* Calls of one kind share a pool, so that they ask for about as much. A pool begins as zeros. */
enum { DK_SCRATCH_KEPT = 128 };
typedef struct dk_scratch_pool {
	_Atomic(dk_scratch *) kept[DK_SCRATCH_KEPT];
} dk_scratch_pool;

/* At least so many floats, which may be anything. NULL: there is no memory. Any thread may call this at any time. */
dk_scratch *dk_scratch_take(dk_scratch_pool *pool, int64_t floats);
void dk_scratch_give(dk_scratch_pool *pool, dk_scratch *scratch);

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
	float *sums;          /* [count]: each line's sum is added; NULL: it is not. Of panels across only */
	const float *factors; /* NULL: 1. Of tiles only: across, each element k is multiplied by number k of them, else
	                         each line by its number */
} dk_lines;

/* One tile by one panel. */
typedef struct dk_piece {
	const float *a, *b;
	int64_t depth;
	float *c;
	int64_t ldc, rows, columns;
	float beta;           /* of what was in c; 0: c is not read */
	const float *bias;    /* [columns], is added to each row unless it is NULL; then beta is 0 */
	const float *residual; /* rows as c's, are added, too, unless it is NULL; it may be c */
	const float *next;    /* of b, what is multiplied later: so many lines of the cache are fetched */
	int64_t next_lines;
} dk_piece;

/* Rows [row, row + rows) and columns [column, column + columns) of c. */
typedef void dk_part_fn(void *user, int64_t row, int64_t rows, int64_t column, int64_t columns);

/* A product, and what is done on its way, while numbers are in the cache. */
typedef struct dk_product_args {
	dk_gemm_args gemm;
	const float *factors;  /* of a's rows as they are stored: each number is multiplied by its row's; NULL: by 1 */
	const float *bias;     /* [n], is added to each row, or NULL; then gemm.beta is 0, and ldc is n */
	const float *residual; /* [m, n], is added, too, or NULL; it may be c. There is a bias then */
	float *sums;           /* [n]: the sums of b's columns are added, or NULL; b is not transposed then */
	dk_part_fn *done;      /* is called with each part of c that is complete, by the thread that computed it; or NULL */
	bool wide_parts;       /* these parts are as wide as can be; a row of one thread's product is complete with its last
	                          columns. Otherwise they are so narrow that they are near */
	void *user;
} dk_product_args;

/* False: nothing was done, because the processor has no AVX-512, the product is small, or there is no memory. */
bool dk_product(const dk_product_args *args);

/* The same, but without factors, by whatever multiplies here (gemm.c). */
void dk_cpu_product(const dk_product_args *args);

/* Small products of one thread that share operands. dk_pack_panels() packs a b once: panel after panel, of
   DK_PANEL times the depth floats each, to memory that is aligned to 64 bytes. dk_product_by_panels() is
   dk_cpu_gemm() with a b that lies so: `step` is the distance of its panels, of whose depth the first g->k are
   used. It packs a to `tiles`, of DK_TILES_FLOATS(m, k). Both need a processor for which dk_has_panels() is true. */
bool dk_has_panels(void);
void dk_pack_panels(float *panels, const dk_lines *lines);
void dk_product_by_panels(const dk_gemm_args *g, const float *panels, int64_t step, float *tiles);
#define DK_TILES_FLOATS(m, k) (((m) + DK_TILE_ROWS - 1) / DK_TILE_ROWS * DK_TILE_ROWS * (k) + DK_PANEL)

#ifdef HAVE_AVX512_KERNELS
/* Tiles or panels, one after the other, to `out`. Lines beyond the last are zero in panels, and anything in
   tiles. Behind `out` are DK_PANEL more floats, which may change. */
void dk_pack_tiles_avx512(float *out, const dk_lines *lines);
void dk_pack_panels_avx512(float *out, const dk_lines *lines);
void dk_multiply_avx512(const dk_piece *p);
#endif
