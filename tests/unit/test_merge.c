/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* reduce/merge: which gradients to all-reduce together, beside all ways of doing so. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "reduce/merge.h"
#include "tests/support/test.h"

enum { GRAINS = 9 };

/* A number from 0 to 1. */
static double draw(unsigned int *seed)
{
	return (double)rand_r(seed) / RAND_MAX;
}

/* When a step ends whose bucket ends behind each grain that has a bit in `cuts`: grain by grain,
   in the order in which all happens. */
static double end_of(const ddp_merge_case *c, unsigned int cuts)
{
	double sent[GRAINS], last = 0, travels = c->latency, updated = 0;
	int first = 0;

	for (int i = 0; i < c->count; i++) {
		updated = fmax(updated, c->ready[i]); /* no update before the end of backward */
		last = fmax(last, c->ready[i]);
		travels += c->per_element * (double)c->elements[i];
		if (i < c->count - 1 && (cuts >> i & 1) == 0)
			continue;
		last += travels;
		travels = c->latency;
		for (; first <= i; first++)
			sent[first] = last;
	}
	for (int i = 0; i < c->count; i++)
		updated = fmax(updated, sent[i]) + c->update * (double)c->elements[i];
	return updated;
}

static double best_of(const ddp_merge_case *c)
{
	double best = INFINITY;

	for (unsigned int cuts = 0; cuts < 1u << (c->count - 1); cuts++)
		best = fmin(best, end_of(c, cuts));
	return best;
}

static unsigned int cuts_of(const int *ends, int count)
{
	unsigned int cuts = 0;

	for (int k = 0; k < count; k++)
		cuts |= 1u << (ends[k] - 1);
	return cuts;
}

static void expect_best(const ddp_merge_case *c)
{
	int ends[GRAINS];

	const int count = ddp_merge(c, ends);
	assert_true(count >= 1 && count <= c->count);
	for (int k = 0; k < count; k++)
		assert_true(ends[k] > (k > 0 ? ends[k - 1] : 0));
	assert_int_equal(ends[count - 1], c->count);
	const double got = end_of(c, cuts_of(ends, count)), best = best_of(c);
	assert_true(got <= best * (1 + 1e-6));
	assert_true(fabs(ddp_merge_end(c, ends, count) - got) <= 1e-9 * got);
}

TEST(no_other_cut_ends_a_step_earlier)
{
	double ready[GRAINS];
	int64_t elements[GRAINS];
	unsigned int seed = 1;

	for (int i = 0; i < 4000; i++) {
		ddp_merge_case c = { .count = 1 + i % GRAINS, .ready = ready, .elements = elements };
		const double gap = draw(&seed), size = pow(10, 4 * draw(&seed));
		double at = draw(&seed);
		for (int g = 0; g < c.count; g++) {
			elements[g] = 1 + (int64_t)(size * (i % 3 == 0 ? 1 : draw(&seed)));
			at += gap * draw(&seed);
			ready[g] = i % 5 == 0 ? draw(&seed) : at; /* also in another order than they travel in */
		}
		c.latency = i % 7 == 0 ? 0 : draw(&seed) * pow(10, -2 * draw(&seed));
		c.per_element = i % 11 == 0 ? 0 : draw(&seed) / size;
		c.update = i % 2 == 0 ? 0 : draw(&seed) / size;
		expect_best(&c);
	}
}

/* `wanted`: the ends, then 0. */
static void expect_cut(ddp_merge_case c, const int *wanted)
{
	int ends[GRAINS];
	int k = 0;

	const int count = ddp_merge(&c, ends);
	for (; wanted[k] > 0; k++)
		assert_int_equal(ends[k], wanted[k]);
	assert_int_equal(count, k);
}

TEST(what_is_near_goes_together_and_what_is_far_alone)
{
	static const int64_t sizes[] = { 10, 10, 10, 10 };
	static const double at_once[] = { 1, 1, 1, 1 }, apart[] = { 1, 10, 20, 30 };
	static const double two_and_two[] = { 1, 1.1, 20, 20.1 };
	static const int one[] = { 4, 0 }, each[] = { 1, 2, 3, 4, 0 }, pairs[] = { 2, 4, 0 };

	expect_cut((ddp_merge_case){ 4, at_once, sizes, 0.5, 0.1, 0 }, one);
	expect_cut((ddp_merge_case){ 4, apart, sizes, 0.5, 0.1, 0 }, each);
	expect_cut((ddp_merge_case){ 4, two_and_two, sizes, 0.5, 0.1, 0 }, pairs);
	/* The link is free of cost but for latency. */
	expect_cut((ddp_merge_case){ 4, apart, sizes, 100, 0, 0 }, one);
	/* Updates beside the rest are worth a latency. */
	expect_cut((ddp_merge_case){ 4, at_once, sizes, 0.01, 0.1, 0.1 }, each);
}

TEST(as_many_grains_as_there_may_be_are_merged)
{
	static double ready[DDP_GRAINS_MAX];
	static int64_t elements[DDP_GRAINS_MAX];
	static int ends[DDP_GRAINS_MAX], each[DDP_GRAINS_MAX];
	const ddp_merge_case c = { DDP_GRAINS_MAX, ready, elements, 1e-3, 1e-9, 1e-10 };

	for (int g = 0; g < DDP_GRAINS_MAX; g++) {
		ready[g] = g * 1e-4;
		elements[g] = 1 << 16;
		each[g] = g + 1;
	}
	const int count = ddp_merge(&c, ends);
	assert_true(count > 1 && count < DDP_GRAINS_MAX / 10);
	assert_int_equal(ends[count - 1], DDP_GRAINS_MAX);
	assert_true(ddp_merge_end(&c, ends, count) < 0.3 * ddp_merge_end(&c, each, DDP_GRAINS_MAX));
}
