/*
 * reduce: random models on random worlds, reduced in every way, in random order, with random
 * parts unused, ranks that finish early and steps that a mistake ends, which come again, end each step where a
 * plain loop does that gathers all ranks' gradients and averages them. Gradients are small whole numbers, of which all sums, and
 * all sums of squares, are exact: so the plain loop's bits are wanted. Gradients that are
 * not show that the ways agree to the bit among themselves.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/scenario.h"

/* ---- the library ----------------------------------------------------------------- */

/* Where the model is. */
typedef struct place {
	ddp_device *device;       /* the asynchronous test device; NULL: the host */
	ddp_device_queue *stream;
	float *rows;              /* there, and behind them their indices */
} place;

static const place on_host;
static place on_device; /* of this rank */
static const place *where = &on_host;

/* Between the model's memory and the host's. */
static void copy(void *to, const void *from, size_t bytes)
{
	if (where->device == NULL) {
		memcpy(to, from, bytes);
		return;
	}
	CHECK_OK(ddp_device_copy(where->device, where->stream, to, from, bytes));
	CHECK_OK(ddp_device_queue_sync(where->device, where->stream));
}

static size_t bytes_of(const ddp_model *model, int p)
{
	return (size_t)ddp_param_count(model, p) * sizeof(float);
}

static void add_gradients(const scenario *s, ddp_model *model, int rank, int step, int batch)
{
	static float values[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		if (scenario_adds(s, rank, step, batch, p)) {
			copy(values, ddp_param_grad(model, p), bytes_of(model, p));
			for (int64_t i = 0; i < ddp_param_count(model, p); i++)
				values[i] += scenario_gradient(s, rank, step, batch, p, i);
			copy(ddp_param_grad(model, p), values, bytes_of(model, p));
		}
		if (s->early[p] && scenario_adds(s, rank, step, batch, p) && batch < s->accumulate - 1)
			CHECK_OK(ddp_grad_ready(model, p)); /* sync is off */
	}
}

static void write_buffers(const scenario *s, ddp_model *model, int rank, int step)
{
	static float values[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		if (!scenario_is_buffer(s, p))
			continue;
		for (int64_t i = 0; i < ddp_param_count(model, p); i++)
			values[i] = scenario_buffer(s, rank, step, i);
		copy(ddp_param_data(model, p), values, bytes_of(model, p));
	}
}

static void add_the_rows(const scenario *s, ddp_model *model, int rank, int step, int p)
{
	static float values[ELEMENTS_MAX];
	int32_t index[ROWS_MAX];
	int count = !scenario_is_used(s, rank, step, p) ? 0 : scenario_rows(s, rank, step, p, index);

	if (count == 0)
		return;
	int64_t width = ddp_param_count(model, p) / s->params[p].shape[0];
	for (int64_t i = 0; i < count * width; i++)
		values[i] = scenario_gradient(s, rank, step, 7, p, i);
	if (where->device == NULL) {
		CHECK_OK(ddp_grad_rows(model, p, index, values, count));
		return;
	}
	int32_t *index_there = (int32_t *)(void *)(where->rows + ROWS_MAX * width);
	copy(where->rows, values, (size_t)(count * width) * sizeof(float));
	copy(index_there, index, (size_t)count * sizeof(*index));
	CHECK_OK(ddp_grad_rows(model, p, index_there, where->rows, count));
}

/* In an order of its own on each rank; what is not used may be announced or not. */
static void announce(const scenario *s, ddp_model *model, int rank, int step)
{
	unsigned int seed = scenario_mix(s->seed, (unsigned)(rank * 64 + step));
	int order[PARAMS_MAX];

	for (int p = 0; p < s->count; p++) {
		int at = scenario_draw(&seed, 0, p);
		order[p] = order[at];
		order[at] = p;
	}
	for (int i = 0; i < s->count; i++) {
		int p = order[i];
		if (!scenario_is_trained(s, p))
			continue;
		const bool late = s->accumulate == 1 || !s->early[p];
		const int how = scenario_draw(&seed, 0, 2);
		if (scenario_is_used(s, rank, step, p) && late)
			CHECK_OK(ddp_grad_ready(model, p));
		else if (how == 0)
			CHECK_OK(ddp_grad_unused(model, p));
		else if (how == 1 && s->options.unused == DDP_UNUSED_ZERO)
			CHECK_OK(ddp_grad_ready(model, p));
		add_the_rows(s, model, rank, step, p);
	}
}

