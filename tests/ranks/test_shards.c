/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* reduce: what is spread over ranks: what memory that takes, and how it comes together again. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "reduce/model_state.h"
#include "reduce/strategy_node.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

/* ---- parameters that come late ----------------------------------------------------------- */

enum { PARAMS = 3, COUNT = 640 };

/* Each has a bucket, and a unit, of its own; the first, whose rows travel, lies behind the others. */
static const ddp_param three[PARAMS] = {
	{ .name = "a", .ndim = 2, .shape = { COUNT / 10, 10 }, .sparse_rows = 1 },
	{ .name = "b", .ndim = 1, .shape = { COUNT } },
	{ .name = "c", .ndim = 1, .shape = { COUNT } },
};
static const ddp_model_options late = {
	DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 1, .shard = DDP_SHARD_GRADIENTS,
	.bucket_mb = COUNT * 4.0 / (1 << 20), .first_bucket_mb = COUNT * 4.0 / (1 << 20), .late_gather = true,
};

static void add_gradients(ddp_model *model, int rank)
{
	for (int p = PARAMS - 1; p >= 0; p--) {
		for (int i = 0; i < COUNT; i++)
			ddp_model_param_grad(model, p)[i] = (float)(1 + rank + p);
		CHECK_OK(ddp_model_grad_ready(model, p));
	}
}

/* After so many steps of two ranks. */
static void expect_param(ddp_model *model, int p, int steps)
{
	for (int i = 0; i < COUNT; i++)
		CHECK(ddp_model_param_data(model, p)[i] == -(1.5f + (float)p) * (float)steps);
}

/* What a rank does before it gives its part of unit `u`. */
static void (*before_gather)(int u);

ddp_status __real_ddp_reducer_issue(ddp_reducer *reducer, int request, const ddp_operation *operation);
ddp_status __wrap_ddp_reducer_issue(ddp_reducer *reducer, int request, const ddp_operation *operation);

ddp_status __wrap_ddp_reducer_issue(ddp_reducer *reducer, int request, const ddp_operation *operation)
{
	CHECK(reducer->requests[request] == NULL); /* what was under way by this number has ended */
	if (before_gather != NULL && operation->kind == DDP_ALL_GATHER)
		before_gather(request);
	return __real_ddp_reducer_issue(reducer, request, operation);
}

static _Atomic int *seen; /* how far rank 0 is: behind ddp_model_step(); behind the first parameter */

static void give_as_it_is_wanted(int u)
{
	const int of_first = PARAMS - 1;

	while (atomic_load(seen) < (u == of_first ? 1 : 2))
		usleep(1000);
}

/* Rank 1 gives nothing until rank 0 is through with the step, and nothing but the first
   parameter until that has come to rank 0. */
static int late_body(ddp_context *context, void *user)
{
	const int rank = ddp_get_job(context)->rank;
	ddp_model *model;
	int64_t step;

	CHECK_OK(ddp_model_create(context, three, PARAMS, &late, &model));
	check_strategy(model, "scatter, gradients too");
	CHECK_OK(ddp_model_param_wait(model, DDP_ALL_PARAMS)); /* they are there */
	before_gather = rank == 1 ? give_as_it_is_wanted : NULL;
	add_gradients(model, rank);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	if (rank == 0)
		atomic_store(seen, 1);
	CHECK_OK(ddp_model_param_wait(model, 0));
	expect_param(model, 0, 1);
	if (rank == 0)
		atomic_store(seen, 2);
	CHECK(ddp_watch_current_phase(context->watch) == DDP_PHASE_IDLE);
	CHECK(ddp_model_param_wait(model, PARAMS) == DDP_ERR_INVALID);
	CHECK_OK(ddp_model_param_wait(model, DDP_ALL_PARAMS));
	for (int p = 0; p < PARAMS; p++)
		expect_param(model, p, 1);

	/* What needs them waits by itself. */
	add_gradients(model, rank);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
	add_gradients(model, rank);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK_OK(ddp_model_zero_grads(model));
	add_gradients(model, rank);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
	for (int p = 0; p < PARAMS; p++)
		expect_param(model, p, 2);
	add_gradients(model, rank);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	ddp_model_free(model);
	CHECK_OK(ddp_barrier(ddp_world(context))); /* nothing is broken */
	return 0;
}

