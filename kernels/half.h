/* SPDX-License-Identifier: Apache-2.0 */
/* half: a number of f32 as IEEE's f16, and back, by integers alone: on the host, where not every
   compiler has that type, and in kernels of CUDA, which are tried on the host, too. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define DK_HALF_FUNCTION __device__ inline
#else
#define DK_HALF_FUNCTION static inline
#endif

/* Rounds to the nearest, ties to even. A number that is too large becomes infinite, and a NaN stays one. */
DK_HALF_FUNCTION uint16_t dk_half_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
	if (magnitude > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
	if (magnitude >= 0x477ff000) /* 65520 */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000) { /* subnormal: the addition rounds to its last place */
		memcpy(&x, &magnitude, sizeof(x));
		x += 0.5f;
		memcpy(&bits, &x, sizeof(bits));
		return (uint16_t)(sign | (bits - 0x3f000000));
	}
	return (uint16_t)(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
}

DK_HALF_FUNCTION float dk_half_to_float(uint16_t half)
{
	const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
	uint32_t bits = magnitude << 13;
	float x;

	if (magnitude >= 0x7c00) {
		bits |= 0x7f800000 | (magnitude > 0x7c00 ? 0x400000u : 0);
	} else if (magnitude < 0x400) { /* subnormal; no number of f32 on the way is, which may count as 0 */
		x = (float)magnitude * 0x1p-24f;
		memcpy(&bits, &x, sizeof(bits));
	} else {
		bits += 0x38000000;
	}
	bits |= sign;
	memcpy(&x, &bits, sizeof(x));
	return x;
}
