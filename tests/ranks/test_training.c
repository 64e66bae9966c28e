/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan bare */
/* training: that data-parallel training is training. N ranks give what one
   gives on the same global batch, and what a plain loop in double precision
   gives; a run can be gone on with, and repeated, bit for bit; and it can be
   seen. */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "tests/support/training.h"
#include "watch/page.h"
#include "watch/watch.h"

/* How gradients travel. */
static const struct { double bucket_bytes; ddp_shard shard; } ways[] = {
	{ 25 << 20, DDP_SHARD_NONE }, { 512, DDP_SHARD_NONE }, { 64, DDP_SHARD_NONE },
	{ 512, DDP_SHARD_STATE }, { 512, DDP_SHARD_GRADIENTS },
};
static const int accumulates[] = { 1, 2 };
enum {
	WAYS = sizeof(ways) / sizeof(ways[0]),
	ACCUMULATES = sizeof(accumulates) / sizeof(accumulates[0])
};
/* ---- N ranks against one ---------------------------------------------------- */

typedef struct outcome {
	float params[RANKS_MAX][WAYS][ACCUMULATES][MLP_ELEMENTS];
} outcome;

static int all_setups_body(ddp_context *context, void *user)
{
	outcome *seen = user;
	int rank = ddp_get_job(context)->rank;

	for (int w = 0; w < WAYS; w++) {
		for (int a = 0; a < ACCUMULATES; a++) {
			const setup with = { .bucket_bytes = ways[w].bucket_bytes,
			                     .shard = ways[w].shard, .accumulate = accumulates[a],
			                     .steps = STEPS };
			train(context, &with, seen->params[rank][w][a]);
		}
	}
	return 0;
}

static void assert_close(const float *got, const float *wanted)
{
	double difference = 0, size = 0;

	for (int e = 0; e < MLP_ELEMENTS; e++) {
		difference += ((double)got[e] - wanted[e]) * ((double)got[e] - wanted[e]);
		size += (double)wanted[e] * wanted[e];
		/* Elements near zero are measured by what a step moves them. */
		assert_true(fabs((double)got[e] - wanted[e]) <= 1e-5 * fmax(fabs(wanted[e]), 0.1));
	}
	assert_true(sqrt(difference / size) <= 1e-5);
}

TEST(ranks_train_like_one_process_in_double)
{
	const mlp_reference plain = { .steps = STEPS, .batch = GLOBAL_BATCH, .samples = SAMPLES,
	                              .seed = SEED, .learning_rate = 0.01, .weight_decay = 0.1 };
	static outcome one;
	double reference[MLP_ELEMENTS];
	float wanted[MLP_ELEMENTS];
	outcome *seen = test_share(sizeof(*seen));

	assert_int_equal(mlp_train_reference(&plain, reference), 0);
	for (int e = 0; e < MLP_ELEMENTS; e++)
		wanted[e] = (float)reference[e];
	for (int ranks = 1; ranks <= RANKS_MAX; ranks++) {
		memset(seen, 0, sizeof(*seen));
		assert_int_equal(run_ranks(ranks, all_setups_body, seen), 0);
		if (ranks == 1)
			one = *seen;
		for (int w = 0; w < WAYS; w++) {
			for (int a = 0; a < ACCUMULATES; a++) {
				assert_close(seen->params[0][w][a], one.params[0][w][a]);
				assert_close(seen->params[0][w][a], wanted);
				/* On a node, neither does the way matter. */
				for (int r = 0; r < ranks; r++)
					assert_memory_equal(seen->params[r][w][a], seen->params[0][0][a],
					                    sizeof(wanted));
			}
		}
	}
	test_unshare(seen, sizeof(*seen));
}

/* ---- the same bits --------------------------------------------------------------- */

typedef struct stretches {
	float whole[MLP_ELEMENTS], again[MLP_ELEMENTS], resumed[MLP_ELEMENTS];
	ddp_shard first, second; /* of the stretches of a resumed run, in turn */
} stretches;

static int stretches_body(ddp_context *context, void *user)
{
	stretches *shared = user;
	float scratch[MLP_ELEMENTS];
	const bool first = ddp_get_job(context)->rank == 0;
	setup with = { .bucket_bytes = 512, .shard = shared->first, .accumulate = 2,
	               .steps = STEPS };

	train(context, &with, first ? shared->whole : scratch);
	train(context, &with, first ? shared->again : scratch);
	/* In the middle of an epoch, to the middle of another, and to the end;
	   the first time there is nothing to resume from. */
	static const int64_t stops[] = { 3, 11, STEPS };
	with.checkpoint_dir = test_folder;
	with.resume = true;
	for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++) {
		with.steps = stops[i];
		with.shard = i % 2 == 0 ? shared->first : shared->second;
		train(context, &with, first ? shared->resumed : scratch);
	}
	return 0;
}

