/* SPDX-License-Identifier: Apache-2.0 */
/* splitmix: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the same numbers on every machine,
   and in kernels of CUDA. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define DK_SPLITMIX_FUNCTION __device__ inline
#else
#define DK_SPLITMIX_FUNCTION static inline
#endif

#define DK_SPLITMIX_STEP UINT64_C(0x9e3779b97f4a7c15)

/* The number of a state. */
DK_SPLITMIX_FUNCTION uint64_t dk_splitmix(uint64_t state)
{
	state = (state ^ state >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	state = (state ^ state >> 27) * UINT64_C(0x94d049bb133111eb);
	return state ^ state >> 31;
}

/* The next number of a stream, by its state. */
DK_SPLITMIX_FUNCTION uint64_t dk_splitmix_next(uint64_t *state)
{
	return dk_splitmix(*state += DK_SPLITMIX_STEP);
}

/* Returns where the numbers of a row of the stream begin (dk_random_rows() of kernels.h). */
DK_SPLITMIX_FUNCTION uint64_t dk_random_row(uint64_t stream, int64_t row)
{
	const uint64_t of_stream = dk_splitmix(stream + DK_SPLITMIX_STEP);

	return dk_splitmix(of_stream + (uint64_t)row + DK_SPLITMIX_STEP);
}

/* A sum of four uniform numbers: no function of a library, whose bits may be another's. */
DK_SPLITMIX_FUNCTION float dk_random_at(uint64_t row, int64_t column)
{
	const uint64_t x = dk_splitmix(row + (uint64_t)column + DK_SPLITMIX_STEP);
	const int64_t sum = (int64_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));

	return (float)(sum - 2 * 0xffff) * (1.0f / 0x10000); /* exact */
}
