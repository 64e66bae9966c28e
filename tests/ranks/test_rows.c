/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* reduce/rows: gradients with a dense part and rows. Whichever way they
   travel, ranks add up the same; and to the bit in the order of ranks. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "reduce/model_state.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

/* The table's rows travel if all ranks' are fewer than its own. */
enum { ROWS = 50, WIDTH = 5, REST = 33, FEW = 9, MANY = 30, RANKS_MAX = 4 };
enum { TABLE, VECTOR };

typedef struct way {
	ddp_shard shard;
	bool no_overlap;
	int64_t sparse_rows;
} way;

static const way ways[] = {
	{ DDP_SHARD_NONE, false, FEW }, { DDP_SHARD_NONE, true, FEW },
	{ DDP_SHARD_NONE, false, MANY }, { DDP_SHARD_STATE, false, FEW },
	{ DDP_SHARD_GRADIENTS, false, FEW },
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static bool travels(const way *w, int ranks)
{
	return ranks > 1 && w->shard != DDP_SHARD_STATE && w->sparse_rows * ranks < ROWS;
}

static void make(ddp_context *context, const way *w, ddp_model **model)
{
	const ddp_param params[] = {
		[TABLE] = { .name = "table", .ndim = 2, .shape = { ROWS, WIDTH },
		            .sparse_rows = w->sparse_rows },
		[VECTOR] = { .name = "vector", .ndim = 1, .shape = { REST } },
	};
	const ddp_model_options options = {
		DDP_MODEL_OPTIONS_FIELDS,
		.optimizer = DDP_SGD, .learning_rate = 1, .shard = w->shard,
		.bucket_mb = 256.0 / (1 << 20),
		.first_bucket_mb = 64.0 / (1 << 20),
	};

	test_measure(w->no_overlap ? "no-overlap" : NULL);
	CHECK_OK(ddp_model_create(context, params, 2, &options, model));
}

/* Rank `rank` adds to rows 3 (twice), 7 + rank and the last, in two calls;
   rank 1 has no rows in step 2, and nobody has in step 3. */
static int rows_of(int rank, int step, int32_t *index, float *values)
{
	const int32_t rows[] = { 3, 7 + rank, 3, ROWS - 1 };

	if (step == 3 || (step == 2 && rank == 1))
		return 0;
	for (int i = 0; i < 4; i++) {
		index[i] = rows[i];
		for (int k = 0; k < WIDTH; k++)
			values[i * WIDTH + k] = (float)((rank + 1) * (i + 2) * (k + 1) * step);
	}
	return 4;
}

static void add_rows(ddp_model *model, int rank, int step)
{
	int32_t index[4];
	float values[4 * WIDTH];
	int count = rows_of(rank, step, index, values);

	CHECK_OK(ddp_model_grad_rows(model, TABLE, index, values, count / 2));
	CHECK(ddp_model_grad_rows(model, TABLE, index + count / 2, values + count / 2 * WIDTH,
	                     count - count / 2) == DDP_OK);
	/* The arrays are the caller's again. */
	memset(index, 0, sizeof(index));
	memset(values, 0, sizeof(values));
}

/* ---- what is not finite -------------------------------------------------------------- */

static int poisoned_rows_body(ddp_context *context, void *user)
{
	int rank = ddp_get_job(context)->rank, size = ddp_get_job(context)->world_size;
	const int32_t index[] = { 4 };
	float values[WIDTH] = { 1, 1, 1, 1, 1 };
	char name[24];
	ddp_model *model;

	make(context, user, &model);
	CHECK_OK(ddp_model_grad_ready(model, TABLE));
	values[2] = rank == size - 1 ? NAN : 1;
	CHECK_OK(ddp_model_grad_rows(model, TABLE, index, values, 1));
	CHECK_OK(ddp_model_grad_ready(model, VECTOR));
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_NOT_FINITE);
	snprintf(name, sizeof(name), "rank %d", size - 1);
	CHECK(strstr(ddp_last_error(), "\"table\"") != NULL && strstr(ddp_last_error(), name) != NULL);
	/* Nothing of them is left for the next step. */
	values[2] = 1;
	CHECK_OK(ddp_model_grad_rows(model, TABLE, index, values, 1));
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	for (int e = 0; e < ROWS * WIDTH; e++)
		CHECK(ddp_model_param_data(model, TABLE)[e] == (e / WIDTH == 4 ? -1 : 0));
	ddp_model_free(model);
	return 0;
}

