/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/judge_ranks.h"

#include <math.h>
#include <stdlib.h>

#include "preflight/statistics.h"

enum { REPEATS_MAX = 64 };

static const double DOUBT = 0.8, ODD = 0.7, ODD_BUSY = 0.35; /* of the usual rate */
static const double CALM_SHARE = 0.85; /* of the processor time that a rank wants */
static const double OFTEN = 0.25, HALF = 0.5; /* of the trials of those compared with */
static const double APART = 1e-9;

static const struct {
	const char *name, *unit, *about;
} works[PREFLIGHT_WORKS] = {
	[PREFLIGHT_PRODUCT] = { "matrix product", "GFLOP/s", "product" },
	[PREFLIGHT_MEMORY] = { "memory", "GB/s", "memory" },
	[PREFLIGHT_GPU_PRODUCT] = { "matrix product on the GPU", "GFLOP/s", "gpu" },
	[PREFLIGHT_GPU_MEMORY] = { "memory of the GPU", "GB/s", "gpu" },
};

const char *preflight_work_name(enum preflight_work work)
{
	return works[work].name;
}

const char *preflight_work_unit(enum preflight_work work)
{
	return works[work].unit;
}

/* Room for so many numbers; the caller frees it. */
static double *numbers(int count)
{
	return calloc((size_t)count + 1, sizeof(double));
}

/* ---- what is measured again ---- */

/* Lowers doubt[rank] to the lowest share of what is usual among its kind. */
static void look(double *doubt, struct preflight_ranks_again *again, const struct preflight_people *people,
                 const struct preflight_figures *figures, int way, int work, double *values)
{
	double usual = 0, spread = 0;
	int kind = -1;

	for (int r = 0; r < people->ranks; r++) {
		const double rate = figures[r].of[way][work].rate;
		int count = 0;
		for (int q = 0; people->kind[r] != kind && q < people->ranks; q++)
			if (people->kind[q] == people->kind[r])
				values[count++] = figures[q].of[way][work].rate;
		if (count > 0) {
			kind = people->kind[r];
			usual = preflight_median(values, count);
			spread = preflight_spread(values, count);
		}
		if (!preflight_is_suspect(rate, usual, spread, DOUBT))
			continue;
		doubt[r] = fmin(doubt[r], rate / usual);
		again->at_once |= way == PREFLIGHT_AT_ONCE;
		again->work[work] = true;
	}
}

static bool is_chosen(const struct preflight_ranks_again *again, int rank)
{
	for (int i = 0; i < again->count; i++)
		if (again->rank[i] == rank)
			return true;
	return false;
}

/* So many controls, or suspects, are of this machine or kind. */
static int chosen_of(const struct preflight_ranks_again *again, bool control, const int *group, int of)
{
	int count = 0;

	for (int i = 0; i < again->count; i++)
		count += again->control[i] == control && group[again->rank[i]] == of;
	return count;
}

static void choose(struct preflight_ranks_again *again, int rank, bool control)
{
	again->rank[again->count] = rank;
	again->control[again->count++] = control;
}

/* At most half of a kind is suspect, so that there are others to compare with. */
static bool is_full(const struct preflight_ranks_again *again, const struct preflight_people *people, int kind)
{
	int ranks = 0;

	for (int r = 0; r < people->ranks; r++)
		ranks += people->kind[r] == kind;
	return chosen_of(again, false, people->kind, kind) >= ranks / 2;
}

/* The slowest rank that may be a suspect yet; -1: there is none. */
static int worst(const struct preflight_ranks_again *again, const struct preflight_people *people, const double *doubt)
{
	int found = -1;

	for (int r = 0; r < people->ranks; r++)
		if (doubt[r] < (found < 0 ? 1 : doubt[found]) && !is_chosen(again, r) &&
		    chosen_of(again, false, people->machine, people->machine[r]) < PREFLIGHT_OF_A_MACHINE &&
		    !is_full(again, people, people->kind[r]))
			found = r;
	return found;
}

