/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* job/nodes: a message about ranks names their nodes, as far as they are known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/nodes.h"
#include "tests/support/test.h"

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
