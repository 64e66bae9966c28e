/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; as: test_optimizers_device */
/* runs: asan; as: test_optimizers_cuda */
/* optim: optimizers by a queue's kernels, on memory of its place: parameters are those of their
   papers' formulas, and with what is kept have the bits of the host's, but where products of
   matrices are summed in another order. And factors of low rank: the host's bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/kernel_place.h"
#include "tests/support/optimizer_cases.h"
#include "tests/support/test.h"

enum { ELEMENTS_MAX = 8192 };

static kernel_place place;

/* A model here, or in the place. */
typedef struct fixture {
	ddp_layout layout;
	ddp_optim optim;
	bool there;
	float *params, *grads;
	float host[ELEMENTS_MAX];
} fixture;

static void put(const fixture *f, float *to, const float *from, int64_t n)
{
	if (f->there)
		kernel_place_give(&place, to, from, n);
	else
		memcpy(to, from, (size_t)n * sizeof(*to));
}

static const float *get(fixture *f, const float *from, int64_t n)
{
	assert_true(n <= ELEMENTS_MAX);
	if (f->there)
		kernel_place_take(&place, f->host, (float *)(uintptr_t)from, n);
	else
		memcpy(f->host, from, (size_t)n * sizeof(*from));
	return f->host;
}

static float *allocate(fixture *f, int64_t n)
{
	const size_t bytes = ((size_t)n + 1) * sizeof(float);
	float *memory = f->there ? place.alloc(bytes) : malloc(bytes);

	assert_non_null(memory);
	assert_true(n <= ELEMENTS_MAX);
	memset(f->host, 0, sizeof(f->host));
	put(f, memory, f->host, n);
	return memory;
}

static void set_up(fixture *f, const ddp_param *list, int count, const ddp_model_options *options, bool there)
{
	memset(f, 0, sizeof(*f));
	f->there = there;
	assert_int_equal(ddp_layout_make(list, count, &f->layout), DDP_OK);
	assert_int_equal(ddp_optim_make(options, &f->layout, true, &f->optim), DDP_OK);
	f->params = allocate(f, f->layout.elements);
	f->grads = allocate(f, f->layout.elements);
	for (int i = 0; i < f->optim.state_count; i++)
		ddp_optim_lend(&f->optim, i, allocate(f, f->optim.state_elements[i]));
	ddp_optim_lend_work(&f->optim, allocate(f, f->optim.work_elements));
	memset(f->host, 0, sizeof(f->host));
	for (int t = 0; t < count; t++)
		for (int i = 0; i < f->layout.slots[t].count; i++)
			f->host[f->layout.slots[t].offset + i] = first_of(t, i);
	put(f, f->params, f->host, f->layout.elements);
}

static void tear_down(fixture *f)
{
	void (*release)(void *) = f->there ? place.free : free;

	release(f->params);
	release(f->grads);
	for (int i = 0; i < f->optim.state_count; i++)
		release(f->optim.state[i]);
	release(f->optim.work);
	ddp_optim_free(&f->optim);
	ddp_layout_free(&f->layout);
}

/* In ranges of `range` elements, from the last to the first, as buckets come. */
static void step_once(fixture *f, int64_t step, int64_t range)
{
	const ddp_update update = { .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT, .step = step };
	const int64_t elements = f->layout.elements;

	memset(f->host, 0, sizeof(f->host));
	for (int t = 0; t < f->layout.count; t++)
		for (int i = 0; i < f->layout.slots[t].count; i++)
			f->host[f->layout.slots[t].offset + i] = gradient_of(t, i, step);
	put(f, f->grads, f->host, elements);
	dk_use(f->there ? place.queue : NULL);
	for (int64_t end = elements; end > 0; end -= range) {
		const int64_t begin = end > range ? end - range : 0;
		ddp_optim_enqueue(&f->optim, &update, f->params + begin, f->grads + begin, begin, end, begin);
	}
	assert_null(dk_failure());
	dk_use(NULL);
	get(f, f->grads, elements);
	for (int64_t i = 0; i < elements; i++)
		assert_true(f->host[i] == 0);
}

static void expect_formulas(fixture *f, const struct recorded *r)
{
	get(f, f->params, f->layout.elements);
	for (int t = 0; t < TENSORS; t++) {
		const ddp_slot *slot = &f->layout.slots[t];
		for (int i = 0; i < slot->count; i++) {
			const double got = f->host[slot->offset + i];
			if (!(fabs(got - r->wanted[t][i]) <= 2e-6))
				fail_msg("%s, %s[%d] is %.8f, not %.8f", ddp_optimizer_name(r->options.optimizer), slot->name, i,
				         got, r->wanted[t][i]);
		}
	}
}

static void expect_near(fixture *here, fixture *there, const float *a, const float *b, int64_t n)
{
	get(here, a, n);
	get(there, b, n);
	for (int64_t i = 0; i < n; i++)
		if (!(fabs((double)here->host[i] - (double)there->host[i]) <= 1e-5 * (fabs((double)here->host[i]) + 1)))
			fail_msg("element %ld is %.8f, on the host %.8f", (long)i, there->host[i], here->host[i]);
}

static void expect_same(fixture *here, fixture *there, const float *a, const float *b, int64_t n)
{
	get(here, a, n);
	get(there, b, n);
	assert_memory_equal(here->host, there->host, (size_t)n * sizeof(float));
}

