#include "spank/failure/presence.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "spank/failure/timeline.h"
#include "spank/identity/nodelist.h"

enum { NAMED_MAX = 16, TASKS_MAX = 1 << 24 };

#define NS_PER_MS 1000000ull

bool presence_begin(struct presence *presence, uint32_t tasks, uint64_t now_ns)
{
	presence->task = tasks > 0 && tasks <= TASKS_MAX ? calloc(tasks, sizeof(*presence->task)) : NULL;
	if (presence->task == NULL)
		return false;
	presence->tasks = tasks;
	presence->begin_ns = presence->changed_ns = now_ns;
	return true;
}

void presence_end(struct presence *presence)
{
	for (uint32_t i = 0; i < presence->tasks; i++)
		free(presence->task[i].host);
	free(presence->task);
	*presence = (struct presence){ .task = NULL };
}

void presence_report(struct presence *presence, uint32_t rank)
{
	if (rank >= presence->tasks || presence->task[rank].reported)
		return;
	presence->task[rank].reported = true;
	presence->reports++;
	presence->changed = true;
}

static bool is_host(const char *text)
{
	size_t length = strnlen(text, HOST_NAME_MAX_BYTES);

	for (size_t i = 0; i < length; i++)
		if (!isgraph((unsigned char)text[i]))
			return false;
	return length > 0 && length < HOST_NAME_MAX_BYTES;
}

void presence_start(struct presence *presence, uint32_t rank, const char *host, uint64_t now_ns)
{
	if (rank >= presence->tasks || presence->task[rank].host != NULL || !is_host(host))
		return;
	presence->task[rank].host = strdup(host);
	if (presence->task[rank].host == NULL)
		return;
	presence->started++;
	presence->changed_ns = now_ns;
	presence->changed = presence->grown = true;
}

static int by_name(const void *left, const void *right)
{
	return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Sorted, each name once, of the started tasks that have reported, or of all. */
static char **list_hosts(const struct presence *presence, bool reported, uint32_t *count)
{
	char **hosts = malloc((presence->tasks + 1) * sizeof(*hosts));
	uint32_t all = 0;

	*count = 0;
	for (uint32_t i = 0; hosts != NULL && i < presence->tasks; i++)
		if (presence->task[i].host != NULL && (!reported || presence->task[i].reported))
			hosts[all++] = presence->task[i].host;
	if (all > 0)
		qsort(hosts, all, sizeof(*hosts), by_name);
	for (uint32_t i = 0; i < all; i++)
		if (i == 0 || strcmp(hosts[i], hosts[*count - 1]) != 0)
			hosts[(*count)++] = hosts[i];
	return hosts;
}

/* Counts the nodes, and those that are silent, whose names it adds to the sink, if there is
   one. Without memory nobody is silent. */
static void look(struct presence *presence, struct sink *sink)
{
	uint32_t nodes, there, silent = 0;
	char **all = list_hosts(presence, false, &nodes), **reported = list_hosts(presence, true, &there);

	for (uint32_t i = 0; all != NULL && reported != NULL && i < nodes; i++) {
		if (bsearch(&all[i], reported, there, sizeof(*reported), by_name) != NULL)
			continue;
		silent++;
		if (sink != NULL && silent <= NAMED_MAX)
			sink_add(sink, "%s%s", silent > 1 ? ", " : "", all[i]);
	}
	if (sink != NULL && silent > NAMED_MAX)
		sink_add(sink, " and %u more", silent - NAMED_MAX);
	free(all);
	free(reported);
	presence->nodes = nodes;
	presence->silent = silent;
	presence->changed = presence->grown = false;
}

uint32_t presence_silent(struct presence *presence, bool *any_reported)
{
	if (presence->changed)
		look(presence, NULL);
	*any_reported = presence->silent < presence->nodes;
	return presence->silent;
}

/* Called often: a thousand nodes' reports are to cost no thousand counts. */
static bool is_complete(struct presence *presence)
{
	if (presence->started < presence->tasks)
		return false;
	if (presence->grown || (presence->changed && presence->reports >= presence->nodes))
		look(presence, NULL);
	return presence->reports >= presence->nodes && presence->silent == 0;
}

static uint64_t late_ns(const struct presence *presence)
{
	return presence->changed_ns + (presence->policy.unsure ? UNSURE_MS : SILENT_MS) * NS_PER_MS;
}

uint64_t presence_due(struct presence *presence, uint64_t now_ns)
{
	uint64_t age_ns = now_ns - presence->begin_ns;

	if (presence->tasks == 0 || presence->said || is_complete(presence))
		return UINT64_MAX;
	/* A short step's nodes are to be known before it ends. */
	if (age_ns < 500 * NS_PER_MS)
		return now_ns + 5 * NS_PER_MS;
	return now_ns + (age_ns < 10000 * NS_PER_MS ? 100 : 1000) * NS_PER_MS;
}

bool presence_is_late(struct presence *presence, uint64_t now_ns)
{
	bool any;

	if (presence->tasks == 0 || presence->said || now_ns < late_ns(presence) ||
	    presence_silent(presence, &any) == 0)
		return false;
	presence->said = true;
	return true;
}

void presence_describe(struct presence *presence, enum presence_state state, struct sink *sink)
{
	const char *where;

	sink_add(sink, "no report from ");
	look(presence, sink);
	where = presence->silent == 1 ? "this node" : "these nodes";
	sink_add(sink, " (%u of %u nodes): ", presence->silent, presence->nodes);
	/* Nothing but the plugin ends a task of a dry run well. */
	if (presence->policy.check && state == PRESENCE_SUCCEEDED) {
		sink_add(sink, "the plugin on %s is older than srun's", where);
		return;
	}
	sink_add(sink, "the plugin is absent on %s, or older than srun's", where);
	if (state == PRESENCE_RUNS && presence->policy.unsure)
		sink_add(sink, ", or a plugin before it in plugstack.conf still prepares the tasks");
	sink_add(sink, "; install and enable it there");
	if (presence->policy.refuse && !presence->policy.check && presence->silent < presence->nodes)
		sink_add(sink, " (absent=warn in the plugin's line lets such steps run)");
}
