#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/c_locale.h"
#include "base/signals.h"

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

void ddp_log(ddp_log_level level, const char *format, ...)
{
	char message[1024];
	va_list arguments;

	if ((int)level > atomic_load(&sink.level))
		return;
	va_start(arguments, format);
	ddp_format_list(message, sizeof(message), format, arguments);
	va_end(arguments);

	pthread_mutex_lock(&sink.lock);
	ddp_log_fn fn = sink.fn;
	void *user = sink.user;
	pthread_mutex_unlock(&sink.lock);
	if (fn != NULL)
		fn(user, level, message);
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
