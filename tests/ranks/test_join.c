/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit; takes: 18 */
/* join: ranks die in the middle of a training under restart=, and others, which are started in their places, join those
   that have kept their processes. Losses, evaluations, parameters, buffers and random numbers have the bits of a training
   in which no rank has died, also if ranks die while others join: then all start again from the last checkpoint. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "device/device.h"
#include "reduce/model_state.h"
#include "tests/device/nccl_standin.h"
#include "tests/support/folder.h"
#include "tests/support/model_side.h"
#include "tests/support/options.h"
#include "tests/support/sanitizers.h"
#include "tests/support/step_ranks.h"
#include "tests/support/test.h"
#include "tests/support/training.h"

enum { LAST = 12, FATAL = 6, EVERY = 4, ROUNDS = 4 };
enum { ANY = -1 }; /* number of joins */
enum { BUFFER = MLP_PARAMS, TABLE, PARAMS, TABLE_VALUES = 1 << 19 };

typedef struct kind {
	const char *name;
	int ranks;
	const int *node_of;
	ddp_shard shard;
	ddp_compression compress;
	int accumulate;
	bool scaled, own_loop, buddy, late, device;
} kind;

/* What the ranks and the test share. */
typedef struct shared {
	kind of;
	bool large;                     /* the model, so that joining takes a while */
	double loss[LAST + 1], evaluation[LAST + 1];
	int ended[RANKS_MAX][LAST + 1]; /* calls of after_step() */
	float params[MLP_ELEMENTS], buffer;
	uint64_t random;
} shared;

static shared *run;
static int own_rank; /* these are each rank's own */
static ddp_device_queue *queue; /* of its device; NULL: the model is the host's */

/* ---- a rank ---------------------------------------------------------------------------- */

/* Adds noise to the samples, as dropout does: its random numbers are in the program's state, and differ by rank. */
static ddp_status batch_of(void *user, ddp_model *model, const ddp_batch *batch, double *weight, double *loss_sum)
{
	mlp_sample samples[GLOBAL_BATCH];
	ddp_batch drawn = *batch;
	uint64_t random = 1;
	size_t bytes;

	test_step_die(IN_STEP, (int)model->steps + 1);
	test_step_await_harms((int)model->steps + 1);
	/* ddp_model_free() waits for the end of a save with all ranks. */
	CHECK(!model->saves || model->attached != NULL);
	ddp_status status = ddp_model_param_wait(model, DDP_ALL_PARAMS);
	if (status != DDP_OK)
		return status;
	const void *state = ddp_model_user_state(model, &bytes);
	if (state != NULL)
		memcpy(&random, state, sizeof(random));
	random = random * 6364136223846793005u + 1442695040888963407u;
	CHECK_OK(ddp_model_set_user_state(model, &random, sizeof(random)));
	memcpy(samples, batch->data, (size_t)batch->samples * sizeof(*samples));
	for (int64_t i = 0; i < batch->samples; i++)
		samples[i].input[0] += (float)((random ^ (uint64_t)own_rank << 50) >> 40) / (1 << 24);
	drawn.data = samples;
	status = mlp_batch(user, model, &drawn, weight, loss_sum);
	mlp_set_first(model, BUFFER, mlp_first(model, BUFFER) + (float)*loss_sum);
	return status;
}

static ddp_status after_step(void *user, const ddp_step_stats *stats)
{
	run->loss[stats->step] = stats->loss;
	run->ended[own_rank][stats->step]++;
	return DDP_OK;
}

static ddp_status own_step(ddp_model *model, ddp_loader *loader)
{
	const int batches = ddp_loader_accumulation(loader);
	double weight = 0, loss = 0;
	ddp_status status = DDP_OK;
	ddp_step_stats stats;
	ddp_batch batch;

	for (int i = 0; i < batches && status == DDP_OK; i++) {
		CHECK_OK(ddp_loader_next(loader, &batch));
		status = ddp_model_set_sync(model, i == batches - 1);
		if (status == DDP_OK)
			status = batch_of(NULL, model, &batch, &weight, &loss);
	}
	if (status == DDP_OK)
		status = ddp_model_step(model, weight, loss, &stats);
	return status == DDP_OK ? after_step(NULL, &stats) : status;
}

