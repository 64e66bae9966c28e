/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/judge_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "preflight/statistics.h"

enum { REPEATS_MAX = 64 };

static const double DOUBT = 0.8;
static const double ODD = 0.7, RATE_ODD_BUSY = 0.35, PEAK_ODD_BUSY = 0.5;
static const double CALM_SHARE = 0.85; /* of the processor time that a rank wants */
static const double OFTEN = 0.25, HALF = 0.5; /* of the trials of those compared with */

enum field { PEAK, RATE, FIELDS };

static double value_of(const struct preflight_figure *figure, enum field field)
{
	return field == PEAK ? figure->peak : figure->rate;
}

static const struct {
	const char *name, *unit;
} works[PREFLIGHT_WORKS] = {
	[PREFLIGHT_PRODUCT] = { "matrix product", "GFLOP/s" },
	[PREFLIGHT_MEMORY] = { "memory", "GB/s" },
	[PREFLIGHT_GPU_PRODUCT] = { "matrix product on the GPU", "GFLOP/s" },
	[PREFLIGHT_GPU_MEMORY] = { "memory of the GPU", "GB/s" },
};

static const char *const abouts[PREFLIGHT_WORKS] = { "product", "memory", "gpu", "gpu" };

const char *preflight_work_name(enum preflight_work work)
{
	return works[work].name;
}

const char *preflight_work_unit(enum preflight_work work)
{
	return works[work].unit;
}

/* Room for one number per rank; the caller frees it. */
static double *numbers(int ranks)
{
	return calloc((size_t)(ranks > 0 ? ranks : 1), sizeof(double));
}

/* The values of the ranks of one kind. */
static int of_kind(const struct preflight_people *people, const struct preflight_figures *figures, int kind, int way,
                   int work, enum field field, double *values)
{
	int count = 0;

	for (int r = 0; r < people->ranks; r++)
		if (people->kind[r] == kind)
			values[count++] = value_of(&figures[r].of[way][work], field);
	return count;
}

static void look(double *doubt, bool *at_once, bool *work_doubted, const struct preflight_people *people,
                 const struct preflight_figures *figures, int way, int work, enum field field, double *values)
{
	double usual = 0, spread = 0;
	int kind = -1;

	for (int r = 0; r < people->ranks; r++) {
		double value = value_of(&figures[r].of[way][work], field);
		if (kind < 0 || people->kind[r] != kind) {
			int count;
			kind = people->kind[r];
			count = of_kind(people, figures, kind, way, work, field, values);
			usual = preflight_median(values, count);
			spread = preflight_spread(values, count);
		}
		if (!preflight_is_suspect(value, usual, spread, DOUBT))
			continue;
		if (value / usual < doubt[r])
			doubt[r] = value / usual;
		*at_once |= way == PREFLIGHT_AT_ONCE;
		*work_doubted = true;
	}
}

static void look_at_all(double *doubt, struct preflight_ranks_again *again, const struct preflight_people *people,
                        const struct preflight_figures *figures, double *values)
{
	for (int way = 0; way < PREFLIGHT_WAYS; way++)
		for (int work = 0; work < PREFLIGHT_WORKS; work++)
			for (int field = 0; field < FIELDS; field++)
				look(doubt, &again->at_once, &again->work[work], people, figures, way, work, (enum field)field, values);
}

static bool is_chosen(const struct preflight_ranks_again *again, int rank)
{
	for (int i = 0; i < again->count; i++)
		if (again->rank[i] == rank)
			return true;
	return false;
}

/* So many subjects are of the rank's machine. */
static int of_machine(const struct preflight_ranks_again *again, const struct preflight_people *people, int machine)
{
	int count = 0;

	for (int i = 0; i < again->count; i++)
		count += !again->control[i] && people->machine[again->rank[i]] == machine;
	return count;
}

static void choose(struct preflight_ranks_again *again, int rank, bool control)
{
	again->rank[again->count] = rank;
	again->control[again->count++] = control;
}

/* The rank of the kind that is nearest to innocence, first of all on a machine without a suspect. */
static int best_control(const struct preflight_ranks_again *again, const struct preflight_people *people,
                        const double *doubt, int kind)
{
	int best = -1;
	bool best_apart = false;

	for (int r = 0; r < people->ranks; r++) {
		bool apart;
		if (people->kind[r] != kind || is_chosen(again, r))
			continue;
		apart = of_machine(again, people, people->machine[r]) == 0;
		if (best < 0 || doubt[r] > doubt[best] || (doubt[r] == doubt[best] && apart && !best_apart)) {
			best = r;
			best_apart = apart;
		}
	}
	return best;
}

