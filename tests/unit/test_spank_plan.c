/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/srun/plan, roster and succession: who has which ranks after which failure; no clock, no node. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank/srun/plan.h"
#include "tests/support/test.h"

#define MS 1000000ull
#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define EXITED(code) ((code) << 8)
#define SAME "; it is the same rank as last time"
#define SILENT(node, ranks) "node " node " has been silent for 5.0 s, with ranks " ranks " (is its power or network lost?)"
#define NO_SPARE "; no spare is left to take its place (see spare= and min-nodes= in srun-ddp(7))"

enum { NODES_MAX = 8, TASKS_MAX = 4, SILENCE = 5000, ROOM = 512 };

/* A cluster of made-up nodes that answer at once, as far as they are there. */
static struct world {
	struct plan plan;
	uint64_t ms;
	uint32_t nodes, per_node;
	bool away[NODES_MAX], slow[NODES_MAX]; /* it hears nothing; it does not answer END */
	uint32_t generation[NODES_MAX];  /* that it runs; 0: none */
	uint32_t quits[NODES_MAX], ends[NODES_MAX], goes[NODES_MAX];
	struct deal_go go[NODES_MAX];
	uint32_t ranks[NODES_MAX][TASKS_MAX];
	uint64_t step, first;            /* that nodes tell with CLEAR, */
	enum deal_rest rest[NODES_MAX];  /* and this, if they may keep programs */
	char said[8192];                 /* a line for each sentence */
	char ended[PLAN_TEXT_MAX + 1];
	int wait_status;
	bool over, succeeded, all_ended;
	uint32_t begun, abandoned;
} world;

static uint64_t now(void)
{
	return (1000000 + world.ms) * MS;
}

static void join(uint32_t node, const uint32_t *tasks, uint32_t count)
{
	unsigned char bytes[ROOM];
	const struct deal_join join = { .version = DEAL_VERSION, .node_id = node, .task_count = count, .release = "0.2" };
	struct deal_join got;
	char name[16];

	snprintf(name, sizeof(name), "n%u", node);
	assert_true(deal_unpack_join(bytes, deal_pack_join(&join, tasks, bytes), &got));
	plan_join(&world.plan, &got, name, now());
}

static bool has_kept(uint32_t node)
{
	return world.rest[node] == DEAL_KEPT || world.rest[node] == DEAL_SOME;
}

static void clear(uint32_t node, bool fenced)
{
	const struct deal_clear told = { .generation = world.plan.generation, .fenced = fenced, .step = world.step,
		                         .first = world.first, .rest = world.plan.keeps ? world.rest[node] : DEAL_ENDED };

	if (!world.plan.keeps || !has_kept(node))
		world.generation[node] = 0;
	plan_clear(&world.plan, node, &told, now());
}

static void take_go(uint32_t node)
{
	struct deal_go *go = &world.go[node], got;
	unsigned char bytes[ROOM];
	uint32_t ranks[DEAL_TASKS_MAX];

	plan_go(&world.plan, node, go, ranks);
	strcpy(go->key, KEY);
	go->nodes = "n0";
	/* A node would take it. */
	assert_true(deal_unpack_go(bytes, deal_pack_go(go, ranks, bytes), &got));
	world.goes[node]++;
	if (world.away[node])
		return;
	/* Nothing of an older generation may live when a new one begins, except what the kernel does not let go. */
	for (uint32_t i = 0; i < world.nodes; i++)
		assert_true(world.away[i] || world.plan.roster.nodes[i].lost || world.generation[i] == 0 ||
		            world.generation[i] == go->generation || (go->joins && has_kept(i)));
	if (go->node_rank != DEAL_SPARE)
		world.generation[node] = go->generation;
	memcpy(world.ranks[node], ranks, go->local_count * sizeof(ranks[0]));
}

static void take_action(const struct plan_action *action)
{
	switch (action->kind) {
	case PLAN_SAY:
		strcat(strcat(world.said, action->text), "\n");
		break;
	case PLAN_BEGIN:
		world.begun++;
		break;
	case PLAN_SEND_END:
		world.ends[action->node]++;
		if (!world.away[action->node] && !world.slow[action->node])
			clear(action->node, false);
		break;
	case PLAN_SEND_GO:
		take_go(action->node);
		break;
	case PLAN_SEND_QUIT:
		assert_int_equal(action->wait_status, world.plan.phase == PLAN_OVER ? DEAL_OWN_STATUS : 0);
		world.quits[action->node]++;
		if (!world.away[action->node])
			world.generation[action->node] = 0;
		break;
	case PLAN_ALL_ENDED:
		world.all_ended = true;
		break;
	case PLAN_SUCCESS:
		world.over = world.succeeded = true;
		break;
	case PLAN_ABANDON:
		world.abandoned++;
		break;
	case PLAN_END_STEP:
		world.over = true;
		world.wait_status = action->wait_status;
		strcpy(world.ended, action->text);
		break;
	}
}

static void act(void)
{
	struct plan_action action;

	while (plan_act(&world.plan, now(), &action))
		take_action(&action);
	assert_true(plan_due(&world.plan) > now());
}

/* Until that time, with all that is due in between. Nodes that are there are heard. */
static void pass(uint64_t ms)
{
	uint64_t end = world.ms + ms;

	while (world.ms < end) {
		uint64_t due = plan_due(&world.plan), next = world.ms + 250;
		if (due < UINT64_MAX && due / MS - 1000000 < next)
			next = due / MS - 1000000;
		world.ms = next < end ? next : end;
		for (uint32_t i = 0; i < world.nodes; i++)
			if (!world.away[i])
				plan_heard(&world.plan, i, now());
		act();
	}
}

/* A world that no node has joined yet. */
static void start(struct plan_policy policy, uint32_t nodes, uint32_t tasks)
{
	memset(&world, 0, sizeof(world));
	world.nodes = nodes;
	world.per_node = tasks / nodes;
	policy.silence_ms = SILENCE;
	assert_true(plan_start(&world.plan, &policy, nodes, tasks));
}

