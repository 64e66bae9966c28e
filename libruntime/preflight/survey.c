/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/survey.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "preflight/schedule.h"

enum { NUMBERS_OF_FIGURES = sizeof(struct preflight_figures) / sizeof(double) };

static ddp_status no_memory(void)
{
	ddp_set_error("no memory for what all ranks have measured");
	return DDP_ERR_NOMEM;
}

/* ---- who the ranks are ---- */

static bool is_same_kind(const struct preflight_facts *a, const struct preflight_facts *b)
{
	return strcmp(a->processor, b->processor) == 0 && a->threads == b->threads && strcmp(a->gpu, b->gpu) == 0 &&
	       a->gpu_usable == b->gpu_usable;
}

static void number(struct preflight_survey *s)
{
	for (int r = 0; r < s->ranks; r++) {
		const struct preflight_facts *f = &s->facts[r];
		s->node[r] = f->node;
		s->machine[r] = s->kind[r] = r;
		for (int q = r - 1; q >= 0; q--) {
			if (strcmp(s->facts[q].machine, f->machine) == 0)
				s->machine[r] = s->machine[q];
			if (is_same_kind(&s->facts[q], f))
				s->kind[r] = s->kind[q];
		}
		s->machine_of_node[f->node] = s->machine[r];
		s->names[f->node] = f->node_name;
		for (int work = 0; work < PREFLIGHT_WORKS; work++)
			s->works[work] |= work < PREFLIGHT_GPU_PRODUCT || f->gpu_usable;
	}
	for (int r = 0; r < s->ranks; r++) {
		int same = 0;
		for (int q = 0; q < s->ranks; q++)
			same += s->machine[q] == s->machine[r];
		if (same > s->turns)
			s->turns = same;
	}
	s->people = (struct preflight_people){ s->ranks, s->node, s->machine, s->kind, s->names };
}

static bool allocate(struct preflight_survey *s)
{
	size_t ranks = (size_t)s->ranks, nodes = (size_t)s->nodes;

	s->facts = calloc(ranks, sizeof(*s->facts));
	s->node = calloc(ranks, sizeof(int));
	s->machine = calloc(ranks, sizeof(int));
	s->kind = calloc(ranks, sizeof(int));
	s->machine_of_node = calloc(nodes, sizeof(int));
	s->names = calloc(nodes, sizeof(*s->names));
	s->figures = calloc(ranks, sizeof(*s->figures));
	s->left_out = calloc(nodes, sizeof(*s->left_out));
	s->link = calloc(nodes * (size_t)(preflight_rounds(s->nodes) + 1), sizeof(*s->link));
	s->repeated = calloc(s->job->rank == 0 ? ranks * PREFLIGHT_REPEATS_BUSY : 1, sizeof(*s->repeated));
	return s->facts != NULL && s->node != NULL && s->machine != NULL && s->kind != NULL && s->machine_of_node != NULL &&
	       s->names != NULL && s->figures != NULL && s->link != NULL && s->left_out != NULL && s->repeated != NULL;
}

ddp_status preflight_survey_open(struct preflight_survey *s, ddp_context *context, struct preflight_bench *bench,
                                 const struct preflight_facts *own)
{
	ddp_status status;

	*s = (struct preflight_survey){ .job = ddp_get_job(context), .world = ddp_world(context), .bench = bench };
	s->ranks = s->job->world_size;
	s->nodes = s->job->nnodes;
	if (!allocate(s))
		return no_memory();
	status = ddp_all_gather(s->world, own, s->facts, sizeof(*own), DDP_U8);
	if (status != DDP_OK)
		return status;
	for (int n = 0; n < s->nodes; n++)
		s->names[n] = "?";
	number(s);
	status = ddp_comm_split(s->world, s->job->local_rank == 0 ? 0 : -1, s->job->node_rank, &s->links);
	if (status == DDP_OK && s->links != NULL && (s->lines = preflight_lines_open(s->links)) == NULL)
		return no_memory();
	return status;
}

void preflight_survey_close(struct preflight_survey *s)
{
	preflight_lines_close(s->lines);
	if (s->links != NULL)
		(void)ddp_comm_free(s->links);
	free(s->facts);
	free(s->node);
	free(s->machine);
	free(s->kind);
	free(s->machine_of_node);
	free(s->names);
	free(s->figures);
	free(s->link);
	free(s->left_out);
	free(s->repeated);
}

/* ---- ranks ---- */

/* All ranks begin at the same time. */
static ddp_status work_at_once(struct preflight_survey *s, const bool *works, struct preflight_figures *own)
{
	for (int work = 0; work < PREFLIGHT_WORKS; work++) {
		ddp_status status = works[work] ? ddp_barrier(s->world) : DDP_OK;
		if (status != DDP_OK)
			return status;
		if (works[work])
			own->of[PREFLIGHT_AT_ONCE][work] = preflight_bench_run(s->bench, (enum preflight_work)work, PREFLIGHT_WINDOW_MS);
	}
	return DDP_OK;
}