/* No bucket waits for parameters of which only rows have gradients. */
static int rows_body(ddp_context *context, void *user)
{
	static const ddp_param rows = {
		.name = "rows", .ndim = 2, .shape = { COUNT / 10, 10 }, .sparse_rows = 1, .rows_only = true,
	};
	const int32_t index = ddp_get_job(context)->rank;
	const float ones[10] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, &rows, 1, &late, &model));
	check_strategy(model, "scatter, gradients too");
	for (int step = 0; step < 3; step++) {
		CHECK_OK(ddp_model_grad_rows(model, 0, &index, ones, 1));
		CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	}
	CHECK_OK(ddp_model_param_wait(model, 0));
	for (int i = 0; i < COUNT; i++)
		CHECK(ddp_model_param_data(model, 0)[i] == (i < 20 ? -1.5f : 0));
	ddp_model_free(model);
	return 0;
}

TEST_WITH(parameters_come_while_forward_runs, folder_make, folder_remove)
{
	seen = test_share(sizeof(*seen));
	assert_int_equal(run_ranks(2, late_body, NULL), 0);
	assert_int_equal(run_ranks(2, rows_body, NULL), 0);
	test_unshare((void *)(uintptr_t)seen, sizeof(*seen));
}

static void die_at_the_second(int u)
{
	if (u == 1)
		kill(getpid(), SIGKILL);
}

/* Rank 0 waits for parameters that do not come; rank 2 only saves. */
static int death_body(ddp_comm *comm, void *argument)
{
	ddp_context context = { .world = comm, .timeout_ms = 60000 };
	const int rank = context.job.rank = ddp_comm_rank(comm);
	ddp_model *model;

	context.job.world_size = ddp_comm_size(comm);
	CHECK_OK(ddp_watch_open(&context.job, &context.watch));
	CHECK_OK(ddp_model_create(&context, three, PARAMS, &late, &model));
	check_strategy(model, "scatter, gradients too");
	before_gather = rank == 1 ? die_at_the_second : NULL;
	add_gradients(model, rank);
	const ddp_status status = ddp_model_step(model, 1, 0, NULL);
	CHECK(status == DDP_OK || status == DDP_ERR_PEER); /* it may be known already */
	if (rank == 0 && status == DDP_OK)
		CHECK(ddp_model_param_wait(model, DDP_ALL_PARAMS) == DDP_ERR_PEER);
	CHECK(ddp_checkpoint_save(model, NULL, test_folder, 0) == DDP_ERR_STATE);
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_STATE);
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

TEST_WITH(nobody_saves_parameters_that_did_not_come, folder_make, folder_remove)
{
	RUN_WORLD(.ranks = 3, .body = death_body, .expect_deaths = true);
}

/* ---- state of which each node has all ---------------------------------------------------- */

static void expect_same_checkpoint(const char *one, const char *other)
{
	enum { BYTES = 65536 };
	static char content[2][BYTES];
	const char *const folders[] = { one, other };
	size_t bytes[2];

	for (int i = 0; i < 2; i++) {
		char path[4096];
		snprintf(path, sizeof(path), "%s/step-00000002.safetensors", folders[i]);
		FILE *file = fopen(path, "re");
		CHECK(file != NULL);
		bytes[i] = fread(content[i], 1, BYTES, file);
		fclose(file);
	}
	CHECK(bytes[0] > 0 && bytes[0] < BYTES && bytes[0] == bytes[1]);
	CHECK(memcmp(content[0], content[1], bytes[0]) == 0);
}