static void backward(const scenario *s, ddp_model *model, int rank, int step)
{
	write_buffers(s, model, rank, step);
	for (int b = 0; b < s->accumulate; b++) {
		CHECK_OK(ddp_set_sync(model, b == s->accumulate - 1));
		add_gradients(s, model, rank, step, b);
		if (b == s->accumulate - 1)
			announce(s, model, rank, step);
	}
}

/* What is wrong in a step. */
enum { NAN_WEIGHT, NEGATIVE_WEIGHT, INFINITE_RATE, OTHER_RATE, NO_SAMPLE, MISTAKES };

/* A step that one rank ends by a mistake, or all do: all get an error, and it leaves nothing. */
static void make_mistake(const scenario *s, ddp_model *model, int rank, int step, int mistake)
{
	const double rate = s->options.learning_rate;
	const bool odd = rank == s->last, halves = scenario_active_ranks(s, step) == s->ranks && step % 2 == 0;
	double weight = scenario_weight(s, rank, step);

	if (mistake == NO_SAMPLE && s->options.loss == DDP_LOSS_SUM)
		weight = 0;
	else if (mistake == INFINITE_RATE || (mistake == OTHER_RATE && s->ranks > 1))
		ddp_set_learning_rate(model, !odd ? rate : mistake == OTHER_RATE ? 2 * rate : INFINITY);
	else if (odd)
		weight = mistake == NAN_WEIGHT ? NAN : -1;
	const ddp_status wanted = mistake == OTHER_RATE && s->ranks > 1 ? DDP_ERR_MISMATCH : DDP_ERR_INVALID;
	if (scenario_has_joined(s, rank, step)) {
		CHECK(ddp_join(model, NULL) == wanted);
	} else {
		backward(s, model, rank, step);
		CHECK((halves ? ddp_reduce_grads : ddp_step)(model, weight, 1, NULL) == wanted);
	}
	ddp_set_learning_rate(model, rate);
}

static void train_step(const scenario *s, ddp_model *model, int rank, int step, ddp_step_stats *stats)
{
	if (scenario_has_joined(s, rank, step)) {
		CHECK_OK(ddp_join(model, stats));
		return;
	}
	backward(s, model, rank, step);
	if ((s->seed + (unsigned)step) % 2 == 0 || scenario_active_ranks(s, step) < s->ranks) {
		CHECK_OK(ddp_step(model, scenario_weight(s, rank, step), 1, stats));
		return;
	}
	CHECK_OK(ddp_reduce_grads(model, scenario_weight(s, rank, step), 1, NULL));
	CHECK_OK(ddp_update_params(model, stats));
}

/* All but a buffer is in bf16, too, if the scenario says so. */
static void expect_rounded(const scenario *s, ddp_model *model, int p)
{
	static uint16_t nearest[ELEMENTS_MAX], got[ELEMENTS_MAX];
	static float masters[ELEMENTS_MAX];
	const uint16_t *rounded = ddp_param_bf16(model, p);
	const int64_t count = ddp_param_count(model, p);

	CHECK((rounded != NULL) == (s->options.bf16_params && !scenario_is_buffer(s, p)));
	if (rounded == NULL)
		return;
	copy(masters, ddp_param_data(model, p), bytes_of(model, p));
	copy(got, rounded, (size_t)count * sizeof(*got));
	dk_to_bf16(nearest, masters, count);
	CHECK(memcmp(got, nearest, (size_t)count * sizeof(*nearest)) == 0);
}

static void expect_params(const scenario *s, ddp_model *model, float (*wanted)[ELEMENTS_MAX])
{
	static float got[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		const float *grad = ddp_param_grad(model, p);
		copy(got, ddp_param_data(model, p), bytes_of(model, p));
		CHECK(memcmp(got, wanted[p], bytes_of(model, p)) == 0);
		CHECK((grad != NULL) == scenario_is_trained(s, p));
		if (grad != NULL)
			copy(got, grad, bytes_of(model, p));
		for (int64_t i = 0; i < ddp_param_count(model, p) && grad != NULL; i++)
			CHECK(got[i] == 0);
		expect_rounded(s, model, p);
	}
}

/* The program's own memory for parameters (0) or gradients (1). NaN: nobody may use what was
   there, or is behind. */
static float *own_memory(int which, size_t bytes)
{
	static float here[2][PARAMS_MAX * ELEMENTS_MAX] __attribute__((aligned(64)));
	void *memory;

	CHECK(bytes <= sizeof(here[which]));
	memset(here[which], 0xff, sizeof(here[which]));
	if (where->device == NULL)
		return here[which];
	CHECK_OK(ddp_device_alloc(where->device, bytes, &memory));
	CHECK_OK(ddp_device_fill(where->device, where->stream, memory, 0xff, bytes));
	return memory;
}

