/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; takes: 9 */
/* reduce: random models on random worlds, reduced in every way, in random order, with random
   parts unused, ranks that finish early and steps that a mistake ends or that are refused, skipped
   or forgotten, end each step where a plain loop does that gathers all ranks' gradients and averages
   them. Gradients are small whole numbers, of which all sums, and all sums of squares, are exact: so
   the plain loop's bits are wanted. Gradients that are not show that the ways agree to the bit among
   themselves. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"
#include "reduce/model_state.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/sanitizers.h"
#include "tests/support/scenario.h"
#include "tests/support/test.h"

ddp_status __real_ddp_bucket_plan_make(const ddp_layout *layout, int64_t first_size, int64_t size,
                                       ddp_bucket_plan *plan);
ddp_status __wrap_ddp_bucket_plan_make(const ddp_layout *layout, int64_t first_size, int64_t size,
                                       ddp_bucket_plan *plan);

/* Cuts small models as the default does one of a thousand times their size. What a scenario gives
   is less than any default. */
ddp_status __wrap_ddp_bucket_plan_make(const ddp_layout *layout, int64_t first_size, int64_t size,
                                       ddp_bucket_plan *plan)
{
	const int64_t least = ddp_default_bucket_elements(0);

	return __real_ddp_bucket_plan_make(layout, first_size >= least ? first_size / 1024 : first_size,
	                                   size >= least ? size / 1024 : size, plan);
}

/* All but a buffer is in bf16, too, if the scenario says so. */
static void expect_rounded(const scenario *s, ddp_model *model, int p)
{
	static uint16_t nearest[ELEMENTS_MAX], got[ELEMENTS_MAX];
	static float masters[ELEMENTS_MAX];
	const uint16_t *rounded = ddp_model_param_bf16(model, p);
	const int64_t count = ddp_model_param_count(model, p);

	CHECK((rounded != NULL) == (s->options.bf16_params && !scenario_is_buffer(s, p)));
	if (rounded == NULL)
		return;
	scenario_copy(masters, ddp_model_param_data(model, p), scenario_bytes(model, p));
	scenario_copy(got, rounded, (size_t)count * sizeof(*got));
	dk_to_bf16(nearest, masters, count);
	CHECK(memcmp(got, nearest, (size_t)count * sizeof(*nearest)) == 0);
}

static void expect_params(const scenario *s, ddp_model *model, float (*wanted)[ELEMENTS_MAX])
{
	static float got[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		const float *grad = ddp_model_param_grad(model, p);
		scenario_copy(got, ddp_model_param_data(model, p), scenario_bytes(model, p));
		CHECK(memcmp(got, wanted[p], scenario_bytes(model, p)) == 0);
		CHECK((grad != NULL) == scenario_is_trained(s, p));
		if (grad != NULL)
			scenario_copy(got, grad, scenario_bytes(model, p));
		for (int64_t i = 0; i < ddp_model_param_count(model, p) && grad != NULL; i++)
			CHECK(got[i] == 0);
		expect_rounded(s, model, p);
	}
}

/* Of whole numbers. */
static void expect_at_once(const scenario *s, ddp_model *model, plain *x)
{
	for (int p = 0; p < s->count && s->whole; p++)
		CHECK_OK(ddp_model_param_wait(model, p));
	if (s->whole)
		expect_params(s, model, x->params);
}

/* Without travelling rows, all ways add in one order. */
static bool rows_matter(const scenario *s)
{
	for (int p = 0; p < s->count; p++) {
		if (s->params[p].sparse_rows > 0)
			return true;
	}
	return false;
}

/* Steps that leave no trace: where numbers are not whole, the next one's first bucket waits for
   what is still to arrive. */
static void train_in_vain(const scenario *s, ddp_model *model, int rank, int step, unsigned int way, plain *x)
{
	const int mistake = (int)(scenario_mix(s->seed, way) % (unsigned)(SCENARIO_MISTAKES * s->steps));
	const bool errs = way > 0 && step == 1 + mistake / SCENARIO_MISTAKES;
	const bool poisons = step == s->poisoned;
	const bool forgets = step == s->forgotten && scenario_active_ranks(s, step) == s->ranks;

	if (errs)
		scenario_make_mistake(s, model, rank, step, mistake % SCENARIO_MISTAKES);
	if (poisons)
		scenario_train_poisoned(s, model, rank, step);
	if (forgets)
		scenario_train_forgotten(s, model, rank, step);
	if (errs || poisons || forgets) {
		CHECK(ddp_model_step_count(model) == step - 1);
		expect_at_once(s, model, x);
	}
}

