/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/agreement.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/outlier.h"
#include "base/segment.h"
#include "base/text.h"
#include "job/environment.h"

/* A record on the wire has these numbers, then version, hostname, node and boot id, each with its terminator. The
   magic comes first in every version of the library. */
struct record {
	char magic[8];
	int32_t rank, world_size, local_rank, local_world_size, node_rank, nnodes;
};

static const char magic[8] = "ddpjob2";

/* ---- who is wrong where ranks differ ------------------------------------------------------- */

/* Ranks order[0 .. count - 1], or 0 .. count - 1 without an order, and what is compared of each. */
struct compared {
	const ddp_belief *beliefs;
	const int *order;
	int count;
	bool (*same)(const ddp_belief *a, const ddp_belief *b);
};

/* The first ranks that say something else than most, and what most say; and their names. */
struct difference {
	const ddp_belief *odd, *usual;
	char odd_ranks[DDP_HOST_MAX + 64], usual_ranks[DDP_HOST_MAX + 64];
	const char *odd_s, *usual_s; /* what ends the verb of one */
};

static const ddp_belief *compared_rank(const struct compared *c, int i)
{
	return &c->beliefs[c->order != NULL ? c->order[i] : i];
}

static bool compare_two(const void *compared, int a, int b)
{
	const struct compared *c = compared;

	return c->same(compared_rank(c, a), compared_rank(c, b));
}

static void name_belief(const ddp_belief *belief, char *text, size_t bytes)
{
	snprintf(text, bytes, "rank %d on %s", belief->rank, belief->hostname);
}

static bool find_difference(const struct compared *c, struct difference *d)
{
	const ddp_outlier o = ddp_outlier_find(c->count, compare_two, c);
	char odd[DDP_HOST_MAX + 32], usual[DDP_HOST_MAX + 32];

	if (o.odd < 0)
		return false;
	d->odd = compared_rank(c, o.odd);
	d->usual = compared_rank(c, o.usual);
	d->odd_s = o.odd_count == 1 ? "s" : "";
	d->usual_s = o.usual_count == 1 ? "s" : "";
	name_belief(d->odd, odd, sizeof(odd));
	name_belief(d->usual, usual, sizeof(usual));
	ddp_outlier_say(&o, odd, usual, d->odd_ranks, d->usual_ranks, sizeof(d->odd_ranks));
	return true;
}

static ddp_status disagree(const struct difference *d, const char *what, int odd, int usual)
{
	return ddp_fail(DDP_ERR_JOB, "%s say%s that %s is %d, but %s say%s %d", d->odd_ranks, d->odd_s, what, odd,
	                d->usual_ranks, d->usual_s, usual);
}

static ddp_status disagree_on_knowing(const struct difference *d, const char *what, bool odd_lacks)
{
	const char *odd_es = d->odd_s[0] != '\0' ? "es" : "", *usual_es = d->usual_s[0] != '\0' ? "es" : "";

	if (odd_lacks)
		return ddp_fail(DDP_ERR_JOB, "%s do%s not know a %s, but %s do%s", d->odd_ranks, odd_es, what,
		                d->usual_ranks, usual_es);
	return ddp_fail(DDP_ERR_JOB, "%s know%s a %s, but %s do%s not", d->odd_ranks, d->odd_s, what, d->usual_ranks,
	                usual_es);
}

static bool same_version(const ddp_belief *a, const ddp_belief *b)
{
	return strcmp(a->version, b->version) == 0;
}

static bool same_nnodes(const ddp_belief *a, const ddp_belief *b)
{
	return a->nnodes == b->nnodes;
}

static bool same_node_rank_known(const ddp_belief *a, const ddp_belief *b)
{
	return (a->node_rank == DDP_UNKNOWN) == (b->node_rank == DDP_UNKNOWN);
}

static bool same_local_rank_known(const ddp_belief *a, const ddp_belief *b)
{
	return (a->local_rank == DDP_UNKNOWN) == (b->local_rank == DDP_UNKNOWN);
}

static bool same_local_size(const ddp_belief *a, const ddp_belief *b)
{
	return a->local_world_size == b->local_world_size;
}

static const char *boot_id_of(const ddp_belief *belief)
{
	return belief->boot_id != NULL ? belief->boot_id : "";
}