static void begin(uint32_t nodes, uint32_t per_node, uint32_t restarts, uint32_t spares, uint32_t min_nodes)
{
	start((struct plan_policy){ .restarts = restarts, .spares = spares, .min_nodes = min_nodes }, nodes, nodes * per_node);
	for (uint32_t i = 0; i < nodes; i++) {
		uint32_t tasks[TASKS_MAX];
		assert_int_equal(world.begun, 0);
		for (uint32_t j = 0; j < per_node; j++)
			tasks[j] = i * per_node + j;
		join(i, tasks, per_node);
		act();
	}
	assert_int_equal(world.begun, 1);
	pass(1000);
	assert_string_equal(world.said, "");
}

static void end(void)
{
	plan_free(&world.plan);
}

static void fail_by(struct plan_failure failure)
{
	plan_fail(&world.plan, &failure, now());
	act();
}

static void fail_of(const char *text, const char *node, uint32_t rank, int wait_status)
{
	fail_by((struct plan_failure){ .text = text, .node = node, .rank = rank, .wait_status = wait_status });
}

/* Its page says that the other ranks go on. */
static void fail_of_survivors(const char *text, const char *node, uint32_t rank)
{
	fail_by((struct plan_failure){ .text = text, .node = node, .rank = rank, .wait_status = 9, .survived = true });
}

static void hearsay(const char *text)
{
	fail_by((struct plan_failure){ .text = text, .rank = 0, .wait_status = EXITED(1), .hearsay = true });
}

static void lose_agent(uint32_t node)
{
	plan_lose_agent(&world.plan, node, &(struct deal_lost){ .generation = 1 }, now());
}

/* The power goes, and srun notices it. */
static void lose_power(uint32_t node)
{
	world.away[node] = true;
	world.generation[node] = 0;
}

static void silent(uint32_t node)
{
	plan_silent(&world.plan, node, SILENCE, now());
	act();
}

static void lose(uint32_t node)
{
	lose_power(node);
	pass(SILENCE);
	silent(node);
}

static void done(uint32_t node, uint32_t local_task, int wait_status)
{
	const struct deal_done told = { .generation = world.plan.generation, .local_task = local_task,
		                        .rank = world.ranks[node][local_task], .wait_status = wait_status };

	plan_done(&world.plan, node, &told, now());
	act();
}

static void all_done(void)
{
	for (uint32_t i = 0; i < world.nodes; i++)
		for (uint32_t j = 0; world.generation[i] > 0 && j < world.per_node; j++)
			done(i, j, 0);
}

static void expect_said(const char *text)
{
	assert_string_equal(world.said, text);
	world.said[0] = '\0';
}

static void expect_ranks(uint32_t node, uint32_t node_rank, uint32_t first, uint32_t second)
{
	assert_int_equal(world.go[node].node_rank, node_rank);
	assert_int_equal(world.go[node].local_count, 2);
	assert_int_equal(world.ranks[node][0], first);
	assert_int_equal(world.ranks[node][1], second);
}

static void expect_success(void)
{
	all_done();
	assert_true(world.succeeded);
	for (uint32_t i = 0; i < world.nodes; i++)
		assert_int_equal(world.quits[i], 1);
	end();
}

static void expect_end(const char *text, int wait_status)
{
	assert_true(world.over);
	assert_false(world.succeeded);
	assert_string_equal(world.ended, text);
	assert_int_equal(world.wait_status, wait_status);
	for (uint32_t i = 0; i < world.nodes; i++)
		assert_int_equal(world.quits[i], 1);
	end();
}

/* ---- a training without a failure ---------------------------------------------- */

TEST(last_nodes_wait)
{
	begin(4, 2, 3, 2, 0);
	expect_ranks(1, 1, 2, 3);
	for (uint32_t i = 2; i < 4; i++) {
		assert_int_equal(world.go[i].node_rank, DEAL_SPARE);
		assert_int_equal(world.go[i].generation, 1);
		assert_int_equal(world.go[i].world_size, 4);
		assert_int_equal(world.go[i].node_count, 2);
	}
	assert_int_equal(roster_node_of(&world.plan.roster, 3), 1);
	assert_int_equal(roster_node_of(&world.plan.roster, 4), ROSTER_NONE);
	assert_int_equal(roster_node_at(&world.plan.roster, 1), 1);
	assert_int_equal(roster_node_at(&world.plan.roster, 2), ROSTER_NONE);
	expect_success();
}

/* -m cyclic: tasks of a node are not neighbours, and rank 0 may be anywhere. */
TEST(ranks_keep_the_order_of_tasks)
{
	static const uint32_t tasks[3][2] = { { 1, 4 }, { 0, 3 }, { 2, 5 } };

	start((struct plan_policy){ .restarts = 1, .spares = 1 }, 3, 6);
	for (uint32_t i = 0; i < 3; i++)
		join(2 - i, tasks[2 - i], 2);
	act();
	expect_ranks(0, 0, 1, 3);
	expect_ranks(1, 1, 0, 2);
	assert_int_equal(world.go[0].master, 1);
	expect_success();
}

/* Three nodes of one task each, of which one is to wait. */
static void join_with_odd(const char *odd_nodes)
{
	start((struct plan_policy){ .restarts = 1, .spares = 1, .odd_nodes = odd_nodes }, 3, 3);
	for (uint32_t i = 0; i < 3; i++)
		join(i, &i, 1);
	act();
}

TEST(an_odd_node_waits_from_the_beginning)
{
	join_with_odd("n0,n12");
	expect_said("preflight=exclude: n2 takes the place of n0 (0 spares left)\n");
	assert_int_equal(world.go[0].node_rank, DEAL_SPARE);
	assert_int_equal(world.go[2].node_rank, 0);
	assert_int_equal(world.ranks[2][0], 0);
	/* It is better than none. */
	lose_power(1);
	plan_gone(&world.plan, 1, now());
	pass(PLAN_GONE_MS + 1000);
	assert_int_equal(world.begun, 2);
	assert_int_not_equal(world.go[0].node_rank, DEAL_SPARE);
	end();
}

TEST(an_odd_node_that_is_a_spare_stays_one)
{
	join_with_odd("n2");
	expect_said("");
	assert_int_equal(world.go[2].node_rank, DEAL_SPARE);
	end();
}

