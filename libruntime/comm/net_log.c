#include "comm/net_log.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include "base/log.h"

static ucs_log_func_rc_t to_log(const char *file, unsigned int line, const char *function,
                                ucs_log_level_t level, const ucs_log_component_config_t *component,
                                const char *message, va_list arguments)
{
	char text[512];

	(void)file;
	(void)line;
	(void)function;
	(void)component;
	if (level > UCS_LOG_LEVEL_WARN)
		return UCS_LOG_FUNC_RC_CONTINUE; /* asked for by UCX_LOG_LEVEL */
	vsnprintf(text, sizeof(text), message, arguments);
	ddp_log(DDP_LOG_DEBUG, "UCX: %s", text);
	return UCS_LOG_FUNC_RC_STOP;
}

static void push(void)
{
	ucs_log_push_handler(to_log);
}

void ddp_net_redirect_log(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, push);
}

/* UCX, when it is loaded, takes over the signals of crashes, to print a backtrace.
   A program that only uses this library has not asked for that, unless by UCX's
   variables. UCX's warning of a signal that it has left alone goes to the log. */
__attribute__((constructor)) static void leave_signals_alone(void)
{
	static const int signals[] = { SIGILL, SIGSEGV, SIGBUS, SIGFPE };

	if (getenv("UCX_ERROR_SIGNALS") != NULL || getenv("UCX_HANDLE_ERRORS") != NULL)
		return;
	ucs_log_push_handler(to_log);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		ucs_debug_disable_signal(signals[i]);
	ucs_log_pop_handler();
}
