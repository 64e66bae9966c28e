/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: asan tsan */
/* reduce: ranks compare their parameters: who has damaged ones is named, and nobody else is. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/net/net.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/model_side.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "watch/progress.h"

enum { PARAMS = 4, FROZEN = 3, RANKS = 4 };

static const ddp_options on_test = { DDP_OPTIONS_FIELDS, .device = "cuda" };

/* Several pieces, and several buckets. */
static const ddp_param params[PARAMS] = {
	{ .name = "a", .ndim = 1, .shape = { 37 } },
	{ .name = "b", .ndim = 2, .shape = { 60, 700 } },
	{ .name = "c", .ndim = 2, .shape = { 50, 50 } },
	{ .name = "frozen", .ndim = 1, .shape = { 900 }, .kind = DDP_PARAM_FROZEN },
};

/* A training, which compares after so many steps, and where its models are. */
typedef struct way {
	const char *name;
	ddp_model_options options;
	const int *node_of;
	int micro_batches;
	bool joins;    /* the last rank has no samples in the last steps */
	bool averages; /* damage before an average is spread to all ranks */
	bool one_node, on_device; /* where it runs besides two nodes */
} way;

/* Each rank's loss is its own, so that nobody seems to train on the same samples. */
static ddp_status try_step(model_side *s, const way *w, int step)
{
	const int micro_batches = w->micro_batches > 0 ? w->micro_batches : 1, last = ddp_comm_size(ddp_world(s->context)) - 1;

	if (w->joins && step > 3 && side_rank(s) == last)
		return ddp_model_join(s->model, NULL);
	for (int m = 1; m <= micro_batches; m++) {
		CHECK_OK(ddp_model_set_sync(s->model, m == micro_batches));
		for (int p = FROZEN - 1; p >= 0; p--) {
			side_draw(s, step + m, p, (float)ddp_model_loss_scale(s->model));
			side_copy_gradient(s, p);
			CHECK_OK(ddp_model_grad_ready(s->model, p));
		}
	}
	return ddp_model_step(s->model, 3, 1 + side_rank(s), NULL);
}

static void train(model_side *s, const way *w, int first, int last)
{
	for (int step = first; step <= last; step++)
		CHECK_OK(try_step(s, w, step));
}

static void flip(const model_side *s, float *at)
{
	uint32_t word;

	side_copy(s, &word, at, sizeof(word));
	word ^= 1u << 10;
	side_copy(s, at, &word, sizeof(word));
}

static bool on_device(ddp_context *context)
{
	return context->device != NULL;
}

static void open_side(model_side *s, ddp_context *context, const way *w)
{
	side_open(s, context, on_device(context));
	side_make(s, params, PARAMS, &w->options, 0);
	CHECK_OK(ddp_model_broadcast_params(s->model));
}

static int run(const way *w, int ranks, rank_body body, bool device)
{
	way of_ranks = *w;

	return device ? run_ranks_with(ranks, &on_test, body, &of_ranks) : run_ranks_on(w->node_of, ranks, body, &of_ranks);
}

/* ---- who is named ------------------------------------------------------------------------------ */

static const way each_alone = { .options = { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE, .compare_every = 3 } };

/* All ranks tell the same, and one of them tells the user. */
static void expect_named(const model_side *s, ddp_status status, int odd, int step)
{
	const struct ddp_progress *page = ddp_watch_page(s->context->watch);
	char wanted[128], behind[160];

	CHECK(status == DDP_ERR_MISMATCH);
	CHECK(ddp_error_rank() == odd && ddp_last_error_is_told() == (side_rank(s) != 0));
	snprintf(wanted, sizeof(wanted), "step %d: rank %d on ", step + 1, odd);
	snprintf(behind, sizeof(behind), " has other parameters than 3 of 4 ranks after step %d: its memory or processor is "
	         "damaged; " DDP_PROGRESS_WITHOUT, step);
	CHECK(test_says(wanted) && test_says(behind) && test_says(" from the last checkpoint"));
	CHECK(strstr(page->error, behind) != NULL && page->culprit == (uint32_t)odd + 1);
}

