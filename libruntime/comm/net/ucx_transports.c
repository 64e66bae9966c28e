/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_transports.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>


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

void ddp_ucx_transports(ucp_ep_h ep, char *text, size_t bytes)
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
