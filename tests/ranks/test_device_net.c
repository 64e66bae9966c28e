/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* examples/models/net in the memory of the fake GPU: it comes to the bits of one
   in the host's, running statistics and dropout among them, and its evaluation says the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/core/comm.h"
#include "device/device.h"
#include "kernels.h"
#include "models/net_inside.h"
#include "reduce/model_state.h"
#include "table.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/small_net.h"
#include "tests/support/test.h"

enum { STEPS = 3, PASSES = 2, TENSORS_MAX = 32, IMAGE = SIDE * SIDE * CHANNELS, LANE = 1 };

static const ddp_options on_test = { DDP_OPTIONS_FIELDS, .device = "cuda" };

/* A network on the host, or there. */
typedef struct side {
	ddp_context *context;
	ddp_request *sum; /* of the last normalisation there */
	dk_queue *kernels; /* NULL: the host's */
	net *net;
	ddp_model *model;
	net_random random;
	int count;
} side;

static void *allocate(void *user, size_t bytes)
{
	void *memory;

	CHECK_OK(ddp_mem_alloc_on(ddp_world(user), DDP_MEMORY_DEVICE, bytes, &memory));
	return memory;
}

static void release(void *user, void *memory)
{
	CHECK_OK(ddp_mem_free(ddp_world(user), memory));
}

static ddp_status sum(void *user, double *sums, int64_t count, ddp_memory memory)
{
	side *s = user;
	const ddp_operation operation = { .kind = DDP_ALL_REDUCE, .recv = sums, .count = (size_t)count, .type = DDP_F64,
		.op = DDP_SUM, .lane = LANE, .memory = memory };

	if (memory == DDP_MEMORY_HOST)
		return ddp_run(ddp_world(s->context), &operation);
	CHECK(s->kernels != NULL);
	if (s->sum != NULL)
		CHECK_OK(ddp_wait(s->sum));
	CHECK_OK(ddp_issue(ddp_world(s->context), &operation, &s->sum));
	return ddp_wait_on(s->sum, NULL);
}

static void make(side *s, ddp_context *context, bool there, bool together)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 0.1,
		.momentum = 0.9, .shard = DDP_SHARD_NONE, .memory = there ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST };
	const net_memory memory = { .alloc = allocate, .release = release, .user = context };
	float *data[TENSORS_MAX], *grad[TENSORS_MAX];

	*s = (side){ .context = context, .random = { .seed = 9, .counter = 100 } };
	if (there) {
		CHECK(ddp_kernels_open(context, DK_TABLE_VERSION, DK_MIXED_F16, NULL, &s->kernels) == DDP_ERR_UNSUPPORTED);
		CHECK(strstr(ddp_last_error(), "no f16 there; take DK_MIXED") != NULL);
		CHECK_OK(ddp_kernels_open(context, DK_TABLE_VERSION, DK_F32, NULL, &s->kernels));
	}
	dk_use(s->kernels);
	s->net = net_create_on(there ? &memory : NULL, BATCH, &(ddp_image_shape){ CHANNELS, SIDE, SIDE }, PASSES);
	CHECK(s->net != NULL);
	/* A queue of the fake GPU does without oneDNN, too. */
	dk_onednn_free(s->net->onednn);
	s->net->onednn = NULL;
	build_small_net(s->net);
	CHECK(net_finish(s->net));
	const ddp_param *params = net_params(s->net, &s->count);
	CHECK(s->count <= TENSORS_MAX);
	CHECK_OK(ddp_model_create(context, params, s->count, &options, &s->model));
	for (int i = 0; i < s->count; i++) {
		data[i] = ddp_model_param_data(s->model, i);
		grad[i] = ddp_model_param_grad(s->model, i);
	}
	net_bind(s->net, data, grad);
	net_bind_loss(s->net, ddp_model_device_loss(s->model));
	net_use_graphs(s->net, true);
	if (together)
		net_sync_batch_norm(s->net, sum, s);
	CHECK(net_initialise(s->net, 7));
	CHECK_OK(ddp_model_broadcast_params(s->model));
	dk_use(NULL);
}

static void unmake(side *s)
{
	ddp_model_free(s->model);
	net_free(s->net);
	ddp_kernels_close(s->kernels);
}

