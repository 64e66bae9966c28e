/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan; takes: 5 */
/* reduce: PowerSGD beside a plain one in double precision, and what it keeps from step to step;
   in the host's memory, and in that of the fake GPU. */
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "kernels.h"
#include "reduce/compare.h"
#include "reduce/model_state.h"
#include "reduce/tensors.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { RANKS = 3, STEPS = 4, PARAMS = 4, ELEMENTS_MAX = 1200, FACTOR_MAX = 3 * 64 };

/* The last is too small, the second is no matrix; buckets cut the first and the third. */
static const ddp_param params[PARAMS] = {
	{ .name = "a", .ndim = 2, .shape = { 40, 30 } }, { .name = "b", .ndim = 1, .shape = { 70 } },
	{ .name = "c", .ndim = 3, .shape = { 12, 5, 9 } }, { .name = "d", .ndim = 2, .shape = { 3, 4 } },
};
static const bool compressed[PARAMS] = { true, false, true, false };

static const ddp_model_options plain = {
	DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 1, .bucket_mb = 1024.0 / (1 << 20),
	.shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_POWERSGD, .powersgd.rank = 2, .powersgd.seed = 7,
};

static const ddp_options on_test = { DDP_OPTIONS_FIELDS, .device = "cuda" };

/* On the context's device, if it has one. A model on a device has the program's own queue, which ends with the rank's
   process. */
static ddp_model *make(ddp_context *context, const ddp_model_options *given)
{
	static ddp_device_queue *queue;
	ddp_model_options options = *given;
	ddp_model *model;

	options.memory = context->device != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
	if (context->device != NULL && queue == NULL)
		CHECK_OK(ddp_device_queue_create(context->device, DDP_DEVICE_NORMAL, &queue));
	options.stream = queue;
	CHECK_OK(ddp_model_create(context, params, PARAMS, &options, &model));
	check_strategy(model, options.compress == DDP_COMPRESS_NONE ? "all_reduce" : "PowerSGD");
	CHECK((model->place.device != NULL) == (context->device != NULL));
	CHECK(model->reducer.overlaps == (getenv("DDP_MEASURE") == NULL));
	return model;
}

static void put(const ddp_model *model, float *to, const float *from, int64_t count)
{
	CHECK_OK(ddp_place_write(&model->place, to, from, (size_t)count * sizeof(*to)));
}

/* Valid until the next call. */
static const float *get(const ddp_model *model, const float *from, int64_t count)
{
	static float values[ELEMENTS_MAX];

	CHECK(count <= ELEMENTS_MAX);
	CHECK_OK(ddp_place_read(&model->place, values, from, (size_t)count * sizeof(*from)));
	return values;
}

static float gradient(int rank, int step, int p, int64_t i)
{
	unsigned int x = (unsigned)((rank * 64 + step) * 8 + p) * 0x9e3779b1u + (unsigned)i * 0x85ebca6bu;

	x = (x ^ x >> 15) * 0x2c1b3c6du;
	x ^= x >> 13;
	return (float)(x >> 8) / (1 << 23) - 1;
}

static void add_gradient(ddp_model *model, int rank, int step, int p)
{
	const int64_t count = ddp_model_param_count(model, p);
	float values[ELEMENTS_MAX];

	for (int64_t i = 0; i < count; i++)
		values[i] = gradient(rank, step, p, i);
	put(model, ddp_model_param_grad(model, p), values, count);
	CHECK_OK(ddp_model_grad_ready(model, p));
}

static void add_gradients(ddp_model *model, int rank, int step)
{
	for (int p = PARAMS - 1; p >= 0; p--)
		add_gradient(model, rank, step, p);
}

static void train(ddp_context *context, ddp_model *model, int step)
{
	add_gradients(model, ddp_get_job(context)->rank, step);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
}

static bool is_same(ddp_model *a, ddp_model *b, int p)
{
	const int64_t count = ddp_model_param_count(a, p);
	float values[ELEMENTS_MAX];

	memcpy(values, get(a, ddp_model_param_data(a, p), count), (size_t)count * sizeof(float));
	return memcmp(values, get(b, ddp_model_param_data(b, p), count), (size_t)count * sizeof(float)) == 0;
}