static bool one_machine(const ddp_belief *a, const ddp_belief *b)
{
	return boot_id_of(a)[0] == '\0' || boot_id_of(b)[0] == '\0' || strcmp(boot_id_of(a), boot_id_of(b)) == 0;
}

/* ---- the checks ----------------------------------------------------------------------------- */

static ddp_status check_sizes(const ddp_belief *beliefs, int count)
{
	struct compared all = { .beliefs = beliefs, .count = count, .same = same_version };
	struct difference d;

	if (find_difference(&all, &d))
		return ddp_fail(DDP_ERR_JOB, "%s run%s libddp %s, but %s run%s libddp %s", d.odd_ranks, d.odd_s,
		                d.odd->version, d.usual_ranks, d.usual_s, d.usual->version);
	for (int r = 0; r < count; r++) {
		const ddp_belief *belief = &beliefs[r];
		if (belief->rank != r)
			return ddp_fail(DDP_ERR_JOB, "the process on %s in the place of rank %d says that it is "
			                "rank %d", belief->hostname, r, belief->rank);
		if (belief->world_size != count)
			return ddp_fail(DDP_ERR_JOB, "rank %d on %s says that the world size is %d, but %d ranks "
			                "came", r, belief->hostname, belief->world_size, count);
	}
	all.same = same_node_rank_known;
	if (find_difference(&all, &d))
		return disagree_on_knowing(&d, "node rank", d.odd->node_rank == DDP_UNKNOWN);
	all.same = same_nnodes;
	if (find_difference(&all, &d))
		return disagree(&d, "the number of nodes", d.odd->nnodes, d.usual->nnodes);
	all.same = same_local_rank_known;
	if (find_difference(&all, &d))
		return disagree_on_knowing(&d, "local rank", d.odd->local_rank == DDP_UNKNOWN);
	return DDP_OK;
}

/* Several slurmds on one machine share its boot id, and maybe its host name; machines may share a name, too. */
static int compare_nodes(const ddp_belief *a, const ddp_belief *b)
{
	if (a->node_rank != DDP_UNKNOWN)
		return (a->node_rank > b->node_rank) - (a->node_rank < b->node_rank);
	const int order = strcmp(a->node, b->node);
	return order != 0 ? order : strcmp(boot_id_of(a), boot_id_of(b));
}

