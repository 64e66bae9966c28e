/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/log.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include "base/log.h"

static _Thread_local int calls;  /* of UCX that this thread is in, for libddp */
static _Thread_local char reason[160]; /* the last error that UCX told for libddp in this block */
static atomic_int helper_thread; /* of UCX, started for libddp; 0: none */

static bool is_for_libddp(void)
{
	return calls > 0 || (int)syscall(SYS_gettid) == atomic_load(&helper_thread);
}

static ucs_log_func_rc_t to_log(const char *file, unsigned int line, const char *function,
                                ucs_log_level_t level, const ucs_log_component_config_t *component,
                                const char *message, va_list arguments)
{
	/* An attacker who connects to UCX's sockets causes some of them. */
	static ddp_log_limit limit;
	char text[512];

	(void)file;
	(void)line;
	(void)function;
	(void)component;
	/* The user asked by UCX_LOG_LEVEL for what is no warning. And UCX has nobody but the
	   user to tell why it ends the process. */
	if (level > UCS_LOG_LEVEL_WARN || level == UCS_LOG_LEVEL_FATAL || !is_for_libddp())
		return UCS_LOG_FUNC_RC_CONTINUE;
	vsnprintf(text, sizeof(text), message, arguments);
	if (level <= UCS_LOG_LEVEL_ERROR)
		snprintf(reason, sizeof(reason), "%.*s", (int)sizeof(reason) - 1, text);
	ddp_log_limited(&limit, DDP_LOG_DEBUG, "UCX: %s", text);
	return UCS_LOG_FUNC_RC_STOP;
}

static void push(void)
{
	ucs_log_push_handler(to_log);
}

int ddp_ucx_log_enter(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, push);
	if (calls == 0)
		reason[0] = '\0';
	return ++calls;
}

const char *ddp_ucx_log_reason(void)
{
	return reason;
}

void ddp_ucx_log_leave(const int *ignored)
{
	(void)ignored;
	calls--;
}

const char *ddp_ucx_choice(char *text, size_t bytes)
{
	static const char *const variables[] = { "UCX_NET_DEVICES", "UCX_TLS" };
	size_t used = 0;

	text[0] = '\0';
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		const char *value = getenv(variables[i]);
		if (value != NULL && used < bytes)
			used += (size_t)snprintf(text + used, bytes - used, "%s%s=%.80s", used > 0 ? " and " :
			                         "; the environment sets ", variables[i], value);
	}
	if (used > 0 && used < bytes)
		snprintf(text + used, bytes - used, ": has each node that? ucx_info -d lists what a node has");
	return text;
}

/* ---- UCX's own thread ------------------------------------------------------------------- */

void ddp_ucx_log_list_threads(ddp_threads *threads)
{
	DIR *tasks = opendir("/proc/self/task");
	const struct dirent *entry;

	*threads = (ddp_threads){ .count = 0 };
	while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
		int *ids = realloc(threads->ids, ((size_t)threads->count + 1) * sizeof(*ids));
		if (ids == NULL)
			break;
		threads->ids = ids;
		threads->ids[threads->count++] = atoi(entry->d_name); /* 0 is "." and ".." */
	}
	if (tasks != NULL)
		closedir(tasks);
}

static bool has_thread(const ddp_threads *threads, int id)
{
	for (int i = 0; i < threads->count; i++) {
		if (threads->ids[i] == id)
			return true;
	}
	return false;
}

/* Others that begin at the same time are the program's, or a sanitizer's. */
static bool is_named_as_ucx_does(int id)
{
	char path[48], name[16] = "";

	snprintf(path, sizeof(path), "/proc/self/task/%d/comm", id);
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return false;
	bool read = fgets(name, sizeof(name), file) != NULL;
	fclose(file);
	return read && strcmp(name, "async\n") == 0;
}

void ddp_ucx_log_claim_thread(ddp_threads *before)
{
	ddp_threads now;
	int found = 0, id = 0;

	ddp_ucx_log_list_threads(&now);
	for (int i = 0; i < now.count; i++) {
		if (!has_thread(before, now.ids[i]) && is_named_as_ucx_does(now.ids[i])) {
			found++;
			id = now.ids[i];
		}
	}
	if (found == 1 && before->count > 0)
		atomic_store(&helper_thread, id);
	free(before->ids);
	free(now.ids);
}

/* ---- signals ------------------------------------------------------------------------------ */

static bool is_handled_by_ucx(int signal)
{
	struct sigaction action;
	Dl_info owner;
	void *handler;

	if (sigaction(signal, NULL, &action) != 0)
		return false;
	memcpy(&handler, &action.sa_sigaction, sizeof(handler));
	return handler != NULL && dladdr(handler, &owner) != 0 && owner.dli_fname != NULL &&
	       strstr(owner.dli_fname, "libucs") != NULL;
}

/* UCX, when it is loaded, takes over the signals of crashes, to print a backtrace. A program that only uses this
   library has not asked for that, unless by UCX's variables. What the program has set since then stays. */
__attribute__((constructor)) static void leave_signals_alone(void)
{
	static const int signals[] = { SIGILL, SIGSEGV, SIGBUS, SIGFPE };

	if (getenv("UCX_ERROR_SIGNALS") != NULL || getenv("UCX_HANDLE_ERRORS") != NULL)
		return;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		if (is_handled_by_ucx(signals[i]))
			ucs_debug_disable_signal(signals[i]);
	}
}
