/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/presence.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/launch/names.h"
#include "spank/wire/timeline.h"

enum {
	NAMED_MAX = 16,
	NAMED_BYTES_MAX = 400, /* so that the rest of the sentence has room */
	TASKS_MAX = 1 << 24,
	SMALL_TASKS = 1024,    /* a look at so many takes some microseconds */
	LAUNCH_MS = 600000,    /* so long srun waits for the start of all tasks */
};

bool presence_begin(struct presence *presence, uint32_t tasks, uint64_t now_ns)
{
	if (tasks == 0 || tasks > TASKS_MAX)
		return false;
	presence->task = calloc(tasks, sizeof(*presence->task));
	presence->names = calloc(tasks, sizeof(*presence->names));
	if (presence->task == NULL || presence->names == NULL) {
		free(presence->task);
		free(presence->names);
		presence->task = NULL;
		presence->names = NULL;
		return false;
	}
	presence->tasks = tasks;
	presence->begin_ns = presence->changed_ns = now_ns;
	return true;
}

void presence_end(struct presence *presence)
{
	for (uint32_t i = 0; i < presence->tasks; i++)
		free(presence->task[i].host);
	for (uint32_t i = 0; i < presence->name_count; i++)
		free(presence->names[i]);
	free(presence->names);
	free(presence->task);
	*presence = (struct presence){ .task = NULL };
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
	presence->unplaced -= presence->task[rank].reported;
	presence->changed_ns = now_ns;
	presence->changed = presence->grown = true;
}

static int by_name(const void *left, const void *right)
{
	return strcmp(*(char *const *)left, *(char *const *)right);
}

static bool has_name(const struct presence *presence, const char *node)
{
	return bsearch(&node, presence->names, presence->name_count, sizeof(*presence->names), by_name) != NULL;
}

/* True if the name is new. */
static bool add_name(struct presence *presence, const char *node)
{
	uint32_t at = presence->name_count;
	char *copy;

	if (presence->tasks == 0 || at == presence->tasks || !is_host(node) || has_name(presence, node))
		return false;
	copy = strdup(node);
	if (copy == NULL)
		return false;
	for (; at > 0 && strcmp(presence->names[at - 1], node) > 0; at--)
		presence->names[at] = presence->names[at - 1];
	presence->names[at] = copy;
	presence->name_count++;
	return true;
}

static bool add_rank(struct presence *presence, uint32_t rank)
{
	if (rank >= presence->tasks || presence->task[rank].reported)
		return false;
	presence->task[rank].reported = true;
	presence->unplaced += presence->task[rank].host == NULL;
	return true;
}