static void choose_controls(struct preflight_ranks_again *again, const struct preflight_people *people,
                            const double *doubt)
{
	int subjects = again->count;

	for (int i = 0; i < subjects; i++) {
		int kind = people->kind[again->rank[i]], have = 0;
		for (int j = subjects; j < again->count; j++)
			have += people->kind[again->rank[j]] == kind;
		for (; have < PREFLIGHT_CONTROLS && again->count < PREFLIGHT_RANKS_AGAIN; have++) {
			int rank = best_control(again, people, doubt, kind);
			if (rank < 0)
				break;
			choose(again, rank, true);
		}
	}
}

/* At most half of a kind is suspect, so that there are others to compare with. */
static bool is_full(const struct preflight_ranks_again *again, const struct preflight_people *people, int kind)
{
	int ranks = 0, subjects = 0;

	for (int r = 0; r < people->ranks; r++)
		ranks += people->kind[r] == kind;
	for (int i = 0; i < again->count; i++)
		subjects += people->kind[again->rank[i]] == kind;
	return subjects >= ranks / 2;
}

static int worst(const struct preflight_ranks_again *again, const struct preflight_people *people, const double *doubt)
{
	int found = -1;

	for (int r = 0; r < people->ranks; r++)
		if (doubt[r] < 1 && (found < 0 || doubt[r] < doubt[found]) && !is_chosen(again, r) &&
		    of_machine(again, people, people->machine[r]) < PREFLIGHT_OF_A_MACHINE &&
		    !is_full(again, people, people->kind[r]))
			found = r;
	return found;
}

void preflight_ranks_doubt(struct preflight_ranks_again *again, const struct preflight_people *people,
                           const struct preflight_figures *figures)
{
	double *doubt = numbers(people->ranks), *values = numbers(people->ranks);

	*again = (struct preflight_ranks_again){ .count = 0 };
	for (int r = 0; doubt != NULL && r < people->ranks; r++)
		doubt[r] = 1;
	if (doubt != NULL && values != NULL) {
		look_at_all(doubt, again, people, figures, values);
		for (int r; again->count < PREFLIGHT_SUBJECTS && (r = worst(again, people, doubt)) >= 0;)
			choose(again, r, false);
		choose_controls(again, people, doubt);
	}
	free(doubt);
	free(values);
}

/* ---- the verdict ---- */

struct verdict {
	bool odd;
	bool chancy; /* and those compared with were disturbed */
	double value, usual, share, usual_share;
};

struct trials {
	const struct preflight_people *people;
	const struct preflight_ranks_again *again;
	const struct preflight_figures *alone, *at_once;
	int repeats;
	bool busy;
	double *values; /* room for a number per rank */
	bool chancy;    /* a rank is odd beside others that were disturbed */
};

static const struct preflight_figure *trial(const struct trials *t, int repeat, int item, int way, int work)
{
	int rank = t->again->rank[item];

	return way == PREFLIGHT_ALONE ? &t->alone[repeat * t->again->count + item].of[way][work]
	                              : &t->at_once[repeat * t->people->ranks + rank].of[way][work];
}

/* The middle of those with which an item is compared: alone the controls, at once all ranks of its kind. */
static double compared(const struct trials *t, int repeat, int item, int way, int work, enum field field, bool share)
{
	int kind = t->people->kind[t->again->rank[item]], count = 0;

	if (way == PREFLIGHT_ALONE) {
		for (int i = 0; i < t->again->count; i++) {
			const struct preflight_figure *f = trial(t, repeat, i, way, work);
			if (t->again->control[i] && t->people->kind[t->again->rank[i]] == kind)
				t->values[count++] = share ? f->share : value_of(f, field);
		}
		return preflight_median(t->values, count);
	}
	for (int r = 0; r < t->people->ranks; r++) {
		const struct preflight_figure *f = &t->at_once[repeat * t->people->ranks + r].of[way][work];
		if (t->people->kind[r] == kind && r != t->again->rank[item])
			t->values[count++] = share ? f->share : value_of(f, field);
	}
	return preflight_median(t->values, count);
}

/* How often others than the suspect do not get their processors: from 0 to 1. */
static double disturbances(const struct trials *t, int item, int way, int work)
{
	int kind = t->people->kind[t->again->rank[item]], all = 0, disturbed = 0;

	for (int r = 0; r < t->repeats; r++) {
		for (int i = 0; way == PREFLIGHT_ALONE && i < t->again->count; i++) {
			if (!t->again->control[i] || t->people->kind[t->again->rank[i]] != kind)
				continue;
			all++;
			disturbed += trial(t, r, i, way, work)->share < CALM_SHARE;
		}
		for (int i = 0; way == PREFLIGHT_AT_ONCE && i < t->people->ranks; i++) {
			if (t->people->kind[i] != kind || i == t->again->rank[item])
				continue;
			all++;
			disturbed += t->at_once[r * t->people->ranks + i].of[way][work].share < CALM_SHARE;
		}
	}
	return all > 0 ? (double)disturbed / all : 0;
}