static void expect_same(ddp_model *a, ddp_model *b)
{
	for (int p = 0; p < PARAMS; p++)
		CHECK(is_same(a, b, p));
}

/* In the host's memory, and on the fake GPU. */
static void run_here_and_there(int (*body)(ddp_context *context, void *user), void *user)
{
	assert_int_equal(run_ranks(RANKS, body, user), 0);
	assert_int_equal(run_ranks_with(RANKS, &on_test, body, user), 0);
}

/* ---- a plain one -------------------------------------------------------------------- */

/* Of one parameter, for all ranks. */
typedef struct reference {
	int64_t rows, columns;
	double kept[RANKS][ELEMENTS_MAX], start[FACTOR_MAX], sum[ELEMENTS_MAX], out[ELEMENTS_MAX];
} reference;

static void orthonormalize(double *factor, int rank, int64_t length)
{
	for (int r = 0; r < rank; r++) {
		double *own = factor + r * length, norm = 0;
		for (int c = 0; c < r; c++) {
			double share = 0;
			for (int64_t i = 0; i < length; i++)
				share += own[i] * factor[c * length + i];
			for (int64_t i = 0; i < length; i++)
				own[i] -= share * factor[c * length + i];
		}
		for (int64_t i = 0; i < length; i++)
			norm += own[i] * own[i];
		for (int64_t i = 0; i < length; i++)
			own[i] /= sqrt(norm);
	}
}

static void begin_reference(const ddp_model *model, int p, reference *x)
{
	const ddp_slot *slot = ddp_model_slot(model, p);

	memset(x, 0, sizeof(*x));
	x->rows = slot->ndim == 0 ? 1 : slot->shape[0];
	x->columns = slot->count / x->rows;
}

static void reference_step(reference *x, const ddp_model_options *options, int p, int step)
{
	const int rank = compressed[p] ? options->powersgd.rank : 0;
	const int64_t n = x->rows, m = x->columns;
	static double left[FACTOR_MAX], mine[RANKS][ELEMENTS_MAX];

	memset(x->sum, 0, sizeof(x->sum));
	memset(left, 0, sizeof(left));
	for (int r = 0; r < RANKS; r++)
		for (int64_t i = 0; i < n * m; i++) {
			mine[r][i] = gradient(r, step, p, i) + x->kept[r][i];
			x->sum[i] += mine[r][i];
		}
	memcpy(x->out, x->sum, sizeof(x->out));
	if (rank == 0)
		return;
	orthonormalize(x->start, rank, m);
	for (int64_t e = 0; e < rank * n * m; e++)
		left[e / m] += x->start[e / (n * m) * m + e % m] * x->sum[e % (n * m)];
	orthonormalize(left, rank, n);
	memset(x->start, 0, sizeof(x->start));
	memset(x->out, 0, sizeof(x->out));
	for (int64_t e = 0; e < rank * n * m; e++)
		x->start[e / (n * m) * m + e % m] += left[e / m] * x->sum[e % (n * m)];
	for (int64_t e = 0; e < rank * n * m; e++)
		x->out[e % (n * m)] += left[e / m] * x->start[e / (n * m) * m + e % m];
	for (int r = 0; r < RANKS && options->powersgd.feedback; r++)
		for (int64_t i = 0; i < n * m; i++)
			x->kept[r][i] = mine[r][i] - x->out[i] / RANKS;
}

/* The first step's right factors are the library's own. */
static void take_start(ddp_model *model, int p, reference *x)
{
	ddp_tensors tensors;
	char name[64];

	snprintf(name, sizeof(name), DDP_EXTRA_PREFIX "powersgd.right.%s", params[p].name);
	CHECK_OK(ddp_model_tensors(model, true, &tensors));
	CHECK_OK(ddp_model_collect(model, &tensors));
	for (int t = 0; t < tensors.count; t++) {
		const ddp_tensor *tensor = &tensors.list[t];
		for (int64_t i = 0; strcmp(tensor->name, name) == 0 && i < tensor->shape[0] * tensor->shape[1]; i++)
			x->start[i] = tensor->data[i];
	}
	ddp_tensors_free(&tensors);
}