/* Orders ranks by node, then by rank. */
static int compare_places(const void *a, const void *b, void *argument)
{
	const ddp_belief *beliefs = argument;
	const ddp_belief *x = &beliefs[*(const int *)a], *y = &beliefs[*(const int *)b];
	const int order = compare_nodes(x, y);

	return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* The ranks in the order of their nodes; ends[i] is where the node that
   begins at order[i] ends. */
struct places {
	int count;
	int *order, *ends;
	int *leaders; /* by rank: the lowest rank of its node */
	int *scratch;
};

static void sort_places(ddp_belief *beliefs, struct places *places)
{
	int count = places->count;

	for (int i = 0; i < count; i++)
		places->order[i] = i;
	qsort_r(places->order, (size_t)count, sizeof(*places->order), compare_places, beliefs);
	for (int start = 0, end; start < count; start = end) {
		int leader = places->order[start];
		for (end = start; end < count && compare_nodes(&beliefs[leader], &beliefs[places->order[end]]) == 0; end++)
			places->leaders[places->order[end]] = leader;
		places->ends[start] = end;
	}
}

static void complete(ddp_belief *beliefs, const struct places *places)
{
	bool know_node = beliefs[0].node_rank != DDP_UNKNOWN;
	bool know_local = beliefs[0].local_rank != DDP_UNKNOWN;
	int nodes = 0;

	for (int start = 0; start < places->count && !know_local; start = places->ends[start]) {
		for (int i = start; i < places->ends[start]; i++) {
			beliefs[places->order[i]].local_rank = i - start;
			beliefs[places->order[i]].local_world_size = places->ends[start] - start;
		}
	}
	for (int r = 0; r < places->count; r++) {
		int leader = places->leaders[r];
		if (!know_node)
			beliefs[r].node_rank = leader == r ? nodes : beliefs[leader].node_rank;
		nodes += leader == r;
	}
	for (int r = 0; r < places->count; r++)
		if (beliefs[r].nnodes == DDP_UNKNOWN)
			beliefs[r].nnodes = nodes;
}

/* One node's ranks, order[0 .. size - 1]: as many as they say, with a local
   rank each, on one machine. */
static ddp_status check_node(const ddp_belief *beliefs, const int *order, int size, int *taken)
{
	struct compared node = { .beliefs = beliefs, .order = order, .count = size, .same = one_machine };
	struct difference d;

	if (find_difference(&node, &d))
		return ddp_fail(DDP_ERR_JOB, "%s and %s say that they are on node %d, but these are two machines",
		                d.odd_ranks, d.usual_ranks, d.odd->node_rank);
	node.same = same_local_size;
	if (find_difference(&node, &d))
		return disagree(&d, "the local world size", d.odd->local_world_size, d.usual->local_world_size);
	for (int i = 0; i < size; i++)
		taken[i] = -1;
	for (int i = 0; i < size; i++) {
		const ddp_belief *belief = &beliefs[order[i]];
		if (belief->local_world_size != size)
			return ddp_fail(DDP_ERR_JOB, "rank %d on %s says that its node, %d, has %d ranks, but %d "
			                "came", belief->rank, belief->hostname, belief->node_rank,
			                belief->local_world_size, size);
		if (belief->local_rank < 0 || belief->local_rank >= size)
			return ddp_fail(DDP_ERR_JOB, "rank %d on %s says that its local rank is %d of %d",
			                belief->rank, belief->hostname, belief->local_rank, size);
		int *slot = &taken[belief->local_rank];
		if (*slot >= 0)
			return ddp_fail(DDP_ERR_JOB, "rank %d on %s and rank %d on %s, both of node %d, say that "
			                "their local rank is %d", *slot, beliefs[*slot].hostname, belief->rank,
			                belief->hostname, belief->node_rank, belief->local_rank);
		*slot = belief->rank;
	}
	return DDP_OK;
}

/* Checks that the node ranks are 0 .. nnodes - 1. */
static ddp_status check_nodes(const ddp_belief *beliefs, const struct places *places)
{
	int nnodes = beliefs[0].nnodes, count = places->count;
	int *seen = places->scratch;

	memset(seen, 0, (size_t)count * sizeof(*seen));
	for (int r = 0; r < count; r++) {
		if (beliefs[r].node_rank < 0 || beliefs[r].node_rank >= nnodes || nnodes > count)
			return ddp_fail(DDP_ERR_JOB, "rank %d on %s says that it is on node %d of %d (%d ranks)", r,
			                beliefs[r].hostname, beliefs[r].node_rank, nnodes, count);
		seen[beliefs[r].node_rank] = 1;
	}
	for (int n = 0; n < nnodes; n++)
		if (!seen[n])
			return ddp_fail(DDP_ERR_JOB, "rank 0 on %s says that there are %d nodes, but no rank is on "
			                "node %d", beliefs[0].hostname, nnodes, n);
	return DDP_OK;
}

ddp_status ddp_beliefs_agree(ddp_belief *beliefs, int count)
{
	ddp_status status = check_sizes(beliefs, count);

	if (status != DDP_OK)
		return status;
	int *space = calloc(4 * (size_t)count, sizeof(*space));
	if (space == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to compare %d ranks", count);
	struct places places = { count, space, space + count, space + 2 * (size_t)count,
	                         space + 3 * (size_t)count };
	sort_places(beliefs, &places);
	complete(beliefs, &places);
	status = check_nodes(beliefs, &places);
	for (int start = 0; start < count && status == DDP_OK; start = places.ends[start])
		status = check_node(beliefs, places.order + start, places.ends[start] - start, places.scratch);
	free(space);
	return status;
}

static size_t pack(const ddp_job *job, char *packed, size_t room)
{
	const char *node_name = ddp_environment("SLURMD_NODENAME");
	char boot_id[DDP_BOOT_ID_MAX];
	struct record record = {
		.rank = job->rank, .world_size = job->world_size,
		.local_rank = job->local_rank, .local_world_size = job->local_world_size,
		.node_rank = job->node_rank, .nnodes = job->nnodes,
	};

	memcpy(record.magic, magic, sizeof(magic));
	memcpy(packed, &record, sizeof(record));
	ddp_boot_id(boot_id);
	int texts = snprintf(packed + sizeof(record), room - sizeof(record), "%s%c%s%c%.255s%c%s", PACKAGE_VERSION, '\0',
	                     job->hostname, '\0', node_name != NULL ? node_name : job->hostname, '\0', boot_id);
	return sizeof(record) + (size_t)texts + 1;
}

static ddp_status unpack(const char *packed, size_t bytes, int rank, ddp_belief *belief)
{
	const char *texts[4];
	struct record record;

	memcpy(&record, packed, sizeof(record));
	const char *at = packed + sizeof(record), *end = packed + bytes;
	for (int i = 0; i < 4; i++) {
		texts[i] = at;
		at += strnlen(at, (size_t)(end - at));
		if (at == end)
			return ddp_fail(DDP_ERR_FORMAT, "the identity that rank %d sent is cut short", rank);
		at++;
	}
	*belief = (ddp_belief){
		.version = texts[0], .hostname = texts[1], .node = texts[2], .boot_id = texts[3],
		.rank = record.rank, .world_size = record.world_size,
		.local_rank = record.local_rank, .local_world_size = record.local_world_size,
		.node_rank = record.node_rank, .nnodes = record.nnodes,
	};
	return DDP_OK;
}

struct blobs {
	void *const *bytes;
	const size_t *sizes;
};

static bool same_form(const void *blobs, int a, int b)
{
	const struct blobs *all = blobs;
	const bool known[2] = { all->sizes[a] >= sizeof(struct record), all->sizes[b] >= sizeof(struct record) };

	return known[0] == known[1] && (!known[0] || memcmp(all->bytes[a], all->bytes[b], sizeof(magic)) == 0);
}

/* A later libddp may send an identity of another form, of which only the magic is known. */
static ddp_status check_forms(const struct blobs *blobs, int count)
{
	const ddp_outlier o = ddp_outlier_find(count, same_form, blobs);
	char odd[DDP_OUTLIER_TEXT], usual[DDP_OUTLIER_TEXT];

	if (o.odd < 0)
		return DDP_OK;
	ddp_outlier_names(&o, odd, usual);
	return ddp_fail(DDP_ERR_JOB, "%s run%s another version of libddp than %s: install one on all nodes", odd,
	                o.odd_count == 1 ? "s" : "", usual);
}

static ddp_status compare(void *const *blobs, const size_t *sizes, ddp_job *job)
{
	ddp_belief *beliefs = calloc((size_t)job->world_size, sizeof(*beliefs));
	if (beliefs == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to compare %d ranks", job->world_size);
	ddp_status status = check_forms(&(struct blobs){ blobs, sizes }, job->world_size);
	for (int r = 0; r < job->world_size && status == DDP_OK; r++)
		status = unpack(blobs[r], sizes[r], r, &beliefs[r]);
	if (status == DDP_OK)
		status = ddp_beliefs_agree(beliefs, job->world_size);
	if (status == DDP_OK) {
		const ddp_belief *own = &beliefs[job->rank];
		job->local_rank = own->local_rank;
		job->local_world_size = own->local_world_size;
		job->node_rank = own->node_rank;
		job->nnodes = own->nnodes;
	}
	free(beliefs);
	return status;
}

ddp_status ddp_agree(ddp_wireup *wireup, ddp_job *job, uint64_t deadline_ns)
{
	char packed[sizeof(struct record) + 32 + 2 * DDP_HOST_MAX + DDP_BOOT_ID_MAX];
	void **blobs = calloc((size_t)job->world_size, sizeof(*blobs));
	size_t *sizes = calloc((size_t)job->world_size, sizeof(*sizes));
	ddp_status status;

	if (blobs == NULL || sizes == NULL) {
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for %d ranks", job->world_size);
		goto out;
	}
	status = wireup->ops->exchange(wireup, packed, pack(job, packed, sizeof(packed)), deadline_ns,
	                               blobs, sizes);
	if (status == DDP_OK) {
		status = compare(blobs, sizes, job);
		ddp_blobs_free(blobs, job->world_size);
	}
out:
	free(blobs);
	free(sizes);
	return status;
}
