/* SPDX-License-Identifier: Apache-2.0 */
#include "job/nodes.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "job/environment.h"
#include "spank/identity/nodelist.h"

/* ---- what Slurm tells ------------------------------------------------------------------------ */

/* Reads "2(x3),1" into the tasks of each node; their sum, or -1. */
static int64_t read_counts(const char *text, int *counts, int nodes)
{
	int64_t sum = 0;
	int node = 0;

	while (*text != '\0') {
		char *end;
		const long tasks = strtol(text, &end, 10);
		long times = 1;
		if (end == text || tasks < 1 || tasks > 1 << 20)
			return -1;
		if (strncmp(end, "(x", 2) == 0) {
			times = strtol(end + 2, &end, 10);
			if (*end++ != ')')
				return -1;
		}
		if (times < 1 || times > nodes - node || (*end != ',' && *end != '\0'))
			return -1;
		for (; times > 0; times--, node++) {
			counts[node] = (int)tasks;
			sum += tasks;
		}
		text = *end == ',' ? end + 1 : end;
	}
	return node == nodes ? sum : -1;
}

/* Each node gets all its tasks in a row. */
static void deal_blocks(const ddp_nodes *nodes, const int *counts, int *of_rank)
{
	for (int n = 0, r = 0; n < nodes->count; n++)
		for (int i = 0; i < counts[n]; i++)
			of_rank[r++] = n;
}

/* The nodes get a task each, and again, as long as they have room (srun --distribution=cyclic). */
static void deal_round(const ddp_nodes *nodes, const int *counts, int *of_rank)
{
	for (int turn = 0, r = 0; r < nodes->world_size; turn++)
		for (int n = 0; n < nodes->count; n++)
			if (turn < counts[n])
				of_rank[r++] = n;
}

/* Whether this node's tasks, as SLURM_GTIDS lists them, are those that it was dealt. */
static bool is_dealt_so(const ddp_nodes *nodes, const int *of_rank, int own)
{
	const char *text = ddp_environment("SLURM_GTIDS");

	for (char *end; text != NULL && *text != '\0'; text = *end == ',' ? end + 1 : end) {
		const long rank = strtol(text, &end, 10);
		if (end == text || rank < 0 || rank >= nodes->world_size)
			return true; /* not readable: it says nothing */
		if (of_rank[rank] != own)
			return false;
	}
	return true;
}

struct names {
	ddp_nodes *nodes;
	int room;
};

static bool add_name(void *user, const char *host)
{
	struct names *names = user;

	if (names->nodes->count == names->room)
		return false;
	return ddp_copy_text(names->nodes->names[names->nodes->count++], DDP_HOST_MAX, host);
}

static bool read_names(ddp_nodes *nodes)
{
	const char *list = ddp_environment("SLURM_STEP_NODELIST");
	struct error error;
	uint32_t count;

	if (list == NULL || !nodelist_count(list, &count, &error) || count > (uint32_t)nodes->world_size)
		return false;
	nodes->names = calloc(count, sizeof(*nodes->names));
	struct names names = { nodes, (int)count };
	return nodes->names != NULL && nodelist_walk(list, add_name, &names, &error) && nodes->count == (int)count;
}

static bool is_number(const char *name, int64_t wanted)
{
	const char *text = ddp_environment(name);
	int64_t value;

	return text != NULL && ddp_parse_int64(text, 0, INT32_MAX, &value) && value == wanted;
}

/* Keeps the ways of dealing that this node's tasks show, and the likelier one first; false: none. */
static bool choose(ddp_nodes *nodes, int own)
{
	const bool in_blocks = is_dealt_so(nodes, nodes->of_rank, own);
	const bool round = is_dealt_so(nodes, nodes->other, own);

	if (!in_blocks)
		memcpy(nodes->of_rank, nodes->other, (size_t)nodes->world_size * sizeof(*nodes->of_rank));
	if (!in_blocks || !round) {
		free(nodes->other);
		nodes->other = NULL;
	}
	return in_blocks || round;
}

static bool deal(const ddp_job *job, ddp_nodes *nodes)
{
	const char *tasks = ddp_environment("SLURM_STEP_TASKS_PER_NODE");
	const char *node = ddp_environment("SLURM_NODEID");
	int *counts = calloc((size_t)nodes->count, sizeof(*counts));
	int64_t own = 0;

	const bool known = counts != NULL && tasks != NULL && node != NULL && nodes->other != NULL &&
	                   ddp_parse_int64(node, 0, nodes->count - 1, &own) &&
	                   read_counts(tasks, counts, nodes->count) == job->world_size;
	if (known) {
		deal_blocks(nodes, counts, nodes->of_rank);
		deal_round(nodes, counts, nodes->other);
	}
	free(counts);
	return known && choose(nodes, (int)own);
}

static bool find(const ddp_job *job, ddp_nodes *nodes)
{
	nodes->of_rank = calloc((size_t)job->world_size, sizeof(*nodes->of_rank));
	if (nodes->of_rank == NULL)
		return false;
	if (job->local_world_size == job->world_size) {
		nodes->names = calloc(1, sizeof(*nodes->names));
		nodes->count = nodes->names != NULL;
		return nodes->count == 1 && ddp_copy_text(nodes->names[0], DDP_HOST_MAX, job->hostname);
	}
	/* Below another launcher, a task is not a rank. */
	if (!is_number("SLURM_PROCID", job->rank) || !is_number("SLURM_STEP_NUM_TASKS", job->world_size))
		return false;
	nodes->other = calloc((size_t)job->world_size, sizeof(*nodes->other));
	return read_names(nodes) && deal(job, nodes);
}