TEST(unequal_nodes_can_restart)
{
	static const uint32_t tasks[] = { 0, 1, 2 };

	start((struct plan_policy){ .restarts = 1 }, 2, 3);
	join(0, tasks, 1);
	join(1, tasks + 1, 2);
	act();
	assert_int_equal(world.go[1].local_count, 2);
	fail_of("rank 0 died", "n0", 0, EXITED(1));
	expect_said("rank 0 died; restart 1 of 1\n");
	end();
}

/* ---- failures of ranks -------------------------------------------------------------- */

TEST(a_crash_restarts_all_ranks)
{
	begin(3, 2, 3, 0, 0);
	fail_of("rank 3 died", "n1", 3, 11);
	expect_said("rank 3 died; restart 1 of 3\n");
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(world.ends[i], 1);
		expect_ranks(i, i, 2 * i, 2 * i + 1);
		assert_int_equal(world.go[i].generation, 2);
		assert_int_equal(world.go[i].restart_count, 1);
		assert_int_equal(world.go[i].port_seed, 1);
	}
	assert_int_equal(world.begun, 2);
	pass(60000);
	expect_success();
	assert_string_equal(world.said, "");
	/* A spare stays one. */
	begin(3, 2, 3, 1, 0);
	fail_of("rank 3 died", "n1", 3, 11);
	expect_said("rank 3 died; restart 1 of 3 (1 spare left)\n");
	expect_ranks(1, 1, 2, 3);
	assert_int_equal(world.go[2].node_rank, DEAL_SPARE);
	assert_int_equal(world.go[2].generation, 2);
	expect_success();
}

static void port_taken(void)
{
	fail_by((struct plan_failure){ .text = "port 12000 is taken", .node = "n0", .rank = ROSTER_NONE,
	                               .wait_status = EXITED(1),
	                            .port_taken = true });
}

TEST(a_port_that_is_taken_costs_no_restart)
{
	begin(2, 2, 1, 0, 0);
	port_taken();
	expect_said("port 12000 is taken; the next port is tried, which is no restart\n");
	assert_int_equal(world.go[0].restart_count, 0);
	assert_int_equal(world.go[0].port_seed, 1);
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	for (int i = 1; i < PLAN_PORTS; i++)
		port_taken();
	assert_int_equal(world.go[0].restart_count, 1);
	assert_int_equal(world.go[0].port_seed, PLAN_PORTS + 1);
	port_taken();
	expect_end("port 12000 is taken; the one restart of restart=1 is used up", EXITED(1));
}

TEST(the_same_rank_is_told)
{
	begin(2, 2, 2, 0, 0);
	world.step = 40;
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	world.step = 41;
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	expect_said("rank 3 died; restart 1 of 2\nrank 3 died" SAME "; restart 2 of 2\n");
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	expect_end("rank 3 died" SAME "; all restarts of restart=2 are used up", EXITED(7));
	begin(2, 2, 1, 0, 0);
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	fail_of("rank 1 died", "n0", 1, EXITED(7));
	expect_end("rank 1 died; the one restart of restart=1 is used up", EXITED(7));
}

TEST(two_restarts_without_a_new_step_end_it)
{
	begin(2, 2, 10, 0, 0);
	world.step = 40;
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	expect_said("rank 3 died; restart 1 of 10\n"
	            "rank 3 died; it is the same rank in the same step 40 as last time; restart 2 of 10\n");
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	expect_end("rank 3 died; the step was restarted twice without a new step or checkpoint, and is ended", EXITED(7));
}

TEST(a_new_step_or_checkpoint_counts)
{
	begin(2, 2, 100, 0, 0);
	for (uint32_t i = 0; i < 20; i++) { /* a new step in each second generation */
		world.step = 40 + i / 2;
		fail_of("rank 3 died", "n1", 3, EXITED(7));
	}
	assert_int_equal(world.plan.restarts, 20);
	world.step = 30; /* no new step, but later checkpoints, from which the next generation begins */
	for (uint32_t i = 1; i < 20; i++) {
		world.first = i;
		fail_of("rank 3 died", "n1", 3, EXITED(7));
	}
	assert_int_equal(world.plan.restarts, 39);
	expect_success();
}

TEST(where_pages_show_no_steps_nobody_counts)
{
	begin(2, 2, 9, 0, 0);
	for (uint32_t i = 0; i < 9; i++)
		fail_of("rank 3 died", "n1", 3, EXITED(7));
	assert_int_equal(world.plan.restarts, 9);
	/* A program that has shown steps, and then fails at its start, is counted. */
	end();
	begin(2, 2, 9, 0, 0);
	world.step = 5;
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	world.step = 0;
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	expect_end("rank 3 died; the step was restarted twice without a new step or checkpoint, and is ended", EXITED(7));
}

TEST(a_node_where_ranks_fail_twice_is_replaced)
{
	begin(3, 2, 9, 1, 0);
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	fail_of("rank 2 died", "n1", 2, EXITED(7));
	expect_said("rank 3 died; restart 1 of 9 (1 spare left)\n"
	            "rank 2 died; restart 2 of 9: n2 takes the place of n1 (0 spares left)\n");
	expect_ranks(2, 1, 2, 3);
	assert_int_equal(world.go[1].node_rank, DEAL_SPARE);
	/* It is better than none. */
	lose_power(0);
	silent(0);
	expect_said(SILENT("n0", "0-1") "; restart 3 of 9: n1 takes the place of n0 (0 spares left)\n");
	expect_ranks(1, 0, 0, 1);
	expect_success();
}

TEST(without_a_spare_such_a_node_stays)
{
	begin(2, 2, 9, 0, 1);
	for (int i = 0; i < 4; i++)
		fail_of("rank 3 died", "n1", 3, EXITED(7));
	expect_ranks(1, 1, 2, 3);
	expect_success();
}

/* Rank 0's node tells of it, and another node's name is in the sentence. */
static void damage_of(const char *node)
{
	fail_by((struct plan_failure){ .text = "rank 3 has other parameters", .node = "n0", .rank = 0,
	                               .wait_status = EXITED(7),
	                            .damaged = node });
}