static ddp_status own_loop(ddp_model *model, ddp_loader *loader)
{
	int64_t steps;

	ddp_status status = ddp_checkpoint_load(model, loader, test_folder, &steps);

	if (status == DDP_OK)
		status = ddp_survive(model, loader, DDP_OK, &steps);
	while (status == DDP_OK && steps < LAST) {
		status = own_step(model, loader);
		if (status == DDP_OK && model->steps % EVERY == 0)
			status = ddp_checkpoint_save(model, loader, test_folder, 3);
		status = ddp_survive(model, loader, status, &steps);
	}
	return status == DDP_OK ? ddp_model_param_wait(model, DDP_ALL_PARAMS) : status;
}

static ddp_status evaluate_batch(void *user, ddp_model *model, const ddp_batch *batch, double *weight, double *loss_sum)
{
	*weight += (double)batch->samples;
	*loss_sum += (double)batch->samples * (mlp_first(model, 0) + mlp_first(model, BUFFER));
	return DDP_OK;
}

static ddp_status evaluated(void *user, int64_t number, double loss, double weight)
{
	CHECK(weight == SAMPLES);
	run->evaluation[number] = loss;
	return DDP_OK;
}

static ddp_status loop(ddp_model *model, ddp_loader *loader, ddp_loader *evaluation)
{
	const ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS, .steps = LAST, .checkpoint_dir = test_folder, .resume = true,
		.checkpoint_every = EVERY, .checkpoint_async = run->of.scaled, .on_step = after_step, .survive = true,
		.evaluate_loader = evaluation, .evaluate = evaluate_batch, .on_evaluate = evaluated, .evaluate_every = EVERY / 2,
	};

	test_step_die(BEFORE_TRAIN, 0);
	return run->of.own_loop ? own_loop(model, loader) : ddp_train(model, loader, batch_of, &options, NULL);
}

/* The table is large, or one number. */
static void make_table(float *table)
{
	for (int64_t i = 0; i < TABLE_VALUES; i++)
		table[i] = (float)(i % 1000);
}

static void write_table(ddp_model *model)
{
	static float table[TABLE_VALUES];

	make_table(table);
	CHECK_OK(ddp_place_write(&model->place, ddp_model_param_data(model, TABLE), table,
	                         (size_t)ddp_model_param_count(model, TABLE) * sizeof(*table)));
}

static void check_table(ddp_model *model)
{
	static float table[TABLE_VALUES], read[TABLE_VALUES];
	const size_t bytes = (size_t)ddp_model_param_count(model, TABLE) * sizeof(*read);

	make_table(table);
	CHECK_OK(ddp_place_read(&model->place, read, ddp_model_param_data(model, TABLE), bytes));
	CHECK(memcmp(read, table, bytes) == 0);
}

static ddp_model *model_of(ddp_context *context)
{
	ddp_model_options options = {
		DDP_MODEL_OPTIONS_FIELDS, .learning_rate = 0.01, .weight_decay = 0.1, .bucket_mb = 1024.0 / (1 << 20),
		.shard = run->of.shard, .compress = run->of.compress, .buddy = run->of.buddy, .late_gather = run->of.late,
		.clip_norm = run->of.buddy && !run->of.late ? 0.01 : 0,
		.memory = queue != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST, .stream = queue, .bf16_params = queue != NULL,
	};
	ddp_param params[PARAMS];
	ddp_model *model;

	/* The scale grows in the middle. */
	if (run->of.scaled)
		options.loss_scaling.kind = DDP_SCALING_DYNAMIC, options.loss_scaling.interval = 4;
	memcpy(params, mlp_params, sizeof(mlp_params));
	params[BUFFER] = (ddp_param){ .name = "mean", .ndim = 1, .shape = { 1 }, .kind = DDP_BUFFER_MEAN };
	params[TABLE] = (ddp_param){ .name = "table", .ndim = 1, .shape = { run->large ? TABLE_VALUES : 1 },
		                     .kind = DDP_PARAM_FROZEN };
	CHECK_OK(ddp_model_create(context, params, PARAMS, &options, &model));
	if (own_rank == 0) {
		mlp_start(model);
		write_table(model);
	}
	CHECK_OK(ddp_model_broadcast_params(model));
	return model;
}

