/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/ops/kernels_table.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <stdatomic.h>

#define KERNEL
#define KERNEL_TABLE ddp_kernels_generic
#define KERNEL_NAME "generic"
#define VECTOR_BYTES 32
#include "comm/ops/kernels_template.h"

#ifdef __x86_64__
static bool has_avx2_and_f16c(void)
{
	unsigned int a, b, c = 0, d;

	/* Not every compiler's __builtin_cpu_supports() knows f16c. */
	return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) &&
	       (c & bit_F16C) != 0;
}

/* VBMI2 came with the processors that keep their clock. */
static bool has_fast_avx512(void)
{
	return has_avx2_and_f16c() && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512vbmi2");
}

#ifdef DDP_HAS_KERNELS_AVX512FP16
static bool has_avx512fp16(void)
{
	enum { FP16_OF_EDX = 1 << 23 };
	unsigned int a, b, c, d = 0;

	return has_fast_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & FP16_OF_EDX) != 0;
}
#endif
#endif

static _Atomic(const ddp_kernel_table *) chosen;

static const ddp_kernel_table *kernels_of(int level)
{
	if (level == 0)
		return &ddp_kernels_generic;
#ifdef __x86_64__
	if (level == 1 && has_avx2_and_f16c())
		return &ddp_kernels_avx2;
	if (level == 2 && has_fast_avx512())
		return &ddp_kernels_avx512;
#ifdef DDP_HAS_KERNELS_AVX512FP16
	if (level == 3 && has_avx512fp16())
		return &ddp_kernels_avx512fp16;
#endif
#endif
	return NULL;
}

const char *ddp_kernels_use(int level)
{
	const ddp_kernel_table *table = kernels_of(level);

	if (table == NULL)
		return NULL;
	atomic_store_explicit(&chosen, table, memory_order_relaxed);
	return table->name;
}

static const ddp_kernel_table *kernels(void)
{
	const ddp_kernel_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);

	if (table != NULL)
		return table;
	for (int level = DDP_KERNEL_LEVELS - 1; table == NULL; level--)
		table = kernels_of(level);
	atomic_store_explicit(&chosen, table, memory_order_relaxed);
	return table;
}

const char *ddp_kernels_name(void)
{
	return kernels()->name;
}

void ddp_combine(const ddp_combination *c, size_t first, size_t count)
{
	kernels()->combine(c, first, count);
}

void ddp_take(void *dst, void *src, size_t bytes)
{
	kernels()->take(dst, src, bytes);
}