TEST(a_damaged_node_is_replaced_at_once)
{
	begin(3, 2, 9, 1, 0);
	damage_of("n1");
	expect_said("rank 3 has other parameters; restart 1 of 9: n2 takes the place of n1 (0 spares left)\n");
	expect_ranks(2, 1, 2, 3);
	assert_int_equal(world.quits[1], 1);
	/* It never comes back. */
	lose_power(0);
	silent(0);
	expect_end(SILENT("n0", "0-1") NO_SPARE, EXITED(1));
	/* A healthy node keeps its place if the damaged one is not known. */
	begin(3, 2, 9, 1, 0);
	damage_of("n1.example.org");
	expect_said("rank 3 has other parameters; restart 1 of 9 (1 spare left)\n");
	expect_success();
}

TEST(the_step_goes_on_without_a_damaged_node_if_it_may)
{
	begin(3, 2, 9, 0, 2);
	damage_of("n1");
	expect_said("rank 3 has other parameters; restart 1 of 9: the step goes on with 2 of 3 nodes\n");
	expect_ranks(2, 1, 2, 3);
	damage_of("n2");
	expect_said("rank 3 has other parameters; node n2 stays, because no spare is left; it is the same rank as last time; "
	            "restart 2 of 9\n");
	expect_ranks(2, 1, 2, 3);
	/* A name that no node has: the node that tells of it is not damaged. */
	damage_of("n");
	expect_said("rank 3 has other parameters; it is the same rank as last time; restart 3 of 9\n");
	expect_success();
}

/* The other slot that needs the spare is that of a node which cannot start its ranks again. */
TEST(a_damaged_node_stays_if_another_one_needs_the_spare)
{
	begin(3, 2, 9, 1, 0);
	lose_agent(0);
	damage_of("n1");
	expect_said("rank 3 has other parameters; node n1 stays, because no spare is left; restart 1 of 9: n2 takes the place "
	            "of n0 (0 spares left)\n");
	expect_ranks(2, 0, 0, 1);
	expect_success();
	begin(4, 2, 9, 0, 3);
	lose_agent(0);
	damage_of("n1");
	expect_said("rank 3 has other parameters; node n1 stays, because no spare is left; restart 1 of 9: the step goes on "
	            "with 3 of 4 nodes\n");
	expect_success();
}

TEST(other_nodes_in_between_keep_a_node)
{
	begin(3, 2, 9, 1, 0);
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	fail_of("rank 0 died", "n0", 0, EXITED(7));
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	assert_int_equal(world.go[2].node_rank, DEAL_SPARE);
	hearsay("rank 2 was lost");
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	assert_int_equal(world.go[2].node_rank, DEAL_SPARE);
	expect_success();
}

/* ---- ends without a restart ----------------------------------------------------------- */

TEST(an_early_good_end_is_no_failure)
{
	begin(2, 2, 3, 0, 0);
	done(0, 1, 0);
	pass(60000);
	assert_int_equal(world.begun, 1);
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	expect_end("rank 3 died; no restart, as rank 1 of 4 had ended with code 0", EXITED(7));
}

TEST(a_step_that_stops_is_not_restarted)
{
	const struct plan_failure failure = { .text = "rank 1 of 4 exited with 75", .node = "n0", .rank = 1,
		                              .wait_status = EXITED(75), .stopping = true };

	begin(2, 2, 3, 0, 0);
	fail_by(failure);
	expect_end("rank 1 of 4 exited with 75", EXITED(75));
	/* Also while a generation ends. */
	begin(2, 2, 3, 0, 0);
	world.slow[1] = true;
	fail_of("rank 3 died", "n1", 3, EXITED(7));
	fail_by(failure);
	expect_end("rank 1 of 4 exited with 75", EXITED(75));
}

TEST(ranks_that_all_end_end_the_step)
{
	begin(2, 2, 3, 0, 0);
	for (uint32_t i = 0; i < 4; i++)
		done(i / 2, i % 2, EXITED(75));
	assert_false(world.all_ended);
	pass(PLAN_SETTLE_MS);
	assert_true(world.all_ended);
	assert_false(world.over);
	/* Nothing else was said of them. */
	plan_leave(&world.plan);
	act();
	assert_int_equal(world.quits[1], 1);
	assert_string_equal(world.said, "");
	end();
}

TEST(ranks_that_all_fail_are_restarted)
{
	begin(2, 2, 3, 0, 0);
	for (uint32_t i = 0; i < 4; i++)
		done(i / 2, i % 2, EXITED(1));
	pass(100);
	fail_of("rank 3 died", "n1", 3, EXITED(1));
	expect_said("rank 3 died; restart 1 of 3\n");
	pass(10000);
	assert_false(world.all_ended);
	expect_success();
}

TEST(a_program_that_cannot_start_is_not_restarted)
{
	struct deal_done told = { .generation = 1, .local_task = 1, .wait_status = EXITED(2), .never_ran = true };

	begin(2, 2, 3, 0, 0);
	plan_done(&world.plan, 1, &told, now());
	fail_of("rank 3 died", "n1", 3, EXITED(2));
	expect_end("rank 3 died; no restart, as SLURM could not start the program", EXITED(2));
	/* It has run before, so the node has failed. */
	begin(2, 2, 3, 0, 0);
	fail_of("rank 0 died", "n0", 0, EXITED(1));
	expect_said("rank 0 died; restart 1 of 3\n");
	told.generation = 2;
	plan_done(&world.plan, 1, &told, now());
	fail_of("rank 3 died", "n1", 3, EXITED(2));
	expect_said("rank 3 died; restart 2 of 3\n");
	expect_success();
}

TEST(what_nodes_repeat_or_invent_counts_for_nothing)
{
	struct deal_done told = { .generation = 1, .local_task = 0, .wait_status = 0 };

	begin(2, 1, 3, 1, 0);
	plan_done(&world.plan, 7, &told, now());
	plan_done(&world.plan, 1, &told, now()); /* the spare */
	told.local_task = 1;
	plan_done(&world.plan, 0, &told, now());
	told.local_task = 0;
	told.generation = 2;
	plan_done(&world.plan, 0, &told, now());
	plan_clear(&world.plan, 7, &(struct deal_clear){ .generation = 1, .fenced = true }, now());
	plan_clear(&world.plan, 0, &(struct deal_clear){ .generation = 1 }, now());
	lose_agent(7);
	plan_silent(&world.plan, 7, SILENCE, now());
	plan_gone(&world.plan, 7, now());
	plan_bye(&world.plan, 7, now());
	plan_heard(&world.plan, 7, now());
	act();
	assert_int_equal(world.plan.ended_count, 0);
	assert_int_equal(world.begun, 1);
	expect_success();
}