/* As if those that start together had measured it. */
static void know_network(ddp_context *context)
{
	ddp_link *link = &ddp_world(context)->hier.link;

	if (context->renewal.generation == 0)
		*link = (ddp_link){ .measured = true, .latency_seconds = 2e-5, .byte_seconds = 5e-10, .chunk_bytes = 60 * 1024 };
}

/* What all ranks have in the end. Newcomers know of the network what the others do. */
static void look_at(ddp_model *model)
{
	ddp_context *context = model->context;
	size_t bytes;

	CHECK(context->renewal.generation == 0 || ddp_world(context)->hier.link.measured ||
	      ddp_comm_nodes(ddp_world(context)) == 1);
	check_table(model);
	if (own_rank != run->of.ranks - 1)
		return;
	mlp_pack(model, run->params);
	run->buffer = mlp_first(model, BUFFER);
	memcpy(&run->random, ddp_model_user_state(model, &bytes), sizeof(run->random));
}

static void open_queue(const ddp_context *context)
{
	test_nccl_standin()->polls = 1;
	CHECK_OK(ddp_device_queue_create(context->device, DDP_DEVICE_NORMAL, &queue));
}

static void close_queue(ddp_context *context, bool fine)
{
	CHECK_OK(ddp_device_queue_free(context->device, queue));
	if (fine)
		side_all_freed(context);
}

static int train_rank(int rank)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000, .device = run->of.device ? "cuda" : NULL };
	const ddp_dataset dataset = mlp_dataset(SAMPLES);
	const ddp_loader_options loading = {
		DDP_LOADER_OPTIONS_FIELDS, .batch_size = GLOBAL_BATCH / run->of.ranks / run->of.accumulate, .seed = SEED,
		.tail = DDP_TAIL_UNEVEN, .global_batch = GLOBAL_BATCH,
	};
	ddp_context *context;
	ddp_loader *loader, *evaluation;

	own_rank = rank;
	test_step_die(AT_START, 0);
	CHECK_OK(ddp_init(&options, &context));
	know_network(context);
	if (run->of.device)
		open_queue(context);
	ddp_model *model = model_of(context);
	CHECK_OK(ddp_loader_create(context, &dataset, &loading, &loader));
	CHECK_OK(ddp_loader_create(context, &dataset, &loading, &evaluation));
	const ddp_status status = loop(model, loader, evaluation);
	if (status == DDP_OK)
		look_at(model);
	else
		print_message("# rank %d: %s\n", own_rank, ddp_last_error());
	ddp_loader_free(loader);
	ddp_loader_free(evaluation);
	ddp_model_free(model);
	if (queue != NULL)
		close_queue(context, status == DDP_OK);
	if (status == DDP_OK)
		CHECK_OK(ddp_finalize(context));
	else
		(void)ddp_finalize(context);
	return status == DDP_OK ? 0 : STEP_FAILED;
}

/* ---- the test -------------------------------------------------------------------------- */

static const int node_by_node[] = { 0, 0, 1, 1 };
static const kind kinds[] = {
	{ "one node", 4, NULL, DDP_SHARD_AUTO, DDP_COMPRESS_NONE, 1, .buddy = false },
	{ "two nodes", 4, node_by_node, DDP_SHARD_AUTO, DDP_COMPRESS_NONE, 1, .buddy = false },
	{ "one node, nothing shared, a scaled loss", 3, NULL, DDP_SHARD_NONE, DDP_COMPRESS_NONE, 2, .scaled = true },
	{ "two nodes, an own loop", 4, node_by_node, DDP_SHARD_AUTO, DDP_COMPRESS_NONE, 3, .own_loop = true, .buddy = true },
	{ "two nodes, bf16", 4, node_by_node, DDP_SHARD_NONE, DDP_COMPRESS_BF16, 1, .buddy = false },
	{ "shards on two nodes", 4, node_by_node, DDP_SHARD_STATE, DDP_COMPRESS_NONE, 1, .buddy = true },
	{ "shards on a node", 4, NULL, DDP_SHARD_STATE, DDP_COMPRESS_NONE, 1, .buddy = true },
	{ "gradients' shards on a node", 3, NULL, DDP_SHARD_GRADIENTS, DDP_COMPRESS_NONE, 2, .scaled = true, .buddy = true },
	{ "gradients' shards on two nodes, an own loop", 4, node_by_node, DDP_SHARD_GRADIENTS, DDP_COMPRESS_NONE, 1,
	  .own_loop = true, .buddy = true, .late = true },
	{ "a device each, a scaled loss", 3, NULL, DDP_SHARD_NONE, DDP_COMPRESS_NONE, 2, .scaled = true, .device = true },
	{ "a device each, shards", 4, NULL, DDP_SHARD_STATE, DDP_COMPRESS_NONE, 1, .buddy = true, .device = true },
	{ "a device each, gradients' shards, an own loop", 3, NULL, DDP_SHARD_GRADIENTS, DDP_COMPRESS_NONE, 1,
	  .own_loop = true, .buddy = true, .late = true, .device = true },
	{ "one node, f16, an own loop", 4, NULL, DDP_SHARD_NONE, DDP_COMPRESS_F16, 2, .scaled = true, .own_loop = true },
};
/* These kinds shard the optimizer's state. On two nodes, the buddy of rank r is rank r ^ 2. On one node, ranks share the
   memory of shards, except on devices, where a rank of the node is the buddy. */
