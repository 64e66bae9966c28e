/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions, and other threads' work, that are waited for until a deadline of ddp_now_ns()'s clock. */
#pragma once

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

/* Something that another thread does for us, and that we may cease to wait for:
   the last of the two to let go of it frees what it is part of. */
typedef struct ddp_pending {
	pthread_mutex_t lock;
	pthread_cond_t finished;
	bool done, abandoned;
} ddp_pending;

static inline void ddp_pending_init(ddp_pending *pending)
{
	pthread_mutex_init(&pending->lock, NULL);
	ddp_condition_init(&pending->finished);
	pending->done = pending->abandoned = false;
}

static inline void ddp_pending_destroy(ddp_pending *pending)
{
	pthread_cond_destroy(&pending->finished);
	pthread_mutex_destroy(&pending->lock);
}

/* False at the deadline; the other thread then owns it. */
static inline bool ddp_pending_wait(ddp_pending *pending, uint64_t deadline_ns)
{
	pthread_mutex_lock(&pending->lock);
	while (!pending->done && ddp_condition_wait(&pending->finished, &pending->lock, deadline_ns))
		;
	bool done = pending->done;
	pending->abandoned = !done;
	pthread_mutex_unlock(&pending->lock);
	return done;
}

/* The other thread, when its result is written down. False if nobody waits any
   more, so that it owns what `pending` is part of. */
static inline bool ddp_pending_finish(ddp_pending *pending)
{
	pthread_mutex_lock(&pending->lock);
	pending->done = true;
	bool abandoned = pending->abandoned;
	pthread_cond_signal(&pending->finished);
	pthread_mutex_unlock(&pending->lock);
	return !abandoned;
}