static void fill(float *images, int32_t *labels, int number)
{
	for (int i = 0; i < BATCH * IMAGE; i++) {
		const uint32_t x = (uint32_t)(number * BATCH * IMAGE + i) * 0x9e3779b1u;
		images[i] = (float)((x ^ x >> 15) * 0x2c1b3c6du >> 16) * 0x1p-15f - 1;
	}
	for (int i = 0; i < BATCH; i++)
		labels[i] = (number + i) % CLASSES;
}

static ddp_status ready(void *user, int param)
{
	return ddp_model_grad_ready(user, param);
}

/* Of one pass; the last rank has none in the second step, if all normalise together. */
static int images_of(const side *s, int step)
{
	const ddp_comm *world = ddp_world(s->context);

	return s->net->sum != NULL && step == 1 && ddp_comm_rank(world) == ddp_comm_size(world) - 1 ? 0 : BATCH;
}

/* The images are gone when a pass returns, though the queue may not have come to them. */
static double train_step(side *s, int step)
{
	const int rank = ddp_comm_rank(ddp_world(s->context)), count = images_of(s, step);
	float images[BATCH * IMAGE];
	int32_t labels[BATCH];
	ddp_step_stats stats;
	double loss = 0;

	dk_use(s->kernels);
	for (int pass = 0; pass < PASSES; pass++) {
		fill(images, labels, (step * PASSES + pass) * 2 + rank);
		CHECK_OK(ddp_model_set_sync(s->model, pass == PASSES - 1));
		const net_result result = net_forward(s->net, images, labels, count, &s->random);
		CHECK_OK(result.status);
		CHECK(s->kernels == NULL || result.loss == 0);
		loss += result.loss;
		CHECK_OK(net_backward(s->net, ready, s->model));
	}
	CHECK(dk_failure() == NULL);
	dk_use(NULL);
	if (s->sum != NULL)
		CHECK_OK(ddp_wait(s->sum));
	s->sum = NULL;
	CHECK_OK(ddp_model_step(s->model, count * PASSES, loss, &stats));
	return stats.loss;
}

/* By running statistics; of fewer images than there may be. */
static net_result evaluate(side *s)
{
	float images[BATCH * IMAGE];
	int32_t labels[BATCH];

	fill(images, labels, 1000);
	dk_use(s->kernels);
	const net_result result = net_forward(s->net, images, labels, BATCH - 1, NULL);
	CHECK(dk_failure() == NULL);
	dk_use(NULL);
	return result;
}

static void expect_same(side *here, side *there)
{
	for (int i = 0; i < here->count; i++) {
		const size_t bytes = (size_t)ddp_model_param_count(here->model, i) * sizeof(float);
		float *got = malloc(bytes);
		CHECK(got != NULL);
		CHECK_OK(ddp_place_read(&there->model->place, got, ddp_model_param_data(there->model, i), bytes));
		CHECK(memcmp(got, ddp_model_param_data(here->model, i), bytes) == 0);
		free(got);
	}
}

static int compare(ddp_context *context, void *user)
{
	static side here, there;

	const bool together = user != NULL;

	dk_set_threads(1);
	make(&here, context, false, together);
	make(&there, context, true, together);
	for (int step = 0; step < STEPS; step++) {
		const double loss = train_step(&here, step);
		CHECK(loss > 0 && train_step(&there, step) == loss);
		expect_same(&here, &there);
	}
	/* Of each memory's lane: the host's tells how many, the device's whether it was used. */
	CHECK((test_lane_count(ddp_world(context), LANE) > 0) == together);
	CHECK(atomic_load(&ddp_world(context)->lanes.of[DDP_MEMORY_DEVICE][LANE].open) == together);
	CHECK(there.net->graphs.sets[0].captured == !together && net_graph_failure(there.net) == NULL);
	const net_result result = evaluate(&here), there_too = evaluate(&there);
	CHECK(result.loss > 0 && there_too.loss == result.loss && there_too.right == result.right);
	unmake(&there);
	unmake(&here);
	CHECK_OK(ddp_barrier(ddp_world(context)));
	return 0;
}

TEST_RUNS(a_net_on_a_device_comes_to_the_bits_of_the_host,
          assert_int_equal(run_ranks_with(2, &on_test, compare, NULL), 0));

TEST_RUNS(a_net_that_normalises_over_all_ranks_does_so_there,
          assert_int_equal(run_ranks_with(2, &on_test, compare, "together"), 0));