/* The least suspicious rank of this kind, preferably on a machine without a suspect; -1: all are chosen. */
static int best(const struct preflight_ranks_again *again, const struct preflight_people *people, const double *doubt,
                int kind)
{
	double most = 0;
	int found = -1;

	for (int r = 0; r < people->ranks; r++) {
		const bool apart = chosen_of(again, false, people->machine, people->machine[r]) == 0;
		if (people->kind[r] != kind || is_chosen(again, r) || doubt[r] + apart * APART <= most)
			continue;
		most = doubt[r] + apart * APART;
		found = r;
	}
	return found;
}

void preflight_ranks_doubt(struct preflight_ranks_again *again, const struct preflight_people *people,
                           const struct preflight_figures *figures)
{
	double *doubt = numbers(people->ranks), *values = numbers(people->ranks);

	*again = (struct preflight_ranks_again){ .count = 0 };
	for (int r = 0; doubt != NULL && r < people->ranks; r++)
		doubt[r] = 1;
	for (int way = 0; doubt != NULL && values != NULL && way < PREFLIGHT_WAYS; way++)
		for (int work = 0; work < PREFLIGHT_WORKS; work++)
			look(doubt, again, people, figures, way, work, values);
	for (int r; doubt != NULL && again->count < PREFLIGHT_SUBJECTS && (r = worst(again, people, doubt)) >= 0;)
		choose(again, r, false);
	const int suspects = again->count;
	for (int i = 0; i < suspects; i++) {
		const int kind = people->kind[again->rank[i]];
		for (int r; again->count < PREFLIGHT_RANKS_AGAIN &&
		            chosen_of(again, true, people->kind, kind) < PREFLIGHT_CONTROLS &&
		            (r = best(again, people, doubt, kind)) >= 0;)
			choose(again, r, true);
	}
	free(doubt);
	free(values);
}

/* ---- the verdict ---- */

struct verdict {
	bool odd;
	bool chancy; /* and it or those compared with lacked their processors, which chance may do */
	double value, usual, share, usual_share;
};

struct trials {
	const struct preflight_people *people;
	const struct preflight_ranks_again *again;
	const struct preflight_figures *repeated;
	int repeats;
	bool busy;
	double *rates, *shares; /* room for a number per rank */
};

static bool is_control(const struct preflight_ranks_again *again, int rank)
{
	for (int i = 0; i < again->count; i++)
		if (again->rank[i] == rank)
			return again->control[i];
	return false;
}

/* A suspect is compared with all others of its kind, alone with the controls. Puts their figures of a repeat down, and
   returns how many they are. */
static int put_others(const struct trials *t, int repeat, int rank, int way, int work)
{
	const struct preflight_people *people = t->people;
	int count = 0;

	for (int r = 0; r < people->ranks; r++) {
		const struct preflight_figure *f = &t->repeated[repeat * people->ranks + r].of[way][work];
		if (r == rank || people->kind[r] != people->kind[rank] ||
		    (way == PREFLIGHT_ALONE && !is_control(t->again, r)))
			continue;
		t->rates[count] = f->rate;
		t->shares[count++] = f->share;
	}
	return count;
}

static struct verdict judge(const struct trials *t, int rank, int way, int work)
{
	double suspect[REPEATS_MAX], controls[REPEATS_MAX], own[REPEATS_MAX], usual[REPEATS_MAX], disturbed = 0, others = 0;
	struct verdict v;

	for (int k = 0; k < t->repeats; k++) {
		const struct preflight_figure *f = &t->repeated[k * t->people->ranks + rank].of[way][work];
		const int count = put_others(t, k, rank, way, work);
		suspect[k] = f->rate;
		own[k] = f->share;
		controls[k] = preflight_median(t->rates, count);
		usual[k] = preflight_median(t->shares, count);
		for (int i = 0; i < count; i++)
			disturbed += t->shares[i] < CALM_SHARE;
		others += count;
	}
	/* A GPU works without the processor. */
	disturbed = work < PREFLIGHT_GPU_PRODUCT && others > 0 ? disturbed / others : 0;
	v.value = preflight_best(suspect, t->repeats);
	v.usual = preflight_median(controls, t->repeats);
	v.share = preflight_median(own, t->repeats);
	v.usual_share = preflight_median(usual, t->repeats);
	/* Others are disturbed now and then, but a neighbour that never leaves stops the suspect each time. */
	const bool stopped = !t->busy && disturbed <= HALF && preflight_best(own, t->repeats) < ODD * v.usual_share;
	const bool busy = work < PREFLIGHT_GPU_PRODUCT && (t->busy || disturbed > OFTEN);
	v.odd = preflight_is_odd(suspect, controls, t->repeats, busy && !stopped ? ODD_BUSY : ODD);
	v.chancy = v.odd && work < PREFLIGHT_GPU_PRODUCT && (disturbed > 0 || v.share < CALM_SHARE);
	return v;
}

