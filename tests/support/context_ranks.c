/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/context_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reduce/model_state.h"
#include "tests/support/comm_ranks.h"
#include "watch/watch.h"

const int two_nodes[4] = { 0, 1, 1, 0 };

static ddp_context *this_context;

/* The other ranks need not wait for this one. */
static void abort_world(void)
{
	ddp_comm_abort(ddp_world(this_context), "an expectation of the test was not met");
}

int run_ranks(int ranks, rank_body body, void *user)
{
	return run_ranks_with(ranks, NULL, body, user);
}

int run_ranks_with(int ranks, const ddp_options *options, rank_body body, void *user)
{
	ddp_spawn_result result;

	test_ranks_begin(ranks);
	fflush(NULL);
	if (ddp_spawn(ranks, &result) != DDP_OK) {
		fprintf(stderr, "# ddp_spawn: %s\n", ddp_last_error());
		return 1;
	}
	if (!result.is_rank) {
		test_ranks_end();
		return result.exit_code;
	}

	CHECK_OK(ddp_init(options, &this_context));
	test_be_rank(ddp_get_job(this_context)->rank, abort_world);
	int code = body(this_context, user);
	test_be_rank(ddp_get_job(this_context)->rank, NULL);
	CHECK_OK(ddp_finalize(this_context));
	/* The ordinary way, so that the leak check comes too. */
	exit(code);
}

struct on_nodes {
	rank_body body;
	void *user;
};

static int run_on_nodes(ddp_comm *comm, void *argument)
{
	const struct on_nodes *run = argument;
	ddp_context context = test_context_of(comm);

	this_context = &context;
	test_be_rank(context.job.rank, abort_world);
	int code = run->body(&context, run->user);
	test_be_rank(context.job.rank, NULL);
	ddp_watch_close(context.watch);
	return code;
}

int run_ranks_on(const int *node_of, int ranks, rank_body body, void *user)
{
	struct on_nodes run = { body, user };
	const test_world world = { .ranks = ranks, .node_of = node_of, .body = run_on_nodes, .argument = &run };

	return node_of != NULL ? test_world_run(&world) : run_ranks(ranks, body, user);
}

ddp_context test_context_of(ddp_comm *comm)
{
	ddp_context context = { .world = comm, .timeout_ms = 60000 };

	context.job.rank = ddp_comm_rank(comm);
	context.job.world_size = ddp_comm_size(comm);
	CHECK_OK(ddp_watch_open(&context.job, &context.watch));
	return context;
}

void check_strategy(const ddp_model *model, const char *name)
{
	static const struct { const char *name; ddp_shard shard; } spread[] = {
		{ "node", DDP_SHARD_STATE }, { "hybrid", DDP_SHARD_STATE }, { "scatter", DDP_SHARD_STATE },
		{ "scatter, gradients too", DDP_SHARD_GRADIENTS },
	};
	ddp_shard shard = DDP_SHARD_NONE;
	ddp_summary summary;

	for (size_t i = 0; i < sizeof(spread) / sizeof(spread[0]); i++) {
		if (strcmp(spread[i].name, name) == 0)
			shard = spread[i].shard;
	}
	if (strcmp(model->strategy->name, name) != 0)
		fprintf(stderr, "# strategy \"%s\" instead of \"%s\"\n", model->strategy->name, name);
	CHECK(strcmp(model->strategy->name, name) == 0);
	ddp_model_summary(model, &summary);
	CHECK(summary.shard == shard);
}