static void work_alone(struct preflight_survey *s, const bool *works, int ms, struct preflight_figures *own)
{
	for (int work = 0; work < PREFLIGHT_WORKS; work++)
		if (works[work])
			own->of[PREFLIGHT_ALONE][work] = preflight_bench_run(s->bench, (enum preflight_work)work, ms);
}

static ddp_status work_in_turns(struct preflight_survey *s, struct preflight_figures *own)
{
	int mine = 0;

	for (int r = 0; r < s->job->rank; r++)
		mine += s->machine[r] == s->machine[s->job->rank];
	for (int turn = 0; turn < s->turns; turn++) {
		ddp_status status = ddp_barrier(s->world);
		if (status != DDP_OK)
			return status;
		if (turn == mine)
			work_alone(s, s->works, preflight_alone_ms(s->turns), own);
	}
	return ddp_barrier(s->world);
}

/* ---- links ---- */

/* Each rank that has measured for both nodes of a link hands in its results. */
static ddp_status collect(struct preflight_survey *s, const struct preflight_link *own, int rounds)
{
	size_t each = (size_t)rounds * sizeof(*own);
	struct preflight_link *all = s->job->rank == 0 ? malloc(each * (size_t)s->nodes) : NULL;
	ddp_status status;

	if (s->job->rank == 0 && all == NULL)
		return no_memory();
	/* Rank 0 is the first rank of a node, but its node need not be the first one. */
	status = ddp_gather(s->links, own, all, each, DDP_U8, s->facts[0].node);
	for (int i = 0; status == DDP_OK && all != NULL && i < s->nodes * rounds; i++)
		if (all[i].bandwidth > 0)
			s->link[s->link_count++] = all[i];
	free(all);
	return status;
}

/* The nodes that still measure links. */
struct company {
	ddp_comm *comm;      /* of these nodes; it is the survey's own as long as they are all */
	unsigned char *late; /* [nodes], each node knows its own, until a round begins */
};

/* Begins a round of all nodes at once. Nodes that were late leave. */
static ddp_status meet(struct preflight_survey *s, struct company *company)
{
	int self = s->job->node_rank;
	unsigned char own = company->late[self];
	ddp_comm *rest = NULL;
	ddp_status status = ddp_all_reduce(company->comm, NULL, company->late, (size_t)s->nodes, DDP_U8, DDP_MAX);

	if (status == DDP_OK && preflight_leave_out(company->late, s->left_out, s->nodes)) {
		status = ddp_comm_split(company->comm, s->left_out[self] ? -1 : 0, self, &rest);
		if (status == DDP_OK && company->comm != s->links)
			status = ddp_comm_free(company->comm);
		company->comm = rest;
	}
	memset(company->late, 0, (size_t)s->nodes);
	company->late[self] = own;
	return status;
}

static ddp_status measure_rounds(struct preflight_survey *s, struct company *company, struct preflight_link *own,
                                 int rounds)
{
	const int self = s->job->node_rank;
	unsigned char *late = &company->late[self];

	for (int round = 0; round < rounds; round++) {
		int peer = preflight_peer(s->nodes, round, self);
		ddp_status status = meet(s, company);
		uint64_t begin_ns = ddp_now_ns();
		if (status != DDP_OK || s->left_out[self])
			return status;
		if (peer < 0 || s->left_out[peer])
			continue;
		status = preflight_lines_measure(s->lines, peer, PREFLIGHT_LINK_MS, &own[round]);
		if (status != DDP_OK)
			return status;
		if (ddp_seconds_since(begin_ns) <= PREFLIGHT_LATE_MS * 1e-3)
			*late = 0;
		else if (*late < UCHAR_MAX)
			(*late)++;
	}
	return DDP_OK;
}

static ddp_status measure_links(struct preflight_survey *s)
{
	int rounds = preflight_rounds(s->nodes);
	struct company company = { .comm = s->links };
	struct preflight_link *own;
	ddp_status status;

	if (s->links == NULL || rounds == 0)
		return DDP_OK;
	own = calloc((size_t)rounds, sizeof(*own));
	company.late = calloc((size_t)s->nodes, sizeof(*company.late));
	status = own != NULL && company.late != NULL ? measure_rounds(s, &company, own, rounds) : no_memory();
	if (company.comm != NULL && company.comm != s->links) {
		ddp_status freed = ddp_comm_free(company.comm);
		status = status == DDP_OK ? freed : status;
	}
	/* A node that has left does not know who left later. */
	if (status == DDP_OK)
		status = ddp_all_reduce(s->links, NULL, s->left_out, (size_t)s->nodes, DDP_U8, DDP_MAX);
	if (status == DDP_OK)
		status = collect(s, own, rounds);
	free(company.late);
	free(own);
	return status;
}

