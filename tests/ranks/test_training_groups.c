/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* training_groups: models on communicators. The ranks of a group train as if they were a world of
   their own, beside other groups with other models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/folder.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "tests/support/training.h"

enum { RANKS = 4, GROUPS = 2, GROUP = RANKS / GROUPS };

/* What group g trains: each does it in another way. */
static setup setup_of(int g, ddp_shard shard)
{
	return (setup){ .bucket_bytes = g == 0 ? 64 : 512, .shard = shard, .accumulate = 1 + g, .steps = STEPS,
	                .clip_norm = g == 0 ? 0 : 0.5 };
}

typedef struct seen {
	int stride; /* ranks of a group are so far apart */
	float params[RANKS][SHARDS + 1][MLP_ELEMENTS];
	char dir[TEST_FOLDER_BYTES + 16];
} seen;

static int group_of(const seen *s, int rank)
{
	return s->stride == 1 ? rank / GROUP : rank % GROUPS;
}

static ddp_shard way(int w)
{
	return w < SHARDS ? shards[w] : DDP_SHARD_AUTO;
}

/* ---- as a world of their own --------------------------------------------------------- */

static int groups_body(ddp_context *context, void *user)
{
	seen *s = user;
	const int rank = ddp_get_job(context)->rank, group = group_of(s, rank);
	ddp_comm *comm;

	CHECK_OK(ddp_comm_split(ddp_world(context), group, rank, &comm));
	for (int w = 0; w <= SHARDS; w++) {
		setup with = setup_of(group, way(w));
		with.comm = comm;
		train(context, &with, s->params[rank][w]);
	}
	return ddp_comm_free(comm) == DDP_OK ? 0 : 1;
}

static int world_body(ddp_context *context, void *user)
{
	seen *s = user;
	const int rank = ddp_get_job(context)->rank;

	for (int g = 0; g < GROUPS; g++) {
		for (int w = 0; w <= SHARDS; w++) {
			const setup with = setup_of(g, way(w));
			train(context, &with, s->params[g * GROUP + rank][w]);
		}
	}
	return 0;
}

/* The rank of the world that is the i-th of a group. */
static int member(const seen *s, int group, int i)
{
	return s->stride == 1 ? group * GROUP + i : i * GROUPS + group;
}

static void check_groups(int stride, const int *nodes, const int *group_nodes)
{
	seen *groups = test_share(sizeof(*groups)), *worlds = test_share(sizeof(*worlds));

	groups->stride = stride;
	assert_int_equal(run_ranks_on(nodes, RANKS, groups_body, groups), 0);
	assert_int_equal(run_ranks_on(group_nodes, GROUP, world_body, worlds), 0);
	for (int g = 0; g < GROUPS; g++) {
		for (int i = 0; i < GROUP; i++)
			assert_memory_equal(groups->params[member(groups, g, i)], worlds->params[g * GROUP + i],
			                    sizeof(groups->params[0]));
	}
	assert_memory_not_equal(groups->params[0], groups->params[member(groups, 1, 0)], sizeof(groups->params[0]));
}

TEST(groups_train_like_worlds_of_their_own)
{
	check_groups(1, NULL, NULL);
	check_groups(GROUPS, NULL, NULL);
}

#ifdef HAVE_UCX
TEST(groups_over_nodes_do_too)
{
	static const int nodes[RANKS] = { 0, 0, 1, 1 }, apart[GROUP] = { 0, 1 };

	check_groups(1, nodes, NULL);
	check_groups(GROUPS, nodes, apart);
}
#endif

/* ---- checkpoints -------------------------------------------------------------------------- */

static int checkpoint_body(ddp_context *context, void *user)
{
	seen *s = user;
	const int rank = ddp_get_job(context)->rank, group = group_of(s, rank);
	char dir[TEST_FOLDER_BYTES + 32];
	ddp_comm *comm;

	CHECK_OK(ddp_comm_split(ddp_world(context), group, rank, &comm));
	snprintf(dir, sizeof(dir), "%s/%d", s->dir, group);
	setup with = setup_of(group, DDP_SHARD_STATE);
	with.comm = comm;
	with.checkpoint_dir = dir;
	with.steps = STEPS / 2;
	train(context, &with, s->params[rank][0]);
	with.steps = STEPS;
	with.resume = true;
	train(context, &with, s->params[rank][0]);
	with.checkpoint_dir = NULL;
	with.resume = false;
	train(context, &with, s->params[rank][1]);
	return ddp_comm_free(comm) == DDP_OK ? 0 : 1;
}

TEST_WITH(each_group_resumes_its_own_checkpoint, folder_empty, NULL)
{
	seen *s = test_share(sizeof(*s));

	s->stride = 1;
	snprintf(s->dir, sizeof(s->dir), "%s", test_folder);
	assert_int_equal(run_ranks(RANKS, checkpoint_body, s), 0);
	for (int r = 0; r < RANKS; r++)
		assert_memory_equal(s->params[r][0], s->params[r][1], sizeof(s->params[0][0]));
}