static void unmake(ddp_model *model)
{
	float *const own[] = { model->settings.params_memory, model->settings.grads_memory };

	ddp_model_free(model);
	for (int i = 0; i < 2 && where->device != NULL; i++)
		CHECK_OK(ddp_device_free(where->device, own[i]));
}

static ddp_model *make(ddp_context *context, const scenario *s, const ddp_model_options *options)
{
	static float values[ELEMENTS_MAX];
	ddp_model_options given = *options;
	size_t bytes[2];
	ddp_model *model;

	CHECK_OK(ddp_model_bytes(s->params, s->count, &bytes[0], &bytes[1]));
	CHECK(bytes[1] <= bytes[0]);
	given.memory = where->device != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
	given.stream = where->stream;
	/* In the ranks' shared memory, the default is a way of its own. */
	given.params_memory = s->own_params && options->shard != DDP_SHARD_AUTO ? own_memory(0, bytes[0]) : NULL;
	given.grads_memory = s->own_grads && options->shard != DDP_SHARD_AUTO ? own_memory(1, bytes[1]) : NULL;
	CHECK_OK(ddp_model_create(context, s->params, s->count, &given, &model));
	const int nodes = ddp_comm_nodes(context->world);
	CHECK((model->strategy == &ddp_hybrid_strategy) ==
	      (options->shard == DDP_SHARD_AUTO && nodes > 1 && s->ranks > nodes));
	for (int p = 0; p < s->count; p++) {
		for (int64_t i = 0; i < ddp_param_count(model, p); i++)
			values[i] = (float)p + (float)i / 64;
		copy(ddp_param_data(model, p), values, bytes_of(model, p));
	}
	if (options->bf16_params)
		CHECK_OK(ddp_broadcast_params(model));
	return model;
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

static void train_by(ddp_context *context, const scenario *s, const ddp_model_options *options,
                     plain *x, unsigned int way)
{
	const int mistake = (int)(scenario_mix(s->seed, way) % (MISTAKES * STEPS));
	ddp_model *model = make(context, s, options);
	ddp_step_stats stats;

	plain_start(s, x);
	for (int step = 1; step <= STEPS; step++) {
		double norm = plain_step(s, x, ddp_comm_rank(context->world), step);
		if (way > 0 && step == 1 + mistake / MISTAKES)
			make_mistake(s, model, ddp_comm_rank(context->world), step, mistake % MISTAKES);
		train_step(s, model, ddp_comm_rank(context->world), step, &stats);
		CHECK(stats.active_ranks == scenario_active_ranks(s, step));
		/* What is rounded in a sum goes with its addends, up to 1, and not with the sum. */
		CHECK(stats.step == step && fabs(stats.grad_norm - norm) <= 1e-6 * (s->whole ? norm : norm + 1));
		/* Otherwise the next step's first bucket waits. */
		for (int p = 0; p < s->count && s->whole; p++)
			CHECK_OK(ddp_param_wait(model, p));
		if (s->whole)
			expect_params(s, model, x->params);
	}
	CHECK_OK(ddp_param_wait(model, DDP_ALL_PARAMS));
	/* Of numbers that are not whole, the first way tells what the others are to come to. */
	static float wanted[PARAMS_MAX][ELEMENTS_MAX];
	for (int p = 0; p < s->count && way == 0; p++)
		copy(wanted[p], ddp_param_data(model, p), bytes_of(model, p));
	if (!rows_matter(s))
		expect_params(s, model, wanted);
	/* All have finished: that is no step. */
	CHECK_OK(ddp_join(model, &stats));
	CHECK(stats.active_ranks == 0 && stats.step == STEPS);
	if (s->whole)
		expect_params(s, model, x->params);
	unmake(model);
}

/* Takes its time, but not long for each of the many pieces of work. */
static void open_device(ddp_comm *comm, ddp_context *context)
{
	const ddp_device_options options = { .seed = 1, .delay_us = 20, .check_order = true };
	void *rows;

	CHECK_OK(ddp_device_open("test", &options, &on_device.device));
	ddp_comm_use_device(comm, on_device.device);
	context->device = on_device.device;
	CHECK_OK(ddp_device_queue_create(on_device.device, DDP_DEVICE_NORMAL, &on_device.stream));
	CHECK_OK(ddp_device_alloc(on_device.device, (ELEMENTS_MAX + ROWS_MAX) * sizeof(float), &rows));
	on_device.rows = rows;
}

/* The device itself is in use as long as the communicator is there. */
static void close_device(void)
{
	CHECK_OK(ddp_device_free(on_device.device, on_device.rows));
	CHECK_OK(ddp_device_queue_free(on_device.device, on_device.stream));
}

static ddp_status all_reduce(void *user, const ddp_grad_bucket *bucket)
{
	(void)user;
	return ddp_all_reduce(bucket->comm, NULL, bucket->grads, (size_t)bucket->count, DDP_F32, DDP_SUM);
}

static ddp_status nothing_left(void *user, const ddp_grad_bucket *bucket)
{
	(void)user;
	return bucket->count > 0 ? DDP_OK : DDP_ERR_INTERNAL;
}

static int every_way(ddp_comm *comm, void *argument)
{
	static const struct {
		ddp_shard shard;
		bool no_overlap;
		ddp_compression compress;
		ddp_bucket_hook hook;
		bool late, there;
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
		{ .shard = DDP_SHARD_NONE, .hook = { .start = all_reduce, .finish = nothing_left } },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16 },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_F16 },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_POWERSGD },
		{ .shard = DDP_SHARD_NONE, .there = true },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16, .no_overlap = true, .there = true },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_F16, .there = true },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_POWERSGD, .there = true },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_POWERSGD, .no_overlap = true, .there = true },
		{ .shard = DDP_SHARD_STATE, .there = true },
		{ .shard = DDP_SHARD_GRADIENTS, .no_overlap = true, .there = true },
		{ .shard = DDP_SHARD_GRADIENTS, .late = true, .there = true },
	};
	const scenario *s = argument;
	ddp_context context = test_context_of(comm);
	static plain x;

	open_device(comm, &context);
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		ddp_model_options options = s->options;
		options.shard = ways[w].shard;
		test_measure(ways[w].no_overlap ? "no-overlap" : NULL);
		options.compress = ways[w].compress;
		options.hook = ways[w].hook;
		options.late_gather = ways[w].late;
		options.powersgd_rate = 1e9; /* nothing is worth it, so all travels as it is */
		/* Sums of whole numbers, up to 256, are exact in 16 bits, too. */
		if (options.compress != DDP_COMPRESS_NONE && options.compress != DDP_COMPRESS_POWERSGD && !s->whole)
			continue;
		/* The same as DDP_SHARD_STATE, then. */
		if (options.shard == DDP_SHARD_AUTO && ddp_comm_nodes(comm) == 1 && !s->own_params && !s->own_grads)
			continue;
		where = ways[w].there ? &on_device : &on_host;
		train_by(&context, s, &options, &x, (unsigned)w);
	}
	close_device();
	ddp_watch_close(context.watch);
	return 0;
}