/* ---- nodes that are lost ---------------------------------------------------------------- */

/* A spare that is dead, and not yet silent for long enough, delays a restart only if its place is needed. */
TEST(a_spare_that_does_not_answer_is_not_waited_for)
{
	begin(3, 2, 3, 1, 0);
	lose_power(2);
	fail_of("rank 1 died", "n0", 1, EXITED(7));
	expect_said("");
	pass(PLAN_SPARE_MS);
	expect_said("rank 1 died; restart 1 of 3 (1 spare left)\n");
	pass(SILENCE);
	silent(2);
	expect_said("node n2 has been silent for 5.0 s (is its power or network lost?); it was a spare (0 spares left)\n");
	expect_success();

	begin(4, 2, 3, 2, 0);
	lose_power(0);
	lose_power(2);
	pass(SILENCE);
	silent(0);
	pass(PLAN_SPARE_MS);
	expect_said(SILENT("n0", "0-1") "; restart 1 of 3: n3 takes the place of n0 (1 spare left)\n");
	expect_success();

	begin(3, 2, 3, 1, 0);
	lose_power(0);
	lose_power(2);
	pass(SILENCE);
	silent(0);
	expect_said("");
	silent(2);
	expect_end(SILENT("n0", "0-1") NO_SPARE, EXITED(1));
}

/* Once the others have ended, and a while later if one of them does not. */
TEST(nodes_that_are_away_are_abandoned)
{
	for (uint32_t last = 2; last < 4; last++) {
		begin(4, 2, 3, 1, 0);
		lose_power(1);
		pass(SILENCE);
		silent(1);
		all_done();
		assert_true(world.succeeded);
		for (uint32_t i = 0; i <= last; i++)
			if (i != 1)
				plan_bye(&world.plan, i, now());
		act();
		assert_int_equal(world.abandoned, last == 3);
		pass(PLAN_LEAVE_MS);
		assert_int_equal(world.abandoned, 1);
		assert_true(plan_due(&world.plan) == UINT64_MAX);
		end();
	}
	/* One that has come back, and ended its tasks, is not. */
	begin(3, 2, 3, 1, 0);
	lose(1);
	plan_bye(&world.plan, 1, now());
	all_done();
	pass(2 * PLAN_LEAVE_MS);
	assert_int_equal(world.abandoned, 0);
	end();
	/* One that is lost while the others end is. */
	begin(3, 2, 3, 1, 0);
	all_done();
	lose_power(1);
	plan_bye(&world.plan, 0, now());
	plan_bye(&world.plan, 2, now());
	pass(SILENCE);
	assert_int_equal(world.abandoned, 0);
	silent(1);
	assert_int_equal(world.abandoned, 1);
	end();
}

TEST(min_nodes_go_on)
{
	begin(4, 2, 9, 0, 2);
	lose(1);
	expect_said(SILENT("n1", "2-3") "; restart 1 of 9: the step goes on with 3 of 4 nodes\n");
	expect_ranks(0, 0, 0, 1);
	expect_ranks(2, 1, 2, 3);
	expect_ranks(3, 2, 4, 5);
	assert_int_equal(world.go[3].world_size, 6);
	assert_int_equal(world.go[3].node_count, 3);
	lose(0);
	expect_ranks(2, 0, 0, 1);
	assert_int_equal(world.go[2].master, 0);
	world.said[0] = '\0';
	lose(3);
	expect_end(SILENT("n3", "2-3") "; no spare is left, and "
	           "min-nodes=2 needs more nodes than the 1 that is left", EXITED(1));
}

TEST(spares_go_before_fewer_nodes)
{
	begin(4, 2, 9, 1, 1);
	lose_power(0);
	lose_power(1);
	pass(SILENCE);
	silent(0);
	silent(1);
	expect_said(SILENT("n0", "0-1") "; " SILENT("n1", "2-3") "; restart 1 of 9: n3 takes the place of n0, and the step "
	            "goes on with 2 of 3 nodes (0 spares left)\n");
	expect_ranks(3, 0, 0, 1);
	expect_ranks(2, 1, 2, 3);
	expect_success();
}

TEST(survivors_keep_their_processes)
{
	begin(2, 2, 4, 0, 0);
	world.rest[0] = DEAL_KEPT;
	world.rest[1] = DEAL_SOME;
	world.step = 4;
	fail_of_survivors("rank 3 was killed", "n1", 3);
	expect_said("rank 3 was killed; restart 1 of 4: the other ranks keep their processes\n");
	/* No other node could take the place of one on which ranks fail twice. */
	world.step = 5;
	fail_of_survivors("rank 3 was killed", "n1", 3);
	expect_said("rank 3 was killed" SAME "; restart 2 of 4: the other ranks keep their processes\n");
	assert_true(world.go[0].joins && world.go[1].joins);
	assert_int_equal(world.ends[0] + world.ends[1], 4);
	/* Who was started has not joined. */
	world.rest[0] = world.rest[1] = DEAL_ENDED;
	fail_of("rank 3 exited with code 1", "n1", 3, EXITED(1));
	expect_said("rank 3 exited with code 1; it is the same rank in the same step 5 as last time; restart 3 of 4: all ranks "
	            "start again\n");
	assert_false(world.go[0].joins || world.go[1].joins);
	/* In this generation nobody has stayed. */
	world.step = 9;
	fail_of("rank 0 exited with code 1", "n0", 0, EXITED(1));
	expect_said("rank 0 exited with code 1; restart 4 of 4\n");
	expect_success();
}

TEST(survivors_are_joined_by_a_spare)
{
	begin(3, 2, 1, 1, 0);
	world.rest[0] = DEAL_KEPT;
	world.rest[2] = DEAL_NONE;
	lose_power(1);
	silent(1);
	expect_said(SILENT("n1", "2-3") "; restart 1 of 1: "
	            "n2 takes the place of n1, and the other ranks keep their processes (0 spares left)\n");
	assert_true(world.go[0].joins && world.go[2].joins);
	expect_ranks(2, 1, 2, 3);
	all_done();
	assert_true(world.succeeded);
	end();
}

