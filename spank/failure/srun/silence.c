/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/srun/silence.h"

#include <string.h>
#include <unistd.h>

#include "spank/identity/nodelist.h"

static double seconds_since(uint64_t ns, uint64_t now_ns)
{
	return (double)(now_ns - ns) * 1e-9;
}

void silence_describe(const struct links_node *node, const struct presence *presence, uint64_t now_ns,
                      struct sink *sink)
{
	struct sink ranks;
	char text[256];

	ranks = sink_on(text, sizeof(text));
	sink_add(sink, "node %s", node->opening.node);
	if (presence_add_ranks(presence, node->opening.rank, &ranks))
		sink_add(sink, " (%s)", text);
	sink_add(sink, " has been silent for %.1f s: is its power or network lost? (silence=)",
	         seconds_since(node->heard_ns, now_ns));
}

void silence_describe_all(const struct links *links, uint64_t now_ns, struct sink *sink)
{
	char host[HOST_NAME_MAX_BYTES] = "";
	uint64_t heard_ns = 0;
	uint32_t count = 0;

	for (uint32_t i = 0; i < links->count; i++) {
		const struct links_node *node = links->nodes[i];
		if (!node->open || node->bye || node->lost || node->silent)
			continue;
		count++;
		if (node->heard_ns > heard_ns)
			heard_ns = node->heard_ns;
	}
	if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0')
		strcpy(host, "this host");
	sink_add(sink, "all %u nodes have been silent for %.1f s: is the network of %s, where srun runs, lost? srun waits "
	         "for them", count, seconds_since(heard_ns, now_ns), host);
}

bool silence_is_all_that_is_left(const struct links *links, const struct presence *presence)
{
	uint32_t silent = 0;

	for (uint32_t i = 0; i < links->count; i++) {
		silent += links->nodes[i]->silent && !links->nodes[i]->bye;
		if (!links->nodes[i]->silent && !links->nodes[i]->bye)
			return false;
	}
	return silent > 0 && presence->tasks > 0 && presence->started == presence->tasks &&
	       links->count >= presence->nodes;
}
