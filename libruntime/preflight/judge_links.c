/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/judge_links.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preflight/statistics.h"

enum { CONTROLS = 3, LINKS_OF_A_NODE = 3, SUBJECTS_AND_ONE = PREFLIGHT_SUBJECTS + 1 };

static const double BEST_QUARTER = 0.75;
/* Worth a second look, and odd where processors are free or not. */
static const double BANDWIDTH_DOUBT = 0.8, BANDWIDTH_ODD = 0.6, BANDWIDTH_ODD_BUSY = 0.35;
static const double SPEED_DOUBT = 0.5, SPEED_ODD = 0.4, SPEED_ODD_BUSY = 0.1;
/* An end that waits for its processor for this share of the time makes the link look slow. */
static const double WAITED = 0.1;
static const double LATENCY_LEAST = 2e-6; /* a smaller difference is of no interest */
static const double CLOCK_SECONDS = 0.1;

/* One of the two figures of a link, as a rate. */
typedef double figure(const struct preflight_link *link);

static double bandwidth(const struct preflight_link *link)
{
	return link->bandwidth;
}

static double speed(const struct preflight_link *link)
{
	return link->latency > 0 ? 1 / link->latency : 0;
}

/* How far each link and node is from what is usual, as a share of it; the lower, the worse. 1: nothing is odd. */
struct doubts {
	double *link, *node; /* nodes directly behind links */
	double *usual, *values; /* room for a number per node, and per link */
};

static double of_node(const struct preflight_link *links, int count, int node, figure *value, double *values)
{
	int mine = 0;

	for (int i = 0; i < count; i++)
		if (links[i].a == node || links[i].b == node)
			values[mine++] = value(&links[i]);
	return preflight_quantile(values, mine, BEST_QUARTER);
}

static void look(struct doubts *doubts, const struct preflight_link *links, int count, int nodes, figure *value,
                 double limit)
{
	double *usual = doubts->usual, *values = doubts->values;

	for (int n = 0; n < nodes; n++)
		usual[n] = of_node(links, count, n, value, values);
	const double middle = preflight_median(usual, nodes);
	double spread = preflight_spread(usual, nodes);
	for (int n = 0; n < nodes; n++)
		if (preflight_is_suspect(usual[n], middle, spread, limit))
			doubts->node[n] = fmin(doubts->node[n], usual[n] / middle);
	for (int i = 0; i < count; i++)
		values[i] = value(&links[i]);
	spread = preflight_spread(values, count);
	for (int i = 0; i < count; i++) {
		const double wanted = fmin(usual[links[i].a], usual[links[i].b]);
		if (preflight_is_suspect(values[i], wanted, spread, limit))
			doubts->link[i] = fmin(doubts->link[i], values[i] / wanted);
	}
}

static bool is_chosen(const struct preflight_links_again *again, const struct preflight_link *link)
{
	for (int i = 0; i < again->count; i++)
		if (again->item[i].a == link->a && again->item[i].b == link->b)
			return true;
	return false;
}

static void choose(struct preflight_links_again *again, const struct preflight_link *link, const int *machine, int node,
                   bool control)
{
	int i = again->count++;

	again->item[i] = (struct preflight_item){ .a = link->a, .b = link->b, .machine_a = machine[link->a],
		                                  .machine_b = machine[link->b] };
	again->node[i] = node;
	again->control[i] = control;
}

/* The links of a suspect node to nodes that are less suspect, the best first: one good link is its defence. */
static void choose_of_node(struct preflight_links_again *again, const struct doubts *doubts,
                           const struct preflight_link *links, int count, int node, const int *machine)
{
	for (int k = 0; k < LINKS_OF_A_NODE && again->count < SUBJECTS_AND_ONE; k++) {
		int best = -1;
		for (int i = 0; i < count; i++) {
			int peer = links[i].a == node ? links[i].b : links[i].a;
			if ((links[i].a != node && links[i].b != node) || doubts->node[peer] <= doubts->node[node] ||
			    is_chosen(again, &links[i]))
				continue;
			if (best < 0 || links[i].bandwidth > links[best].bandwidth)
				best = i;
		}
		if (best < 0)
			return;
		choose(again, &links[best], machine, node, false);
	}
}

/* The least suspicious link, and of several the one whose bandwidth is nearest to the middle; -1: all are chosen. */
static int least_suspicious(const struct preflight_links_again *again, const struct doubts *doubts,
                            const struct preflight_link *links, int count, double middle)
{
	double most = 0;
	int found = -1;

	for (int i = 0; i < count; i++) {
		const double share = fmin(doubts->link[i], fmin(doubts->node[links[i].a], doubts->node[links[i].b]));
		if (is_chosen(again, &links[i]) || share < most)
			continue;
		if (found < 0 || share > most ||
		    fabs(links[i].bandwidth - middle) < fabs(links[found].bandwidth - middle)) {
			found = i;
			most = share;
		}
	}
	return found;
}

