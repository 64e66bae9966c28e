/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/report.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

static _Atomic(net_logger) sink;

static void say(int level, unsigned long about, const char *format, va_list arguments)
{
	net_logger logger = atomic_load(&sink);
	char text[1024];

	if (logger == NULL)
		return;
	vsnprintf(text, sizeof(text), format, arguments);
	logger(level, about, "ddpucx", 0, "%s", text);
}

void net_info(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(NET_LOG_INFO, NET_LOG_ABOUT_NET, format, arguments);
	va_end(arguments);
}

void net_warn(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(NET_LOG_WARN, (unsigned long)NET_LOG_ABOUT_ALL, format, arguments);
	va_end(arguments);
}

static void of_libddp(void *user, ddp_log_level level, const char *message)
{
	(void)user;
	if (level <= DDP_LOG_WARN)
		net_warn("NET/ddpucx: %s", message);
	else
		net_info("NET/ddpucx: %s", message);
}

void net_report_to(net_logger logger)
{
	atomic_store(&sink, logger);
	ddp_set_log(of_libddp, NULL, DDP_LOG_DEBUG);
}

net_result net_result_of(ddp_status status)
{
	switch (status) {
	case DDP_OK:
		return NET_SUCCESS;
	case DDP_ERR_STATE:
	case DDP_ERR_INTERNAL:
		return NET_INTERNAL_ERROR;
	case DDP_ERR_INVALID:
	case DDP_ERR_MISMATCH:
	case DDP_ERR_UNSUPPORTED:
		return NET_INVALID_USAGE;
	default:
		return NET_SYSTEM_ERROR;
	}
}

net_result net_report(ddp_status status)
{
	if (status != DDP_OK)
		net_warn("NET/ddpucx: %s", ddp_last_error());
	return net_result_of(status);
}

/* Whether this name is one of those that are joined by `+`. */
static bool has_name(const char *names, const char *name, size_t length)
{
	for (const char *at = names; *at != '\0'; at += strcspn(at, "+"), at += *at == '+') {
		if (strcspn(at, "+") == length && memcmp(at, name, length) == 0)
			return true;
	}
	return false;
}

static void add_name(char *names, size_t bytes, const char *name, size_t length)
{
	const size_t at = strlen(names);

	if (!has_name(names, name, length) && at + 1 + length < bytes)
		snprintf(names + at, bytes - at, "%s%.*s", at > 0 ? "+" : "", (int)length, name);
}

/* UCX from 1.17 on has ucp_ep_query() for this; all versions print a line for each lane:
   "#   lane[0]:  2:tcp/lo.0 md[0] -> ...". */
static void read_lanes(const char *printed, char *names, size_t bytes)
{
	for (const char *at = printed; (at = strstr(at, "lane[")) != NULL;) {
		char name[64];
		at += strlen("lane[");
		if (sscanf(at, "%*d]: %*d:%63[^. \n]", name) == 1)
			add_name(names, bytes, name, strlen(name));
	}
}

void net_transports_of(ucp_ep_h ep, char *text, size_t bytes)
{
	char *printed = NULL;
	size_t length = 0;
	FILE *stream = open_memstream(&printed, &length);

	text[0] = '\0';
	if (stream == NULL)
		return;
	ucp_ep_print_info(ep, stream);
	if (fclose(stream) == 0)
		read_lanes(printed, text, bytes);
	free(printed);
}
