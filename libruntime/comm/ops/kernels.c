#include "comm/ops/kernels_table.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <stdatomic.h>

#define KERNEL
#define KERNEL_TABLE ddp_kernels_generic
#include "comm/ops/kernels_template.h"

#ifdef __x86_64__
static bool has_avx2_and_f16c(void)
{
	unsigned int a, b, c = 0, d;

	/* Not every compiler's __builtin_cpu_supports() knows f16c. */
	return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) &&
	       (c & bit_F16C) != 0;
}
#endif

static const ddp_kernel_table *kernels(void)
{
	static _Atomic(const ddp_kernel_table *) chosen;
	const ddp_kernel_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);

	if (table != NULL)
		return table;
	table = &ddp_kernels_generic;
#ifdef __x86_64__
	if (has_avx2_and_f16c())
		table = &ddp_kernels_avx2;
#endif
	atomic_store_explicit(&chosen, table, memory_order_relaxed);
	return table;
}

void ddp_combine(const ddp_combination *c, size_t first, size_t count)
{
	kernels()->combine(c, first, count);
}

void ddp_take(void *dst, void *src, size_t bytes)
{
	kernels()->take(dst, src, bytes);
}