static void say(struct preflight_findings *findings, const struct trials *t, int rank, int work, const char *when,
                const struct verdict *v)
{
	const int node = t->people->node[rank];
	const struct preflight_finding f = { .odd = true, .about = works[work].about, .node = node, .rank = rank, .peer = -1,
		                             .value = v->value, .usual = v->usual };

	preflight_find(findings, &f, "rank %d on %s: %s %s is %.3g %s, and others have %.3g (%.0f%%)", rank,
	               t->people->names[node], works[work].name, when, v->value * 1e-9, works[work].unit, v->usual * 1e-9,
	               100 * v->value / v->usual);
}

static void say_share(struct preflight_findings *findings, const struct trials *t, int rank, const char *when,
                      const struct verdict *v)
{
	const int node = t->people->node[rank];
	const struct preflight_finding f = { .odd = true, .about = "cpu", .node = node, .rank = rank, .peer = -1,
		                             .value = v->share, .usual = v->usual_share };

	preflight_find(findings, &f,
	               "rank %d on %s: it gets its processor for %.0f%% of the time %s, and others for %.0f%%: another "
	               "process runs there, or a limit or signal stops the rank",
	               rank, t->people->names[node], 100 * v->share, when, 100 * v->usual_share);
}

/* Returns whether something is odd. If a rank hardly runs, its processor is the cause, and its work a consequence. */
static bool judge_way(struct preflight_findings *findings, const struct trials *t, int rank, int way, const char *when,
                      bool *unfit, bool *chancy)
{
	bool odd = false;

	for (int work = 0; work < PREFLIGHT_WORKS; work++) {
		if (!t->again->work[work])
			continue;
		const struct verdict v = judge(t, rank, way, work);
		if (!v.odd)
			continue;
		odd = true;
		*chancy |= v.chancy;
		if (work < PREFLIGHT_GPU_PRODUCT && v.share < ODD * v.usual_share) {
			say_share(findings, t, rank, when, &v);
			unfit[t->people->node[rank]] = true;
			break;
		}
		say(findings, t, rank, work, when, &v);
	}
	return odd;
}

bool preflight_ranks_judge(struct preflight_findings *findings, const struct preflight_people *people,
                           const struct preflight_ranks_again *again, const struct preflight_figures *repeated,
                           int repeats, bool busy, bool *unfit)
{
	const struct trials t = { people, again, repeated, repeats < REPEATS_MAX ? repeats : REPEATS_MAX, busy,
		                  numbers(people->ranks), numbers(people->ranks) };
	bool chancy = false;

	for (int i = 0; t.rates != NULL && t.shares != NULL && repeats > 0 && i < again->count; i++) {
		if (again->control[i])
			continue;
		if (!judge_way(findings, &t, again->rank[i], PREFLIGHT_ALONE, "alone", unfit, &chancy) && again->at_once)
			judge_way(findings, &t, again->rank[i], PREFLIGHT_AT_ONCE, "beside the other ranks", unfit, &chancy);
	}
	free(t.rates);
	free(t.shares);
	return chancy;
}

bool preflight_is_busy(const struct preflight_people *people, const struct preflight_figures *figures)
{
	double *shares = numbers(people->ranks), usual;

	for (int r = 0; shares != NULL && r < people->ranks; r++)
		shares[r] = figures[r].of[PREFLIGHT_ALONE][PREFLIGHT_PRODUCT].share;
	usual = preflight_median(shares, people->ranks);
	free(shares);
	return usual > 0 && usual < CALM_SHARE;
}
