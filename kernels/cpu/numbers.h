/* SPDX-License-Identifier: Apache-2.0 */
/* numbers: arithmetic of whole numbers, by which kernels cut their work. */
#pragma once

#include <stdint.h>

static inline int64_t dk_smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t dk_larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static inline int64_t dk_ceil_div(int64_t n, int64_t by)
{
	return (n + by - 1) / by;
}

static inline int64_t dk_round_up(int64_t n, int64_t to)
{
	return dk_ceil_div(n, to) * to;
}