TEST(runs_repeat_and_resume_bit_for_bit)
{
	stretches *shared = test_share(sizeof(*shared));

	/* Each way alone, then one after the other. */
	for (int i = 0; i < 9; i++) {
		int ranks = 1 + i % 3;
		shared->first = i < 3 ? DDP_SHARD_NONE : DDP_SHARD_STATE;
		shared->second = i < 6 ? shared->first : DDP_SHARD_NONE;
		assert_int_equal(folder_empty(NULL), 0);
		assert_int_equal(run_ranks(ranks, stretches_body, shared), 0);
		assert_memory_equal(shared->whole, shared->again, sizeof(shared->whole));
		assert_memory_equal(shared->whole, shared->resumed, sizeof(shared->whole));
	}
	test_unshare(shared, sizeof(*shared));
}

/* ---- what can be seen of it --------------------------------------------------------- */

static int observed_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 512, .shard = *(const ddp_shard *)user,
	                     .accumulate = 2, .steps = STEPS };
	float params[MLP_ELEMENTS];

	train(context, &with, params);
	return 0;
}

/* ---- evaluation, and what a step's time goes to ------------------------------------------ */

enum { EVALUATED = 37, EVERY = 8, PAUSE_US = 2000 };

typedef struct evaluated {
	ddp_model *model;
	int64_t steps[8];
	int count;
	double loss;
	double evaluation_seconds, checkpoint_seconds;
	int64_t evaluated_in, saved_in; /* steps that such time is part of, as bits */
} evaluated;

/* Depends on the parameters, and the samples that this rank has. */
static ddp_status evaluate_batch(void *user, ddp_model *model, const ddp_batch *batch, double *weight, double *loss_sum)
{
	const mlp_sample *samples = batch->data;

	for (int64_t i = 0; i < batch->samples; i++)
		*loss_sum += (double)ddp_model_param_data(model, 0)[0] * samples[i].label;
	*weight += (double)batch->samples;
	usleep(PAUSE_US);
	return DDP_OK;
}

static ddp_status take_evaluation(void *user, int64_t step, double loss, double weight)
{
	evaluated *seen = user;
	double sum = 0;

	for (int64_t i = 0; i < EVALUATED; i++) {
		mlp_sample sample;
		mlp_make_sample(i, &sample);
		sum += (double)ddp_model_param_data(seen->model, 0)[0] * sample.label;
	}
	CHECK(weight == EVALUATED && fabs(loss - sum / EVALUATED) < 1e-9);
	seen->steps[seen->count++] = step;
	seen->loss = loss;
	return DDP_OK;
}

static ddp_status add_parts(void *user, const ddp_step_stats *stats)
{
	evaluated *seen = user;
	const double parts = stats->data_seconds + stats->forward_seconds + stats->backward_seconds + stats->exposed_seconds +
		stats->optimizer_seconds + stats->checkpoint_seconds + stats->evaluation_seconds + stats->other_seconds;

	CHECK(fabs(parts - stats->seconds) < 1e-4);
	seen->evaluation_seconds += stats->evaluation_seconds;
	seen->checkpoint_seconds += stats->checkpoint_seconds;
	seen->evaluated_in |= stats->evaluation_seconds > 0 ? (int64_t)1 << stats->step : 0;
	seen->saved_in |= stats->checkpoint_seconds > 0 ? (int64_t)1 << stats->step : 0;
	return DDP_OK;
}

static int evaluated_body(ddp_context *context, void *user)
{
	const setup with = { .bucket_bytes = 512, .accumulate = 1 };
	const ddp_dataset dataset = mlp_dataset(EVALUATED);
	const ddp_loader_options loader_options = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .tail = DDP_TAIL_UNEVEN };
	const int world = ddp_get_job(context)->world_size, batches = (EVALUATED + 4 * world - 1) / (4 * world);
	evaluated seen = { 0 };
	ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS, .steps = STEPS, .checkpoint_dir = test_folder, .checkpoint_every = 5, .on_step = add_parts,
		.evaluate = evaluate_batch, .evaluate_every = EVERY, .on_evaluate = take_evaluation, .user = &seen,
	};
	training t = start(context, &with);
	ddp_summary summary;

	seen.model = t.model;
	CHECK_FAILS(ddp_train(t.model, t.loader, mlp_batch, &options, NULL), DDP_ERR_INVALID,
	            "option evaluate_loader is missing");
	options.evaluate_loader = t.loader;
	CHECK_FAILS(ddp_train(t.model, t.loader, mlp_batch, &options, NULL), DDP_ERR_INVALID,
	            "option evaluate_loader is the training's loader");
	CHECK_OK(ddp_loader_create(context, &dataset, &loader_options, &options.evaluate_loader));
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(ddp_watch_page(context->watch)->steps == STEPS);
	CHECK(seen.count == 3 && seen.steps[0] == 8 && seen.steps[1] == 16 && seen.steps[2] == STEPS);
	CHECK(summary.evaluation_loss == seen.loss && summary.first_step == 1 && summary.last_step == STEPS);
	/* It counts in the step that follows; the last one of each is behind all steps. The first
	   step's clock begins as the folder is tried. */
	CHECK((seen.evaluated_in & ~2) == ((1 << 9) | (1 << 17)));
	CHECK((seen.saved_in & ~2) == ((1 << 6) | (1 << 11) | (1 << 16)));
	CHECK(seen.evaluation_seconds > 2 * batches * PAUSE_US * 1e-6);
	CHECK(fabs(summary.evaluation_seconds - seen.evaluation_seconds) < 1e-9);
	CHECK(fabs(summary.checkpoint_seconds - seen.checkpoint_seconds) < 1e-9);
	const double parts = summary.data_seconds + summary.forward_seconds + summary.backward_seconds + summary.exposed_seconds +
		summary.optimizer_seconds + summary.checkpoint_seconds + summary.evaluation_seconds + summary.other_seconds;
	CHECK(fabs(parts - summary.seconds) < 1e-2 * summary.seconds);
	finish(t);

	/* Resumed, it tells of its own steps; and of none, if there were none left. */
	for (int more = 2; more >= 0; more -= 2) {
		t = start(context, &with);
		seen = (evaluated){ .model = t.model };
		options.resume = true;
		options.steps = STEPS + 2;
		CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
		CHECK(summary.steps == more && seen.count == (more > 0));
		CHECK(summary.first_step == (more > 0 ? STEPS + 1 : 0) && summary.last_step == (more > 0 ? STEPS + 2 : 0));
		CHECK((more == 0) == (bool)isnan(summary.first_loss) && (more == 0) == (bool)isnan(summary.overlap_ratio));
		finish(t);
	}
	ddp_loader_free(options.evaluate_loader);
	return 0;
}

