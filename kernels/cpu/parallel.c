/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for the kernels, by OpenMP. */
#include "kernels.h"

void dk_flush_denormals(void)
{
#if defined(__SSE__)
	enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };
	__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
#elif defined(__aarch64__)
	uint64_t control;
	__asm__ volatile("mrs %0, fpcr" : "=r"(control));
	__asm__ volatile("msr fpcr, %0" : : "r"(control | (uint64_t)1 << 24));
#endif
}

#ifdef _OPENMP
#include <omp.h>

int dk_threads(void)
{
	return omp_in_parallel() ? 1 : omp_get_max_threads();
}

void dk_set_threads(int threads)
{
	omp_set_num_threads(threads < 1 ? 1 : threads);
}

void dk_parallel(int64_t n, int64_t grain, dk_span_fn fn, void *arg)
{
	int64_t grains = (n + grain - 1) / grain;
	int64_t threads = dk_threads();

	if (n <= 0)
		return;
	if (threads > grains)
		threads = grains;
	if (threads == 1) {
		/* A library that fn calls shall not start threads, either. */
		int allowed = omp_get_max_threads();
		omp_set_num_threads(1);
		fn(arg, 0, n);
		omp_set_num_threads(allowed);
		return;
	}
	#pragma omp parallel num_threads((int)threads)
	{
		/* The team may be smaller than asked for. */
		int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
		/* A team of one (OMP_DYNAMIC, OMP_THREAD_LIMIT) does not count as parallel for OpenMP. Without this, fn
		   would start threads that it does not expect. */
		omp_set_num_threads(1);
		int64_t first = grains * me / team * grain;
		int64_t last = grains * (me + 1) / team * grain;
		if (last > n)
			last = n;
		if (first < last)
			fn(arg, first, last);
	}
}
#else
int dk_threads(void)
{
	return 1;
}

void dk_set_threads(int threads)
{
	(void)threads;
}

void dk_parallel(int64_t n, int64_t grain, dk_span_fn fn, void *arg)
{
	(void)grain;
	if (n > 0)
		fn(arg, 0, n);
}
#endif