static int reference_body(ddp_context *context, void *user)
{
	const ddp_model_options *options = user;
	ddp_model *model = make(context, options);
	static reference x[PARAMS];

	for (int p = 0; p < PARAMS; p++) {
		begin_reference(model, p, &x[p]);
		take_start(model, p, &x[p]);
	}
	for (int step = 1; step <= STEPS; step++) {
		add_gradients(model, ddp_get_job(context)->rank, step);
		CHECK_OK(ddp_model_reduce_grads(model, 1, 0, NULL));
		for (int p = 0; p < PARAMS; p++) {
			double differs = 0;
			const float *got = get(model, ddp_model_param_grad(model, p), ddp_model_param_count(model, p));
			reference_step(&x[p], options, p, step);
			for (int64_t i = 0; i < ddp_model_param_count(model, p); i++) {
				CHECK(fabs(got[i] - x[p].out[i]) < 2e-5);
				differs += fabs(x[p].out[i] - x[p].sum[i]);
			}
			CHECK((differs > 10) == compressed[p]); /* there is something to compare */
		}
		CHECK_OK(ddp_model_update_params(model, NULL));
	}
	CHECK_OK(ddp_model_compare(model));
	ddp_model_free(model);
	return 0;
}

TEST(gradients_are_those_of_a_plain_powersgd)
{
	ddp_model_options ways[] = { plain, plain, plain };

	ways[1].powersgd.feedback = false;
	ways[2].powersgd.rank = 3;
	ways[2].bucket_mb = 1;
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		test_measure(w == 1 ? "no-overlap" : NULL);
		run_here_and_there(reference_body, &ways[w]);
	}
	test_measure(NULL);
	/* Between nodes, where a lane's messages may pass those of another. */
	assert_int_equal(run_ranks_on(two_nodes, RANKS, reference_body, &ways[0]), 0);
}

/* ---- arithmetic ---------------------------------------------------------------------- */

static double product(const float *a, const float *b, int64_t count)
{
	double sum = 0;

	for (int64_t i = 0; i < count; i++)
		sum += (double)a[i] * b[i];
	return sum;
}

TEST(dependent_rows_become_zero_or_random)
{
	enum { ROWS = 4, LENGTH = 50 };
	float factor[ROWS * LENGTH];

	for (int refill = 0; refill <= 1; refill++) {
		dk_random_rows(factor, 1, LENGTH, 1);
		for (int i = 0; i < LENGTH; i++) {
			factor[LENGTH + i] = 0;
			factor[2 * LENGTH + i] = 3 * factor[i];
			/* Little but what the first has: rounding must not stay in it. */
			factor[3 * LENGTH + i] = 1000 * factor[i] + (float)(i % 2);
		}
		dk_orthonormalize(factor, ROWS, LENGTH, refill, 5);
		for (int a = 0; a < ROWS; a++)
			for (int b = 0; b <= a; b++) {
				const bool left = refill || a == 0 || a == 3;
				double wanted = a == b && left ? 1 : 0;
				assert_true(fabs(product(factor + a * LENGTH, factor + b * LENGTH, LENGTH) - wanted) < 1e-5);
			}
	}
}

/* ---- steps that do not count ----------------------------------------------------------- */

static int forgotten_body(ddp_context *context, void *user)
{
	const int rank = ddp_get_job(context)->rank;
	ddp_model *straight = make(context, &plain), *other = make(context, &plain);

	for (int step = 1; step <= 3; step++) {
		train(context, straight, step);
		add_gradients(other, rank, 20 + step);
		CHECK_OK(ddp_model_reduce_grads(other, 1, 0, NULL));
		CHECK_OK(ddp_model_zero_grads(other));
		add_gradients(other, rank, 30 + step);
		CHECK(ddp_model_step(other, 1, rank == 1 ? INFINITY : 0, NULL) == DDP_ERR_NOT_FINITE);
		put(other, ddp_model_param_grad(other, 0) + 3, &(float){ NAN }, 1);
		CHECK(ddp_model_step(other, 1, 0, NULL) == DDP_ERR_NOT_FINITE);
		add_gradients(other, rank, 40 + step);
		CHECK(ddp_model_step(other, rank == 1 ? -1 : 1, 0, NULL) == DDP_ERR_INVALID);
		train(context, other, step);
		expect_same(straight, other);
	}
	ddp_model_free(straight);
	ddp_model_free(other);
	return 0;
}

