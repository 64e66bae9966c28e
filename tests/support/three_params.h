/* SPDX-License-Identifier: Apache-2.0 */
/* three_params: a model of three parameters, which tests of ddp_model share. */
#pragma once

#include "tests/support/context_ranks.h"

enum { A = 40, B = 3, C = 200, WAYS = 8 };

extern const ddp_param three[3];

/* Buckets of 128 bytes: several tensors in one, and tensors over several. */
extern const ddp_model_options plain;

/* What the tests of a step are run with. */
typedef struct test_way {
	ddp_shard shard;
	bool no_overlap;
	const int *node_of; /* NULL: all ranks are on one */
} test_way;
extern const test_way ways[WAYS];
/* Gives the options of the models that the rank makes next. */
ddp_model_options plain_by(const test_way *way);

/* Runs `body` in one world with each way of these nodes in turn as its `user`, which is of `ways`: to start ranks takes
   longer than most bodies. */
void run_ways_on(const int *node_of, int ranks, rank_body body);
/* The same on one node with each number of ranks, and on two with the most, which four are at most. */
void run_each_way(int most_ranks, rank_body body);

int rank_of(ddp_context *context);
int size_of(ddp_context *context);

/* Adds `value` times 1, 2 and 3. */
void add_grads(ddp_model *model, float value);
bool all_params_are(ddp_model *model, const float *wanted);
bool all_grads_are_zero(ddp_model *model);