/* Damage of any kind is seen after the next three steps; then training goes on from a checkpoint. */
static int named_body(ddp_context *context, void *user)
{
	static model_side s;
	const way *w = user;
	int64_t step;

	open_side(&s, context, w);
	for (int kind = 0; kind < 3; kind++) {
		const int first = 1 + 6 * kind, odd = 3 - kind;
		float *damaged[] = { ddp_model_param_data(s.model, 1) + 41999, ddp_model_param_data(s.model, FROZEN) + 7,
		                     s.model->optim.state[1] + 50 };
		train(&s, w, first, first + 2);
		CHECK_OK(ddp_checkpoint_save(s.model, NULL, test_folder, 0));
		train(&s, w, first + 3, first + 3);
		if (side_rank(&s) == odd)
			flip(&s, damaged[kind]);
		train(&s, w, first + 4, first + 5);
		for (int i = 0; i < 2; i++)
			expect_named(&s, try_step(&s, w, first + 6), odd, first + 5);
		CHECK_OK(ddp_checkpoint_load(s.model, NULL, test_folder, &step));
		CHECK(step == first + 2);
		train(&s, w, first + 3, first + 5);
	}
	side_close(&s);
	return 0;
}

TEST_WITH(the_damaged_rank_is_named, folder_empty, NULL)
{
	for (int device = 0; device < 2; device++) {
		folder_empty(NULL);
		assert_int_equal(run(&each_alone, RANKS, named_body, device != 0), 0);
	}
}

/* Damage that is found when a checkpoint is written, with and without the option. */
static int saved_body(ddp_context *context, void *user)
{
	static model_side s;
	const way *w = user;

	open_side(&s, context, w);
	train(&s, w, 1, 2);
	if (side_rank(&s) == 1)
		flip(&s, ddp_model_param_data(s.model, 0));
	CHECK(ddp_checkpoint_save(s.model, NULL, test_folder, 0) == DDP_ERR_MISMATCH && ddp_error_rank() == 1);
	CHECK(test_says("checkpoint of step 2 was not saved: rank 1 on ") &&
	      test_says(" has other parameters than 3 of 4 ranks after step 2"));
	if (side_rank(&s) == 1)
		flip(&s, ddp_model_param_data(s.model, 0));
	CHECK_OK(ddp_checkpoint_save(s.model, NULL, test_folder, 0));
	/* The state is compared with the option only: otherwise its damage shows when a step has used it. */
	if (side_rank(&s) == 2)
		flip(&s, s.model->optim.state[0]);
	CHECK(ddp_checkpoint_save(s.model, NULL, test_folder, 0) ==
	      (w->options.compare_every > 0 ? DDP_ERR_MISMATCH : DDP_OK));
	side_close(&s);
	return 0;
}

TEST_WITH(no_damaged_checkpoint_is_written, folder_empty, NULL)
{
	way without = each_alone;

	without.options.compare_every = 0;
	assert_int_equal(run(&each_alone, RANKS, saved_body, false), 0);
	assert_int_equal(run(&each_alone, RANKS, saved_body, true), 0);
	assert_int_equal(run(&without, RANKS, saved_body, false), 0);
}

static int pair_body(ddp_context *context, void *user)
{
	static model_side s;
	const way *w = user;
	const int ranks = ddp_comm_size(ddp_world(context));

	open_side(&s, context, w);
	train(&s, w, 1, 3);
	/* Of two ranks one, and of four the second half. */
	if (side_rank(&s) >= ranks / 2)
		flip(&s, ddp_model_param_data(s.model, 1));
	CHECK(try_step(&s, w, 4) == DDP_ERR_MISMATCH && ddp_error_rank() == -1);
	CHECK(test_says("step 4: one of rank 0 on ") && test_says(ranks == 2 ? " and rank 1 on " : " and rank 2 on ") &&
	      test_says(" has wrong parameters after step 3, and too few of "));
	CHECK(test_says(DDP_PROGRESS_WITHOUT) == (w->node_of == NULL));
	side_close(&s);
	return 0;
}

