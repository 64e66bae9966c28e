/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: tsan asan; takes: 12 */
/* reduce/replan: buckets that are cut anew behind the first steps are cut alike on all ranks,
   as the slowest rank's times and the link's cost want, and change no bit of what is trained.
   Beside each model trains a twin whose first cut stays. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/agree.h"
#include "kernels.h"
#include "reduce/merge.h"
#include "reduce/model_state.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { PARAMS = 9, MEASURED = 2 * DDP_REPLAN_STEPS, STEPS = MEASURED + 3, UNUSED = 5, K = 1024 };

static const ddp_param params[PARAMS] = {
	{ .name = "p0", .ndim = 1, .shape = { 100 * K } },
	{ .name = "p1", .ndim = 1, .shape = { 70 * K + 3 } },
	{ .name = "p2", .ndim = 1, .shape = { 160 * K } },
	{ .name = "p3", .ndim = 1, .shape = { 66 * K } },
	{ .name = "p4", .ndim = 1, .shape = { 128 * K } },
	{ .name = "p5", .ndim = 1, .shape = { 20 * K } },
	{ .name = "p6", .ndim = 2, .shape = { 60, K }, .sparse_rows = 4 },
	{ .name = "p7", .ndim = 1, .shape = { 250 * K } },
	{ .name = "p8", .ndim = 1, .shape = { 5000 } },
};

/* What ranks are told to have measured. */
typedef struct link_case {
	double latency, per_mib, gap; /* seconds; between gradients */
} link_case;

typedef struct way {
	ddp_model_options options;
	int ranks;
	int batches;   /* 0: one */
	link_case link;
	const int *node_of; /* NULL: two nodes */
} way;

static const int a_node_each[] = { 0, 1, 2 };

/* With one thread a rank: what is this small is slower with more. */
static ddp_context context_of(ddp_comm *comm)
{
	dk_set_threads(1);
	return test_context_of(comm);
}

static ddp_model *make(ddp_context *context, const ddp_model_options *options)
{
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, PARAMS, options, &model));
	for (int p = 0; p < PARAMS; p++)
		for (int64_t i = 0; i < ddp_model_param_count(model, p); i++)
			ddp_model_param_data(model, p)[i] = (float)p + (float)(i % 1000) / 64;
	return model;
}

static bool is_used(const ddp_model *model, int step, int p)
{
	if (p != UNUSED)
		return true;
	return model->settings.options.unused == DDP_UNUSED_ZERO || (model->settings.options.unused == DDP_UNUSED_SKIP && step % 2 == 0);
}

/* Not whole numbers: their sums are rounded. The others stay 0, which takes a fifth of the time. */
static void add_gradient(ddp_model *model, int step, int batch, int p)
{
	const float own = 1 / (float)(3 + step * 13 + batch * 5 + p * 3 + ddp_comm_rank(model->context->world) * 11);
	float *grads = ddp_model_param_grad(model, p);

	for (int64_t i = p % 5; i < ddp_model_param_count(model, p); i += 5)
		grads[i] += own * (float)(i & 1023);
}

static void train_step(ddp_model *model, int step, int batches)
{
	static float rows[2 * K];
	const int32_t index[2] = { step % 60, 3 };

	for (int b = 0; b < batches; b++) {
		CHECK_OK(ddp_model_set_sync(model, b == batches - 1));
		for (int p = PARAMS - 1; p >= 0; p--) {
			if (!is_used(model, step, p)) {
				CHECK_OK(ddp_model_grad_unused(model, p));
				continue;
			}
			add_gradient(model, step, b, p);
			CHECK_OK(ddp_model_grad_ready(model, p));
		}
	}
	for (int i = 0; i < 2 * K; i++)
		rows[i] = (float)i / 300;
	CHECK_OK(ddp_model_grad_rows(model, 6, index, rows, 2));
	if (step % 3 != 0) {
		CHECK_OK(ddp_model_step(model, 1, 1, NULL));
		return;
	}
	CHECK_OK(ddp_model_reduce_grads(model, 1, 1, NULL));
	CHECK_OK(ddp_model_update_params(model, NULL));
}

static void expect_same_params(ddp_model *model, ddp_model *twin)
{
	for (int p = 0; p < PARAMS; p++)
		CHECK(memcmp(ddp_model_param_data(model, p), ddp_model_param_data(twin, p),
		             (size_t)ddp_model_param_count(model, p) * sizeof(float)) == 0);
}

