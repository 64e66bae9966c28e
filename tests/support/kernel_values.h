/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_values: numbers to try kernels with, and on how many threads. Include
   cmocka.h before. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "tests/support/test.h"

#if defined(__SANITIZE_THREAD__)
#define MANY_THREADS 1 /* OpenMP's runtime is not instrumented */
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MANY_THREADS 1
#endif
#endif
#ifndef MANY_THREADS
#define MANY_THREADS 3
#endif

/* Where no two numbers need be equal on all machines, but on all runs. */
static uint64_t random_state;

static inline double uniform(void)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (double)(random_state >> 11) * 0x1p-53 * 2 - 1;
}

static inline void *make(size_t count, size_t size)
{
	void *p = calloc(count + 1, size);

	assert_non_null(p);
	return p;
}