static struct verdict judge(const struct trials *t, int item, int way, int work, enum field field)
{
	double suspect[REPEATS_MAX], controls[REPEATS_MAX], own[REPEATS_MAX] = { 0 }, usual[REPEATS_MAX];
	struct verdict v;
	const double others = work < PREFLIGHT_GPU_PRODUCT ? disturbances(t, item, way, work) : 0;
	const bool busy = work < PREFLIGHT_GPU_PRODUCT && (t->busy || others > OFTEN);
	bool stopped;

	for (int r = 0; r < t->repeats; r++) {
		const struct preflight_figure *f = trial(t, r, item, way, work);
		suspect[r] = value_of(f, field);
		own[r] = f->share;
		controls[r] = compared(t, r, item, way, work, field, false);
		usual[r] = compared(t, r, item, way, work, field, true);
	}
	v.share = preflight_median(own, t->repeats);
	v.usual_share = preflight_median(usual, t->repeats);
	/* Others are disturbed now and then, but a neighbour that never leaves stops the suspect each time. */
	stopped = !t->busy && field == RATE && others <= HALF &&
	          preflight_best(own, t->repeats) < ODD * v.usual_share;
	v.odd = preflight_is_odd(suspect, controls, t->repeats,
	                         !busy || stopped ? ODD : field == PEAK ? PEAK_ODD_BUSY : RATE_ODD_BUSY);
	v.chancy = v.odd && others > 0;
	v.value = preflight_best(suspect, t->repeats);
	v.usual = preflight_median(controls, t->repeats);
	return v;
}

static void say(struct preflight_findings *findings, const struct trials *t, int item, int work, const char *when,
                const struct verdict *v)
{
	int rank = t->again->rank[item], node = t->people->node[rank];
	const struct preflight_finding f = { .odd = true, .about = abouts[work], .node = node, .rank = rank, .peer = -1,
		                             .value = v->value, .usual = v->usual };

	preflight_find(findings, &f, "rank %d on %s: %s %s is %.3g %s, and others have %.3g (%.0f%%)", rank,
	               t->people->names[node], works[work].name, when, v->value * 1e-9, works[work].unit, v->usual * 1e-9,
	               100 * v->value / v->usual);
}

static void say_share(struct preflight_findings *findings, const struct trials *t, int item, const char *when,
                      const struct verdict *v)
{
	int rank = t->again->rank[item], node = t->people->node[rank];
	const struct preflight_finding f = { .odd = true, .about = "cpu", .node = node, .rank = rank, .peer = -1,
		                             .value = v->share, .usual = v->usual_share };

	preflight_find(findings, &f,
	               "rank %d on %s: it gets its processor for %.0f%% of the time %s, and others for %.0f%%: another "
	               "process runs there, or a limit or signal stops the rank",
	               rank, t->people->names[node], 100 * v->share, when, 100 * v->usual_share);
}

/* Whether a rank is slow because it does not run all the time. */
static bool is_stopped(const struct verdict *v)
{
	return v->share < ODD * v->usual_share;
}

/* The peak of a rank that hardly runs is low, too: its processor is the cause, and the work is a consequence. */
static bool judge_field(struct preflight_findings *findings, struct trials *t, int item, int way, enum field field,
                        const char *when, bool *unfit)
{
	bool odd = false;

	for (int work = 0; work < PREFLIGHT_WORKS; work++) {
		struct verdict v = judge(t, item, way, work, field);
		if (!t->again->work[work] || !v.odd)
			continue;
		odd = true;
		t->chancy |= v.chancy;
		if (work < PREFLIGHT_GPU_PRODUCT && is_stopped(&v)) {
			say_share(findings, t, item, when, &v);
			unfit[t->people->node[t->again->rank[item]]] = true;
			return true;
		}
		say(findings, t, item, work, when, &v);
	}
	return odd;
}

/* Returns whether something is odd. */
static bool judge_way(struct preflight_findings *findings, struct trials *t, int item, int way, const char *when,
                      bool *unfit)
{
	return judge_field(findings, t, item, way, PEAK, when, unfit) ||
	       judge_field(findings, t, item, way, RATE, when, unfit);
}

bool preflight_ranks_judge(struct preflight_findings *findings, const struct preflight_people *people,
                           const struct preflight_ranks_again *again, const struct preflight_figures *alone,
                           const struct preflight_figures *at_once, int repeats, bool busy, bool *unfit)
{
	struct trials t = { people, again, alone, at_once, repeats < REPEATS_MAX ? repeats : REPEATS_MAX, busy,
		            numbers(people->ranks + PREFLIGHT_RANKS_AGAIN), false };

	for (int i = 0; t.values != NULL && repeats > 0 && i < again->count; i++) {
		if (again->control[i])
			continue;
		if (!judge_way(findings, &t, i, PREFLIGHT_ALONE, "alone", unfit) && again->at_once)
			judge_way(findings, &t, i, PREFLIGHT_AT_ONCE, "beside the other ranks", unfit);
	}
	free(t.values);
	return t.chancy;
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