void presence_report(struct presence *presence, uint32_t rank, const char *node)
{
	bool new_name = add_name(presence, node), new_rank = add_rank(presence, rank);

	if (!new_name && !new_rank)
		return;
	presence->reports++;
	presence->changed = true;
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
static void count_silent(struct presence *presence, struct sink *sink)
{
	uint32_t nodes, there, silent = 0, named = 0;
	char **all = list_hosts(presence, false, &nodes), **reported = list_hosts(presence, true, &there);

	for (uint32_t i = 0; all != NULL && reported != NULL && i < nodes; i++) {
		if (has_name(presence, all[i]) ||
		    bsearch(&all[i], reported, there, sizeof(*reported), by_name) != NULL)
			continue;
		silent++;
		if (sink == NULL || named == NAMED_MAX || sink->used + strlen(all[i]) > NAMED_BYTES_MAX)
			continue;
		sink_add(sink, "%s%s", named > 0 ? ", " : "", all[i]);
		named++;
	}
	if (sink != NULL && silent > named)
		sink_add(sink, " and %u more", silent - named);
	free(all);
	free(reported);
	presence->nodes = nodes;
	presence->silent = silent;
	presence->changed = presence->grown = false;
}

uint32_t presence_silent(struct presence *presence, bool *any_reported)
{
	if (presence->changed)
		count_silent(presence, NULL);
	*any_reported = presence->silent < presence->nodes;
	return presence->unplaced > 0 ? 0 : presence->silent;
}

/* Called often: a thousand nodes' reports are to cost no thousand counts. */
static bool is_complete(struct presence *presence)
{
	if (presence->started < presence->tasks)
		return false;
	if (presence->grown || (presence->changed && presence->reports >= presence->nodes))
		count_silent(presence, NULL);
	return presence->silent == 0;
}

uint64_t presence_untold_until(struct presence *presence, uint64_t asked_ns, uint64_t wait_ns)
{
	bool all_run = presence->started == presence->tasks;

	if (presence->tasks == 0 || presence->said || is_complete(presence))
		return 0;
	return (all_run && presence->changed_ns < asked_ns ? presence->changed_ns : asked_ns) + wait_ns;
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
	if (presence->started == presence->tasks)
		return late_ns(presence) > now_ns ? late_ns(presence) : now_ns + 1000 * NS_PER_MS;
	/* A short step's nodes are to be known before it ends, and it may be launched slowly. */
	if (age_ns < 500 * NS_PER_MS)
		return now_ns + 5 * NS_PER_MS;
	if (presence->tasks <= SMALL_TASKS && age_ns < 60000 * NS_PER_MS)
		return now_ns + 20 * NS_PER_MS;
	return now_ns + (age_ns < 60000 * NS_PER_MS ? 100 : 1000) * NS_PER_MS;
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

/* Nodes of a list that srun has not heard of. */
struct unheard {
	const struct presence *presence;
	uint32_t count, named;
	struct sink *names; /* or NULL */
};

static bool add_unreported(void *user, const char *host)
{
	struct unheard *unheard = user;
	const struct presence *presence = unheard->presence;
	bool heard = has_name(presence, host);

	for (uint32_t i = 0; !heard && i < presence->tasks; i++)
		heard = presence->task[i].host != NULL && strcmp(presence->task[i].host, host) == 0;
	if (heard)
		return true;
	if (unheard->names != NULL && unheard->named == unheard->count &&
	    unheard->names->used + strlen(host) <= NAMED_BYTES_MAX) {
		sink_add(unheard->names, "%s%s", unheard->named > 0 ? "," : "", host);
		unheard->named++;
	}
	unheard->count++;
	return true;
}

uint32_t presence_unstarted(const struct presence *presence, uint32_t nodes, const char *list, struct sink *names)
{
	struct unheard unheard = { .presence = presence };
	uint32_t all;
	struct error ignored;

	if (presence->tasks == 0 || !nodelist_count(list, &all, &ignored) ||
	    !nodelist_walk(list, add_unreported, &unheard, &ignored))
		return 0;
	/* The list may be that of a job, of which the step has some nodes. */
	if (all != nodes)
		return all - unheard.count < nodes ? nodes - (all - unheard.count) : 0;
	unheard = (struct unheard){ .presence = presence, .names = names };
	(void)nodelist_walk(list, add_unreported, &unheard, &ignored);
	if (names != NULL && unheard.named < unheard.count)
		sink_add(names, " and %u more", unheard.count - unheard.named);
	return unheard.count;
}

bool presence_launch_timed_out(const struct presence *presence, uint64_t now_ns)
{
	return presence->started < presence->tasks && now_ns - presence->begin_ns >= LAUNCH_MS * NS_PER_MS;
}

bool presence_has_silent(struct presence *presence, bool succeeded, struct sink *sink, bool *refuse)
{
	bool any_reported;

	if (presence->said || presence_silent(presence, &any_reported) == 0)
		return false;
	presence_describe(presence, succeeded ? PRESENCE_SUCCEEDED : PRESENCE_FAILED, sink);
	*refuse = presence->policy.refuse && !presence->policy.check && any_reported;
	return true;
}

static void add_causes(const struct presence *presence, enum presence_state state, struct sink *sink)
{
	const char *where = presence->silent == 1 ? "this node" : "these nodes";

	/* Nothing but the plugin ends a task of a dry run well. */
	if (presence->policy.check && state == PRESENCE_SUCCEEDED)
		sink_add(sink, "the plugin spank_ddp on %s is older than srun's", where);
	else
		sink_add(sink, PLUGIN_ABSENT_ON "%s, or older than srun's", where);
	if (presence->policy.port != 0)
		sink_add(sink, ", or cannot reach port %u on srun's host (SrunPortRange)", presence->policy.port);
	if (state != PRESENCE_SUCCEEDED && presence->policy.unsure)
		sink_add(sink, ", or a plugin before it in plugstack.conf still prepares the tasks");
}

void presence_describe(struct presence *presence, enum presence_state state, struct sink *sink)
{
	bool refuses = presence->policy.refuse && !presence->policy.check;

	sink_add(sink, "no report from ");
	count_silent(presence, sink);
	sink_add(sink, " (%u of %u nodes): ", presence->silent, presence->nodes);
	add_causes(presence, state, sink);
	sink_add(sink, "; install srun's version of it there, and enable it");
	if (refuses && presence->silent < presence->nodes)
		sink_add(sink, " (absent=warn in the plugin's line allows such steps)");
	else if (state == PRESENCE_RUNS && !presence->policy.check)
		sink_add(sink, ". If a task fails there, nothing ends the step: --ddp overrides KillOnBadExit "
		         "and WaitTime");
}

static bool is_beside(const struct presence *presence, uint32_t rank, uint32_t other)
{
	const char *host = presence->task[rank].host;

	return other < presence->tasks && presence->task[other].host != NULL &&
	       strcmp(presence->task[other].host, host) == 0;
}

bool presence_add_ranks(const struct presence *presence, uint32_t rank, struct sink *sink)
{
	uint32_t ranks = 0, ranges = 0;

	if (rank >= presence->tasks || presence->task[rank].host == NULL)
		return false;
	for (uint32_t i = 0; i < presence->tasks; i++)
		ranks += is_beside(presence, rank, i);
	sink_add(sink, ranks > 1 ? "ranks " : "rank ");
	for (uint32_t first = 0, next; first < presence->tasks; first = next) {
		for (next = first; is_beside(presence, rank, next);)
			next++;
		if (next == first) {
			next++;
			continue;
		}
		if (ranges++ == NAMED_MAX) {
			sink_add(sink, " and others");
			break;
		}
		sink_add(sink, ranges > 1 ? ", %u" : "%u", first);
		if (next - first > 1)
			sink_add(sink, "-%u", next - 1);
	}
	return true;
}

static bool is_named(const struct releases *releases, const char *node)
{
	for (uint32_t i = 0; i < releases->count; i++)
		if (strcmp(releases->named[i].node, node) == 0)
			return true;
	return false;
}

void releases_note(struct releases *releases, const char *own, const char *node, const char *release, size_t bytes)
{
	char name[HOST_NAME_MAX_BYTES] = "", text[RELEASE_BYTES] = "";
	struct sink names = sink_on(name, sizeof(name)), texts = sink_on(text, sizeof(text));

	sink_add_untrusted(&names, node, sizeof(name));
	sink_add_untrusted(&texts, release, bytes);
	if (name[0] == '\0' || text[0] == '\0' || strcmp(text, own) == 0 || is_named(releases, name))
		return;
	releases->more = releases->count == RELEASES_NAMED;
	if (releases->more)
		return;
	memcpy(releases->named[releases->count].node, name, sizeof(name));
	memcpy(releases->named[releases->count].release, text, sizeof(text));
	releases->count++;
}

bool releases_describe(const struct releases *releases, const char *own, struct sink *sink)
{
	if (releases->count == 0)
		return false;
	sink_add(sink, "the plugin spank_ddp is of release %s on srun's host", own);
	for (uint32_t i = 0; i < releases->count; i++)
		sink_add(sink, ", of %s on %s", releases->named[i].release, releases->named[i].node);
	sink_add(sink, "%s: a key of --ddp that one of them does not have is refused",
	         releases->more ? ", and of others on more nodes" : "");
	return true;
}

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

/* The MPIR Process Acquisition Interface lays it out so. */
struct mpir_task {
	char *host;
	char *program;
	int pid; /* 0: not started */
};

enum { TASKS_AT_ONCE = 256, PAGE = 4096 };

/* srun frees the table at its end, on another thread: memory that is gone is an error here,
   not the process's end. */
static bool copy(void *to, const void *from, size_t bytes)
{
	struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

/* As far as the page on which it begins, and on to the next if it has no end there. */
static bool copy_name(char name[HOST_NAME_MAX_BYTES], const char *from)
{
	for (size_t used = 0; used < HOST_NAME_MAX_BYTES;) {
		size_t piece = PAGE - ((uintptr_t)from + used) % PAGE;
		if (piece > HOST_NAME_MAX_BYTES - used)
			piece = HOST_NAME_MAX_BYTES - used;
		if (!copy(name + used, from + used, piece))
			return false;
		for (size_t i = used; i < used + piece; i++)
			if (name[i] == '\0')
				return true;
		used += piece;
	}
	return false;
}

uint32_t presence_tasks_of_table(void)
{
	const int *count = dlsym(RTLD_DEFAULT, "MPIR_proctable_size");

	return count != NULL && *count > 0 ? (uint32_t)*count : 0;
}

void presence_read_table(struct presence *presence, uint64_t now_ns)
{
	struct mpir_task *volatile *table, *tasks, some[TASKS_AT_ONCE];
	char name[HOST_NAME_MAX_BYTES];

	*(void **)&table = dlsym(RTLD_DEFAULT, "MPIR_proctable");
	if (table == NULL || presence->started == presence->tasks || presence_tasks_of_table() != presence->tasks)
		return;
	tasks = *table;
	if (tasks == NULL)
		return;
	for (uint32_t first = 0; first < presence->tasks; first += TASKS_AT_ONCE) {
		uint32_t left = presence->tasks - first, here = left < TASKS_AT_ONCE ? left : TASKS_AT_ONCE;
		if (!copy(some, tasks + first, here * sizeof(some[0])))
			return;
		for (uint32_t i = 0; i < here; i++)
			if (presence->task[first + i].host == NULL && some[i].pid > 0 && some[i].host != NULL &&
			    copy_name(name, some[i].host))
				presence_start(presence, first + i, name, now_ns);
	}
}