TEST(of_two_ranks_it_is_one_of_both)
{
	static const int apart[] = { 0, 1, 0, 1 };
	way nodes = each_alone;

	nodes.node_of = apart;
	assert_int_equal(run(&each_alone, 2, pair_body, false), 0);
	assert_int_equal(run(&nodes, 2, pair_body, false), 0);
	assert_int_equal(run(&nodes, 4, pair_body, false), 0);
}

/* A node's ranks share the update, so damage may be all of theirs. */
static int node_body(ddp_context *context, void *user)
{
	static model_side s;
	const way *w = user;

	open_side(&s, context, w);
	check_strategy(s.model, "hybrid");
	train(&s, w, 1, 3);
	if (w->node_of[side_rank(&s)] == 1)
		flip(&s, ddp_model_param_data(s.model, 1));
	CHECK(try_step(&s, w, 4) == DDP_ERR_MISMATCH && ddp_error_rank() == 2 && test_says("rank 2 on "));
	CHECK(test_says(" and 1 more rank there have other parameters than 4 of 6 ranks after step 3: their memory") &&
	      test_says(DDP_PROGRESS_WITHOUT "slurms-name" DDP_PROGRESS_FROM));
	side_close(&s);
	return 0;
}

TEST(several_ranks_of_a_node_are_named_with_it)
{
	static const int three_nodes[] = { 0, 0, 1, 1, 2, 2 };
	way nodes = each_alone;

	nodes.options.shard = DDP_SHARD_AUTO;
	nodes.node_of = three_nodes;
	setenv("DDP_NODE_NAME", "slurms-name", 1);
	assert_int_equal(run(&nodes, 6, node_body, false), 0);
	unsetenv("DDP_NODE_NAME");
}

/* ---- who is not ------------------------------------------------------------------------------- */

/* What some steps take: collectives, and bytes to other nodes; and the process's threads. */
typedef struct cost {
	uint64_t collectives, bytes;
	int threads;
} cost;

/* Also of those that gather parameters late. */
static cost cost_so_far(const model_side *s)
{
	ddp_comm *comm = ddp_model_comm(s->model);

	CHECK_OK(ddp_model_param_wait(s->model, DDP_ALL_PARAMS));
	pthread_mutex_lock(&comm->run.lock);
	cost found = { .collectives = comm->run.sequence, .bytes = ddp_comm_nodes(comm) > 1 ? ddp_net_sent_bytes(comm) : 0,
		       .threads = folder_count("/proc/self/task", "") };
	pthread_mutex_unlock(&comm->run.lock);
	for (int lane = 1; lane < DDP_LANES; lane++)
		found.collectives += test_lane_count(comm, lane);
	return found;
}

/* What four steps take; `survives`: the ranks are ready to go on without one that dies. */
static cost cost_of(ddp_context *context, const way *w, int64_t every, bool survives)
{
	static model_side s;
	way here = *w;

	here.options.compare_every = every;
	open_side(&s, context, &here);
	const ddp_status ready = survives ? ddp_survive(s.model, NULL, DDP_OK, NULL) : DDP_OK;
	CHECK(ready == DDP_OK || ready == DDP_ERR_UNSUPPORTED);
	train(&s, &here, 1, 2);
	const cost before = cost_so_far(&s);
	for (int step = 3; step <= 6; step++) {
		train(&s, &here, step, step);
		if (survives && ready == DDP_OK)
			CHECK_OK(ddp_survive(s.model, NULL, DDP_OK, NULL));
	}
	cost took = cost_so_far(&s);
	took.collectives -= before.collectives;
	took.bytes -= before.bytes;
	CHECK(s.model->compared == (every == 0 ? 0 : w->averages ? 4 : 5));
	if (every > 0 && !w->averages) {
		if (side_rank(&s) == 1)
			flip(&s, ddp_model_param_data(s.model, 1) + 123);
		CHECK(try_step(&s, &here, 7) == DDP_ERR_MISMATCH && test_says("rank 1 on "));
	}
	/* Each step has a collective for each bucket, and the consensus. */
	CHECK(w->node_of == NULL || strcmp(w->name, "none") != 0 ||
	      took.collectives == 4 * ((uint64_t)s.model->plan.count + 1));
	side_close(&s);
	return took;
}