/* Where no other node waits, one on which ranks failed twice takes a lost node's place. */
TEST(survivors_are_joined_by_a_node_that_failed_before)
{
	begin(3, 2, 9, 1, 0);
	world.rest[0] = DEAL_KEPT;
	world.rest[1] = DEAL_SOME;
	world.rest[2] = DEAL_NONE;
	fail_of_survivors("rank 3 was killed", "n1", 3);
	expect_said("rank 3 was killed; restart 1 of 9: the other ranks keep their processes (1 spare left)\n");
	fail_of_survivors("rank 2 was killed", "n1", 2);
	expect_said("rank 2 was killed; restart 2 of 9: n2 takes the place of n1, and all ranks start again (0 spares left)\n");
	world.rest[1] = DEAL_NONE;
	lose_power(2);
	silent(2);
	expect_said(SILENT("n2", "2-3") "; restart 3 of 9: "
	            "n1 takes the place of n2, and the other ranks keep their processes (0 spares left)\n");
	assert_true(world.go[0].joins && world.go[1].joins);
	expect_ranks(1, 1, 2, 3);
	expect_success();
}

TEST(a_port_that_is_taken_ends_those_who_stayed)
{
	begin(2, 2, 2, 0, 0);
	world.rest[0] = DEAL_SOME;
	world.rest[1] = DEAL_KEPT;
	fail_of_survivors("rank 0 was killed", "n0", 0);
	expect_said("rank 0 was killed; restart 1 of 2: the other ranks keep their processes\n");
	world.rest[0] = world.rest[1] = DEAL_ENDED;
	port_taken();
	expect_said("port 12000 is taken; restart 2 of 2: all ranks start again\n");
	assert_int_equal(world.go[0].restart_count, 2);
	expect_success();
}

/* A spare of an older release says nothing of what ran there. */
TEST(a_spare_of_an_older_release_is_not_to_join)
{
	begin(3, 2, 1, 1, 0);
	world.rest[0] = DEAL_KEPT;
	lose_power(1);
	silent(1);
	expect_said(SILENT("n1", "2-3") "; restart 1 of 1: "
	            "n2 takes the place of n1, and all ranks start again (0 spares left)\n");
	assert_false(world.go[0].joins || world.go[2].joins);
	all_done();
	assert_true(world.succeeded);
	end();
}

/* `said` follows the failure of rank 3 of two nodes, as these say what has become of their ranks. */
static void expect_end_of_all(enum deal_rest first, enum deal_rest second, uint32_t ends, const char *said)
{
	begin(2, 2, 1, 0, 0);
	world.rest[0] = first;
	world.rest[1] = second;
	fail_of_survivors("rank 3 was killed", "n1", 3);
	expect_said(said);
	assert_false(world.go[0].joins || world.go[1].joins);
	assert_int_equal(world.ends[0], ends);
	expect_success();
}

TEST(survivors_end_if_others_cannot_join)
{
	const char *refused = "rank 3 was killed; restart 1 of 1: all ranks start again\n";

	expect_end_of_all(DEAL_KEPT, DEAL_ENDED, 2, refused);
	expect_end_of_all(DEAL_KEPT, DEAL_KEPT, 2, refused); /* nobody is missing: ranks hang */
	expect_end_of_all(DEAL_ENDED, DEAL_ENDED, 1, "rank 3 was killed; restart 1 of 1\n");
	expect_end_of_all(DEAL_NONE, DEAL_NONE, 1, "rank 3 was killed; restart 1 of 1\n");
	/* The ranks become fewer. */
	begin(3, 2, 1, 0, 2);
	world.rest[0] = world.rest[2] = DEAL_KEPT;
	lose_power(1);
	silent(1);
	expect_said(SILENT("n1", "2-3") "; restart 1 of 1: "
	            "the step goes on with 2 of 3 nodes, and all ranks start again\n");
	assert_false(world.go[0].joins || world.go[2].joins);
	assert_int_equal(world.ends[0], 2);
	all_done();
	assert_true(world.succeeded);
	end();
}

TEST(two_failures_at_once_are_one_restart)
{
	begin(4, 2, 3, 2, 0);
	lose_power(1);
	pass(2000);
	fail_of("rank 0 died", "n0", 0, 11);
	fail_of("rank 1 died", "n0", 1, 11);
	pass(3000);
	assert_string_equal(world.said, "");
	silent(1);
	expect_said("rank 0 died; " SILENT("n1", "2-3") "; restart 1 of 3: n2 takes the place of n1 (1 spare left)\n");
	assert_int_equal(world.begun, 2);
	expect_success();
}

TEST(two_nodes_at_once_are_one_restart)
{
	begin(5, 2, 3, 2, 0);
	lose_power(1);
	lose_power(2);
	pass(SILENCE);
	silent(1);
	assert_string_equal(world.said, ""); /* n2 is not clear */
	silent(2);
	expect_said(SILENT("n1", "2-3") "; " SILENT("n2", "4-5") "; restart 1 of 3: n3 takes the place of n1, n4 takes the "
	            "place of n2 (0 spares left)\n");
	expect_ranks(3, 1, 2, 3);
	expect_ranks(4, 2, 4, 5);
	expect_success();
}

/* The spare that was told to begin is dead. */
TEST(a_failure_after_go_is_one_more_generation)
{
	begin(4, 2, 3, 2, 0);
	lose_power(1);
	pass(SILENCE - 1000);
	lose_power(2);
	pass(1000);
	silent(1);
	/* n2 has not answered END, and is not needed. */
	assert_int_equal(world.begun, 1);
	pass(PLAN_SPARE_MS);
	assert_int_equal(world.begun, 2);
	pass(4000);
	silent(2);
	assert_int_equal(world.begun, 2);
	expect_ranks(3, 1, 2, 3);
	/* It dies as soon as it has got its ranks, and others say so, too. */
	world.said[0] = '\0';
	lose_power(3);
	hearsay("rank 2 did not come");
	pass(SILENCE);
	silent(3);
	expect_end(SILENT("n3", "2-3") NO_SPARE, EXITED(1));
}

