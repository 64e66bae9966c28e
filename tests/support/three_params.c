/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "tests/support/three_params.h"

#include <math.h>
#include <stdint.h>

const ddp_param three[3] = {
	{ .name = "a", .ndim = 1, .shape = { A } },
	{ .name = "b", .ndim = 1, .shape = { B } },
	{ .name = "c", .ndim = 2, .shape = { 2, C / 2 } },
};

const ddp_model_options plain = {
	DDP_MODEL_OPTIONS_FIELDS,
	.optimizer = DDP_SGD, .learning_rate = 1,
	.bucket_mb = 128.0 / (1 << 20), .first_bucket_mb = 64.0 / (1 << 20),
	.shard = DDP_SHARD_NONE,
};

const test_way ways[WAYS] = {
	{ .shard = DDP_SHARD_NONE },
	{ .shard = DDP_SHARD_NONE, .no_overlap = true },
	{ .shard = DDP_SHARD_STATE },
	{ .shard = DDP_SHARD_GRADIENTS },
	{ .shard = DDP_SHARD_AUTO, .node_of = two_nodes },
	{ .shard = DDP_SHARD_NONE, .node_of = two_nodes },
	{ .shard = DDP_SHARD_STATE, .node_of = two_nodes },
	{ .shard = DDP_SHARD_GRADIENTS, .node_of = two_nodes },
};

typedef struct ways_on {
	const int *node_of;
	rank_body body;
} ways_on;

static int try_ways(ddp_context *context, void *user)
{
	const ways_on *with = user;
	int code = 0;

	for (int w = 0; w < WAYS && code == 0; w++) {
		if (ways[w].node_of == with->node_of)
			code = with->body(context, (void *)(uintptr_t)&ways[w]);
	}
	return code;
}

void run_ways_on(const int *node_of, int ranks, rank_body body)
{
	ways_on with = { node_of, body };

	assert_int_equal(run_ranks_on(node_of, ranks, try_ways, &with), 0);
}

void run_each_way(int most_ranks, rank_body body)
{
	for (int ranks = 1; ranks <= most_ranks; ranks++)
		run_ways_on(NULL, ranks, body);
	run_ways_on(two_nodes, most_ranks, body);
}

ddp_model_options plain_by(const test_way *way)
{
	ddp_model_options options = plain;

	options.shard = way->shard;
	test_measure(way->no_overlap ? "no-overlap" : NULL);
	return options;
}

int rank_of(ddp_context *context)
{
	return ddp_get_job(context)->rank;
}

int size_of(ddp_context *context)
{
	return ddp_get_job(context)->world_size;
}

void add_grads(ddp_model *model, float value)
{
	for (int p = 0; p < 3; p++) {
		const int64_t count = ddp_model_param_count(model, p);
		float *grad = ddp_model_param_grad(model, p);

		for (int64_t i = 0; i < count; i++)
			grad[i] += value * (float)(p + 1);
	}
}

bool all_params_are(ddp_model *model, const float *wanted)
{
	for (int p = 0; p < 3; p++) {
		const int64_t count = ddp_model_param_count(model, p);
		const float *data = ddp_model_param_data(model, p);

		for (int64_t i = 0; i < count; i++) {
			if (fabsf(data[i] - wanted[p]) > 1e-6f * fabsf(wanted[p]))
				return false;
		}
	}
	return true;
}

bool all_grads_are_zero(ddp_model *model)
{
	for (int p = 0; p < 3; p++) {
		const int64_t count = ddp_model_param_count(model, p);
		const float *grad = ddp_model_param_grad(model, p);

		for (int64_t i = 0; i < count; i++) {
			if (grad[i] != 0)
				return false;
		}
	}
	return true;
}