static void choose_controls(struct preflight_links_again *again, const struct doubts *doubts,
                            const struct preflight_link *links, int count, const int *machine, int controls)
{
	for (int i = 0; i < count; i++)
		doubts->values[i] = links[i].bandwidth;
	const double middle = preflight_median(doubts->values, count);
	for (int i; controls > 0 && (i = least_suspicious(again, doubts, links, count, middle)) >= 0; controls--)
		choose(again, &links[i], machine, -1, true);
}

static int worst(const double *doubts, int count, const bool *done)
{
	int found = -1;

	for (int i = 0; i < count; i++)
		if (doubts[i] < 1 && !done[i] && (found < 0 || doubts[i] < doubts[found]))
			found = i;
	return found;
}

static void choose_all(struct preflight_links_again *again, const struct doubts *doubts,
                       const struct preflight_link *links, int count, int nodes, const int *machine, bool *done)
{
	/* The first control comes first, so that there is one, if all links are suspect. */
	choose_controls(again, doubts, links, count, machine, 1);
	/* Nodes follow links. A link should reach what its nodes reach, also if one of them is slow. */
	for (int i; again->count < SUBJECTS_AND_ONE && (i = worst(doubts->link, count + nodes, done)) >= 0;) {
		done[i] = true;
		if (i >= count)
			choose_of_node(again, doubts, links, count, i - count, machine);
		else if (!is_chosen(again, &links[i]))
			choose(again, &links[i], machine, -1, false);
	}
	if (again->count > 1)
		choose_controls(again, doubts, links, count, machine, CONTROLS - 1);
	else
		again->count = 0;
}

void preflight_links_doubt(struct preflight_links_again *again, const struct preflight_link *links, int count,
                           int nodes, const int *machine)
{
	double *room = malloc((size_t)(2 * (count + nodes) + 1) * sizeof(*room));
	bool *done = calloc((size_t)(nodes + count) + 1, sizeof(*done));

	*again = (struct preflight_links_again){ .count = 0 };
	if (count > 1 && room != NULL && done != NULL) {
		struct doubts doubts = { .link = room, .node = room + count, .usual = room + count + nodes,
			                 .values = room + count + 2 * nodes };
		for (int i = 0; i < count + nodes; i++)
			room[i] = 1;
		look(&doubts, links, count, nodes, bandwidth, BANDWIDTH_DOUBT);
		look(&doubts, links, count, nodes, speed, SPEED_DOUBT);
		choose_all(again, &doubts, links, count, nodes, machine, done);
	}
	free(room);
	free(done);
}

/* ---- the verdict ---- */

enum { REPEATS_MAX = 64 };

struct verdict {
	bool odd;
	double value, usual; /* as rates */
};

static struct verdict judge(const struct preflight_links_again *again, const struct preflight_link *link, int repeats,
                            int item, figure *value, double limit)
{
	double suspect[REPEATS_MAX], controls[REPEATS_MAX], beside[CONTROLS];
	struct verdict verdict;

	for (int r = 0; r < repeats; r++) {
		int count = 0;
		suspect[r] = value(&link[r * again->count + item]);
		for (int i = 0; i < again->count; i++)
			if (again->control[i])
				beside[count++] = value(&link[r * again->count + i]);
		controls[r] = preflight_median(beside, count);
	}
	verdict.odd = preflight_is_odd(suspect, controls, repeats, limit);
	verdict.value = preflight_best(suspect, repeats);
	verdict.usual = preflight_median(controls, repeats);
	return verdict;
}

/* Whether an end of the link often had to wait for its processor. */
static bool waits(const struct preflight_links_again *again, const struct preflight_link *link, int repeats, int item)
{
	int often = 0;

	for (int r = 0; r < repeats; r++)
		often += link[r * again->count + item].waited > WAITED;
	return 2 * often > repeats;
}

bool preflight_links_wait(const struct preflight_links_again *again, const struct preflight_link *link, int repeats)
{
	for (int i = 0; i < again->count; i++)
		if (!again->control[i] && waits(again, link, repeats, i))
			return true;
	return false;
}

struct quantity {
	const char *about;
	figure *value;
	double limit, limit_busy;
};

static const struct quantity quantities[] = {
	{ "bandwidth", bandwidth, BANDWIDTH_ODD, BANDWIDTH_ODD_BUSY },
	{ "latency", speed, SPEED_ODD, SPEED_ODD_BUSY },
};

static struct verdict judge_by(const struct quantity *q, bool busy, const struct preflight_links_again *again,
                               const struct preflight_link *link, int repeats, int item)
{
	double limit = busy || waits(again, link, repeats, item) ? q->limit_busy : q->limit;

	return judge(again, link, repeats, item, q->value, limit);
}

static bool matters(const struct quantity *q, const struct verdict *v)
{
	return v->odd && (q->value == bandwidth || 1 / v->value - 1 / v->usual > LATENCY_LEAST);
}

