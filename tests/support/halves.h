/* SPDX-License-Identifier: Apache-2.0 */
/* halves: 16-bit floats, in plain arithmetic. */
#pragma once

#include <math.h>
#include <stdint.h>

/* Of finite ones: 10 and 15 for IEEE 754's, 7 and 127 for bf16. */
static inline double decode_half(uint16_t bits, int fraction_bits, int bias)
{
	const int exponent = (bits & 0x7fff) >> fraction_bits;
	const double fraction = bits & ((1 << fraction_bits) - 1);
	const double x = exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
		: ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);

	return (bits & 0x8000) != 0 ? -x : x;
}