TEST(rows_that_are_not_finite_update_nothing)
{
	for (int w = 0; w < WAYS; w++) {
		way with = ways[w];
		assert_int_equal(run_ranks(1 + w % 2, poisoned_rows_body, &with), 0);
		assert_int_equal(run_ranks(3, poisoned_rows_body, &with), 0);
	}
}

/* ---- rows and nothing else ------------------------------------------------------------- */

static int rows_only_body(ddp_context *context, void *user)
{
	const way *w = user;
	const ddp_param params[] = {
		{ .name = "table", .ndim = 2, .shape = { ROWS, WIDTH }, .sparse_rows = w->sparse_rows,
		  .rows_only = true },
		{ .name = "vector", .ndim = 1, .shape = { REST } },
	};
	ddp_model_options options = {
		DDP_MODEL_OPTIONS_FIELDS,
		.optimizer = DDP_SGD, .learning_rate = 1, .shard = w->shard,
		.bucket_mb = 128.0 / (1 << 20),
	};
	int rank = ddp_get_job(context)->rank, size = ddp_get_job(context)->world_size;
	double table[ROWS * WIDTH] = { 0 };
	int32_t index[4];
	float values[4 * WIDTH];
	ddp_model *model;

	test_measure(w->no_overlap ? "no-overlap" : NULL);
	for (int clips = 0; clips < 2; clips++) {
		options.clip_norm = clips * 1e9;
		CHECK_OK(ddp_model_create(context, params, 2, &options, &model));
		/* Only the vector travels in buckets, 48 elements with its gap. */
		CHECK(model->plan.buckets[0].end == (travels(w, size) ? 48 : model->layout.elements));
		memset(table, 0, sizeof(table));
		for (int step = 1; step <= 3; step++) {
			CHECK_OK(ddp_model_grad_ready(model, VECTOR));
			CHECK_OK(ddp_model_grad_ready(model, TABLE));
			add_rows(model, rank, step);
			CHECK_OK(ddp_model_step(model, rank == 0 ? 4 : 0, 0, NULL));
			for (int r = 0; r < size; r++) {
				int count = rows_of(r, step, index, values);
				for (int i = 0; i < count * WIDTH; i++)
					table[index[i / WIDTH] * WIDTH + i % WIDTH] -= (double)values[i] / 4;
			}
			for (int e = 0; e < ROWS * WIDTH; e++) {
				CHECK(ddp_model_param_data(model, TABLE)[e] == table[e]);
				CHECK(ddp_model_param_grad(model, TABLE)[e] == 0);
			}
		}
		ddp_model_free(model);
	}
	return 0;
}

TEST(gradient_of_rows_alone_is_not_reduced)
{
	for (int w = 0; w < WAYS; w++) {
		for (int ranks = 1; ranks <= 3; ranks++) {
			way with = ways[w];
			assert_int_equal(run_ranks(ranks, rows_only_body, &with), 0);
		}
	}
}

/* ---- the order of the sum ---------------------------------------------------------- */

static float fraction(int rank, int what, int i)
{
	return 1.0f / (float)(3 + rank * 7 + what * 31 + i);
}

static int order_body(ddp_context *context, void *user)
{
	float (*seen)[ROWS * WIDTH] = user;
	int rank = ddp_get_job(context)->rank;
	const int32_t index[] = { 5, 0, 5 };
	float values[3 * WIDTH];
	ddp_model *model;

	make(context, &ways[0], &model);
	/* It is the arena's last, so that its buckets are the first. */
	CHECK(ddp_model_param_data(model, TABLE) > ddp_model_param_data(model, VECTOR));
	for (int e = 0; e < ROWS * WIDTH; e++)
		ddp_model_param_grad(model, TABLE)[e] += fraction(rank, 0, e);
	CHECK_OK(ddp_model_grad_ready(model, TABLE));
	CHECK(model->reducer.requests[0] != NULL);
	for (int e = 0; e < 3 * WIDTH; e++)
		values[e] = fraction(rank, 1, e);
	CHECK_OK(ddp_model_grad_rows(model, TABLE, index, values, 3));
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	memcpy(seen[rank], ddp_model_param_data(model, TABLE), sizeof(seen[rank]));
	ddp_model_free(model);
	return 0;
}

