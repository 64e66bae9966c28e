/* Conditions that are waited for until a deadline of ddp_now_ns()'s clock. */
#ifndef DDP_BASE_WAIT_H
#define DDP_BASE_WAIT_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

static inline void ddp_condition_init(pthread_cond_t *condition)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(condition, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

/* False at the deadline. */
static inline bool ddp_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                      uint64_t deadline_ns)
{
	const struct timespec deadline = {
		.tv_sec = (time_t)(deadline_ns / 1000000000u),
		.tv_nsec = (long)(deadline_ns % 1000000000u),
	};

	return pthread_cond_timedwait(condition, lock, &deadline) != ETIMEDOUT;
}

#endif