/* Rank 3, of rank 0's node, dies when all have saved; rank 1 began to update before it knew. */
static int node_death_body(ddp_comm *comm, void *argument)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS };
	ddp_context context = { .world = comm, .timeout_ms = 60000 };
	const int rank = context.job.rank = ddp_comm_rank(comm);
	char whole[2048], own[2048];
	ddp_model *model;

	snprintf(whole, sizeof(whole), "%s/whole", test_folder);
	snprintf(own, sizeof(own), "%s/%d", test_folder, rank);
	context.job.world_size = ddp_comm_size(comm);
	CHECK_OK(ddp_watch_open(&context.job, &context.watch));
	CHECK_OK(ddp_model_create(&context, three, PARAMS, &options, &model));
	check_strategy(model, "hybrid");
	for (int step = 0; step < 2; step++) {
		add_gradients(model, rank);
		CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	}
	CHECK_OK(ddp_checkpoint_save(model, NULL, whole, 0));
	if (rank == 1)
		CHECK_OK(ddp_node_strategy_begin(model, 3));
	test_ranks_together();
	if (rank == 3)
		raise(SIGKILL);
	CHECK(ddp_model_step(model, 1, 0, NULL) == DDP_ERR_PEER);
	if (rank == 0) {
		CHECK_OK(ddp_checkpoint_save(model, NULL, own, 0));
		expect_same_checkpoint(whole, own);
	} else {
		CHECK_FAILS(ddp_checkpoint_save(model, NULL, own, 0), DDP_ERR_STATE, "rank 1 began to update");
	}
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

TEST_WITH(node_saves_what_its_dead_rank_kept, folder_make, folder_remove)
{
#ifdef HAVE_UCX
	RUN_WORLD(.ranks = 4, .node_of = two_nodes, .body = node_death_body, .expect_deaths = true);
#else
	skip();
#endif
}

/* ---- memory ------------------------------------------------------------------------------ */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
enum { LARGE = 6 << 20 }; /* elements: 24 MiB */

/* MiB that this process has in memory, as proc(5) counts them by `format`. */
static double mib_of(const char *format)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "re");
	char line[256];
	long kib = -1;

	CHECK(file != NULL);
	while (fgets(line, sizeof(line), file) != NULL && sscanf(line, format, &kib) != 1)
		continue;
	fclose(file);
	CHECK(kib >= 0);
	return (double)kib / 1024;
}

static double own_mib(void)
{
	return mib_of("Anonymous: %ld kB");
}

static const ddp_param large[4] = {
	{ .name = "a", .ndim = 1, .shape = { LARGE / 4 } }, { .name = "b", .ndim = 1, .shape = { LARGE / 4 } },
	{ .name = "c", .ndim = 1, .shape = { LARGE / 4 } }, { .name = "d", .ndim = 1, .shape = { LARGE / 4 } },
};

static void fill_gradients(ddp_model *model)
{
	for (int p = 3; p >= 0; p--) {
		for (int64_t i = 0; i < LARGE / 4; i++)
			ddp_model_param_grad(model, p)[i] = 1;
		CHECK_OK(ddp_model_grad_ready(model, p));
	}
}

static int memory_body(ddp_context *context, void *user)
{
	const ddp_shard shard = *(const ddp_shard *)user;
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .shard = shard };
	const double mib = (double)LARGE * sizeof(float) / (1 << 20);
	int ranks = ddp_comm_size(context->world);
	ddp_model *model;

	double before = own_mib();
	CHECK_OK(ddp_model_create(context, large, 4, &options, &model));
	check_strategy(model, shard == DDP_SHARD_NONE ? "all_reduce" : "scatter, gradients too");
	fill_gradients(model);
	CHECK_OK(ddp_model_reduce_grads(model, 1, 0, NULL));
	double reduced = own_mib() - before;
	CHECK_OK(ddp_model_update_params(model, NULL));
	double updated = own_mib() - before;
	/* The sums; then AdamW's two numbers, too. A little is the library's own. */
	if (shard == DDP_SHARD_GRADIENTS) {
		CHECK(reduced > mib / ranks - 1 && reduced < mib / ranks + 3);
		CHECK(updated > 3 * mib / ranks - 1 && updated < 3 * mib / ranks + 3);
	} else {
		/* All of the gradients are in memory that ranks share. */
		CHECK(updated > 2 * mib - 1);
	}
	ddp_model_free(model);
	return 0;
}