static void expect_same_cut(const ddp_model *model)
{
	const ddp_bucket_plan *plan = &model->plan;
	double range[2 * (DDP_GRAINS_MAX + 1)];

	range[0] = plan->count;
	CHECK_OK(ddp_facts_range(model->context->world, range, 1));
	CHECK(range[0] == -range[1]);
	for (int k = 0; k < plan->count; k++)
		range[k] = (double)plan->buckets[k].begin;
	CHECK_OK(ddp_facts_range(model->context->world, range, (size_t)plan->count));
	for (int k = 0; k < plan->count; k++)
		CHECK(range[k] == -range[plan->count + k]);
	CHECK(plan->buckets[0].end == model->layout.dense && plan->buckets[plan->count - 1].begin == 0);
}

/* As the link and the slowest rank would have it. */
static void fill_case(const ddp_model *model, const link_case *link, double *ready, int64_t *elements,
                      ddp_merge_case *c)
{
	*c = (ddp_merge_case){
		.count = model->plan.grain_count, .ready = ready, .elements = elements,
		.latency = link->latency, .per_element = link->per_mib / (K * K / 4),
	};
	for (int g = 0; g < c->count; g++) {
		ready[g] = (g + 1) * link->gap;
		elements[g] = model->plan.grains[g] - model->plan.grains[g + 1];
	}
}

/* Rank 0 waits for others in each all-reduce, and is the first to have its gradients. */
static void pretend(ddp_model *model, const ddp_merge_case *c)
{
	ddp_replan *r = &model->replan;
	const int rank = ddp_comm_rank(model->context->world), last = ddp_comm_size(model->context->world) - 1;
	int second[DDP_GRAINS_MAX], grain = 0;
	double *took = r->took;

	/* The second cut is the present one. */
	CHECK(model->plan.count == r->second_count && r->second_count < r->first_count);
	ddp_bucket_plan_ends(&model->plan, second);
	for (int s = 0; s < MEASURED; s++) {
		const bool first = s < DDP_REPLAN_STEPS;
		const int *ends = first ? r->first_ends : second;
		grain = 0;
		for (int k = 0; k < (first ? r->first_count : r->second_count); k++) {
			*took = c->latency + (rank < last ? 5 - rank : 0);
			for (; grain < ends[k]; grain++)
				*took += c->per_element * (double)c->elements[grain];
			took++;
		}
		/* One outlier, which no median is to see. */
		for (int g = 0; g < c->count; g++)
			r->ready[g * MEASURED + s] = s == 2 ? 100 : c->ready[g] - 1e-3 * (last - rank);
		r->update[s] = 0;
	}
	for (int s = 0; s < MEASURED; s++) /* of the totals */
		*took++ = s == 3 ? 10 : c->latency / 2 + (rank < last ? 5 - rank : 0);
	r->steps = 1 + MEASURED;
}

static void expect_cut_for(const ddp_model *model, const ddp_merge_case *c)
{
	int ends[DDP_GRAINS_MAX], best[DDP_GRAINS_MAX];

	ddp_bucket_plan_ends(&model->plan, ends);
	const int count = ddp_merge(c, best);
	CHECK(ddp_merge_end(c, ends, model->plan.count) <= 1.001 * ddp_merge_end(c, best, count));
}

static void make_pair(ddp_context *context, const ddp_model_options *options, ddp_model **model, ddp_model **twin)
{
	*model = make(context, options);
	*twin = make(context, options);
	CHECK((*model)->replan.took != NULL);
	ddp_replan_close(*twin);
}

static void train_both(ddp_model *model, ddp_model *twin, int step, int batches)
{
	train_step(model, step, batches);
	train_step(twin, step, batches);
	expect_same_params(model, twin);
}

/* Up to where buckets are cut anew, and on. */
static int cut_and_go_on(ddp_comm *comm, void *argument)
{
	static double ready[DDP_GRAINS_MAX];
	static int64_t elements[DDP_GRAINS_MAX];
	const way *w = argument;
	const int batches = w->batches > 0 ? w->batches : 1;
	ddp_context context = context_of(comm);
	ddp_model *model, *twin;
	ddp_merge_case c;
	int step = 1;

	make_pair(&context, &w->options, &model, &twin);
	const int before = model->plan.count;
	for (; step <= MEASURED; step++) {
		train_both(model, twin, step, batches);
		CHECK((model->plan.count == before) == (step < 1 + DDP_REPLAN_STEPS));
		expect_same_cut(model);
	}
	fill_case(model, &w->link, ready, elements, &c);
	pretend(model, &c);
	CHECK_OK(ddp_replan_step(model));
	CHECK(model->replan.took == NULL && twin->plan.count == before);
	CHECK(w->link.latency > 1e-3 ? model->plan.count < before : model->plan.count > before);
	expect_cut_for(model, &c);
	expect_same_cut(model);
	for (; step <= STEPS; step++)
		train_both(model, twin, step, batches);
	ddp_model_free(model);
	ddp_model_free(twin);
	ddp_watch_close(context.watch);
	return 0;
}