/* Whether the model's buckets, of the default cut, are to be cut anew. */
static bool is_to_recut(const scenario *s, const ddp_model *model)
{
	return s->steps > STEPS && model->strategy->recuts && !model->settings.no_overlap &&
	       model->place.device == NULL;
}

enum { BUCKETS_MAX = 2048 };
static ddp_request *under_way[BUCKETS_MAX];

static ddp_status start_sum(void *user, const ddp_grad_bucket *bucket)
{
	const ddp_operation sum = {
		.kind = DDP_ALL_REDUCE, .recv = bucket->grads, .count = (size_t)bucket->count, .type = DDP_F32,
		.op = DDP_SUM, .memory = bucket->memory, .stream = bucket->stream,
	};

	CHECK(bucket->index < BUCKETS_MAX && bucket->count > 0);
	return ddp_issue(bucket->comm, &sum, &under_way[bucket->index]);
}

static ddp_status finish_sum(void *user, const ddp_grad_bucket *bucket)
{
	ddp_request *request = under_way[bucket->index];

	if (bucket->memory == DDP_MEMORY_DEVICE)
		CHECK_OK(ddp_wait_on(request, bucket->stream));
	return ddp_wait(request);
}

static const struct {
	ddp_shard shard;
	bool no_overlap;
	ddp_compression compress;
	ddp_bucket_hook hook;
	bool late, there;
	const char *by; /* of several ranks; NULL: strategy_of() tells */
} ways[] = {
	{ .shard = DDP_SHARD_NONE },
	{ .shard = DDP_SHARD_NONE, .no_overlap = true },
	{ .shard = DDP_SHARD_AUTO },
	{ .shard = DDP_SHARD_STATE },
	{ .shard = DDP_SHARD_GRADIENTS },
	{ .shard = DDP_SHARD_GRADIENTS, .no_overlap = true },
	{ .shard = DDP_SHARD_GRADIENTS, .late = true },
	{ .shard = DDP_SHARD_GRADIENTS, .no_overlap = true, .late = true },
	{ .shard = DDP_SHARD_STATE, .late = true },
	{ .shard = DDP_SHARD_NONE, .hook = { .start = start_sum, .finish = finish_sum }, .by = "hook" },
	{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16, .by = "all_reduce in 16 bits" },
	{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_F16, .by = "all_reduce in 16 bits" },
	{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_POWERSGD, .by = "PowerSGD" },
	{ .shard = DDP_SHARD_NONE, .there = true },
	{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16, .no_overlap = true, .there = true,
	  .by = "all_reduce in 16 bits" },
	{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_F16, .there = true, .by = "all_reduce in 16 bits" },
	{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_POWERSGD, .there = true, .by = "PowerSGD" },
	{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_POWERSGD, .no_overlap = true, .there = true,
	  .by = "PowerSGD" },
	{ .shard = DDP_SHARD_NONE, .hook = { .start = start_sum, .finish = finish_sum }, .there = true, .by = "hook" },
	{ .shard = DDP_SHARD_STATE, .there = true },
	{ .shard = DDP_SHARD_STATE, .late = true, .there = true },
	{ .shard = DDP_SHARD_GRADIENTS, .no_overlap = true, .there = true },
	{ .shard = DDP_SHARD_GRADIENTS, .late = true, .there = true },
};

/* The strategy of a model without compression and hook. In shared memory, the default is a way of its own. */
static const char *strategy_of(const scenario *s, ddp_shard shard, int nodes, bool there)
{
	const bool own = s->own_params || s->own_grads;

	if (s->ranks == 1 || shard == DDP_SHARD_NONE || ddp_optimizer_is_whole(s->options.optimizer))
		return "all_reduce";
	if (shard == DDP_SHARD_GRADIENTS)
		return "scatter, gradients too";
	if (nodes == 1 && !there && (shard == DDP_SHARD_AUTO || !own))
		return "node";
	if (shard == DDP_SHARD_STATE)
		return "scatter";
	return s->ranks > nodes ? "hybrid" : "all_reduce";
}

