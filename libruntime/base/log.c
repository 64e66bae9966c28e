/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/signals.h"

enum { MESSAGE_BYTES = 1024 };

static struct {
	pthread_mutex_t lock;
	ddp_log_fn fn;
	void *user;
	atomic_int level; /* read without the lock: most messages are dropped */
} sink = { .lock = PTHREAD_MUTEX_INITIALIZER };

void ddp_set_log(ddp_log_fn fn, void *user, ddp_log_level level)
{
	pthread_mutex_lock(&sink.lock);
	sink.fn = fn;
	sink.user = user;
	atomic_store(&sink.level, fn != NULL ? (int)level : 0);
	pthread_mutex_unlock(&sink.lock);
}

static bool is_wanted(ddp_log_level level)
{
	return (int)level <= atomic_load(&sink.level);
}

static void say(ddp_log_level level, const char *message)
{
	pthread_mutex_lock(&sink.lock);
	ddp_log_fn fn = sink.fn;
	void *user = sink.user;
	pthread_mutex_unlock(&sink.lock);
	if (fn != NULL)
		fn(user, level, message);
}

void ddp_log(ddp_log_level level, const char *format, ...)
{
	char message[MESSAGE_BYTES];
	va_list arguments;

	if (!is_wanted(level))
		return;
	va_start(arguments, format);
	ddp_format_list(message, sizeof(message), format, arguments);
	va_end(arguments);
	say(level, message);
}

/* Whether a message is logged now; if not, it is counted. */
static bool passes(ddp_log_limit *limit)
{
	const uint64_t now = ddp_now_ns();
	uint64_t next = atomic_load(&limit->next_ns);

	/* One of several threads gets the place of this second. */
	if (now >= next && atomic_compare_exchange_strong(&limit->next_ns, &next, now + 1000000000u)) {
		atomic_fetch_add(&limit->logged, 1);
		return true;
	}
	if (atomic_load(&limit->logged) < DDP_LOG_UNLIMITED &&
	    atomic_fetch_add(&limit->logged, 1) < DDP_LOG_UNLIMITED)
		return true;
	atomic_fetch_add(&limit->left_out, 1);
	return false;
}

void ddp_log_limited(ddp_log_limit *limit, ddp_log_level level, const char *format, ...)
{
	char message[MESSAGE_BYTES];
	va_list arguments;

	if (!is_wanted(level) || !passes(limit))
		return;
	va_start(arguments, format);
	ddp_format_list(message, sizeof(message), format, arguments);
	va_end(arguments);
	const unsigned left_out = atomic_exchange(&limit->left_out, 0);
	const size_t used = strlen(message);
	if (left_out > 0)
		ddp_format(message + used, sizeof(message) - used, " (%u messages like this one were left out before it)",
		           left_out);
	say(level, message);
}

void ddp_log_limit_end(ddp_log_limit *limit, ddp_log_level level, const char *what)
{
	const unsigned left_out = atomic_exchange(&limit->left_out, 0);

	if (left_out > 0)
		ddp_log(level, "%s: %u more messages like the last one were left out", what, left_out);
}

void ddp_log_stderr(void *user, ddp_log_level level, const char *message)
{
	(void)user;
	(void)level;
	ddp_held_signals held;

	/* Where nobody reads stderr, the program is not to die of a message. */
	ddp_signals_hold(&held);
	fprintf(stderr, "ddp: %s\n", message);
	ddp_signals_release(&held);
}
