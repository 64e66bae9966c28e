/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* agreement: what the ranks believe, completed and compared.
   job/nodes: a message about ranks names their nodes, as far as they are known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "job/job.h"
#include "job/nodes.h"
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

/* What one rank, or all of a node, believe in place of what is right, and what is said of it. Rank 0 is a rank as any
   other. */
#define WRONG(words, ...) do { \
	reset(NULL); \
	__VA_ARGS__; \
	disagree(words); \
} while (0)

TEST(what_differs_is_named)
{
	WRONG("rank 3 on b runs libddp 2, but the 3 others run libddp 1", beliefs[3].version = "2");
	WRONG("rank 0 on a runs libddp 2, but the 3 others run libddp 1", beliefs[0].version = "2");
	WRONG("rank 2 on b says that the number of nodes is 3, but the 3 others say 2", beliefs[2].nnodes = 3);
	WRONG("rank 0 on a says that the number of nodes is 1, but the 3 others say 2", beliefs[0].nnodes = 1);
	WRONG("rank 3 on b does not know a node rank, but the 3 others do", beliefs[3].node_rank = DDP_UNKNOWN);
	WRONG("rank 0 on a does not know a node rank, but the 3 others do", beliefs[0].node_rank = DDP_UNKNOWN);
	WRONG("rank 3 on b does not know a local rank, but the 3 others do", beliefs[3].local_rank = DDP_UNKNOWN);
	WRONG("rank 0 on a knows a local rank, but the 3 others do not",
	      beliefs[1].local_rank = beliefs[2].local_rank = beliefs[3].local_rank = DDP_UNKNOWN);
	WRONG("in the place of rank 2 says that it is rank 1", beliefs[2].rank = 1);
	WRONG("rank 1 on a says that the world size is 8, but 4 ranks came", beliefs[1].world_size = 8);
	WRONG("rank 2 on b and rank 3 on b, both of node 1, say that their local rank is 0", beliefs[3].local_rank = 0);
	WRONG("rank 1 on a says that the local world size is 3, but rank 0 on a says 2", beliefs[1].local_world_size = 3);
	WRONG("has 1 ranks, but 2 came", beliefs[2].local_world_size = beliefs[3].local_world_size = 1);
	WRONG("its local rank is 2 of 2", beliefs[1].local_rank = 2);
	WRONG("rank 2 on b says that it is on node 2 of 2", beliefs[2].node_rank = beliefs[3].node_rank = 2);
	WRONG("on node -7", beliefs[2].node_rank = beliefs[3].node_rank = -7);
	WRONG("there are 3 nodes, but no rank is on node 2", for (int r = 0; r < RANKS; r++) beliefs[r].nnodes = 3);
	WRONG("of 1000000000 (4 ranks)", for (int r = 0; r < RANKS; r++) beliefs[r].nnodes = 1000000000);
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

/* ---- job/nodes ------------------------------------------------------------------ */

enum { RANKS_MAX = 4096 };

static const char *const variables[] = { "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS",
	"SLURM_PROCID", "SLURM_NODEID", "SLURM_GTIDS" };

static ddp_job job;
static ddp_nodes nodes;
static bool listed[RANKS_MAX];

static int begin(void **state)
{
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
		unsetenv(variables[i]);
	memset(listed, 0, sizeof(listed));
	return 0;
}

/* What srun tells a task on the first node. */
static void step(const char *list, const char *tasks, int world_size, const char *own)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", world_size);
	setenv("SLURM_STEP_NODELIST", list, 1);
	setenv("SLURM_STEP_TASKS_PER_NODE", tasks, 1);
	setenv("SLURM_STEP_NUM_TASKS", number, 1);
	setenv("SLURM_PROCID", "0", 1);
	setenv("SLURM_NODEID", "0", 1);
	if (own != NULL)
		setenv("SLURM_GTIDS", own, 1);
	else
		unsetenv("SLURM_GTIDS");
	job = (ddp_job){ .world_size = world_size, .local_world_size = 1, .hostname = "n0" };
	ddp_nodes_find(&job, &nodes);
}

static void tells(const char *words, size_t bytes)
{
	char text[DDP_MISSING_BYTES];

	assert_string_equal(ddp_nodes_list(&nodes, listed, text, bytes), words);
	ddp_nodes_free(&nodes);
}

static void is_listed(const char *words)
{
	tells(words, DDP_MISSING_BYTES);
}

TEST_WITH(one_rank_is_named_with_its_node, begin, NULL)
{
	step("n[0-2]", "1(x3)", 3, "0");
	listed[2] = true;
	is_listed("rank 2 on n2");
}