/* DDP_TEST_CASES: as many, and others each time. */
static void random_models_train_like_a_plain_loop(void **state)
{
	const char *text = getenv("DDP_TEST_CASES");
	const unsigned int cases = text != NULL ? (unsigned)atoi(text) : 12;
	const unsigned int base = text != NULL ? (unsigned)getpid() * 1000 : 0;

	(void)state;
	for (unsigned int c = 0; c < cases; c++) {
		static scenario s;
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
	ddp_model *model = make(&context, &with->before, &options);
	for (int step = 1; step < STEPS; step++)
		train_step(&with->before, model, context.job.rank, step, &stats);
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
		ddp_model *model = make(&context, &with->after, &options);
		CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
		CHECK(step == STEPS - 1);
		train_step(&with->after, model, context.job.rank, STEPS, &stats);
		expect_params(&with->after, model, x.params);
		ddp_model_free(model);
	}
	ddp_watch_close(context.watch);
	return 0;
}

static void shards_of_one_world_are_loaded_in_another(void **state)
{
	static const ddp_shard shards[] = { DDP_SHARD_STATE, DDP_SHARD_GRADIENTS, DDP_SHARD_AUTO };
	static resumption with;

	(void)state;
	for (unsigned int c = 0; c < 3; c++) {
		scenario_make(&with.before, 4 + 3 * c); /* of whole numbers */
		with.before.options.optimizer = DDP_ADAMW;
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
#endif
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_models_train_like_a_plain_loop),
		cmocka_unit_test_setup_teardown(shards_of_one_world_are_loaded_in_another, folder_make,
		                                folder_remove),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