/* The group that is second finds the directory taken, on all its ranks. */
static int one_directory_body(ddp_context *context, void *user)
{
	const seen *s = user;
	const int rank = ddp_get_job(context)->rank, group = rank / GROUP;
	ddp_comm *comm;

	CHECK_OK(ddp_comm_split(ddp_world(context), group, rank, &comm));
	setup with = setup_of(0, DDP_SHARD_NONE);
	with.comm = comm;
	const training t = start(context, &with);
	if (group == 0)
		CHECK_OK(ddp_checkpoint_save(t.model, NULL, s->dir, 0));
	CHECK_OK(ddp_barrier(ddp_world(context)));
	if (group == 1) {
		CHECK_FAILS(ddp_checkpoint_save(t.model, NULL, s->dir, 0), DDP_ERR_STATE, s->dir);
	}
	CHECK_OK(ddp_barrier(ddp_world(context)));
	finish(t);
	return ddp_comm_free(comm) == DDP_OK ? 0 : 1;
}

TEST_WITH(two_groups_do_not_save_to_one_directory, folder_empty, NULL)
{
	seen *s = test_share(sizeof(*s));

	snprintf(s->dir, sizeof(s->dir), "%s/shared", test_folder);
	assert_int_equal(run_ranks(RANKS, one_directory_body, s), 0);
}

/* ---- errors ----------------------------------------------------------------------------------- */

static int not_finite_body(ddp_context *context, void *user)
{
	const int rank = ddp_get_job(context)->rank, group = rank / GROUP;
	ddp_step_stats stats;
	ddp_comm *comm;

	CHECK_OK(ddp_comm_split(ddp_world(context), group, rank, &comm));
	setup with = setup_of(0, DDP_SHARD_NONE);
	with.comm = comm;
	const training t = start(context, &with);
	CHECK_FAILS(ddp_comm_free(comm), DDP_ERR_STATE, "a model is still trained on the communicator");
	if (rank == RANKS - 1)
		ddp_model_param_grad(t.model, 0)[0] = (float)(0.0 / 0.0);
	const ddp_status status = ddp_model_step(t.model, 1, 1, &stats);
	if (group == 0) {
		CHECK_OK(status);
	} else {
		CHECK(status == DDP_ERR_NOT_FINITE);
		CHECK(strstr(ddp_last_error(), "on rank 3;") != NULL);
	}
	finish(t);
	return ddp_comm_free(comm) == DDP_OK ? 0 : 1;
}

TEST_RUNS(an_error_is_the_groups_and_names_a_rank_of_the_world,
          assert_int_equal(run_ranks(RANKS, not_finite_body, NULL), 0));

static int other_loader_body(ddp_context *context, void *user)
{
	const int rank = ddp_get_job(context)->rank;
	const ddp_train_options options = { DDP_TRAIN_OPTIONS_FIELDS, .steps = 1 };
	ddp_comm *comm;

	CHECK_OK(ddp_comm_split(ddp_world(context), rank / GROUP, rank, &comm));
	setup with = setup_of(0, DDP_SHARD_NONE);
	const training of_world = start(context, &with);
	with.comm = comm;
	const training of_group = start(context, &with);
	CHECK_FAILS(ddp_train(of_group.model, of_world.loader, mlp_batch, &options, NULL), DDP_ERR_INVALID,
	            "give both the same option comm");
	CHECK_OK(ddp_train(of_group.model, of_group.loader, mlp_batch, &options, NULL));
	CHECK_OK(ddp_train(of_world.model, of_world.loader, mlp_batch, &options, NULL));
	finish(of_group);
	finish(of_world);
	return ddp_comm_free(comm) == DDP_OK ? 0 : 1;
}

TEST_RUNS(a_loader_of_other_ranks_is_refused, assert_int_equal(run_ranks(RANKS, other_loader_body, NULL), 0));

/* ---- survivors ----------------------------------------------------------------------------------- */

static int survivors_body(ddp_context *context, void *user)
{
	seen *s = user;
	const int rank = ddp_get_job(context)->rank;
	ddp_comm *comm;

	setup with = setup_of(0, DDP_SHARD_STATE);
	with.checkpoint_dir = s->dir;
	with.steps = STEPS / 2;
	train(context, &with, s->params[rank][0]);
	if (rank == 1)
		_Exit(0);
	CHECK(ddp_barrier(ddp_world(context)) == DDP_ERR_PEER);
	CHECK_OK(ddp_comm_shrink(ddp_world(context), &comm));
	with.comm = comm;
	with.steps = STEPS;
	with.resume = true;
	train(context, &with, s->params[rank][0]);
	return ddp_comm_free(comm) == DDP_OK ? 0 : 1;
}

TEST_WITH(survivors_go_on_training, folder_empty, NULL)
{
	seen *s = test_share(sizeof(*s));

	snprintf(s->dir, sizeof(s->dir), "%s", test_folder);
	assert_int_equal(run_ranks(3, survivors_body, s), 0);
	assert_memory_equal(s->params[0][0], s->params[2][0], sizeof(s->params[0][0]));
}

TEST_MAIN(folder_make, folder_remove)