TEST_WITH(ranks_are_named_by_node, begin, NULL)
{
	step("a,n[01-02],z", "2,1,2(x2)", 7, "0,1");
	listed[2] = listed[3] = listed[4] = listed[6] = true;
	is_listed("ranks 2 on n01; 3-4 on n02; 6 on z");
}

TEST_WITH(round_robin_is_known_by_this_nodes_tasks, begin, NULL)
{
	step("n[0-1]", "3,2", 5, "0,2,4");
	listed[1] = listed[2] = listed[3] = true;
	is_listed("ranks 1, 3 on n1; 2 on n0");
}

/* Tasks were dealt in a way of the user's. */
TEST_WITH(other_ways_of_dealing_name_no_node, begin, NULL)
{
	step("n[0-1]", "2(x2)", 4, "0,3");
	listed[1] = listed[2] = true;
	is_listed("ranks 1-2");
	step("n[0-1]", "2(x2)", 4, "0,1");
	ddp_nodes_check(&nodes, 2, "n0");
	is_listed("ranks 1-2");
}

TEST_WITH(what_two_ways_tell_differently_is_left_out, begin, NULL)
{
	step("n[0-2]", "1,2(x2)", 5, "0");
	listed[1] = listed[2] = listed[4] = true;
	is_listed("ranks 1 on n1; 2; 4 on n2");
}

TEST_WITH(ranks_that_came_tell_the_way, begin, NULL)
{
	step("n[0-2]", "1,2(x2)", 5, "0");
	ddp_nodes_check(&nodes, 3, "n1.cluster");
	listed[2] = true;
	is_listed("rank 2 on n2");
	step("n[0-2]", "1,2(x2)", 5, "0");
	ddp_nodes_check(&nodes, 3, "another-name");
	listed[2] = false;
	listed[1] = true;
	is_listed("rank 1 on n1");
}

/* An address has points that begin no domain. */
TEST_WITH(addresses_are_compared_whole, begin, NULL)
{
	step("10.0.0.1,10.0.0.2,10.0.0.3", "1,2(x2)", 5, "0");
	ddp_nodes_check(&nodes, 3, "10.0.0.2");
	listed[2] = true;
	is_listed("rank 2 on 10.0.0.3");
	step("10.0.0.1,10.0.0.2", "2(x2)", 4, "0,1");
	ddp_nodes_check(&nodes, 2, "10.0.0.1");
	is_listed("rank 2");
	step("7,10", "1,2", 3, "0");
	ddp_nodes_check(&nodes, 1, "10.cluster");
	is_listed("rank 2 on 10");
	step("7,10", "2,1", 3, "0,1");
	ddp_nodes_check(&nodes, 2, "7.0.0.1");
	is_listed("rank 2 on 10");
}

TEST_WITH(launcher_below_slurm_is_not_taken_for_srun, begin, NULL)
{
	step("n[0-1]", "1(x2)", 2, "0");
	ddp_nodes_free(&nodes);
	job.world_size = 8;
	job.local_world_size = 4;
	ddp_nodes_find(&job, &nodes);
	listed[5] = true;
	is_listed("rank 5");
}

TEST_WITH(broken_variables_name_no_node, begin, NULL)
{
	static const char *const tasks[] = { "", "x", "2(x", "2(x3)", "1(x2),", "2(x1)1", "0,4", "4", "-1,5", "2(x0),2(x2)" };

	listed[1] = true;
	for (size_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]); i++) {
		step("n[0-1]", tasks[i], 4, "0,1");
		is_listed("rank 1");
	}
	step("n[0-", "2(x2)", 4, "0,1");
	is_listed("rank 1");
	step("n[0-99999]", "2(x2)", 4, "0,1");
	is_listed("rank 1");
	step("n[0-1]", "2(x2)", 4, "0,x");
	is_listed("rank 1");
}

TEST_WITH(ranks_of_one_node_need_no_slurm, begin, NULL)
{
	job = (ddp_job){ .world_size = 4, .local_world_size = 4, .hostname = "here" };
	ddp_nodes_find(&job, &nodes);
	listed[1] = listed[2] = true;
	is_listed("ranks 1-2 on here");
}

TEST_WITH(many_are_counted, begin, NULL)
{
	step("n[0000-0999]", "4(x1000)", 4000, "0,1,2,3");
	for (int r = 4; r < 4000; r++)
		listed[r] = true;
	tells("ranks 4-7 on n0001; 8-11 on n0002; 12-15 on n0003; ... (3996 ranks on 999 nodes)", 100);
	step("n[0000-0999]", "4(x1000)", 4000, "0,1,2,3");
	memset(listed, 0, sizeof(listed));
	for (int r = 4; r < 4000; r += 2)
		listed[r] = true;
	tells("ranks 4, 6 on n0001; 8, 10 on n0002; ... (1998 ranks on 999 nodes)", 90);
}