TEST(a_node_that_comes_back_is_told_to_quit)
{
	const uint32_t tasks[] = { 2, 3 };

	begin(3, 2, 3, 1, 0);
	world.away[1] = true; /* its ranks live on, and end by the fence */
	pass(SILENCE);
	silent(1);
	assert_int_equal(world.quits[1], 1); /* which it did not hear */
	pass(10000);
	world.away[1] = false;
	join(1, tasks, 2);
	act();
	assert_int_equal(world.quits[1], 2);
	clear(1, true);
	act();
	assert_int_equal(world.begun, 2);
	all_done();
	assert_true(world.succeeded);
	end();
}

TEST(a_node_that_ends_its_ranks_itself_is_one_restart)
{
	begin(3, 2, 3, 1, 0);
	clear(1, true);
	act();
	expect_said("node n1 did not reach srun for too long, and has ended its ranks; restart 1 of 3 (1 spare left)\n");
	expect_ranks(1, 1, 2, 3);
	clear(2, true); /* a spare has none */
	act();
	assert_int_equal(world.begun, 2);
	expect_success();
}

/* ---- srun itself is cut off --------------------------------------------------------------- */

static void all_away(bool away)
{
	for (uint32_t i = 0; i < world.nodes; i++)
		world.away[i] = away;
}

/* Their ranks have ended meanwhile. */
static void all_back(void)
{
	memset(world.generation, 0, sizeof(world.generation));
	all_away(false);
	pass(250);
}

TEST(all_nodes_silent_are_waited_for)
{
	begin(3, 2, 3, 1, 0);
	all_away(true);
	pass(SILENCE);
	for (uint32_t i = 0; i < 3; i++)
		silent(i);
	pass(3000);
	assert_string_equal(world.said, "");
	all_back();
	expect_said("srun did not reach any node for 8.2 s; restart 1 of 3 (1 spare left)\n");
	assert_int_equal(world.begun, 2);
	expect_ranks(1, 1, 2, 3);
	expect_success();
}

TEST(links_may_tell_of_all_nodes_at_once)
{
	begin(3, 2, 3, 1, 0);
	all_away(true);
	pass(15000);
	plan_all_silent(&world.plan, 15000, now());
	pass(2000);
	all_back();
	expect_said("srun did not reach any node for 17.2 s; restart 1 of 3 (1 spare left)\n");
	expect_success();
}

TEST(who_does_not_come_back_is_lost)
{
	begin(3, 2, 3, 1, 0);
	all_away(true);
	pass(SILENCE);
	silent(0);
	pass(3000);
	memset(world.generation, 0, sizeof(world.generation));
	world.away[0] = world.away[2] = false;
	pass(SILENCE + 250);
	expect_said("srun did not reach any node for 13.2 s, and has lost n1; restart 1 of 3: n2 takes the place of n1 (0 "
	            "spares left)\n");
	expect_success();
}

/* srun hears the node on which it runs also if all others are out of reach. */
TEST(srun_on_a_node_that_is_cut_off_waits)
{
	begin(4, 2, 3, 1, 0);
	plan_note_own(&world.plan, 0);
	all_away(true);
	world.away[0] = false;
	pass(SILENCE);
	silent(1);
	pass(8000);
	assert_int_equal(world.begun, 1);
	all_back();
	expect_said("srun did not reach any other node for 13.2 s; restart 1 of 3 (1 spare left)\n");
	expect_ranks(0, 0, 0, 1);
	expect_ranks(1, 1, 2, 3);
	expect_success();
	/* One other node that is silent is lost, and so is one of several. */
	begin(2, 2, 3, 1, 0);
	plan_note_own(&world.plan, 1);
	lose(0);
	expect_said(SILENT("n0", "0-1") "; restart 1 of 3: n1 takes the place of n0 (0 spares left)\n");
	expect_success();
	begin(3, 2, 3, 1, 0);
	plan_note_own(&world.plan, 0);
	lose(1);
	expect_said(SILENT("n1", "2-3") "; restart 1 of 3: n2 takes the place of n1 (0 spares left)\n");
	expect_success();
}

TEST(nobody_comes_back)
{
	begin(2, 2, 3, 1, 0);
	all_away(true);
	pass(SILENCE);
	silent(0);
	pass(14900);
	assert_false(world.over);
	pass(100);
	expect_end("srun did not reach any node for 20.0 s, and has lost n0, n1; no spare is left to take its place (see "
	           "spare= and min-nodes= in srun-ddp(7))", EXITED(1));
}

TEST(a_step_of_one_node_waits_for_it)
{
	begin(1, 2, 3, 0, 0);
	all_away(true);
	pass(SILENCE);
	silent(0);
	pass(1950);
	all_back();
	expect_said("srun did not reach any node for 7.2 s; restart 1 of 3\n");
	expect_success();
}

TEST(cut_off_while_a_generation_ends)
{
	begin(3, 2, 3, 1, 0);
	all_away(true);
	fail_of("rank 3 died", "n1", 3, 11);
	pass(SILENCE);
	silent(2);
	pass(1000);
	all_back();
	expect_said("rank 3 died; srun did not reach any node for 6.2 s; restart 1 of 3 (1 spare left)\n");
	expect_success();
}

/* ---- agents, slurmstepd, joins --------------------------------------------------------------- */

TEST(a_spare_that_lost_an_agent_is_told)
{
	begin(3, 2, 3, 1, 0);
	lose_agent(2);
	act();
	expect_said("node n2 has lost an agent; it was a spare (0 spares left)\n");
	assert_int_equal(world.quits[2], 1);
	expect_success();
}

TEST(a_node_without_slurmstepd_is_replaced_a_little_later)
{
	begin(3, 2, 3, 1, 0);
	lose_power(1);
	plan_gone(&world.plan, 1, now());
	act();
	assert_int_equal(world.begun, 1);
	pass(PLAN_GONE_MS);
	expect_said("slurmstepd on node n1 has ended without a word, with ranks 2-3; restart 1 of 3: n2 takes the place of "
	            "n1 (0 spares left)\n");
	expect_success();
}