static void run(int (*body)(ddp_comm *comm, void *argument), const void *argument, int ranks)
{
	static way copy;

	copy = argument != NULL ? *(const way *)argument : (way){ 0 };
	RUN_WORLD(.ranks = ranks, .node_of = copy.node_of != NULL ? copy.node_of : two_nodes, .body = body,
	          .argument = &copy,);
}

static const link_case far = { .latency = 20e-3, .per_mib = 1e-3, .gap = 1e-3 };
static const link_case narrow = { .latency = 1e-6, .per_mib = 120e-3, .gap = 60e-3 };

TEST(all_ranks_cut_alike_and_train_on)
{
	const ddp_model_options plain = {
		DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .momentum = 0.9, .shard = DDP_SHARD_NONE
	};
	way ways[] = {
		{ plain, 2, 0, far, NULL }, { plain, 2, 0, narrow, NULL }, { plain, 3, 2, narrow, NULL }, { plain, 2, 0, far, NULL },
		{ plain, 3, 0, narrow, NULL }, { plain, 3, 0, far, NULL }, { plain, 2, 0, narrow, NULL }, { plain, 2, 0, far, NULL },
	};

	ways[2].node_of = a_node_each;
	ways[3].options.clip_norm = 0.5;
	ways[3].options.unused = DDP_UNUSED_SKIP;
	ways[4].options.shard = ways[5].options.shard = DDP_SHARD_AUTO; /* once a node */
	ways[4].options.clip_norm = 0.5;
	ways[5].options.unused = DDP_UNUSED_STATIC;
	ways[6].options.compress = DDP_COMPRESS_BF16;
	ways[7].options.optimizer = DDP_LAMB; /* of whole tensors */
	ways[7].options.unused = DDP_UNUSED_STATIC;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		run(cut_and_go_on, &ways[i], ways[i].ranks);
}

/* ---- where the first cut stays --------------------------------------------------------- */