static void expect_way(const scenario *s, ddp_model *model, unsigned int way)
{
	const bool named = ways[way].by != NULL && s->ranks > 1;

	check_strategy(model, named ? ways[way].by
	                            : strategy_of(s, ways[way].shard, ddp_comm_nodes(model->comm), ways[way].there));
	CHECK(model->reducer.overlaps == !ways[way].no_overlap);
	CHECK((model->place.device != NULL) == ways[way].there);
}

static void train_by(ddp_context *context, const scenario *s, const ddp_model_options *options,
                     plain *x, unsigned int way)
{
	const int rank = ddp_comm_rank(context->world);
	ddp_model *model = scenario_model_make(context, s, options);
	ddp_step_stats stats;

	expect_way(s, model, way);
	CHECK(s->steps == STEPS || (model->replan.took != NULL) == is_to_recut(s, model));
	plain_start(s, x);
	for (int step = 1; step <= s->steps; step++) {
		train_in_vain(s, model, rank, step, way, x);
		const plain_stats wanted = plain_step(s, x, rank, step);
		scenario_train(s, model, rank, step, &stats);
		CHECK(stats.active_ranks == scenario_active_ranks(s, step));
		CHECK(stats.weight == wanted.weight && stats.loss == wanted.loss);
		/* What is rounded in a sum goes with its addends, up to 1, and not with the sum. */
		CHECK(stats.step == step &&
		      fabs(stats.grad_norm - wanted.norm) <= 1e-6 * (s->whole ? wanted.norm : wanted.norm + 1));
		expect_at_once(s, model, x);
	}
	CHECK(s->steps == STEPS || model->replan.took == NULL);
	CHECK_OK(ddp_model_param_wait(model, DDP_ALL_PARAMS));
	/* Of numbers that are not whole, the first way tells what the others are to come to. */
	static float wanted[PARAMS_MAX][ELEMENTS_MAX];
	for (int p = 0; p < s->count && way == 0; p++)
		scenario_copy(wanted[p], ddp_model_param_data(model, p), scenario_bytes(model, p));
	if (!rows_matter(s))
		expect_params(s, model, wanted);
	/* All have finished: that is no step. */
	CHECK_OK(ddp_model_join(model, &stats));
	CHECK(stats.active_ranks == 0 && stats.step == s->steps);
	if (s->whole)
		expect_params(s, model, x->params);
	scenario_model_free(model);
}

static int every_way(ddp_comm *comm, void *argument)
{
	const scenario *s = argument;
	ddp_context context = test_context_of(comm);
	static plain x;

	scenario_open_device(comm, &context);
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		ddp_model_options options = s->options;
		options.shard = ways[w].shard;
		test_measure(ways[w].no_overlap ? "no-overlap" : NULL);
		options.compress = ways[w].compress;
		options.hook = ways[w].hook;
		options.late_gather = ways[w].late;
		options.powersgd.min_rate = 1e9; /* nothing is worth it, so all travels as it is */
		if (options.compress == DDP_COMPRESS_POWERSGD)
			options.loss_scaling = ((ddp_model_options)DDP_MODEL_OPTIONS).loss_scaling;
		/* Sums of whole numbers, up to 256, are exact in 16 bits, too. */
		if (options.compress != DDP_COMPRESS_NONE && options.compress != DDP_COMPRESS_POWERSGD && !s->whole)
			continue;
		if (options.shard > DDP_SHARD_NONE && ddp_optimizer_is_whole(options.optimizer))
			continue;
		/* The same as DDP_SHARD_STATE, then. */
		if (options.shard == DDP_SHARD_AUTO && ddp_comm_nodes(comm) == 1 && !s->own_params && !s->own_grads)
			continue;
		scenario_use_device(ways[w].there);
		train_by(&context, s, &options, &x, (unsigned)w);
	}
	scenario_close_device();
	ddp_watch_close(context.watch);
	return 0;
}