void ddp_nodes_find(const ddp_job *job, ddp_nodes *nodes)
{
	*nodes = (ddp_nodes){ .world_size = job->world_size };
	if (!find(job, nodes))
		nodes->count = 0;
}

void ddp_nodes_free(ddp_nodes *nodes)
{
	free(nodes->names);
	free(nodes->of_rank);
	free(nodes->other);
	*nodes = (ddp_nodes){ 0 };
}

/* ---- what ranks have shown ------------------------------------------------------------------- */

static bool is_address(const char *host)
{
	struct in_addr address;

	return inet_pton(AF_INET, host, &address) == 1;
}

/* A host's name may have a domain behind it. */
static bool is_same(const char *node, const char *host)
{
	const size_t length = strcspn(node, ".");

	if (is_address(node) || is_address(host))
		return strcmp(node, host) == 0;
	return length == strcspn(host, ".") && strncmp(node, host, length) == 0;
}

static int index_of(const ddp_nodes *nodes, const char *host)
{
	int n = 0;

	while (n < nodes->count && !is_same(nodes->names[n], host))
		n++;
	return n < nodes->count ? n : DDP_UNKNOWN;
}

void ddp_nodes_check(ddp_nodes *nodes, int rank, const char *host)
{
	if (nodes->count == 0 || is_same(nodes->names[nodes->of_rank[rank]], host))
		return;
	/* Slurm's name of a node need not be the host's. */
	const int node = index_of(nodes, host);
	if (node == DDP_UNKNOWN)
		return;
	if (nodes->other == NULL || nodes->other[rank] != node) {
		nodes->count = 0;
		return;
	}
	free(nodes->of_rank);
	nodes->of_rank = nodes->other;
	nodes->other = NULL;
}

/* ---- the list -------------------------------------------------------------------------------- */

static int node_of(const ddp_nodes *nodes, int rank)
{
	if (nodes->count == 0 || (nodes->other != NULL && nodes->other[rank] != nodes->of_rank[rank]))
		return DDP_UNKNOWN;
	return nodes->of_rank[rank];
}

/* Takes the first rank that is left and all others of its node, and writes "2-3 on n1". */
static void take_node(const ddp_nodes *nodes, bool *left, bool *of_node, int first, char *text, size_t bytes)
{
	const int node = node_of(nodes, first);
	char ranks[160];

	for (int r = 0; r < nodes->world_size; r++) {
		of_node[r] = left[r] && node_of(nodes, r) == node;
		left[r] = left[r] && !of_node[r];
	}
	ddp_rank_list(of_node, nodes->world_size, ranks, sizeof(ranks));
	const char *numbers = strchr(ranks, ' ') + 1;
	if (node == DDP_UNKNOWN)
		snprintf(text, bytes, "%s", numbers);
	else
		snprintf(text, bytes, "%s on %s", numbers, nodes->names[node]);
}

/* Ends a list in which not all nodes have room. */
static void end_list(const ddp_nodes *nodes, const bool *listed, char *text, size_t bytes)
{
	bool *seen = calloc((size_t)nodes->count + 1, sizeof(*seen));
	int ranks = 0, on = 0;

	for (int r = 0; r < nodes->world_size; r++) {
		const int node = listed[r] ? node_of(nodes, r) : DDP_UNKNOWN;
		ranks += listed[r];
		if (node != DDP_UNKNOWN && seen != NULL && !seen[node]) {
			seen[node] = true;
			on++;
		}
	}
	free(seen);
	snprintf(text, bytes, "; ... (%d ranks on %d nodes)", ranks, on);
}

const char *ddp_nodes_list(const ddp_nodes *nodes, const bool *listed, char *text, size_t bytes)
{
	enum { END = 48 }; /* bytes of what end_list() adds */
	const size_t ranks = (size_t)nodes->world_size;
	bool *left = malloc(2 * ranks * sizeof(*left));
	char part[DDP_HOST_MAX + 176];
	int total = 0;

	ddp_rank_list(listed, nodes->world_size, text, bytes);
	if (nodes->count == 0 || left == NULL) {
		free(left);
		return text;
	}
	memcpy(left, listed, ranks * sizeof(*left));
	for (size_t r = 0; r < ranks; r++)
		total += listed[r];
	size_t used = (size_t)snprintf(text, bytes, "rank%s ", total == 1 ? "" : "s");
	for (int r = 0, written = 0; r < nodes->world_size; r++) {
		if (!left[r])
			continue;
		take_node(nodes, left, left + ranks, r, part, sizeof(part));
		if (written > 0 && used + strlen(part) + END > bytes) {
			end_list(nodes, listed, text + used, bytes - used);
			break;
		}
		used += (size_t)snprintf(text + used, bytes - used, "%s%s", written++ > 0 ? "; " : "", part);
		used = used < bytes ? used : bytes - 1;
	}
	free(left);
	return text;
}