static int first_cut_stays(ddp_comm *comm, void *argument)
{
	const way *w = argument;
	ddp_context context = context_of(comm);
	ddp_model *model = make(&context, &w->options);

	const int before = model->plan.count;
	CHECK(model->replan.took == NULL && before > 1);
	for (int step = 1; step <= 1 + DDP_REPLAN_STEPS; step++) {
		train_step(model, step, 1);
		CHECK(model->plan.count == before && model->plan.grain_count == before);
	}
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

static int first_cut_of_environment_stays(ddp_comm *comm, void *argument)
{
	CHECK(setenv("DDP_BUCKET_MB", "1", 1) == 0);
	return first_cut_stays(comm, argument);
}

TEST(the_first_cut_stays_where_it_is_given_or_state_hangs_on_it)
{
	const ddp_model_options plain = { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE };
	way ways[] = { { .options = plain }, { .options = plain }, { .options = plain }, { .options = plain },
	               { .options = plain }, { .options = plain } };

	run(first_cut_of_environment_stays, &ways[0], 2);
	ways[0].options.bucket_mb = 1;
	ways[1].options.first_bucket_mb = 0.5;
	ways[2].options.shard = DDP_SHARD_GRADIENTS;
	ways[3].options.shard = DDP_SHARD_STATE;
	ways[4].options.compress = DDP_COMPRESS_POWERSGD;
	ways[5].options.local_sgd.steps = 2;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		run(first_cut_stays, &ways[i], 2);
}

static int a_cap_of_one_rank(ddp_comm *comm, void *argument)
{
	const bool gives = ddp_comm_rank(comm) == 1;
	const ddp_model_options options = {
		DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = gives ? 1 : DDP_AUTO, .first_bucket_mb = gives ? 1 : DDP_AUTO
	};
	ddp_context context = context_of(comm);
	ddp_model *model;

	CHECK_FAILS(ddp_model_create(&context, params, PARAMS, &options, &model), DDP_ERR_MISMATCH,
	            "bucket_mb (or DDP_BUCKET_MB) is ");
	ddp_watch_close(context.watch);
	return 0;
}

TEST_RUNS(ranks_give_caps_alike, run(a_cap_of_one_rank, NULL, 2));

/* ---- as it comes ------------------------------------------------------------------------ */

/* Until it is decided, and on; the ranks' times differ as they do. The trace says so. */
static int decide_by_real_times(ddp_comm *comm, void *argument)
{
	ddp_context context = context_of(comm);
	const way *w = argument;
	static char trace[1 << 20];
	ddp_model *model, *twin;
	char path[64];

	CHECK_OK(ddp_watch_record(context.watch, &context.job, NULL, test_folder));
	make_pair(&context, &w->options, &model, &twin);
	for (int step = 1; step <= STEPS; step++) {
		train_both(model, twin, step, 1);
		CHECK((model->replan.took != NULL) == (step < 1 + MEASURED));
		expect_same_cut(model);
	}
	ddp_model_free(model);
	ddp_model_free(twin);
	ddp_watch_close(context.watch);
	snprintf(path, sizeof(path), "%s/rank-%d.json", test_folder, context.job.rank);
	FILE *file = fopen(path, "r");
	CHECK(file != NULL && fread(trace, 1, sizeof(trace) - 1, file) > 0);
	fclose(file);
	CHECK(strstr(trace, "\"cut anew: ") != NULL);
	return 0;
}

/* A rank that has finished shows nothing, so that nothing is decided. */
static int finish_early(ddp_comm *comm, void *argument)
{
	const way *w = argument;
	ddp_context context = context_of(comm);
	ddp_model *model = make(&context, &w->options);
	ddp_step_stats stats;

	for (int step = 1; step <= STEPS; step++) {
		if (context.job.rank == 0 && step > 5)
			CHECK_OK(ddp_model_join(model, &stats));
		else
			train_step(model, step % 3 == 0 ? step + 1 : step, 1);
		expect_same_cut(model);
		CHECK(model->replan.steps == (step < 5 ? step : 5));
	}
	CHECK(model->replan.took != NULL);
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

/* A checkpoint from behind the new cut is resumed by a model that is still to measure. */
static int stop_and_resume(ddp_comm *comm, void *argument)
{
	static double ready[DDP_GRAINS_MAX];
	static int64_t elements[DDP_GRAINS_MAX];
	const way *w = argument;
	ddp_context context = context_of(comm);
	ddp_model *model = make(&context, &w->options);
	ddp_merge_case c;
	int64_t step = 1;

	for (; step <= MEASURED; step++)
		train_step(model, (int)step, 1);
	fill_case(model, &w->link, ready, elements, &c);
	pretend(model, &c);
	CHECK_OK(ddp_replan_step(model));
	for (; step <= MEASURED + 2; step++)
		train_step(model, (int)step, 1);
	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));

	ddp_model *resumed = make(&context, &w->options);
	CHECK_OK(ddp_checkpoint_load(resumed, NULL, test_folder, &step));
	CHECK(step == MEASURED + 2 && resumed->replan.took != NULL && resumed->plan.count != model->plan.count);
	while (++step <= MEASURED + 6)
		train_both(model, resumed, (int)step, 1);
	/* And back in the same process. */
	CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
	CHECK_OK(ddp_checkpoint_load(resumed, NULL, test_folder, &step));
	train_both(model, resumed, (int)step + 1, 1);
	ddp_model_free(model);
	ddp_model_free(resumed);
	ddp_watch_close(context.watch);
	return 0;
}

TEST_WITH(real_times_decide_alike, folder_make, folder_remove)
{
	static const way once_a_node = { .options = { DDP_MODEL_OPTIONS_FIELDS } };

	run(decide_by_real_times, &once_a_node, 3);
}

TEST(ranks_that_finish_early_stop_it)
{
	static const way replicated = { .options = { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE } };

	run(finish_early, &replicated, 2);
}

TEST_WITH(a_training_stops_and_resumes, folder_make, folder_remove)
{
	way w = { .options = { DDP_MODEL_OPTIONS_FIELDS }, .link = narrow };

	run(stop_and_resume, &w, 4);
	folder_empty(state);
	w.options.shard = DDP_SHARD_NONE;
	w.link = far;
	run(stop_and_resume, &w, 2);
}
