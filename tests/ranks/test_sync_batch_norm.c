/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* examples/models/net: ranks that normalise together train as one rank does with all images. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "models/resnet.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { IMAGES = 8, SIDE = 16, CHANNELS = 2, CLASSES = 4, STEPS = 2, RANKS_MAX = 3, TENSORS_MAX = 128,
       NUMBERS_MAX = 1 << 17, IMAGE = SIDE * SIDE * CHANNELS, LANE = 1 };

/* What rank 0 had: tensors of all kinds, one behind the other, before the first step and after it. */
struct outcome {
	int count;
	int64_t sizes[TENSORS_MAX];
	double loss[STEPS];
	float before[NUMBERS_MAX], after[NUMBERS_MAX];
};

struct plan {
	int ranks, shares[RANKS_MAX]; /* of the images */
	bool together;                /* they normalise together */
	struct outcome *outcome;
};

struct rank {
	const struct plan *plan;
	ddp_context *context;
	net *net;
	ddp_model *model;
	int first, count; /* its images */
};

static uint64_t summed; /* on LANE */

static ddp_status sum(void *user, double *sums, int64_t count, ddp_memory memory)
{
	CHECK(memory == DDP_MEMORY_HOST);
	summed++;
	return ddp_run(ddp_world(user), &(ddp_operation){.kind = DDP_ALL_REDUCE, .recv = sums,
		.count = (size_t)count, .type = DDP_F64, .op = DDP_SUM, .lane = LANE});
}

static ddp_status ready(void *user, int param)
{
	return ddp_model_grad_ready(user, param);
}

static void make(struct rank *r)
{
	static const ddp_model_options options = {DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 0.1,
		.momentum = 0.5};
	float *data[TENSORS_MAX], *grad[TENSORS_MAX];
	int count;

	r->net = net_create(IMAGES, &(ddp_image_shape){CHANNELS, SIDE, SIDE});
	CHECK(r->net != NULL);
	net_resnet(r->net, &(net_resnet_shape){.depth = 18, .width = 4, .classes = CLASSES});
	if (r->plan->together)
		net_sync_batch_norm(r->net, sum, r->context);
	CHECK(net_finish(r->net));
	const ddp_param *params = net_params(r->net, &count);
	CHECK(count <= TENSORS_MAX);
	CHECK_OK(ddp_model_create(r->context, params, count, &options, &r->model));
	for (int i = 0; i < count; i++) {
		data[i] = ddp_model_param_data(r->model, i);
		grad[i] = ddp_model_param_grad(r->model, i);
		r->plan->outcome->sizes[i] = ddp_model_param_count(r->model, i);
	}
	r->plan->outcome->count = count;
	net_bind(r->net, data, grad);
	net_initialise(r->net, 7);
	CHECK_OK(ddp_model_broadcast_params(r->model));
}

static void note(const struct rank *r, float *to)
{
	const float *end = to + NUMBERS_MAX;

	for (int i = 0; i < r->plan->outcome->count; i++) {
		CHECK(ddp_model_param_count(r->model, i) <= end - to);
		memcpy(to, ddp_model_param_data(r->model, i), (size_t)ddp_model_param_count(r->model, i) * sizeof(float));
		to += ddp_model_param_count(r->model, i);
	}
}

/* Far from alike, so that the statistics of some are not those of all. */
static float pixel(int step, int image, int i)
{
	uint32_t x = (uint32_t)((step * IMAGES + image) * IMAGE + i) * 0x9e3779b1u;

	x = (x ^ x >> 15) * 0x2c1b3c6du;
	return (float)(x >> 16) * 0x1p-15f - 1 + 0.3f * (float)image;
}

static void train_step(struct rank *r, int step)
{
	float images[IMAGES * IMAGE];
	int32_t labels[IMAGES];
	net_random random = {0};
	ddp_step_stats stats;

	for (int i = 0; i < IMAGES; i++) {
		labels[i] = (i + step) % CLASSES;
		for (int k = 0; k < IMAGE; k++)
			images[i * IMAGE + k] = pixel(step, i, k);
	}
	const net_result result = net_forward(r->net, images + r->first * IMAGE, labels + r->first, r->count, &random);
	CHECK_OK(result.status);
	CHECK_OK(net_backward(r->net, ready, r->model));
	CHECK(dk_failure() == NULL);
	CHECK_OK(ddp_model_step(r->model, r->count, result.loss, &stats));
	r->plan->outcome->loss[step] = stats.loss;
}

static int train(ddp_context *context, void *user)
{
	const struct plan *plan = user;
	const int rank = ddp_get_job(context)->rank;
	/* The outcome is rank 0's. */
	struct outcome *own = rank == 0 ? plan->outcome : calloc(1, sizeof(*own));
	struct plan mine = *plan;
	struct rank r = {.plan = &mine, .context = context, .count = plan->shares[rank]};

	CHECK(own != NULL);
	mine.outcome = own;
	for (int i = 0; i < rank; i++)
		r.first += plan->shares[i];
	dk_set_threads(1);
	make(&r);
	note(&r, own->before);
	for (int step = 0; step < STEPS; step++) {
		train_step(&r, step);
		if (step == 0)
			note(&r, own->after);
	}
	CHECK((summed > 0) == plan->together && test_lane_count(ddp_world(context), LANE) == summed);
	ddp_model_free(r.model);
	net_free(r.net);
	if (rank != 0)
		free(own);
	return 0;
}

/* How far any number of the two is apart after the first step, by its tensor's largest change in
   it. Later a ReLU may be on one side here and on the other there, and a gradient is another. */
static double apart(const struct outcome *a, const struct outcome *b)
{
	const float *x = a->after, *y = b->after, *before = a->before;
	double most = 0;

	for (int i = 0; i < a->count; i++) {
		double change = 0, difference = 0;
		for (int64_t k = 0; k < a->sizes[i]; k++, x++, y++, before++) {
			change = fmax(change, fabs((double)*x - *before));
			difference = fmax(difference, fabs((double)*x - *y));
		}
		assert_true(change > 0);
		most = fmax(most, difference / change);
	}
	return most;
}

TEST(ranks_together_are_one)
{
	struct plan plans[] = {
		{.ranks = 1, .shares = {IMAGES}},
		{.ranks = 2, .shares = {4, 4}, .together = true},
		{.ranks = 3, .shares = {5, 0, 3}, .together = true},
		{.ranks = 2, .shares = {4, 4}},
	};
	enum { PLANS = sizeof(plans) / sizeof(plans[0]) };
	struct outcome *outcomes = test_share(PLANS * sizeof(*outcomes));

	for (int i = 0; i < PLANS; i++) {
		plans[i].outcome = &outcomes[i];
		assert_int_equal(run_ranks(plans[i].ranks, train, &plans[i]), 0);
	}
	for (int i = 1; i < PLANS; i++) {
		const double tensors = apart(&outcomes[0], &outcomes[i]);
		double losses = 0;
		for (int step = 0; step < STEPS; step++)
			losses = fmax(losses, fabs(outcomes[0].loss[step] / outcomes[i].loss[step] - 1));
		/* By f32's rounding. The test would see it if each normalised by itself. */
		if (plans[i].together ? !(tensors < 2e-4 && losses < 1e-5) : !(tensors > 0.1 && losses > 1e-3))
			fail_msg("plan %d: tensors are %g apart, losses %g", i, tensors, losses);
	}
	test_unshare(outcomes, PLANS * sizeof(*outcomes));
}