TEST(shards_fall_with_the_number_of_ranks)
{
	ddp_shard none = DDP_SHARD_NONE, gradients = DDP_SHARD_GRADIENTS;

	assert_int_equal(run_ranks(2, memory_body, &none), 0);
	assert_int_equal(run_ranks(2, memory_body, &gradients), 0);
	assert_int_equal(run_ranks(4, memory_body, &gradients), 0);
}

/* Of the four numbers for each parameter, its own, its gradient and AdamW's two, which ddp_shard
   tells of. */
typedef struct footprint {
	int ranks;
	const int *node_of; /* NULL: one node */
	ddp_shard shard;
	const char *by;     /* the strategy */
	double numbers;     /* of each parameter, in a rank's memory on average */
} footprint;

static int footprint_body(ddp_comm *comm, void *argument)
{
	const footprint *f = argument;
	const double mib = (double)LARGE * sizeof(float) / (1 << 20);
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .shard = f->shard };
	static float some[1 << 20];
	ddp_context context = test_context_of(comm);
	ddp_model *model;

	/* What the network takes for itself is not the model's. */
	CHECK_OK(ddp_all_to_all(comm, some, some + (1 << 19), (1 << 19) / (size_t)f->ranks, DDP_F32));
	CHECK_OK(ddp_all_reduce(comm, NULL, some, 1 << 20, DDP_F32, DDP_SUM));
	CHECK_OK(ddp_barrier(comm));
	/* A page counts by halves, quarters, ... of the ranks that have used it, whosever it is. */
	double before = mib_of("Pss: %ld kB");
	CHECK_OK(ddp_model_create(&context, large, 4, &options, &model));
	check_strategy(model, f->by);
	CHECK_OK(ddp_model_broadcast_params(model));
	fill_gradients(model);
	CHECK_OK(ddp_model_step(model, 1, 0, NULL));
	CHECK_OK(ddp_barrier(comm));
	double numbers = (mib_of("Pss: %ld kB") - before) / mib;
	CHECK_OK(ddp_all_reduce(comm, NULL, &numbers, 1, DDP_F64, DDP_AVG));
	CHECK(numbers > f->numbers - 0.15 && numbers < f->numbers + 0.25);
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

/* A part of what is not the parameters themselves: with more ranks, each has less of it. */
TEST(ranks_take_what_is_said_of_each_way)
{
	static const int apart[] = { 0, 1, 2, 3 }, pairs[] = { 0, 0, 1, 1 };
	static const footprint footprints[] = {
		{ 2, NULL, DDP_SHARD_NONE, "all_reduce", 4 },
		{ 2, NULL, DDP_SHARD_STATE, "node", 2 + 2.0 / 2 },
		{ 4, NULL, DDP_SHARD_STATE, "node", 2 + 2.0 / 4 },
		{ 4, NULL, DDP_SHARD_GRADIENTS, "scatter, gradients too", 1 + 3.0 / 4 },
		{ 2, apart, DDP_SHARD_STATE, "scatter", 2 + 3.0 / 2 },
		{ 4, apart, DDP_SHARD_STATE, "scatter", 2 + 3.0 / 4 },
		{ 2, apart, DDP_SHARD_GRADIENTS, "scatter, gradients too", 1 + 3.0 / 2 },
		{ 4, apart, DDP_SHARD_GRADIENTS, "scatter, gradients too", 1 + 3.0 / 4 },
		{ 4, pairs, DDP_SHARD_AUTO, "hybrid", 2 + 2.0 / 2 },
		{ 4, pairs, DDP_SHARD_GRADIENTS, "scatter, gradients too", 1 + 3.0 / 4 },
	};

	for (size_t i = 0; i < sizeof(footprints) / sizeof(footprints[0]); i++) {
		footprint f = footprints[i];
		RUN_WORLD(.ranks = f.ranks, .node_of = f.node_of, .body = footprint_body, .argument = &f);
	}
}
#endif