static const kind *const state_nodes = &kinds[5], *const grads_node = &kinds[7], *const grads_nodes = &kinds[8],
                  *const state_devices = &kinds[10];
/* EXACT: the first step from a checkpoint has the bits of others, which f16 does not promise. */
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), EXACT = KINDS - 1 };

static shared undisturbed[KINDS];
static const test_harm nothing;

/* Its harm done, a training leaves its results in `run`. */
static test_step train_as(const kind *of, bool large, const test_harm first, const test_harm second)
{
	test_step step = { .name = of->name, .ranks = of->ranks, .node_of = of->node_of, .body = train_rank,
		           .harms = { first, second }, .last = LAST };

	memset(run, 0, sizeof(*run));
	run->of = *of;
	run->large = large;
	folder_empty(NULL);
	test_step_run(&step);
	return step;
}

static void expect_same(const shared *calm)
{
	for (int64_t number = 1; number <= LAST; number++) {
		if (memcmp(&run->loss[number], &calm->loss[number], sizeof(double)) != 0)
			fail_msg("%s: step %lld: loss %.17g, not %.17g", run->of.name, (long long)number, run->loss[number],
			         calm->loss[number]);
	}
	assert_memory_equal(run->evaluation, calm->evaluation, sizeof(calm->evaluation));
	assert_memory_equal(run->params, calm->params, sizeof(calm->params));
	assert_true(run->buffer == calm->buffer && run->random == calm->random);
}

/* Joins and restarts have to follow, as many as are given. If the test has to find
   the moment, it may be late, and then ranks join once more. If a rank dies in its first step behind a join,
   others may still be joining on a busy machine, and then all start again. Returns the restarts. */
static int hurt_and_compare(const kind *of, bool large, const test_harm first, const test_harm second, int joins, int restarts)
{
	const bool depends = second.when == MEETS || second.when == RECEIVES || second.when == LATER ||
	                     (second.when == IN_STEP && second.generation == 2 && second.number == first.number);
	shared *calm = &undisturbed[of - kinds];

	if (calm->of.ranks == 0) {
		train_as(of, false, nothing, nothing);
		memcpy(calm, run, sizeof(*calm));
	}
	const test_step s = train_as(of, large, first, second);
	print_message("# %s: ranks %#x (%d), %#x (%d): %d joins, %d restarts\n", of->name, first.ranks, (int)first.when,
	              second.ranks, (int)second.when, s.joins, s.restarts);
	expect_same(calm);
	if (joins == ANY)
		assert_int_equal(s.restarts, restarts);
	else
		assert_true(s.joins + s.restarts == joins + restarts && (depends || s.joins == joins));
	for (int r = 0; r < of->ranks && s.restarts == 0 && !depends; r++) {
		for (int64_t number = 1; number <= LAST; number++) {
			/* A step of which a rank has left no copy is done again. */
			const bool again = of->buddy && (number + 1 == first.number || number + 1 == second.number);
			assert_in_range(run->ended[r][number], 1, again ? 2 : 1);
		}
	}
	return s.restarts;
}

static test_harm dies(int rank, int generation, test_moment when, int number)
{
	return (test_harm){ .when = when, .number = number, .ranks = 1u << rank, .generation = generation };
}

