/* SPDX-License-Identifier: Apache-2.0 */
/* Time for deadlines and measurements: monotonic, in nanoseconds. */
#pragma once

#include <stdint.h>
#include <time.h>

#define NS_PER_MS 1000000ull

static inline uint64_t ddp_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The same clock to some milliseconds, at a fifth of the price. */
static inline uint64_t ddp_coarse_ns(void)
{
	struct timespec now;

#ifdef CLOCK_MONOTONIC_COARSE
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
	clock_gettime(CLOCK_MONOTONIC, &now);
#endif
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A deadline. */
static inline uint64_t ddp_ms_from_now(int ms)
{
	return ddp_now_ns() + (uint64_t)ms * 1000000u;
}

static inline double ddp_seconds_since(uint64_t start_ns)
{
	return (double)(ddp_now_ns() - start_ns) * 1e-9;
}