ddp_status preflight_survey_measure(struct preflight_survey *s)
{
	struct preflight_figures own = { 0 };
	ddp_status status = work_at_once(s, s->works, &own);

	if (status == DDP_OK)
		status = work_in_turns(s, &own);
	if (status == DDP_OK)
		status = measure_links(s);
	if (status == DDP_OK)
		status = ddp_gather(s->world, &own, s->figures, NUMBERS_OF_FIGURES, DDP_F64, 0);
	return status;
}

/* ---- once more ---- */

static ddp_status repeat_alone(struct preflight_survey *s, int repeat, struct preflight_figures *own)
{
	const struct preflight_ranks_again *again = &s->ranks_again;
	struct preflight_item items[PREFLIGHT_RANKS_AGAIN];
	int turns;

	for (int i = 0; i < again->count; i++)
		items[i] = (struct preflight_item){ .a = i, .b = -1, .machine_a = s->machine[again->rank[i]], .machine_b = -1 };
	turns = preflight_take_turns(items, again->count, (unsigned)repeat + 1);
	for (int turn = 0; turn < turns; turn++) {
		ddp_status status = ddp_barrier(s->world);
		if (status != DDP_OK)
			return status;
		for (int i = 0; i < again->count; i++)
			if (items[i].turn == turn && again->rank[items[i].a] == s->job->rank)
				work_alone(s, again->work, PREFLIGHT_WINDOW_MS, own);
	}
	return ddp_barrier(s->world);
}

/* Each rank hands in its new repeats, and rank 0 puts them in the order of the verdict. */
static ddp_status collect_ranks(struct preflight_survey *s, const struct preflight_figures *own, int before, int more)
{
	struct preflight_figures *all = s->job->rank == 0 ? calloc((size_t)more * (size_t)s->ranks, sizeof(*all)) : NULL;
	ddp_status status;

	if (s->job->rank == 0 && all == NULL)
		return no_memory();
	status = ddp_gather(s->world, own, all, (size_t)more * NUMBERS_OF_FIGURES, DDP_F64, 0);
	for (int r = 0; all != NULL && r < s->ranks; r++)
		for (int k = 0; k < more; k++)
			s->repeated[(before + k) * s->ranks + r] = all[r * more + k];
	free(all);
	return status;
}

static ddp_status ranks_again(struct preflight_survey *s, int before, int more)
{
	struct preflight_figures own[PREFLIGHT_REPEATS_BUSY] = { 0 };
	ddp_status status = DDP_OK;

	if (s->ranks_again.count == 0)
		return DDP_OK;
	for (int k = 0; status == DDP_OK && k < more; k++) {
		status = repeat_alone(s, before + k, &own[k]);
		if (status == DDP_OK && s->ranks_again.at_once)
			status = work_at_once(s, s->ranks_again.work, &own[k]);
	}
	return status == DDP_OK ? collect_ranks(s, own, before, more) : status;
}

