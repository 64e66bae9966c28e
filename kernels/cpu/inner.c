/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/inner.h"

const struct dk_inner *dk_inner(void)
{
#ifdef HAVE_AVX512_KERNELS
	if (__builtin_cpu_supports("avx512f"))
		return &dk_inner_avx512;
#endif
#ifdef HAVE_AVX2_KERNELS
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return &dk_inner_avx2;
#endif
	return &dk_inner_base;
}
