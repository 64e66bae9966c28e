/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* agreement: what the ranks believe, completed and compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "job/job.h"
#include "tests/support/test.h"
#include "wireup/agreement.h"

enum { RANKS = 4 };

static ddp_belief beliefs[RANKS];
static const char *const hosts[] = { "a", "b" };

/* Four ranks, two on each of two nodes, in blocks. */
static int reset(void **state)
{
	for (int r = 0; r < RANKS; r++)
		beliefs[r] = (ddp_belief){
			.version = "1", .hostname = hosts[r / 2], .node = hosts[r / 2], .rank = r,
			.world_size = RANKS, .local_rank = r % 2, .local_world_size = 2,
			.node_rank = r / 2, .nnodes = 2,
		};
	return 0;
}

static void forget_all(void)
{
	for (int r = 0; r < RANKS; r++) {
		beliefs[r].local_rank = beliefs[r].local_world_size = DDP_UNKNOWN;
		beliefs[r].node_rank = beliefs[r].nnodes = DDP_UNKNOWN;
	}
}

static void agree(void)
{
	if (ddp_beliefs_agree(beliefs, RANKS) != DDP_OK)
		fail_msg("%s", ddp_last_error());
}

static void disagree(const char *words)
{
	assert_int_equal(ddp_beliefs_agree(beliefs, RANKS), DDP_ERR_JOB);
	if (strstr(ddp_last_error(), words) == NULL)
		fail_msg("%s", ddp_last_error());
}

TEST_WITH(right_beliefs_agree, reset, NULL)
{
	agree();
}

TEST_WITH(unknown_values_come_from_the_nodes, reset, NULL)
{
	forget_all();
	agree();
	for (int r = 0; r < RANKS; r++) {
		assert_int_equal(beliefs[r].local_rank, r % 2);
		assert_int_equal(beliefs[r].local_world_size, 2);
		assert_int_equal(beliefs[r].node_rank, r / 2);
		assert_int_equal(beliefs[r].nnodes, 2);
	}
}

TEST_WITH(cyclic_and_uneven_nodes_are_counted_by_lowest_rank, reset, NULL)
{
	static const char *const nodes[] = { "b", "a", "b", "b" };

	forget_all();
	for (int r = 0; r < RANKS; r++)
		beliefs[r].node = nodes[r];
	agree();
	assert_int_equal(beliefs[0].node_rank, 0);
	assert_int_equal(beliefs[1].node_rank, 1);
	assert_int_equal(beliefs[3].node_rank, 0);
	assert_int_equal(beliefs[3].local_rank, 2);
	assert_int_equal(beliefs[3].local_world_size, 3);
	assert_int_equal(beliefs[1].local_world_size, 1);
}

TEST_WITH(local_ranks_without_node_ranks_are_kept, reset, NULL)
{
	for (int r = 0; r < RANKS; r++) {
		beliefs[r].node_rank = beliefs[r].nnodes = DDP_UNKNOWN;
		beliefs[r].local_rank = 1 - r % 2;
	}
	agree();
	assert_int_equal(beliefs[0].local_rank, 1);
	assert_int_equal(beliefs[2].node_rank, 1);
}

TEST_WITH(other_version_is_named, reset, NULL)
{
	beliefs[3].version = "2";
	disagree("rank 3 on b runs libddp 2, but the 3 others run libddp 1");
}

/* Rank 0 is a rank as any other. */
TEST_WITH(rank_0_may_be_the_odd_one, reset, NULL)
{
	beliefs[0].version = "2";
	disagree("rank 0 on a runs libddp 2, but the 3 others run libddp 1");
	reset(state);
	beliefs[0].nnodes = 1;
	disagree("rank 0 on a says that the number of nodes is 1, but the 3 others say 2");
	reset(state);
	beliefs[0].node_rank = DDP_UNKNOWN;
	disagree("rank 0 on a does not know a node rank, but the 3 others do");
	reset(state);
	for (int r = 1; r < RANKS; r++)
		beliefs[r].local_rank = DDP_UNKNOWN;
	disagree("rank 0 on a knows a local rank, but the 3 others do not");
}

TEST_WITH(wrong_place_is_named, reset, NULL)
{
	beliefs[2].rank = 1;
	disagree("in the place of rank 2 says that it is rank 1");
}

