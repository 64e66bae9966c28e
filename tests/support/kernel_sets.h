/* SPDX-License-Identifier: Apache-2.0 */
/* support/kernel_sets: the sets of inner loops that the processor has besides the plain one, the best last. */
#pragma once

#include "cpu/inner.h"

/* NULL: there are no more. */
static inline const struct dk_inner *test_inner_at(int index)
{
	const struct dk_inner *sets[3] = { NULL };
	int count = 0;

	(void)count;
#ifdef HAVE_AVX2_KERNELS
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		sets[count++] = &dk_inner_avx2;
#endif
#ifdef HAVE_AVX512_KERNELS
	if (__builtin_cpu_supports("avx512f"))
		sets[count++] = &dk_inner_avx512;
#endif
	return sets[index];
}
