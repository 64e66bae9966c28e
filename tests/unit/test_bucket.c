/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* params/layout and reduce/bucket: where gradients lie and how they are cut.
   reduce/merge: which gradients to all-reduce together, beside all ways of doing so. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reduce/bucket.h"
#include "reduce/merge.h"
#include "reduce/unit.h"
#include "tests/support/test.h"

enum { PARAMS_MAX = 8, BUCKETS_MAX = 16 };

static char names[PARAMS_MAX][8];

static ddp_param vector(int index, int64_t count)
{
	snprintf(names[index], sizeof(names[index]), "p%d", index);
	return (ddp_param){ .name = names[index], .ndim = 1, .shape = { count } };
}

static void make_layout(const int64_t *counts, ddp_layout *layout)
{
	ddp_param params[PARAMS_MAX];
	int n = 0;

	for (; n < PARAMS_MAX && counts[n] > 0; n++)
		params[n] = vector(n, counts[n]);
	assert_int_equal(ddp_layout_make(params, n, layout), DDP_OK);
}

/* Backward computes the first parameter's gradient last. */
TEST(large_gradients_do_not_wait_for_the_first_parameter)
{
	enum { K = 1024 };
	static const struct {
		int64_t counts[PARAMS_MAX], begins[BUCKETS_MAX];
		int count;
	} cases[] = {
		{ { 128 * K, 192 * K }, { 256 * K, 128 * K, 0 }, 3 },
		{ { 192 * K, 128 * K }, { 256 * K, 192 * K, 64 * K, 0 }, 4 },
		{ { 100 * K, 220 * K }, { 256 * K, 128 * K, 0 }, 3 }, /* too little would go earlier */
		{ { 16, 319 * K }, { 255 * K + 16, 127 * K + 16, 0 }, 3 },
	};

	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		ddp_layout layout;
		ddp_bucket_plan plan;

		make_layout(cases[c].counts, &layout);
		assert_int_equal(ddp_bucket_plan_make(&layout, 64 * K, 128 * K, &plan), DDP_OK);
		assert_int_equal(plan.count, cases[c].count);
		for (int k = 0; k < plan.count; k++)
			assert_int_equal(plan.buckets[k].begin, cases[c].begins[k]);
		ddp_bucket_plan_free(&plan);
		ddp_layout_free(&layout);
	}
}

static void expect_whole_plan(const ddp_layout *layout, int64_t first_size, int64_t size)
{
	ddp_bucket_plan plan;
	int64_t end = layout->elements;

	assert_int_equal(ddp_bucket_plan_make(layout, first_size, size, &plan), DDP_OK);
	for (int k = 0; k < plan.count; k++) {
		assert_int_equal(plan.buckets[k].end, end);
		assert_true(plan.buckets[k].begin < end);
		assert_int_equal(plan.buckets[k].begin % DDP_ALIGN_ELEMENTS, 0);
		for (int64_t e = plan.buckets[k].begin; e < end; e++)
			assert_int_equal(ddp_bucket_of(&plan, e), k);
		end = plan.buckets[k].begin;
	}
	assert_int_equal(end, 0);
	ddp_bucket_plan_free(&plan);
}

static void expect_grains(const ddp_bucket_plan *plan, const int64_t *wanted)
{
	int g = 0;

	for (; wanted[g] > 0; g++)
		assert_int_equal(plan->grains[g], wanted[g]);
	assert_int_equal(plan->grain_count, g);
	assert_int_equal(plan->grains[g], 0);
}

