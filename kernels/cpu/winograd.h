/* SPDX-License-Identifier: Apache-2.0 */
/* winograd: convolutions with windows of 3 x 3 that move by 1, with 16 products for each 4 places
   instead of 36: F(2 x 2, 3 x 3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural
   Networks", CVPR 2016. A sum goes over the channels alone, and consists of sums of 64, so it is nearer to
   the exact one than a plain sum over window and channels. So is the gradient of a weight, which is a sum over
   all tiles. Larger tiles would save more, and lose digits. A number that is not finite reaches the same places
   as by a plain sum, but as NaN, also if it is infinite.

   A *tile* is 2 x 2 places, which see 4 x 4 numbers of a channel. These, the 9 weights, and the
   tile's gradients each become 16 numbers, of which the n-th are multiplied with each other: they lie
   together in the n-th *plane*. */
#pragma once

#include "kernels.h"

enum {
	DK_PLANES = 16,
	DK_SEEN = 4,      /* numbers along a side that a tile sees */
	DK_TILE_SIDE = 2, /* places */
	DK_TILE_PLACES = DK_TILE_SIDE * DK_TILE_SIDE
};

/* c [rows, across] = a [rows, depth] b [depth, across], + c if `adds`. Element (row, k) of a is
   a[row * a_row + k * a_depth]; b's rows lie one behind the other. */
typedef struct dk_winograd_product {
	float *c;
	int64_t ldc;
	const float *a;
	int64_t a_row, a_depth;
	const float *b;
	int64_t rows, depth;
	bool adds;
} dk_winograd_product;

/* The functions that each instruction set has its own version of. They work on n numbers in a row, a
   multiple of `across`; number i of plane p lies at p * plane + i. */
typedef struct dk_winograd_set {
	const char *name;
	int64_t across;
	/* `from` has the numbers that a tile sees, line by line. */
	void (*see)(float *to, int64_t plane, const float *const from[DK_PLANES], int64_t n);
	/* The gradients of a tile's places. */
	void (*spread)(float *to, int64_t plane, const float *const from[DK_TILE_PLACES], int64_t n);
	/* A tile's places, + bias unless it is NULL. */
	void (*join)(float *const to[DK_TILE_PLACES], const float *from, int64_t plane, const float *bias, int64_t n);
	/* Weights, of which the next of a window is `step` further. */
	void (*weigh)(float *to, int64_t plane, const float *from, int64_t step, int64_t n);
	/* += their gradients. */
	void (*unweigh)(float *to, int64_t step, const float *from, int64_t plane, int64_t n);
	/* to [n, ld_to] = the transpose of from [across, ld_from] */
	void (*transpose)(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t n);
	void (*product)(const dk_winograd_product *p);
} dk_winograd_set;

/* Sets begin with the best for this processor. NULL: there are no more. */
const dk_winograd_set *dk_winograd_set_at(int index);

/* Chooses the set that is to do the convolution; NULL: these functions cannot do it, or are slower. */
const dk_winograd_set *dk_winograd(const dk_window *w, int64_t outputs);

/* These do what the functions of kernels.h do. The numbers of channels and outputs are multiples of set->across. */
size_t dk_winograd_work(const dk_winograd_set *set, const dk_window *w, int64_t outputs);
void dk_winograd_forward(const dk_winograd_set *set, float *out, float *work, const float *in, const float *weight,
                         const float *bias, const dk_window *w, int64_t outputs);
void dk_winograd_backward_params(const dk_winograd_set *set, float *dweight, float *dbias, float *work,
                                 const float *dout, const float *in, const dk_window *w, int64_t outputs);
void dk_winograd_backward_input(const dk_winograd_set *set, float *din, float *work, const float *dout,
                                const float *weight, const dk_window *w, int64_t outputs);

#ifdef HAVE_AVX2_KERNELS
extern const dk_winograd_set dk_winograd_avx2;
#endif
#ifdef HAVE_AVX512_KERNELS
extern const dk_winograd_set dk_winograd_avx512;
#endif