TEST(a_rank_joins)
{
	for (int k = 0; k < KINDS; k++)
		hurt_and_compare(&kinds[k], false, dies(k % 3, 1, IN_STEP, FATAL), nothing, 1, 0);
}

TEST(ranks_join_one_after_the_other)
{
	hurt_and_compare(&kinds[1], false, dies(3, 1, IN_STEP, 2), dies(0, 2, IN_STEP, 3), 2, 0);
	/* Who has joined dies in its first step, */
	hurt_and_compare(&kinds[0], false, dies(1, 1, IN_STEP, FATAL), dies(1, 2, IN_STEP, FATAL), 2, 0);
	/* or others do, while they wait. */
	hurt_and_compare(&kinds[1], false, dies(1, 1, IN_STEP, FATAL), dies(2, 1, WAITS, 0), 1, 0);
}

TEST(a_node_is_replaced)
{
	const test_harm lost = { .when = IN_STEP, .number = FATAL, .ranks = 0x3, .generation = 1, .node = true };

	hurt_and_compare(&kinds[1], false, lost, nothing, 1, 0);
}

TEST(all_start_again_if_a_join_fails)
{
	const test_harm first = dies(3, 1, IN_STEP, FATAL);
	test_harm node = dies(0, 2, MEETS, 0);
	int found = 0;

	hurt_and_compare(&kinds[0], false, first, dies(3, 2, AT_START, 0), 1, 1);
	found += hurt_and_compare(&kinds[1], true, first, dies(0, 2, MEETS, 0), 1, 1);
	node.ranks = 0x3;
	node.node = true;
	found += hurt_and_compare(&kinds[1], false, first, node, 1, 1);
	found += hurt_and_compare(&kinds[0], true, first, dies(3, 2, RECEIVES, 0), 1, 1);
	hurt_and_compare(&kinds[1], false, first, dies(3, 2, BEFORE_TRAIN, 0), 1, 1);
	found += hurt_and_compare(&kinds[0], true, dies(0, 1, IN_STEP, FATAL), dies(1, 2, MEETS, 0), 1, 1);
	found += hurt_and_compare(&kinds[1], true, first, dies(0, 2, RECEIVES, 0), 1, 1);
	found += hurt_and_compare(&kinds[1], true, dies(0, 1, IN_STEP, FATAL), dies(2, 2, RECEIVES, 0), 1, 1);
	/* The test was late at most sometimes. */
	assert_true(found > 0);
}

TEST(shards_come_from_buddies)
{
	const test_harm lost = { .when = IN_STEP, .number = FATAL, .ranks = 0x3, .generation = 1, .node = true };

	hurt_and_compare(state_nodes, false, lost, nothing, 1, 0);
	hurt_and_compare(grads_nodes, false, lost, dies(3, 2, IN_STEP, FATAL + 2), 2, 0);
	/* Copies are made anew: the buddy dies, or who has joined, or another rank while all wait. */
	hurt_and_compare(state_nodes, false, dies(0, 1, IN_STEP, 2), dies(2, 2, IN_STEP, 4), 2, 0);
	/* What a sanitizer looks for is the same in the others. */
	if (SANITIZER)
		return;
	hurt_and_compare(grads_node, false, dies(0, 1, IN_STEP, 2), dies(1, 2, IN_STEP, 4), 2, 0);
	hurt_and_compare(state_devices, false, dies(0, 1, IN_STEP, 2), dies(1, 2, IN_STEP, 4), 2, 0);
	hurt_and_compare(grads_node, false, dies(0, 1, IN_STEP, FATAL), dies(1, 1, WAITS, 0), 1, 0);
	hurt_and_compare(grads_nodes, false, dies(1, 1, IN_STEP, FATAL), dies(1, 2, IN_STEP, FATAL), 2, 0);
	hurt_and_compare(state_nodes, false, dies(1, 1, IN_STEP, FATAL), dies(2, 1, WAITS, 0), 1, 0);
}