TEST(buckets_are_cut_anew_at_borders_of_tensors)
{
	enum { K = 1024 };
	static const int64_t counts[PARAMS_MAX] = { 80 * K, 300 * K, 64, 10 * K, 70 * K, 90 * K };
	/* As they are first cut; and where else, but into no part of less than 16 K. */
	static const int64_t first[] = { 550 * K + 64, 430 * K + 64, 230 * K + 64, 30 * K + 64, 0 };
	static const int64_t fine[] = { 550 * K + 64, 460 * K + 64, 430 * K + 64, 390 * K + 64, 230 * K + 64,
	                                80 * K, 30 * K + 64, 0 };
	static const int64_t large[] = { 550 * K + 64, 460 * K + 64, 390 * K + 64, 80 * K, 0 };
	int ends[BUCKETS_MAX];
	ddp_layout layout;
	ddp_bucket_plan plan;

	make_layout(counts, &layout);
	assert_int_equal(ddp_bucket_plan_make(&layout, 120 * K, 200 * K, &plan), DDP_OK);
	expect_grains(&plan, first);
	assert_int_equal(ddp_bucket_plan_refine(&layout, &plan), DDP_OK);
	expect_grains(&plan, fine);
	ddp_bucket_plan_free(&plan);

	assert_int_equal(ddp_bucket_plan_make(&layout, 1000 * K, 1000 * K, &plan), DDP_OK);
	assert_int_equal(plan.count, 2);
	assert_int_equal(ddp_bucket_plan_refine(&layout, &plan), DDP_OK);
	expect_grains(&plan, large);
	ddp_bucket_plan_ends(&plan, ends);
	assert_true(ends[0] == 3 && ends[1] == 4);
	ddp_bucket_plan_cut(&layout, (const int[]){ 1, 4 }, 2, &plan);
	assert_int_equal(plan.count, 2);
	assert_true(plan.buckets[0].begin == 460 * K + 64 && plan.buckets[0].end == 550 * K + 64);
	assert_true(plan.buckets[0].first_param == 5 && plan.buckets[0].last_param == 5);
	assert_true(plan.buckets[1].begin == 0 && plan.buckets[1].end == 460 * K + 64);
	assert_true(plan.buckets[1].first_param == 0 && plan.buckets[1].last_param == 4);
	ddp_bucket_plan_free(&plan);
	ddp_layout_free(&layout);
}

/* Also if the first bucket is larger than the others: the cut behind the first parameter leaves to them what a first
   bucket of this size would have taken. */
TEST(every_element_is_in_one_bucket)
{
	static const int64_t counts[PARAMS_MAX] = { 1000, 3, 17, 16, 250, 1 }, large[PARAMS_MAX] = { 70000, 70000 };
	static const int64_t first_sizes[] = { 60000, 100000, 139000, 140000, 1 << 30 };
	static const int64_t sizes[] = { 16, 128, 1024, 65536 };
	ddp_layout layout;

	make_layout(counts, &layout);
	for (int64_t size = 1; size < 400; size += 7)
		expect_whole_plan(&layout, size / 3, size);
	ddp_layout_free(&layout);
	make_layout(large, &layout);
	for (size_t f = 0; f < COUNT(first_sizes); f++)
		for (size_t s = 0; s < COUNT(sizes); s++)
			expect_whole_plan(&layout, first_sizes[f], sizes[s]);
	ddp_layout_free(&layout);
}

TEST(no_unit_of_a_bucket_is_larger_than_4_MiB)
{
	static const int64_t counts[PARAMS_MAX] = { 1000, 3 << 20 };
	ddp_bucket_plan plan;
	ddp_layout layout;
	ddp_units units;

	make_layout(counts, &layout);
	assert_int_equal(ddp_bucket_plan_make(&layout, 4 << 20, 4 << 20, &plan), DDP_OK);
	assert_int_equal(ddp_units_make(&layout, &plan, false, 1, 0, &units), DDP_OK);
	for (int u = 0; u < units.count; u++)
		assert_true(units.list[u].end - units.list[u].begin <= DDP_UNIT_ELEMENTS);
	ddp_units_free(&units);
	ddp_bucket_plan_free(&plan);
	ddp_layout_free(&layout);
}

TEST(too_many_buckets_are_refused)
{
	const ddp_param huge = { .name = "w", .ndim = 1, .shape = { (int64_t)1 << 40 } };
	ddp_layout layout;
	ddp_bucket_plan plan;

	assert_int_equal(ddp_layout_make(&huge, 1, &layout), DDP_OK);
	assert_int_equal(ddp_bucket_plan_make(&layout, 16, 16, &plan), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "use larger ones"));
	ddp_layout_free(&layout);
}