TEST(rows_are_added_in_the_order_of_ranks_then_of_calls)
{
	const int32_t index[] = { 5, 0, 5 };
	float (*seen)[ROWS * WIDTH] = test_share(RANKS_MAX * sizeof(*seen));
	float wanted[ROWS * WIDTH];

	for (int ranks = 2; ranks <= RANKS_MAX; ranks++) {
		for (int e = 0; e < ROWS * WIDTH; e++) {
			wanted[e] = fraction(0, 0, e);
			for (int r = 1; r < ranks; r++)
				wanted[e] += fraction(r, 0, e);
		}
		for (int r = 0; r < ranks; r++) {
			for (int e = 0; e < 3 * WIDTH; e++)
				wanted[index[e / WIDTH] * WIDTH + e % WIDTH] += fraction(r, 1, e);
		}
		for (int e = 0; e < ROWS * WIDTH; e++)
			wanted[e] = -(wanted[e] * (float)(1.0 / ranks));
		assert_int_equal(run_ranks(ranks, order_body, seen), 0);
		for (int r = 0; r < ranks; r++)
			assert_memory_equal(seen[r], wanted, sizeof(wanted));
	}
	test_unshare(seen, RANKS_MAX * sizeof(*seen));
}

/* ---- wrong arguments ----------------------------------------------------------------- */

static int wrong_rows_body(ddp_context *context, void *user)
{
	const int32_t good[FEW + 1] = { 1 }, low[] = { 0, -1 }, high[] = { ROWS };
	const float values[(FEW + 1) * WIDTH] = { 1 };
	const way *w = user;
	ddp_model *model;

	make(context, w, &model);
	CHECK(ddp_model_grad_rows(model, 2, good, values, 1) == DDP_ERR_INVALID);
	CHECK(test_says("no parameter has index 2; there are 2"));
	CHECK_FAILS(ddp_model_grad_rows(model, VECTOR, good, values, 1), DDP_ERR_INVALID,
	            "\"vector\" was made without sparse_rows");
	CHECK(ddp_model_grad_rows(model, TABLE, low, values, 2) == DDP_ERR_INVALID);
	CHECK(test_says("index 1 of rows for the gradient of \"table\" is -1; it has 50 rows"));
	CHECK(ddp_model_grad_rows(model, TABLE, high, values, 1) == DDP_ERR_INVALID);
	CHECK(ddp_model_grad_rows(model, TABLE, good, values, -1) == DDP_ERR_INVALID);
	CHECK(ddp_model_grad_rows(model, TABLE, NULL, values, 1) == DDP_ERR_INVALID);
	CHECK(ddp_model_grad_rows(NULL, TABLE, good, values, 1) == DDP_ERR_INVALID);
	if (travels(w, ddp_get_job(context)->world_size)) {
		CHECK_FAILS(ddp_model_grad_rows(model, TABLE, good, values, FEW + 1), DDP_ERR_INVALID,
		            "10 rows for the gradient of \"table\" after 0 in this step");
	}
	/* Nothing of it has stayed. */
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	for (int e = 0; e < ROWS * WIDTH; e++)
		CHECK(ddp_model_param_data(model, TABLE)[e] == 0);
	ddp_model_free(model);
	return 0;
}

TEST(wrong_rows_are_refused_and_leave_nothing)
{
	for (int w = 0; w < WAYS; w++) {
		way with = ways[w];
		assert_int_equal(run_ranks(2, wrong_rows_body, &with), 0);
	}
}

static int unlike_body(ddp_context *context, void *user)
{
	way with = ways[0];
	ddp_param param = { .name = "v", .ndim = 1, .shape = { 9 }, .sparse_rows = 3 };
	const ddp_param matrix = { .name = "m", .ndim = 2, .shape = { 50, 4 },
	                           .sparse_rows = 3 + ddp_get_job(context)->rank };
	ddp_model *model;

	CHECK_FAILS(ddp_model_create(context, &param, 1, NULL, &model), DDP_ERR_INVALID, "\"v\": sparse_rows is for matrices");
	param.ndim = 2;
	param.shape[1] = 2;
	param.sparse_rows = -1;
	CHECK_FAILS(ddp_model_create(context, &param, 1, NULL, &model), DDP_ERR_INVALID, "\"v\": sparse_rows is -1");
	CHECK_FAILS(ddp_model_create(context, &matrix, 1, NULL, &model), DDP_ERR_MISMATCH,
	            "4 sparse rows on rank 1, and \"m\" [50, 4], 3 sparse rows on rank 0");
	make(context, &with, &model);
	ddp_model_free(model);
	return 0;
}

TEST_RUNS(sparse_rows_are_checked_and_the_same_on_all_ranks, assert_int_equal(run_ranks(2, unlike_body, NULL), 0));
