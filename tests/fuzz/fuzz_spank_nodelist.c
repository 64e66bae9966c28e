/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Node lists, lists of reserved ports, and the whole derivation of a task's
 * identity from an environment.
 * fuzz-sources: spank/identity/nodelist.c spank/identity/identity.c spank/options/options.c spank/base/text.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spank/identity/identity.h"

enum { HOSTS_SEEN_MAX = 256, VARIABLES_SEEN_MAX = 16 };

struct seen {
	const char *list;
	uint32_t hosts;
	char first[HOST_NAME_MAX_BYTES];
};

static bool see(void *user, const char *host)
{
	struct seen *seen = user;

	if (host[0] == '\0' || strlen(host) >= HOST_NAME_MAX_BYTES || strpbrk(host, "[],/ ") != NULL)
		abort();
	/* What the walk gives, the search finds; a broken list it may give up on. */
	if (seen->list != NULL && !nodelist_has(seen->list, host))
		abort();
	if (seen->hosts == 0)
		strcpy(seen->first, host);
	return ++seen->hosts < HOSTS_SEEN_MAX;
}

static void walk(const char *text)
{
	struct seen seen = { 0 };
	struct error error = { "" };
	char first[HOST_NAME_MAX_BYTES];
	uint32_t count = 0;

	if (nodelist_count(text, &count, &error))
		seen.list = text;
	else if (error.text[0] == '\0')
		abort();
	bool walked = nodelist_walk(text, see, &seen, &error);
	if (!walked && error.text[0] == '\0')
		abort();
	if (walked && seen.list != NULL && seen.hosts < HOSTS_SEEN_MAX && seen.hosts != count)
		abort();
	if (nodelist_first(text, first, &error) != (seen.hosts > 0))
		abort();
	if (seen.hosts > 0 && strcmp(first, seen.first) != 0)
		abort();
}

/* Each line of the text is a variable. */
static void derive(char *text)
{
	char *environment[VARIABLES_SEEN_MAX + 1] = { NULL };
	struct step_facts facts = { .job_id = 1, .node_count = 2, .local_tasks = 1, .total_tasks = 2,
		                    .holds_task_zero = true, .environment = environment };
	struct settings settings;
	struct identity identity;
	struct error error = { "" };
	int count = 0;

	for (char *line = strtok(text, "\n"); line != NULL && count < VARIABLES_SEEN_MAX;
	     line = strtok(NULL, "\n"))
		environment[count++] = line;
	settings_init(&settings);
	if (!identity_derive(&facts, &settings, &identity, &error)) {
		if (error.text[0] == '\0')
			abort();
		return;
	}
	if (identity.rank >= identity.world_size || identity.node_rank >= identity.node_count ||
	    identity.master_port == 0 || identity.master_node[0] == '\0' ||
	    (strcmp(identity.master_node, identity.node_name) == 0) != identity.holds_rank_zero)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	struct error error;
	uint16_t port;

	if (text == NULL)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	walk(text);
	if (port_from_reservation(text, &port, &error) && port == 0)
		abort();
	port_is_ephemeral(29500, "1024 65535", text);
	port_is_ephemeral(29500, text, "");
	derive(text);
	free(text);
	return 0;
}