static void expect_same_cost(cost without, cost with)
{
	CHECK(with.collectives == without.collectives);
	CHECK(with.bytes == without.bytes);
	CHECK(with.threads == without.threads);
}

/* To compare after each step, and to be ready for a death, takes no message more, no byte and no thread. */
static int calm_body(ddp_context *context, void *user)
{
	const cost without = cost_of(context, user, 0, false);

	expect_same_cost(without, cost_of(context, user, 1, false));
	expect_same_cost(without, cost_of(context, user, 0, true));
	return 0;
}

#define WAY(text, where, ...) { .name = text, where, .options = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = 0.05, __VA_ARGS__ } }

static const way calm[] = {
	WAY("none", .on_device = true, .shard = DDP_SHARD_NONE),
	WAY("auto", .one_node = true, .shard = DDP_SHARD_AUTO),
	WAY("state", .on_device = true, .shard = DDP_SHARD_STATE),
	WAY("gradients", .one_node = true, .shard = DDP_SHARD_GRADIENTS),
	WAY("gathered late", .on_device = true, .shard = DDP_SHARD_GRADIENTS, .late_gather = true),
	WAY("mixed precision", .on_device = true, .bf16_params = true, .loss_scaling = { DDP_SCALING_DYNAMIC, 1024, 3 }),
	WAY("clipped", .joins = false, .clip_norm = 0.1, .shard = DDP_SHARD_NONE),
	WAY("bf16 buckets", .joins = false, .compress = DDP_COMPRESS_BF16),
	WAY("PowerSGD", .joins = false, .compress = DDP_COMPRESS_POWERSGD),
	WAY("Muon", .joins = false, .optimizer = DDP_MUON),
	WAY("LAMB", .joins = false, .optimizer = DDP_LAMB),
	WAY("Adafactor", .joins = false, .optimizer = DDP_ADAFACTOR),
	{ .name = "accumulated", .micro_batches = 3, .options = { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE } },
	{ .name = "joined", .joins = true, .options = { DDP_MODEL_OPTIONS_FIELDS } },
	{ .name = "local SGD", .averages = true,
	  .options = { DDP_MODEL_OPTIONS_FIELDS, .local_sgd = { .steps = 2, .start = 4 } } },
};

TEST(equal_ranks_are_not_named)
{
	for (size_t i = 0; i < sizeof(calm) / sizeof(calm[0]); i++) {
		way nodes = calm[i];
		nodes.node_of = two_nodes;
		print_message("%s\n", calm[i].name);
		assert_int_equal(run(&nodes, 3, calm_body, false), 0);
		assert_int_equal(calm[i].one_node ? run(&calm[i], 3, calm_body, false) : 0, 0);
		assert_int_equal(calm[i].on_device ? run(&calm[i], 3, calm_body, true) : 0, 0);
	}
}

/* ---- the option ------------------------------------------------------------------------------- */

TEST(the_environment_gives_it_where_the_program_does_not)
{
	static const struct {
		const char *text;
		int64_t own, every; /* -1: refused */
	} given[] = { { "100", 0, 100 }, { "100", 7, 7 }, { "", 0, 0 }, { "0", 0, 0 }, { "1.5", 0, -1 }, { "-1", 0, -1 },
	              { "often", 0, -1 }, { "", -1, -1 } };
	ddp_model_settings settings;

	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
		const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .compare_every = given[i].own };
		assert_int_equal(setenv("DDP_COMPARE_EVERY", given[i].text, 1), 0);
		const ddp_status status = ddp_model_settings_make(&options, &settings);
		if (given[i].every < 0)
			assert_true(status == DDP_ERR_INVALID && strcasestr(ddp_last_error(), "compare_every") != NULL);
		else
			assert_true(status == DDP_OK && settings.options.compare_every == given[i].every);
	}
	unsetenv("DDP_COMPARE_EVERY");
}

TEST_MAIN(folder_make, folder_remove)