TEST(all_start_again_without_a_shard)
{
	test_harm both = dies(0, 1, IN_STEP, FATAL);

	both.ranks = 0x5;
	/* srun may see the deaths before the others have said that they cannot go on. */
	hurt_and_compare(state_nodes, false, both, nothing, ANY, 1);
	/* The others learn it when they meet. */
	hurt_and_compare(state_nodes, false, dies(1, 1, IN_STEP, FATAL), dies(3, 1, WAITS, 0), 1, 1);
	/* Who is to have the copy dies. */
	hurt_and_compare(grads_node, true, dies(2, 1, IN_STEP, FATAL), dies(2, 2, RECEIVES, 0), 1, 1);
	if (SANITIZER)
		return;
	hurt_and_compare(grads_nodes, false, both, nothing, ANY, 1);
	hurt_and_compare(state_devices, true, dies(2, 1, IN_STEP, FATAL), dies(2, 2, RECEIVES, 0), 1, 1);
	/* Who has the copy dies, or neither. */
	hurt_and_compare(state_nodes, true, dies(3, 1, IN_STEP, FATAL), dies(1, 2, RECEIVES, 0), 1, 1);
	hurt_and_compare(grads_nodes, true, dies(2, 1, IN_STEP, FATAL), dies(3, 2, MEETS, 0), 1, 1);
	hurt_and_compare(state_nodes, false, dies(2, 1, IN_STEP, FATAL), dies(2, 2, BEFORE_TRAIN, 0), 1, 1);
}

TEST(ranks_die_at_any_time)
{
	srand(7);
	for (int i = 0; i < ROUNDS; i++) {
		const kind *of = i % 2 == 0 ? &kinds[rand() % EXACT] : rand() % 2 == 0 ? state_nodes : grads_nodes;
		const test_harm first = dies(rand() % of->ranks, 1, IN_STEP, FATAL);
		const test_harm second = dies(rand() % of->ranks, 2, LATER, rand() % 300000);
		if (test_takes((size_t)i / 2))
			hurt_and_compare(of, true, first, second, 1, 1);
	}
}

/* ---- examples --------------------------------------------------------------------------- */

static char *const *example;

/* Keeps what an example has left, or compares it with what was kept. */
static void keep_or_compare(const char *result, bool keeps)
{
	char command[256];

	snprintf(command, sizeof(command), "cd %s && %s %s kept", test_folder, keeps ? "cp" : "cmp", result);
	assert_int_equal(system(command), 0);
}

/* Each rank has its own file for what it prints. */
_Noreturn static void exec_example(void)
{
	char path[TEST_FOLDER_BYTES + 16];

	snprintf(path, sizeof(path), "%s/out.%d", test_folder, own_rank);
	CHECK(freopen(path, "w", stdout) != NULL);
	execv(example[0], example);
	test_check_failed(__FILE__, __LINE__, example[0]);
}

static int run_example(int rank)
{
	own_rank = rank;
	exec_example();
}

static void example_joins(char *const *program, const char *result, int number)
{
	test_step step = { .name = program[0], .ranks = 4, .body = run_example, .last = INT_MAX };

	example = program;
	test_step_run(&step);
	keep_or_compare(result, true);
	step.harms[0] = dies(0, 1, PAST_STEP, number);
	step.harms[1] = dies(2, 2, PAST_STEP, 2 * number);
	test_step_run(&step);
	print_message("# %s: %d joins, %d restarts\n", step.name, step.joins, step.restarts);
	assert_true(step.joins == 2 && step.restarts == 0);
	keep_or_compare(result, false);
}

TEST(examples_join)
{
	char data[TEST_FOLDER_BYTES + 8], saved[TEST_FOLDER_BYTES + 8], command[256];
	char *const linear[] = { "examples/linear", "--survive", "--steps", "4000", NULL };
	char *const mnist[] = { "examples/vision/mnist_mlp", "--survive", "--data", data, "--checkpoint", saved, "--batch", "6",
		                "--steps", "300", "--threads", "1", NULL };

	folder_empty(NULL);
	snprintf(data, sizeof(data), "%s/data", test_folder);
	snprintf(saved, sizeof(saved), "%s/saved", test_folder);
	snprintf(command, sizeof(command), "mkdir %s && examples/vision/synthetic mnist %s 480 101 >/dev/null", data, data);
	if (access(linear[0], X_OK) != 0 || system(command) != 0)
		skip();
	example_joins(linear, "out.0", 400);
	example_joins(mnist, "saved/step-00000300.safetensors", 60);
}

int main(void)
{
	run = test_share(sizeof(*run));
	if (folder_make(NULL) != 0)
		return 1;
	int failed = test_run(NULL, NULL);
	folder_remove(NULL);
	return failed;
}