static void say(struct preflight_findings *findings, const struct quantity *q, const struct verdict *v, int a, int b,
                const char *const *names)
{
	bool whole = b < 0;
	struct preflight_finding f = { .odd = true, .about = q->about, .node = a, .rank = -1, .peer = b };
	char subject[192];

	snprintf(subject, sizeof(subject), whole ? "%.80s: its links have" : "link %.80s - %.80s has", names[a],
	         whole ? "" : names[b]);
	if (q->value == bandwidth) {
		f.value = v->value;
		f.usual = v->usual;
		preflight_find(findings, &f, "%s a bandwidth of %.3g MB/s, and others %.3g MB/s (%.0f%%)", subject, v->value * 1e-6,
		               v->usual * 1e-6, 100 * v->value / v->usual);
	} else {
		f.value = 1 / v->value;
		f.usual = 1 / v->usual;
		preflight_find(findings, &f, "%s a latency of %.3g us, and others %.3g us", subject, f.value * 1e6, f.usual * 1e6);
	}
}

/* A node is odd if all of its links that were measured again are; *best is its best one. */
static bool is_node_odd(const struct preflight_links_again *again, const struct preflight_link *link, int repeats,
                        const struct quantity *q, bool busy, int node, struct verdict *best)
{
	int seen = 0;

	*best = (struct verdict){ .odd = false };
	for (int i = 0; i < again->count; i++) {
		if (again->node[i] != node || again->control[i])
			continue;
		struct verdict v = judge_by(q, busy, again, link, repeats, i);
		if (!matters(q, &v))
			return false;
		if (v.value > best->value)
			*best = v;
		seen++;
	}
	return seen > 1;
}

static bool is_first_of_node(const struct preflight_links_again *again, int item)
{
	for (int i = 0; i < item; i++)
		if (again->node[i] == again->node[item])
			return false;
	return true;
}

void preflight_links_judge(struct preflight_findings *findings, const struct preflight_links_again *again,
                           const struct preflight_link *link, int repeats, bool busy, const bool *unfit,
                           const char *const *names)
{
	struct verdict v;

	if (again->count == 0 || repeats <= 0)
		return;
	if (repeats > REPEATS_MAX)
		repeats = REPEATS_MAX;
	for (int k = 0; k < (int)(sizeof(quantities) / sizeof(quantities[0])); k++) {
		const struct quantity *q = &quantities[k];
		for (int i = 0; i < again->count; i++) {
			const struct preflight_item *item = &again->item[i];
			if (again->control[i] || unfit[item->a] || unfit[item->b])
				continue;
			if (again->node[i] >= 0 && is_node_odd(again, link, repeats, q, busy, again->node[i], &v)) {
				if (is_first_of_node(again, i))
					say(findings, q, &v, again->node[i], -1, names);
				continue;
			}
			v = judge_by(q, busy, again, link, repeats, i);
			if (matters(q, &v))
				say(findings, q, &v, item->a, item->b, names);
		}
	}
}

/* ---- clocks ---- */

/* The offset of a node's clock from those of its peers, in the middle. */
static double clock_offset(const struct preflight_link *links, int count, int node, double *offsets, double *doubt)
{
	int mine = 0;
	double middle;

	*doubt = 0;
	for (int i = 0; i < count; i++) {
		if (links[i].latency <= 0 || (links[i].a != node && links[i].b != node))
			continue;
		offsets[mine++] = links[i].b == node ? links[i].offset : -links[i].offset;
		*doubt = fmax(*doubt, links[i].doubt);
	}
	/* The statistics are those of rates; any order will do for a median. */
	for (int i = 1; i < mine; i++)
		for (int j = i; j > 0 && fabs(offsets[j - 1]) > fabs(offsets[j]); j--) {
			double kept = offsets[j];
			offsets[j] = offsets[j - 1];
			offsets[j - 1] = kept;
		}
	middle = mine > 0 ? offsets[(mine - 1) / 2] : 0;
	return middle;
}

void preflight_clocks_judge(struct preflight_findings *findings, const struct preflight_link *links, int count,
                            int nodes, const char *const *names)
{
	double *offsets = malloc((size_t)(count > 0 ? count : 1) * sizeof(*offsets));

	for (int n = 0; offsets != NULL && n < nodes; n++) {
		double doubt, offset = clock_offset(links, count, n, offsets, &doubt);
		/* If there are two nodes, nobody knows which is right. */
		bool single = nodes > 2;
		if (fabs(offset) <= CLOCK_SECONDS + doubt || (!single && n == 0))
			continue;
		const struct preflight_finding f = { .odd = true, .about = "clock", .node = single ? n : -1, .rank = -1, .peer = -1,
			                             .value = offset };
		preflight_find(findings, &f, "%s: its clock is %.3g s %s %s", names[n], fabs(offset),
		               offset > 0 ? "ahead of" : "behind", single ? "the others" : names[0]);
	}
	free(offsets);
}