static void expect_bad_list(const ddp_param *params, int count, const char *part)
{
	ddp_layout layout;

	assert_int_equal(ddp_layout_make(params, count, &layout), DDP_ERR_INVALID);
	if (strstr(ddp_last_error(), part) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", ddp_last_error(), part);
}

TEST(wrong_parameters_are_named)
{
	char long_name[300];
	ddp_param two[2] = { vector(0, 4), vector(1, 4) };

	expect_bad_list(NULL, 1, "list of parameters is NULL");
	expect_bad_list(two, 0, "at least one parameter, not 0");
	two[1].name = NULL;
	expect_bad_list(two, 2, "parameter 1 has no name");
	two[1].name = "p0";
	expect_bad_list(two, 2, "two parameters have the name \"p0\"");
	two[1].name = "a\nb";
	expect_bad_list(two, 2, "byte 1 of its name is not printable");
	two[1].name = "optimizer.m.p0";
	expect_bad_list(two, 2, "reserved");
	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	two[1].name = long_name;
	expect_bad_list(two, 2, "longer than 255");
	long_name[255] = '\0';
	two[1].ndim = -1;
	expect_bad_list(two, 2, "ndim is -1");
	two[1].ndim = 0; /* forgotten: it has a shape */
	expect_bad_list(two, 2, "ndim is 0, of a single number, but its shape begins with 4");
	two[1] = vector(1, 4);
	two[1].reserved[2] = 1;
	expect_bad_list(two, 2, "parameter \"p1\" sets reserved[2]");
	const ddp_param_group later = { .learning_rate_factor = 1, .reserved[3] = 1 };
	two[1] = vector(1, 4);
	two[1].group = &later;
	expect_bad_list(two, 2, "the group of parameter \"p1\" sets reserved[3]");
	two[1].group = NULL;
	two[1].name = "w";
	two[1].ndim = DDP_MAX_DIMS + 1;
	expect_bad_list(two, 2, "\"w\": ndim is 9");
	two[1].ndim = 2;
	two[1].shape[1] = 0;
	expect_bad_list(two, 2, "dimension 1 is 0");
	two[1].shape[0] = two[1].shape[1] = INT64_MAX / 2;
	expect_bad_list(two, 2, "\"w\" has too many elements");
	two[0].shape[0] = two[1].shape[0] = (int64_t)1 << 59;
	two[1].shape[1] = 1;
	expect_bad_list(two, 2, "too many elements together");
}

/* ---- reduce/merge --------------------------------------------------------------- */

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
	double when[GRAINS];
	int64_t elements[GRAINS];
	unsigned int seed = 1;

	for (int i = 0; i < 4000; i++) {
		ddp_merge_case c = { .count = 1 + i % GRAINS, .ready = when, .elements = elements };
		const double gap = draw(&seed), size = pow(10, 4 * draw(&seed));
		double at = draw(&seed);
		for (int g = 0; g < c.count; g++) {
			elements[g] = 1 + (int64_t)(size * (i % 3 == 0 ? 1 : draw(&seed)));
			at += gap * draw(&seed);
			when[g] = i % 5 == 0 ? draw(&seed) : at; /* also in another order than they travel in */
		}
		c.latency = i % 7 == 0 ? 0 : draw(&seed) * pow(10, -2 * draw(&seed));
		c.per_element = i % 11 == 0 ? 0 : draw(&seed) / size;
		c.update = i % 2 == 0 ? 0 : draw(&seed) / size;
		expect_best(&c);
	}
}

TEST(as_many_grains_as_there_may_be_are_merged)
{
	static double when[DDP_GRAINS_MAX];
	static int64_t elements[DDP_GRAINS_MAX];
	static int ends[DDP_GRAINS_MAX], each[DDP_GRAINS_MAX];
	const ddp_merge_case c = { DDP_GRAINS_MAX, when, elements, 1e-3, 1e-9, 1e-10 };

	for (int g = 0; g < DDP_GRAINS_MAX; g++) {
		when[g] = g * 1e-4;
		elements[g] = 1 << 16;
		each[g] = g + 1;
	}
	const int count = ddp_merge(&c, ends);
	assert_true(count > 1 && count < DDP_GRAINS_MAX / 10);
	assert_int_equal(ends[count - 1], DDP_GRAINS_MAX);
	assert_true(ddp_merge_end(&c, ends, count) < 0.3 * ddp_merge_end(&c, each, DDP_GRAINS_MAX));
}