/* DDP_TEST_CASES: as many, and others each time. */
TEST(random_models_train_like_a_plain_loop)
{
	const char *text = getenv("DDP_TEST_CASES");
	const unsigned int cases = text != NULL ? (unsigned)atoi(text) : THREAD_SANITIZER ? 6 : 10; /* as in test_comm_random */
	const unsigned int base = text != NULL ? (unsigned)getpid() * 1000 : 0;

	for (unsigned int c = 0; c < cases; c++) {
		static scenario s;
		if (text == NULL && !test_takes(c))
			continue;
		scenario_make(&s, base + c);
		const test_world world = { .ranks = s.ranks, .node_of = s.node_of, .body = every_way,
		                           .argument = &s };
		if (test_world_run(&world) != 0)
			fail_msg("case %u", base + c);
	}
}

/* ---- checkpoints of one world in another ------------------------------------------- */

typedef struct resumption {
	scenario before, after;
	ddp_shard shard; /* before */
} resumption;

static int save_body(ddp_comm *comm, void *argument)
{
	const resumption *with = argument;
	ddp_model_options options = with->before.options;
	ddp_context context = test_context_of(comm);
	ddp_step_stats stats;

	options.shard = with->shard;
	ddp_model *model = scenario_model_make(&context, &with->before, &options);
	check_strategy(model, strategy_of(&with->before, with->shard, ddp_comm_nodes(comm), false));
	for (int step = 1; step < STEPS; step++)
		scenario_train(&with->before, model, context.job.rank, step, &stats);
	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

static int resume_body(ddp_comm *comm, void *argument)
{
	static const ddp_shard shards[] = {
		DDP_SHARD_NONE, DDP_SHARD_AUTO, DDP_SHARD_STATE, DDP_SHARD_GRADIENTS,
	};
	const resumption *with = argument;
	ddp_context context = test_context_of(comm);
	ddp_step_stats stats;
	static plain x;
	int64_t step;

	plain_start(&with->before, &x);
	for (int i = 1; i <= STEPS; i++)
		plain_step(i < STEPS ? &with->before : &with->after, &x, context.job.rank, i);
	for (size_t i = 0; i < sizeof(shards) / sizeof(shards[0]); i++) {
		ddp_model_options options = with->after.options;
		options.shard = shards[i];
		ddp_model *model = scenario_model_make(&context, &with->after, &options);
		check_strategy(model, strategy_of(&with->after, shards[i], ddp_comm_nodes(comm), false));
		CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
		CHECK(step == STEPS - 1);
		scenario_train(&with->after, model, context.job.rank, STEPS, &stats);
		expect_params(&with->after, model, x.params);
		ddp_model_free(model);
	}
	ddp_watch_close(context.watch);
	return 0;
}

TEST_WITH(shards_of_one_world_are_loaded_in_another, folder_make, folder_remove)
{
	static const ddp_shard shards[] = { DDP_SHARD_STATE, DDP_SHARD_GRADIENTS, DDP_SHARD_AUTO };
	static resumption with;

	for (unsigned int c = 0; c < 3; c++) {
		scenario_make(&with.before, 4 + 3 * c); /* of whole numbers */
		with.before.options.optimizer = DDP_ADAMW;
		with.before.options.nesterov = false;
		with.before.last = 0;
		for (int r = 0; r < RANKS_MAX; r++)
			with.before.joins[r] = STEPS + 1;
		with.before.options.unused = DDP_UNUSED_SKIP;
		with.after = with.before;
		with.before.ranks = c == 2 ? 3 : 4 - (int)c;
		with.after.ranks = 2 + (int)c;
		with.shard = shards[c];
		const test_world before = { .ranks = with.before.ranks, .node_of = two_nodes,
		                            .body = save_body, .argument = &with };
		const test_world after = { .ranks = with.after.ranks, .node_of = c == 2 ? two_nodes : NULL,
		                           .body = resume_body, .argument = &with };
#ifdef HAVE_UCX
		assert_int_equal(test_world_run(&before), 0);
		assert_int_equal(test_world_run(&after), 0);
#else
		(void)before;
		(void)after;
		skip();
#endif
	}
}

int main(void)
{
	test_trap_floats();
	return test_run(NULL, NULL);
}