/* scancel: SLURM kills agents, too, and each node says good-bye. */
TEST(a_cancelled_step_is_not_restarted)
{
	begin(3, 2, 3, 1, 0);
	for (uint32_t i = 0; i < 3; i++) {
		lose_agent(i);
		plan_bye(&world.plan, i, now());
	}
	act();
	pass(20000);
	assert_int_equal(world.begun, 1);
	assert_false(world.over);
	end();
}

TEST(a_cancelled_step_begins_nothing)
{
	const uint32_t tasks[] = { 0, 1 };

	start((struct plan_policy){ .restarts = 1 }, 2, 2);
	join(0, tasks, 1);
	plan_bye(&world.plan, 0, now());
	join(1, tasks + 1, 1);
	act();
	pass(5000);
	assert_int_equal(world.begun, 0);
	end();
}

TEST(a_node_that_cannot_end_its_ranks_is_lost)
{
	begin(3, 2, 3, 1, 0);
	world.slow[1] = true;
	fail_of("rank 3 died", "n1", 3, 11);
	pass(PLAN_CLEAR_MS - 250);
	assert_int_equal(world.begun, 1);
	world.generation[1] = 0; /* the kernel does not let them run any more */
	pass(250);
	expect_said("rank 3 died; node n1 could not end its ranks within 60 s; restart 1 of 3: n2 takes the place of n1 (0 "
	            "spares left)\n");
	expect_success();
}

TEST(late_nodes_are_waited_for)
{
	const uint32_t tasks[] = { 0, 1, 2 };

	start((struct plan_policy){ .restarts = 1, .spares = 1 }, 3, 3);
	join(2, tasks + 2, 1);
	join(0, tasks, 1);
	act();
	pass(600000);
	assert_int_equal(world.begun, 0);
	/* One that was there falls silent meanwhile. */
	lose(0);
	assert_int_equal(world.begun, 0);
	join(1, tasks + 1, 1);
	act();
	expect_said("node n0 has been silent for 5.0 s (is its power or network lost?); n2 takes the place of n0 (0 spares left)\n");
	assert_int_equal(world.begun, 1);
	assert_int_equal(world.plan.restarts, 0);
	assert_int_equal(world.ranks[2][0], 0);
	expect_success();
}

TEST(nodes_that_contradict_the_step_end_it)
{
	static const struct { uint32_t version, node, tasks[2], count; const char *why; } cases[] = {
		{ DEAL_VERSION + 1, 1, { 2, 3 }, 2, "of another release" }, { DEAL_VERSION, 3, { 2, 3 }, 2, "no such node" },
		{ DEAL_VERSION, 1, { 2, 6 }, 2, "not its own" }, { DEAL_VERSION, 1, { 2, 1 }, 2, "not its own" },
		{ DEAL_VERSION, 1, { 2 }, 1, "another number of tasks" },
	};
	const uint32_t tasks[] = { 0, 1 };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned char bytes[ROOM];
		const struct deal_join told = { .version = cases[i].version, .node_id = cases[i].node,
			                        .task_count = cases[i].count };
		struct deal_join got;
		start((struct plan_policy){ .restarts = 1, .spares = 1 }, 3, 6);
		join(0, tasks, 2);
		assert_true(deal_unpack_join(bytes, deal_pack_join(&told, cases[i].tasks, bytes), &got));
		plan_join(&world.plan, &got, "n9", now());
		act();
		assert_true(world.over);
		assert_non_null(strstr(world.ended, "node n9 cannot take part in restarts: "));
		assert_non_null(strstr(world.ended, cases[i].why));
		assert_int_equal(world.quits[0], 1);
		end();
	}
}

TEST(policies_that_do_not_fit_are_refused)
{
	static const struct { struct plan_policy policy; uint32_t nodes, tasks; } cases[] = {
		{ { .restarts = 1 }, 0, 0 }, { { .restarts = 1 }, 2, 1 }, { { .restarts = 1, .spares = 2 }, 2, 2 },
		{ { .restarts = 1, .min_nodes = 3 }, 2, 2 }, { { .restarts = 1, .spares = 1, .min_nodes = 2 }, 2, 2 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct plan plan;
		assert_false(plan_start(&plan, &cases[i].policy, cases[i].nodes, cases[i].tasks));
	}
}

TEST(errors_before_the_first_generation_end_the_step)
{
	const uint32_t tasks[] = { 0, 1 };

	start((struct plan_policy){ .restarts = 1 }, 2, 2);
	world.nodes = 1;
	join(0, tasks, 1);
	fail_of("rank 1: no port", "n1", ROSTER_NONE, EXITED(1));
	expect_end("rank 1: no port", EXITED(1));
}

/* Whatever happens in whatever order, generations never overlap (take_go()). */
TEST(random_failures_never_mix_generations)
{
	uint32_t random = 1;

	for (int round = 0; round < 300; round++) {
		begin(6, 2, 20, 2, 2);
		for (int event = 0; event < 200 && !world.over; event++) {
			uint32_t node;
			random = random * 1103515245 + 12345;
			node = random >> 16 & 7;
			switch (random >> 20 & 15) {
			case 0: case 1: fail_of("a", node % 2 ? "n1" : "n2", node, 11); break;
			case 2: hearsay("b"); break;
			case 3: if (node < 6 && random >> 26 == 0) lose_power(node); break;
			case 4: if (node < 6) world.slow[node] = !world.slow[node]; break;
			case 5: if (node < 6 && world.plan.phase == PLAN_ENDING && !world.away[node]) clear(node, false); break;
			case 6: if (node < 6 && !world.away[node]) clear(node, true); break;
			case 7: lose_agent(node); break;
			case 8: if (node < 6 && world.away[node]) silent(node); break;
			case 9: if (node < 6 && world.generation[node] > 0 && random >> 28 == 0) done(node, 0, 0); break;
			case 10: if (node < 6 && random >> 27 == 0) { lose_power(node); plan_gone(&world.plan, node, now()); } break;
			default: pass(node * 300); break;
			}
			act();
			memset(world.said, 0, sizeof(world.said));
		}
		for (uint32_t i = 0; i < 6; i++)
			world.slow[i] = false;
		end();
	}
}