TEST_WITH(evaluation_is_of_all_samples_and_of_the_times, folder_empty, NULL)
{
	for (int ranks = 1; ranks <= 3; ranks += 2) {
		assert_int_equal(run_ranks(ranks, evaluated_body, NULL), 0);
		assert_int_equal(folder_empty(NULL), 0);
	}
}

/* How many ranges of that name the trace has, and that their steps are sound. */
static int count_ranges(const json_t *trace, const char *name)
{
	const json_t *event;
	size_t i;
	int count = 0;

	json_array_foreach(trace, i, event) {
		if (strcmp(json_string_value(json_object_get(event, "name")), name) != 0)
			continue;
		const json_t *arguments = json_object_get(event, "args");
		json_int_t step = json_integer_value(json_object_get(arguments, "step"));
		assert_true(step >= 1 && step <= STEPS + 1);
		count++;
	}
	return count;
}

static void expect_trace(int rank, ddp_shard shard)
{
	/* Two micro-batches a step; 2 KiB in buckets of 512 bytes. */
	const int buckets = shard == DDP_SHARD_STATE ? 0 : STEPS;
	const int gathers = shard == DDP_SHARD_GRADIENTS ? STEPS : 0;
	const struct { const char *name; int count; } ranges[] = {
		{ "data", 2 * STEPS }, { "forward", 2 * STEPS }, { "backward", 2 * STEPS },
		{ "bucket 0", buckets }, { "bucket 3", buckets }, { "bucket 4", 0 },
		{ "totals", STEPS }, { "updated", STEPS - buckets },
		{ "parameters 0", gathers }, { "parameters 3", gathers },
	};
	char path[128];

	snprintf(path, sizeof(path), "%s/trace/rank-%d.json", test_folder, rank);
	json_t *trace = json_load_file(path, 0, NULL);
	assert_non_null(trace);
	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
		assert_int_equal(count_ranges(trace, ranges[i].name), ranges[i].count);
	assert_true(count_ranges(trace, "optimizer") >= STEPS);
	assert_true(count_ranges(trace, "wait") >= STEPS);
	json_decref(trace);
}

static void expect_metrics(const char *path)
{
	FILE *file = fopen(path, "r");
	char line[2048];
	double seen = 0;

	assert_non_null(file);
	for (int step = 1; step <= STEPS; step++) {
		assert_non_null(fgets(line, sizeof(line), file));
		json_t *object = json_loads(line, 0, NULL);
		assert_non_null(object);
		assert_int_equal(json_integer_value(json_object_get(object, "step")), step);
		assert_true(json_real_value(json_object_get(object, "communication_seconds")) > 0);
		seen += json_real_value(json_object_get(object, "weight"));
		json_decref(object);
	}
	assert_null(fgets(line, sizeof(line), file));
	fclose(file);
	/* Four epochs, each sample once in each. */
	assert_true(seen == 4 * SAMPLES);
}

TEST_WITH(trace_and_metrics_tell_of_every_step, folder_empty, NULL)
{
	char metrics[64], trace[64];
	const ddp_options options = { DDP_OPTIONS_FIELDS, .metrics_path = metrics, .trace_dir = trace };

	snprintf(metrics, sizeof(metrics), "%s/metrics.jsonl", test_folder);
	snprintf(trace, sizeof(trace), "%s/trace", test_folder);
	for (int u = 0; u < SHARDS; u++) {
		ddp_shard shard = shards[u];
		remove(metrics);
		assert_int_equal(run_ranks_with(2, &options, observed_body, &shard), 0);
		expect_trace(0, shard);
		expect_trace(1, shard);
		expect_metrics(metrics);
	}
}

int main(void)
{
	test_trap_floats();
	return test_run(folder_make, folder_remove);
}