static ddp_status repeat_links(struct preflight_survey *s, int repeat, struct preflight_link *own)
{
	struct preflight_item items[PREFLIGHT_LINKS_AGAIN];
	int count = s->links_again.count, turns;

	memcpy(items, s->links_again.item, (size_t)count * sizeof(*items));
	turns = preflight_take_turns(items, count, (unsigned)repeat + 1);
	for (int turn = 0; turn < turns; turn++) {
		ddp_status status = ddp_barrier(s->links);
		for (int i = 0; status == DDP_OK && i < count; i++) {
			const struct preflight_item *item = &items[i];
			int self = s->job->node_rank, index = 0;
			if (item->turn != turn || (item->a != self && item->b != self))
				continue;
			while (s->links_again.item[index].a != item->a || s->links_again.item[index].b != item->b)
				index++;
			status = preflight_lines_measure(s->lines, item->a == self ? item->b : item->a, PREFLIGHT_LINK_MS, &own[index]);
		}
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

static ddp_status links_again(struct preflight_survey *s, int before, int more)
{
	struct preflight_link own[PREFLIGHT_REPEATS_BUSY * PREFLIGHT_LINKS_AGAIN] = { 0 }, *all = NULL;
	const int count = s->links_again.count, results = more * count;
	ddp_status status = DDP_OK;

	if (count == 0 || s->links == NULL)
		return DDP_OK;
	if (s->job->rank == 0 && (all = calloc((size_t)(s->nodes * results), sizeof(*all))) == NULL)
		return no_memory();
	for (int k = 0; status == DDP_OK && k < more; k++)
		status = repeat_links(s, before + k, &own[k * count]);
	if (status == DDP_OK)
		status = ddp_gather(s->links, own, all, (size_t)results * sizeof(*own), DDP_U8, s->facts[0].node);
	for (int i = 0; status == DDP_OK && all != NULL && i < results; i++)
		s->link_again[before * count + i] = all[s->links_again.item[i % count].a * results + i];
	free(all);
	return status;
}

static bool judge_ranks(const struct preflight_survey *s, struct preflight_findings *findings, bool *unfit)
{
	return preflight_ranks_judge(findings, &s->people, &s->ranks_again, s->repeated, s->repeats,
	                             preflight_is_busy(&s->people, s->figures), unfit);
}

/* The links of nodes where the rank that measured them was slow itself are not doubted. */
static void doubt_links(struct preflight_survey *s, struct preflight_findings *findings)
{
	struct preflight_link *fit = calloc((size_t)s->link_count + 1, sizeof(*fit));
	bool *unfit = calloc((size_t)s->nodes, sizeof(*unfit));
	int count = 0;

	if (fit != NULL && unfit != NULL) {
		judge_ranks(s, findings, unfit);
		for (int i = 0; i < s->link_count; i++)
			if (!unfit[s->link[i].a] && !unfit[s->link[i].b])
				fit[count++] = s->link[i];
		preflight_links_doubt(&s->links_again, fit, count, s->nodes, s->machine_of_node);
	}
	free(fit);
	free(unfit);
}

/* The ranks' part of the first repeats, and what of the links is to be measured again then. */
static ddp_status begin_again(struct preflight_survey *s, struct preflight_findings *findings)
{
	ddp_status status;

	if (s->job->rank == 0)
		preflight_ranks_doubt(&s->ranks_again, &s->people, s->figures);
	status = ddp_broadcast(s->world, &s->ranks_again, sizeof(s->ranks_again), DDP_U8, 0);
	if (status == DDP_OK)
		status = ranks_again(s, 0, PREFLIGHT_REPEATS);
	if (status != DDP_OK)
		return status;
	s->repeats = PREFLIGHT_REPEATS;
	if (s->job->rank == 0)
		doubt_links(s, findings);
	return ddp_broadcast(s->world, &s->links_again, sizeof(s->links_again), DDP_U8, 0);
}

/* Where processors are lacking, chance needs more repeats to become improbable. */
static ddp_status decide(struct preflight_survey *s, struct preflight_findings *findings, int32_t *more)
{
	*more = 0;
	if (s->job->rank == 0) {
		findings->count = findings->odd = 0;
		const bool chancy = preflight_survey_judge(s, findings);
		if (findings->odd > 0 && (chancy || preflight_is_busy(&s->people, s->figures) ||
		                          preflight_links_wait(&s->links_again, s->link_again, s->repeats)))
			*more = PREFLIGHT_REPEATS_BUSY - PREFLIGHT_REPEATS;
	}
	return ddp_broadcast(s->world, more, 1, DDP_I32, 0);
}

ddp_status preflight_survey_again(struct preflight_survey *s, struct preflight_findings *findings)
{
	int32_t more;
	ddp_status status = begin_again(s, findings);

	if (status == DDP_OK)
		status = links_again(s, 0, PREFLIGHT_REPEATS);
	if (status == DDP_OK)
		status = decide(s, findings, &more);
	if (status != DDP_OK || more == 0)
		return status;
	status = ranks_again(s, s->repeats, more);
	if (status == DDP_OK)
		status = links_again(s, s->repeats, more);
	s->repeats += more;
	return status == DDP_OK ? ddp_barrier(s->world) : status;
}

static void remark_left_out(const struct preflight_survey *s, struct preflight_findings *findings)
{
	for (int n = 0; n < s->nodes; n++) {
		const struct preflight_finding f = { .about = "latency", .node = n, .rank = -1, .peer = -1 };
		int links = 0;
		if (!s->left_out[n])
			continue;
		for (int i = 0; i < s->link_count; i++)
			links += s->link[i].a == n || s->link[i].b == n;
		preflight_find(
			findings, &f,
			"%s: only %d of its links were measured, as the last %d of them took longer than %g s each",
			s->names[n], links, PREFLIGHT_LATE_ROUNDS, PREFLIGHT_LATE_MS * 1e-3);
	}
}

bool preflight_survey_judge(const struct preflight_survey *s, struct preflight_findings *findings)
{
	bool *unfit = calloc((size_t)s->nodes, sizeof(*unfit));
	bool chancy;

	preflight_clocks_judge(findings, s->link, s->link_count, s->nodes, s->names);
	remark_left_out(s, findings);
	if (unfit == NULL)
		return false;
	chancy = judge_ranks(s, findings, unfit);
	preflight_links_judge(findings, &s->links_again, s->link_again, s->repeats,
	                      preflight_is_busy(&s->people, s->figures), unfit, s->names);
	free(unfit);
	return chancy;
}
