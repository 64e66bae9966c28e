/* SPDX-License-Identifier: Apache-2.0 */
/* bf16: matrix products of bf16 on the host, summed in f32: by the tiles of AMX or the dot
   products of AVX-512 where the processor has them, else by plain vectors.

   Operands are packed first, so that one form serves all of these, and each element is
   looked up once, however often it is used; but for those that a set takes in place. A *strip*
   is 16 rows of a, or 16 columns of b, over the whole depth (k), in *tiles* of 32 of it, 1 KiB
   each: a's is [16 rows][32], b's [16 pairs][16 columns][2]. What is beyond the edges is zero. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/numbers.h"

enum {
	DK_STRIP = 16,
	DK_DEPTH = 32,
	DK_TILE = DK_STRIP * DK_DEPTH, /* elements */
	DK_BLOCK = 2 * DK_STRIP        /* rows and columns of c that are summed at once */
};

/* One side of a product: element (row, k), where b's columns are its rows. */
typedef struct dk_side {
	const uint16_t *from;
	int64_t ld;
	bool across;         /* (row, k) is from[k * ld + row], else from[row * ld + k] */
	bool pairs;          /* tiles are as b's */
	int64_t rows, depth;
} dk_side;

/* Strips of a side, an even number of them. So many elements lie from one to the next, from a tile
   to the next in depth, and from a row of a tile to the next. */
typedef struct dk_strip_range {
	const uint16_t *first;
	int64_t count, next, tile, row;
} dk_strip_range;

/* The functions that each instruction set has its own version of. */
typedef struct dk_bf16_set {
	const char *name;
	/* block() takes an a that dk_lies_in_strips() where it lies, and a c from far away. Else all that
	   it gets was packed, and c is near. */
	bool in_place;
	/* out [DK_BLOCK, ld], rounded: c [DK_BLOCK, DK_BLOCK] + bias + beta * before. bias and before may
	   be NULL, before may be out. Of sets in place only. */
	void (*narrow)(uint16_t *out, int64_t ld, const float *c, const float *bias, const uint16_t *before,
	               float beta);
	/* Around the calls of block() in a thread. NULL: nothing to do. */
	void (*begin)(void);
	void (*end)(void);
	/* One tile: rows from `row`, depth from `k`. */
	void (*pack)(uint16_t *tile, const dk_side *side, int64_t row, int64_t k);
	/* c [DK_BLOCK, ldc], + if `adds`: two strips of a by two of b, `depth` tiles of each. */
	void (*block)(float *c, int64_t ldc, const dk_strip_range *a, const dk_strip_range *b, int64_t depth,
	              bool adds);
} dk_bf16_set;

/* Sets go from the plain one to the best for this processor. NULL: there are no more. */
const dk_bf16_set *dk_bf16_set_at(int index);
/* The best. */
const dk_bf16_set *dk_bf16(void);

/* Strips of a side: an even number, as block() takes two. */
static inline int64_t dk_strips(int64_t rows)
{
	return dk_ceil_div(rows, DK_BLOCK) * 2;
}

/* Elements of a side when it is packed. */
static inline int64_t dk_packed_size(int64_t rows, int64_t depth)
{
	return dk_strips(rows) * dk_ceil_div(depth, DK_DEPTH) * DK_TILE;
}

/* Strips [first, last) of a side, to `packed`, where its strip 0 begins. */
void dk_pack(const dk_bf16_set *set, uint16_t *packed, const dk_side *side, int64_t first,
             int64_t last);

/* The range of a packed side from strip `strip` and tile `tile` of its depth on. */
static inline dk_strip_range dk_range(const uint16_t *packed, int64_t depth, int64_t strip, int64_t count,
                                      int64_t tile)
{
	const int64_t next = dk_ceil_div(depth, DK_DEPTH) * DK_TILE;

	return (dk_strip_range){packed + strip * next + tile * DK_TILE, count, next, DK_TILE, DK_DEPTH};
}

/* An a whose rows are in one piece each, and whose strips and tiles are whole. */
static inline bool dk_lies_in_strips(const dk_side *side)
{
	return !side->across && !side->pairs && side->rows % DK_BLOCK == 0 && side->depth % DK_DEPTH == 0;
}

/* The range of a side that is read where it lies, from strip `strip` on. */
static inline dk_strip_range dk_range_in_place(const dk_side *side, int64_t strip, int64_t count)
{
	return (dk_strip_range){side->from + strip * DK_STRIP * side->ld, count, DK_STRIP * side->ld, DK_DEPTH,
		side->ld};
}

/* c [.., ldc], + if `adds`: strips of a by strips of b, over `depth` tiles of each. Between
   begin() and end(). */
void dk_multiply(const dk_bf16_set *set, float *c, int64_t ldc, dk_strip_range a, dk_strip_range b,
                 int64_t depth, bool adds);

/* Loops that go through registers. */
#ifdef __clang__
#define DK_UNROLL _Pragma("unroll")
#else
#define DK_UNROLL _Pragma("GCC unroll 16")
#endif

extern const dk_bf16_set dk_bf16_plain;
#ifdef HAVE_AVX512_BF16_KERNELS
extern const dk_bf16_set dk_bf16_avx512;
void dk_pack_avx512(uint16_t *tile, const dk_side *side, int64_t row, int64_t k);
#endif
#ifdef HAVE_AMX_KERNELS
extern const dk_bf16_set dk_bf16_amx;
#endif