TEST_WITH(other_world_size_is_named, reset, NULL)
{
	beliefs[1].world_size = 8;
	disagree("rank 1 on a says that the world size is 8, but 4 ranks came");
}

TEST_WITH(other_number_of_nodes_names_both, reset, NULL)
{
	beliefs[2].nnodes = 3;
	disagree("rank 2 on b says that the number of nodes is 3, but the 3 others say 2");
}

TEST_WITH(node_rank_known_to_some_only_names_both, reset, NULL)
{
	beliefs[3].node_rank = DDP_UNKNOWN;
	disagree("rank 3 on b does not know a node rank, but the 3 others do");
}

TEST_WITH(local_rank_known_to_some_only_names_both, reset, NULL)
{
	beliefs[3].local_rank = DDP_UNKNOWN;
	disagree("rank 3 on b does not know a local rank, but the 3 others do");
}

TEST_WITH(one_local_rank_twice_names_both, reset, NULL)
{
	beliefs[3].local_rank = 0;
	disagree("rank 2 on b and rank 3 on b, both of node 1, say that their local rank is 0");
}

TEST_WITH(local_sizes_that_differ_name_both, reset, NULL)
{
	beliefs[1].local_world_size = 3;
	disagree("rank 1 on a says that the local world size is 3, but rank 0 on a says 2");
}

TEST_WITH(local_size_that_is_not_the_number_of_ranks_is_named, reset, NULL)
{
	beliefs[2].local_world_size = beliefs[3].local_world_size = 1;
	disagree("has 1 ranks, but 2 came");
}

TEST_WITH(local_rank_out_of_range_is_named, reset, NULL)
{
	beliefs[1].local_rank = 2;
	disagree("its local rank is 2 of 2");
}

TEST_WITH(node_rank_out_of_range_is_named, reset, NULL)
{
	beliefs[2].node_rank = beliefs[3].node_rank = 2;
	disagree("rank 2 on b says that it is on node 2 of 2");
	beliefs[2].node_rank = beliefs[3].node_rank = -7;
	disagree("on node -7");
}

TEST_WITH(node_without_ranks_is_named, reset, NULL)
{
	for (int r = 0; r < RANKS; r++)
		beliefs[r].nnodes = 3;
	disagree("there are 3 nodes, but no rank is on node 2");
}

TEST_WITH(more_nodes_than_ranks_is_an_error, reset, NULL)
{
	for (int r = 0; r < RANKS; r++)
		beliefs[r].nnodes = 1000000000;
	disagree("of 1000000000 (4 ranks)");
}

TEST_WITH(two_machines_in_one_node_rank_are_named, reset, NULL)
{
	for (int r = 0; r < RANKS; r++) {
		beliefs[r].node_rank = 0;
		beliefs[r].nnodes = 1;
		beliefs[r].local_rank = r;
		beliefs[r].local_world_size = RANKS;
		beliefs[r].boot_id = r < 2 ? "one" : "two";
	}
	disagree("2 ranks (the first is rank 2 on b) and the 2 others say that they are on node 0, but these are two "
	         "machines");
}

TEST_WITH(containers_of_one_machine_may_have_names_of_their_own, reset, NULL)
{
	beliefs[1].hostname = "container";
	for (int r = 0; r < RANKS; r++)
		beliefs[r].boot_id = "one";
	agree();
}

TEST(many_ranks_agree_quickly)
{
	enum { MANY = 20000, PER_NODE = 4 };
	ddp_belief *many = calloc(MANY, sizeof(*many));
	char (*names)[16] = calloc(MANY / PER_NODE, sizeof(*names));

	for (int n = 0; n < MANY / PER_NODE; n++)
		snprintf(names[n], sizeof(names[n]), "n%d", n);
	/* cyclic: the nodes come up again and again */
	for (int r = 0; r < MANY; r++)
		many[r] = (ddp_belief){
			.version = "1", .hostname = "h", .node = names[r % (MANY / PER_NODE)], .boot_id = "",
			.rank = r, .world_size = MANY, .local_rank = -1, .local_world_size = -1,
			.node_rank = -1, .nnodes = -1,
		};
	assert_int_equal(ddp_beliefs_agree(many, MANY), DDP_OK);
	assert_int_equal(many[MANY - 1].node_rank, MANY / PER_NODE - 1);
	assert_int_equal(many[MANY - 1].local_rank, PER_NODE - 1);
	free(many);
	free(names);
}