TEST_RUNS(a_step_that_is_forgotten_leaves_nothing, run_here_and_there(forgotten_body, NULL));

/* A step without gradients leaves factors of 0: the next ones must not stay so. */
static int zero_body(ddp_context *context, void *user)
{
	ddp_model_options options = plain;
	double squares = 0;

	options.powersgd.feedback = false;
	ddp_model *model = make(context, &options);
	for (int step = 1; step <= 2; step++)
		CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	add_gradients(model, ddp_get_job(context)->rank, 1);
	CHECK_OK(ddp_model_reduce_grads(model, 1, 0, NULL));
	const float *got = get(model, ddp_model_param_grad(model, 0), ddp_model_param_count(model, 0));
	for (int64_t i = 0; i < ddp_model_param_count(model, 0); i++)
		squares += got[i] * (double)got[i];
	CHECK(isfinite(squares) && squares > 50); /* of about 1200 */
	ddp_model_free(model);
	return 0;
}

/* Before they begin, gradients are reduced as without them. */
static int start_body(ddp_context *context, void *user)
{
	ddp_model_options late = plain, none = plain, random = plain;

	late.powersgd.start = 2;
	none.compress = DDP_COMPRESS_NONE;
	random.powersgd.warm_start = false;
	ddp_model *models[] = { make(context, &late), make(context, &none), make(context, &plain),
	                        make(context, &random) };
	for (int step = 1; step <= 3; step++) {
		for (int i = 0; i < 4; i++)
			train(context, models[i], step);
		CHECK(is_same(models[0], models[1], 0) == (step <= 2));
		CHECK(!is_same(models[2], models[3], 0));
	}
	for (int i = 0; i < 4; i++)
		ddp_model_free(models[i]);
	return 0;
}

TEST(it_begins_late_and_survives_steps_without_gradients)
{
	run_here_and_there(zero_body, NULL);
	run_here_and_there(start_body, NULL);
}

/* What is kept back of a parameter that no rank uses is no gradient of the step. */
static int unused_body(ddp_context *context, void *user)
{
	const int rank = ddp_get_job(context)->rank;
	ddp_model_options options = plain;
	ddp_step_stats stats;
	double squares = 0;

	options.unused = DDP_UNUSED_SKIP;
	ddp_model *model = make(context, &options);
	train(context, model, 1);
	for (int p = 1; p < PARAMS; p++)
		add_gradient(model, rank, 2, p);
	CHECK_OK(ddp_model_grad_unused(model, 0));
	CHECK_OK(ddp_model_reduce_grads(model, 1, 0, &stats));
	for (int p = 0; p < PARAMS; p++) {
		const float *got = get(model, ddp_model_param_grad(model, p), ddp_model_param_count(model, p));
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++) {
			CHECK(p > 0 || got[i] == 0);
			squares += (double)got[i] * got[i];
		}
	}
	CHECK(fabs(stats.grad_norm - sqrt(squares) / RANKS) < 1e-6 * stats.grad_norm);
	CHECK_OK(ddp_model_update_params(model, NULL));
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(the_norm_is_of_what_is_used, run_here_and_there(unused_body, NULL));

/* ---- checkpoints ------------------------------------------------------------------------- */

static int resume_body(ddp_context *context, void *user)
{
	ddp_model *straight = make(context, &plain), *resumed = make(context, &plain);
	char other[PATH_MAX]; /* a folder is written to by one model */
	int64_t step;

	CHECK(snprintf(other, sizeof(other), "%s/resumed", test_folder) < (int)sizeof(other));
	for (int i = 1; i <= 3; i++)
		train(context, straight, i);
	CHECK_OK(ddp_checkpoint_save(straight, NULL, test_folder, 0));
	train(context, resumed, 40); /* it has kept something of its own, to be replaced */
	CHECK_OK(ddp_checkpoint_load(resumed, NULL, test_folder, &step));
	CHECK(step == 3);
	/* What the load has enqueued may still be under way. */
	CHECK_OK(ddp_checkpoint_save(resumed, NULL, other, 0));
	for (int i = 4; i <= 6; i++) {
		train(context, straight, i);
		train(context, resumed, i);
		expect_same(straight, resumed);
	}
	ddp_model_free(straight);
	ddp_model_free(resumed);
	return 0;
}