/* Products on a GPU are not in the host's order, as those of the host's own kernels are. */
static void compare(const ddp_param *list, int count, const struct recorded *r, bool formulas)
{
	static fixture here, there;

	set_up(&here, list, count, &r->options, false);
	set_up(&there, list, count, &r->options, true);
	for (int64_t step = 1; step <= STEPS; step++) {
		step_once(&here, step, ELEMENTS_MAX);
		step_once(&there, step, formulas ? 4 : 1024);
	}
	if (formulas)
		expect_formulas(&there, r);
	if (r->options.optimizer == DDP_MUON && !place.host_kernels)
		expect_near(&here, &there, here.params, there.params, here.layout.elements);
	else
		expect_same(&here, &there, here.params, there.params, here.layout.elements);
	for (int i = 0; i < here.optim.state_count; i++)
		expect_same(&here, &there, here.optim.state[i], there.optim.state[i], here.optim.state_elements[i]);
	tear_down(&here);
	tear_down(&there);
}

/* Runs the test in the place's f32, the first; or skips it where there is no such place. */
static void in_the_place(void (*test)(void))
{
	const char *why;

	if (!kernel_place_open(0, &place, &why)) {
		print_message("%s\n", why);
		skip();
	}
	test();
	place.close(&place);
}

static void try_formulas(void)
{
	for (int r = 0; r < RECORDED; r++)
		compare(params, TENSORS, &recorded[r], true);
}

TEST_RUNS(parameters_are_those_of_the_formulas, in_the_place(try_formulas));

/* Matrices whose columns are summed in parts, and a stack of such that are not. */
static void try_larger(void)
{
	static const ddp_param larger[] = {
		{ .name = "a", .ndim = 1, .shape = { 301 } },
		{ .name = "wide", .ndim = 2, .shape = { 33, 70 } },
		{ .name = "tall", .ndim = 2, .shape = { 700, 5 } },
		{ .name = "cube", .ndim = 3, .shape = { 3, 40, 12 } },
	};

	for (int r = 0; r < RECORDED; r++)
		compare(larger, TENSORS, &recorded[r], false);
}

TEST_RUNS(tensors_of_any_size_have_the_hosts_bits, in_the_place(try_larger));

/* ---- factors of low rank ---- */

/* What a function leaves of numbers here, and there. */
typedef struct both {
	float here[ELEMENTS_MAX], got[ELEMENTS_MAX];
	float *there;
	int64_t n;
} both;

static void begin_both(both *b, int64_t n)
{
	assert_true(n <= ELEMENTS_MAX);
	dk_random_rows(b->here, 1, n, 3);
	b->there = place.alloc((size_t)n * sizeof(float));
	b->n = n;
}

static void give_both(const both *b)
{
	kernel_place_give(&place, b->there, b->here, b->n);
}

static void expect_both(both *b)
{
	kernel_place_take(&place, b->got, b->there, b->n);
	assert_memory_equal(b->got, b->here, (size_t)b->n * sizeof(float));
}

static void orthonormalize_both(both *b, int64_t rank, int64_t length, bool refill)
{
	give_both(b);
	dk_orthonormalize(b->here, rank, length, refill, 5);
	dk_use(place.queue);
	dk_orthonormalize(b->there, rank, length, refill, 5);
	assert_null(dk_failure());
	dk_use(NULL);
	expect_both(b);
}

/* Of rows in fewer lanes than there are, and in more than one round of them. */
static void try_orthonormal_rows(void)
{
	enum { RANK = 4 };
	static const int64_t lengths[] = { 1, 50, 1024, 1900 };
	static both b;

	for (int i = 0; i < 8; i++) {
		const int64_t length = lengths[i / 2];
		begin_both(&b, RANK * length);
		orthonormalize_both(&b, RANK, length, false);
		/* One row is what another is, one nearly, one nothing. */
		memcpy(b.here + length, b.here, (size_t)length * sizeof(float));
		memset(b.here + 2 * length, 0, (size_t)length * sizeof(float));
		for (int64_t k = 0; k < length; k++)
			b.here[3 * length + k] = 1000 * b.here[k] + (float)(k % 2);
		orthonormalize_both(&b, RANK, length, i % 2 == 1);
		dk_use(place.queue);
		dk_random_rows(b.there, RANK, length, 9);
		dk_use(NULL);
		dk_random_rows(b.here, RANK, length, 9);
		expect_both(&b);
		place.free(b.there);
	}
}

TEST_RUNS(rows_become_orthonormal_with_the_hosts_bits, in_the_place(try_orthonormal_rows));

static void try_products_of_factors(void)
{
	enum { ROWS = 37, COLUMNS = 53, RANK_MAX = 3 };
	static both left, right, values, rest;

	begin_both(&left, RANK_MAX * ROWS);
	begin_both(&right, RANK_MAX * COLUMNS);
	begin_both(&values, ROWS * COLUMNS);
	begin_both(&rest, ROWS * COLUMNS);
	for (int i = 0; i < 2 * RANK_MAX; i++) {
		const dk_factors here = { left.here, right.here, 1 + i / 2, ROWS, COLUMNS };
		const dk_factors there = { left.there, right.there, 1 + i / 2, ROWS, COLUMNS };
		give_both(&left);
		give_both(&right);
		give_both(&rest);
		dk_restore(values.here, i % 2 == 1 ? rest.here : NULL, 0.3f, &here);
		dk_use(place.queue);
		dk_restore(values.there, i % 2 == 1 ? rest.there : NULL, 0.3f, &there);
		assert_null(dk_failure());
		dk_use(NULL);
		expect_both(&values);
		expect_both(&rest);
	}
	for (size_t i = 0; i < 4; i++)
		place.free((both *[]){ &left, &right, &values, &rest }[i]->there);
}

TEST_RUNS(factors_are_multiplied_with_the_hosts_bits, in_the_place(try_products_of_factors));