/* What all ranks keep of the first parameter, and how much that is. */
static double kept_sum(ddp_context *context, ddp_model *model, double *magnitude)
{
	double sums[2] = { 0 };
	ddp_tensors tensors;

	CHECK_OK(ddp_model_tensors(model, true, &tensors));
	CHECK_OK(ddp_model_collect(model, &tensors));
	for (int t = tensors.count - tensors.extras; t < tensors.count; t++) {
		const ddp_tensor *tensor = &tensors.list[t];
		for (int64_t i = 0; strcmp(tensor->name, DDP_EXTRA_PREFIX "powersgd.kept.a") == 0 && i < 40 * 30; i++) {
			sums[0] += tensor->data[i] * (double)(i % 11);
			sums[1] += fabs((double)tensor->data[i]);
		}
	}
	ddp_tensors_free(&tensors);
	CHECK_OK(ddp_all_reduce(ddp_world(context), NULL, sums, 2, DDP_F64, DDP_SUM));
	*magnitude = sums[1];
	return sums[0];
}

static double *saved_sum;

static int save_body(ddp_context *context, void *user)
{
	ddp_model *model = make(context, &plain);
	double magnitude;

	train(context, model, 1);
	const double before = kept_sum(context, model, &magnitude);
	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
	*saved_sum = kept_sum(context, model, &magnitude);
	CHECK(magnitude > 100 && fabs(*saved_sum - before) < 1e-5 * magnitude);
	ddp_model_free(model);
	return 0;
}

/* Another number of ranks; another way of reducing; and back from that. */
static int other_body(ddp_context *context, void *user)
{
	ddp_model_options none = plain, wide = plain;
	double magnitude;
	int64_t step;

	none.compress = DDP_COMPRESS_NONE;
	wide.powersgd.rank = 3;
	ddp_model *same = make(context, &plain), *other = make(context, &none), *wider = make(context, &wide);
	train(context, same, 1);
	CHECK_OK(ddp_checkpoint_load(same, NULL, test_folder, &step));
	CHECK(step == 1 && kept_sum(context, same, &magnitude) == *saved_sum);
	CHECK_OK(ddp_checkpoint_load(other, NULL, test_folder, &step));
	expect_same(same, other);
	train(context, wider, 1);
	CHECK_OK(ddp_checkpoint_load(wider, NULL, test_folder, &step));
	expect_same(same, wider);
	kept_sum(context, wider, &magnitude);
	CHECK(magnitude == 0);
	train(context, other, 2);
	CHECK_OK(ddp_checkpoint_save(other, NULL, test_folder, 0));
	CHECK_OK(ddp_checkpoint_load(same, NULL, test_folder, &step));
	kept_sum(context, same, &magnitude);
	CHECK(step == 2 && magnitude == 0);
	train(context, same, 3);
	ddp_model_free(same);
	ddp_model_free(other);
	ddp_model_free(wider);
	return 0;
}

TEST_WITH(checkpoints_hold_what_is_kept_back, folder_make, folder_remove)
{
	run_here_and_there(resume_body, NULL);
}

TEST_WITH(checkpoints_go_to_other_worlds_and_ways, folder_make, folder_remove)
{
	saved_sum = test_share(sizeof(*saved_sum));
	assert_int_equal(run_ranks_with(RANKS, &on_test, save_body, NULL), 0);
	assert_int_equal(run_ranks(2, other_body, NULL), 0);
	assert_int_equal(folder_empty(NULL), 0);
	assert_int_equal(run_ranks(RANKS, save_body, NULL), 0);
	assert_int_equal(run_ranks_with(2, &on_test, other_body, NULL), 0);
	test_unshare(saved_sum, sizeof(*saved_sum));
}
