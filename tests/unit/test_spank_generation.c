/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/node/generation: a node takes srun's orders, and tells what becomes of them. The agents are real. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/release.h"
#include "spank/node/generation.h"
#include "spank/wire/deal.h"
#include "tests/support/test.h"

enum { TASKS = 2, FRAMES_MAX = 64, SILENCE_MS = 5000, FENCE_MS = 4000 };

static const char key[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

static struct node node;
static struct generation generation;
static uint32_t lease;
static char said[512];

static struct {
	uint32_t type;
	size_t bytes;
	unsigned char payload[256];
} frames[FRAMES_MAX];
static int frame_count;

static bool keep_frame(uint32_t type, const void *payload, size_t bytes)
{
	assert_true(frame_count < FRAMES_MAX && bytes <= sizeof(frames[0].payload));
	frames[frame_count].type = type;
	frames[frame_count].bytes = bytes;
	memcpy(frames[frame_count++].payload, payload, bytes);
	return true;
}

static uint32_t lease_ms(void)
{
	return lease;
}

static void say(const char *text)
{
	snprintf(said, sizeof(said), "%s", text);
}

static void write_slot(uint32_t local, const struct ddp_progress *slot)
{
	assert_int_equal(pwrite(node.supervise.progress_fd, slot, sizeof(*slot), (off_t)local * DDP_PROGRESS_BYTES),
	                 sizeof(*slot));
}

static void write_page(uint32_t local, int64_t step)
{
	write_slot(local, &(struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .step = step });
}

static void say_survives(uint32_t local, enum ddp_writer writer)
{
	write_slot(local, &(struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .writer = writer,
	                                          .aside = DDP_PROGRESS_SURVIVES, .step = 1 });
}

static struct {
	atomic_bool is_user;       /* the tasks are a user's, and their programs become root */
	atomic_uint programs;      /* that run */
	atomic_bool leaves;        /* the second task's program has a child: */
	_Atomic pid_t left_behind;
	atomic_int chain;          /* with so many more below one another; */
	atomic_bool lingers;       /* and that child, when it is killed, does not end before this one is reaped: */
	_Atomic pid_t held;
} *seen;

static void *stay(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

/* Of a process whose first thread has ended, the kernel says that it is a zombie. */
static pid_t fork_child(bool ends_first_thread)
{
	pthread_t thread;
	pid_t child = fork();

	while (child == 0 && atomic_fetch_sub(&seen->chain, 1) > 0)
		if (fork() > 0)
			stay(NULL);
	if (child == 0 && ends_first_thread && pthread_create(&thread, NULL, stay, NULL) == 0)
		syscall(SYS_exit, 0);
	if (child == 0)
		stay(NULL);
	return child;
}

/* The first process of a PID namespace ends when no number of the namespace is in use any more. */
static void leave_behind(void)
{
	bool can = !atomic_load(&seen->lingers) || unshare(CLONE_NEWPID) == 0;
	pid_t child = can ? fork_child(atomic_load(&seen->lingers)) : -1;

	if (can && atomic_load(&seen->lingers))
		atomic_store(&seen->held, fork_child(false));
	atomic_store(&seen->left_behind, child);
}

/* Ends with the code of its generation's number behind 10; others run till they are killed. */
static void run(uint32_t number)
{
	bool is_second = getppid() == atomic_load(&node.supervise.agents.shared->agent[1].pid);

	if (atomic_load(&seen->is_user) && setresuid(0, 0, 0) != 0)
		_exit(1);
	atomic_fetch_add(&seen->programs, 1);
	if (is_second && atomic_load(&seen->leaves))
		leave_behind();
	if (number >= 10)
		_exit((int)(number - 10));
	for (;;)
		pause();
}

static void look(void)
{
	agents_take_news(&node.supervise.agents);
	generation_advance(&generation);
}

/* Looks until a frame of the type comes behind those that are there; gives its place. */
static int await(uint32_t type)
{
	uint64_t deadline_ns = ddp_now_ns() + 20000000000u;

	for (int at = frame_count;; usleep(1000)) {
		look();
		for (; at < frame_count; at++)
			if (frames[at].type == type)
				return at;
		assert_true(ddp_now_ns() < deadline_ns);
	}
}

static int begin_as(bool is_user)
{
	const struct generation_facts facts = { .node_id = 3, .silence_ms = SILENCE_MS, .fence_ms = FENCE_MS,
		                                .send = keep_frame, .lease_ms = lease_ms };
	struct error error;

	if (seen == NULL)
		seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(seen != MAP_FAILED);
	atomic_store(&seen->left_behind, 0);
	atomic_store(&seen->leaves, false);
	atomic_store(&seen->lingers, false);
	atomic_store(&seen->chain, 0);
	atomic_store(&seen->is_user, is_user);
	atomic_store(&seen->programs, 0);
	node = (struct node){ .say = say, .relay_port = 77 };
	frame_count = 0;
	lease = 0;
	said[0] = '\0';
	assert_true(supervise_start(&node.supervise, TASKS, getuid(), &error));
	assert_true(agents_make(&node.supervise.agents, TASKS, &error));
	memcpy(node.supervise.shared->node, "n3", 3);
	for (uint32_t i = 0; i < TASKS; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			/* All tasks of a node have one process group, which is not slurmstepd's. */
			setpgid(0, i == 0 ? 0 : node.supervise.agents.pids[0]);
			node.supervise.shared->task[i].rank = 6 + i;
			if (atomic_load(&seen->is_user) && setresuid(65534, 65534, 0) != 0)
				_exit(1);
			agent_become(&node.supervise.agents, i);
			run(agent_serve());
		}
		setpgid(pid, i == 0 ? pid : node.supervise.agents.pids[0]);
		supervise_forked(&node.supervise, i, pid);
	}
	assert_int_equal(supervise_left(&node.supervise), TASKS);
	assert_true(generation_start(&generation, &node, &facts));
	assert_int_equal(supervise_left(&node.supervise), 0);
	assert_int_equal(supervise_processes(&node.supervise), TASKS);
	await(DEAL_JOIN);
	return 0;
}

static int begin(void **state)
{
	return begin_as(false);
}

/* As root alone. */
static int begin_as_user(void **state)
{
	return begin_as(geteuid() == 0);
}

static int finish(void **state)
{
	for (uint32_t i = 0; i < TASKS; i++) {
		kill(node.supervise.agents.pids[i], SIGKILL);
		waitpid(node.supervise.agents.pids[i], NULL, 0);
	}
	if (atomic_load(&seen->left_behind) > 0)
		kill(atomic_load(&seen->left_behind), SIGKILL);
	generation_free(&generation);
	supervise_end(&node.supervise);
	return 0;
}

static pid_t program(uint32_t local)
{
	return atomic_load(&node.supervise.agents.shared->agent[local].child);
}

/* An agent tells that it begins before it forks. */
static void await_children(void)
{
	while (program(0) == 0 || program(1) == 0)
		usleep(1000);
}

static void await_end_of_agents(void)
{
	uint64_t deadline_ns = ddp_now_ns() + 20000000000u;

	while (supervise_processes(&node.supervise) > 0) {
		assert_true(ddp_now_ns() < deadline_ns);
		usleep(1000);
	}
}

static void give_go_as(uint32_t number, uint32_t node_rank, uint32_t local_count, bool joins)
{
	static const uint32_t ranks[] = { 2, 3, 4 };
	struct deal_go go = { .generation = number, .restart_count = number - 1, .world_size = 6, .node_count = 3,
		              .node_rank = node_rank, .local_count = local_count, .joins = joins, .nodes = "n0,n3,n1" };
	unsigned char payload[512];

	memcpy(go.key, key, sizeof(key));
	generation_take(&generation, DEAL_GO, payload, deal_pack_go(&go, ranks, payload));
}

static void give_go(uint32_t number, uint32_t node_rank, uint32_t local_count)
{
	give_go_as(number, node_rank, local_count, false);
}

static void give_end_as(uint32_t number, bool keep)
{
	unsigned char payload[DEAL_SMALL_BYTES];

	generation_take(&generation, DEAL_END, payload, deal_pack_end(number, keep, payload));
}

static void give_end(uint32_t number)
{
	give_end_as(number, false);
}

static void give_quit(void)
{
	unsigned char payload[DEAL_SMALL_BYTES];

	generation_take(&generation, DEAL_QUIT, payload, deal_pack_quit(DEAL_OWN_STATUS, payload));
}

static struct deal_clear clear_at(int place)
{
	struct deal_clear clear;

	assert_int_equal(frames[place].type, DEAL_CLEAR);
	assert_true(deal_unpack_clear(frames[place].payload, frames[place].bytes, &clear));
	return clear;
}

static void await_programs(uint32_t number)
{
	uint64_t deadline_ns = ddp_now_ns() + 20000000000u;

	for (uint32_t i = 0; i < TASKS; i++)
		while (atomic_load(&node.supervise.agents.shared->agent[i].begun) != number) {
			assert_true(ddp_now_ns() < deadline_ns);
			usleep(1000);
		}
}

static void begin_generation(uint32_t number)
{
	give_go(number, 1, TASKS);
	await_programs(number);
}

TEST_WITH(a_node_joins_when_its_agents_are_there, begin, finish)
{
	struct deal_join join;
	int place = 0;

	assert_true(deal_unpack_join(frames[place].payload, frames[place].bytes, &join));
	assert_int_equal(frames[place].type, DEAL_JOIN);
	assert_int_equal(join.version, DEAL_VERSION);
	assert_int_equal(join.node_id, 3);
	assert_int_equal(join.generation, 0);
	assert_int_equal(join.task_count, TASKS);
	assert_int_equal(deal_task(&join, 0), 6);
	assert_int_equal(deal_task(&join, 1), 7);
	assert_string_equal(join.release, release_own());
	look();
	assert_int_equal(frame_count, 1);
}

/* What it adopts is in the process group of the tasks, and what slurmstepd itself has started is in its own. */
TEST_WITH(a_node_whose_first_agent_is_gone_knows_the_group_of_its_tasks, begin, finish)
{
	struct agents *agents = &node.supervise.agents;
	pid_t first = agents->pids[0];
	struct generation again;

	assert_int_equal(generation.group, first);
	agents->pids[0] = 0;
	assert_true(generation_start(&again, &node, &generation.facts));
	generation_advance(&again);
	agents->pids[0] = first;
	assert_int_equal(again.group, first);
	generation_free(&again);
}

TEST_WITH(a_generation_begins_with_nothing_of_the_last, begin, finish)
{
	struct supervise *supervise = &node.supervise;
	struct ddp_progress page;
	int status;

	write_page(0, 17);
	atomic_store(&supervise->shared->told, true);
	atomic_store(&supervise->shared->late, true);
	node.told_cause = node.told_later = node.told_hearsay = true;
	supervise->any_failed = supervise->any_other_end = true;
	begin_generation(1);
	supervise_read(supervise, 0, &page);
	assert_int_equal(page.magic, 0);
	assert_false(atomic_load(&supervise->shared->told) || atomic_load(&supervise->shared->late));
	assert_false(node.told_cause || node.told_later || node.told_hearsay || supervise->any_failed ||
	             supervise->any_other_end);
	assert_int_equal(node.relay.port, 77);
	assert_int_equal(atomic_load(&supervise->shared->generation), 1);
	assert_int_equal(supervise->shared->world_size, 6);
	await_children();
	for (uint32_t i = 0; i < TASKS; i++) {
		assert_int_equal(supervise->shared->task[i].rank, 2 + i);
		assert_int_equal(supervise_state(supervise, i, &status), TASK_RUNS);
		assert_int_not_equal(supervise_pid(supervise, i), supervise->agents.pids[i]);
	}
	assert_int_equal(supervise_left(supervise), TASKS);
	assert_true(supervise_spares(supervise));
}

TEST_WITH(an_end_is_told_and_judged_once, begin, finish)
{
	struct deal_done done;
	int status = -1;

	begin_generation(12);
	/* The agent notes how the program has ended, and then that there is no process. */
	while (supervise_state(&node.supervise, 1, &status) == TASK_RUNS || supervise_pid(&node.supervise, 1) != 0)
		usleep(1000);
	assert_int_equal(status, W_EXITCODE(2, 0));
	supervise_reaped(&node.supervise, 1, status);
	generation_done(&generation, 1);
	assert_int_equal(frames[frame_count - 1].type, DEAL_DONE);
	assert_true(deal_unpack_done(frames[frame_count - 1].payload, frames[frame_count - 1].bytes, &done));
	assert_int_equal(done.generation, 12);
	assert_int_equal(done.local_task, 1);
	assert_int_equal(done.rank, 3);
	assert_int_equal(done.wait_status, W_EXITCODE(2, 0));
}

TEST_WITH(what_srun_ends_is_not_judged, begin, finish)
{
	struct deal_clear clear;
	int status;

	begin_generation(1);
	write_page(0, 5);
	look();
	write_page(0, 40);
	write_page(1, 41);
	give_end(1);
	assert_int_equal(supervise_left(&node.supervise), 0);
	clear = clear_at(await(DEAL_CLEAR));
	assert_int_equal(clear.generation, 1);
	assert_int_equal(clear.first, 5);
	assert_int_equal(clear.step, 41);
	assert_false(clear.fenced);
	assert_int_equal(supervise_state(&node.supervise, 0, &status), TASK_RUNS);
	/* Once more, as srun may ask again. */
	give_end(1);
	assert_int_equal(clear_at(frame_count - 1).generation, 1);
	/* And the next one begins. */
	give_go(2, 0, TASKS);
	await_programs(2);
	assert_int_equal(supervise_left(&node.supervise), TASKS);
}

static void begin_survivors(void)
{
	begin_generation(1);
	await_children();
	say_survives(0, DDP_WRITER_LIBDDP);
	say_survives(1, DDP_WRITER_PYTHON);
}

static void keep_survivors(void)
{
	begin_survivors();
	give_end_as(1, true);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).rest, DEAL_KEPT);
}

TEST_WITH(programs_that_survive_stay, begin, finish)
{
	pid_t before[TASKS];

	keep_survivors();
	before[0] = program(0);
	before[1] = program(1);
	/* They are no part of a generation in which all start again. */
	give_go_as(2, 1, TASKS, false);
	assert_int_equal(generation.state, GENERATION_WAITS);
	give_go_as(2, 1, TASKS, true);
	assert_int_equal(generation.state, GENERATION_RUNS);
	await_programs(2);
	assert_int_equal(program(0), before[0]);
	assert_int_equal(program(1), before[1]);
	/* One dies, and the other stays. */
	say_survives(0, DDP_WRITER_LIBDDP);
	say_survives(1, DDP_WRITER_LIBDDP);
	kill(before[1], SIGKILL);
	while (program(1) != 0)
		usleep(1000);
	give_end_as(2, true);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).rest, DEAL_SOME);
	assert_int_equal(program(0), before[0]);
	/* srun may want them to end after all. */
	give_end_as(2, false);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).rest, DEAL_ENDED);
	assert_int_equal(program(0), 0);
	begin_generation(3);
}

TEST_WITH(programs_that_have_not_joined_do_not_stay, begin, finish)
{
	keep_survivors();
	give_go_as(2, 1, TASKS, true);
	await_programs(2);
	give_end_as(2, true);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).rest, DEAL_ENDED);
	assert_int_equal(program(0), 0);
}

TEST_WITH(a_slow_agent_keeps_its_program, begin, finish)
{
	struct agents *agents = &node.supervise.agents;
	pid_t before;

	begin_survivors();
	before = program(0);
	give_end_as(1, true);
	while (!agents_clear(agents, 1))
		usleep(1000);
	kill(agents->pids[0], SIGSTOP);
	while (!supervise_is_stopped(agents->pids[0]))
		usleep(1000);
	atomic_store(&agents->shared->agent[0].kept, 0);
	generation.ended_ns = 0;
	look();
	assert_false(supervise_process_of(before).ended);
	kill(agents->pids[0], SIGCONT);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).rest, DEAL_KEPT);
	assert_int_equal(program(0), before);
}

TEST_WITH(a_spare_has_nothing_that_stays, begin, finish)
{
	give_go(1, DEAL_SPARE, 0);
	give_end_as(1, true);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).rest, DEAL_NONE);
	give_go_as(2, 1, TASKS, true);
	await_programs(2);
}

TEST_WITH(a_node_without_srun_ends_what_it_has_kept, begin, finish)
{
	struct deal_clear clear;

	keep_survivors();
	lease = FENCE_MS;
	clear = clear_at(await(DEAL_CLEAR));
	assert_true(clear.fenced);
	assert_int_equal(clear.rest, DEAL_ENDED);
	assert_int_equal(program(0), 0);
}

/* srun tells of the nodes that wait, and ddp-status reads it. */
TEST_WITH(the_nodes_page_tells_of_spares, begin, finish)
{
	const off_t at = (off_t)DDP_RECORD_NODE_OFFSET(TASKS) + (off_t)offsetof(struct ddp_progress_node, spares);
	unsigned char payload[4 + DEAL_SPARES_MAX];
	char spares[DDP_PROGRESS_SPARES_BYTES];

	give_go(1, 1, TASKS);
	generation_take(&generation, DEAL_SPARES, payload, deal_pack_spares("n[4-6]", payload));
	assert_int_equal(pread(node.supervise.progress_fd, spares, sizeof(spares), at), sizeof(spares));
	assert_string_equal(spares, "n[4-6]");
	generation_take(&generation, DEAL_SPARES, payload, 3);
	generation_take(&generation, DEAL_SPARES, payload, deal_pack_spares("", payload));
	assert_int_equal(pread(node.supervise.progress_fd, spares, sizeof(spares), at), sizeof(spares));
	assert_string_equal(spares, "");
}

TEST_WITH(a_spare_waits, begin, finish)
{
	give_go(1, DEAL_SPARE, 0);
	await_programs(1);
	assert_int_equal(supervise_left(&node.supervise), 0);
	assert_int_equal(node.supervise.shared->task[0].rank, UINT32_MAX);
	give_end(1);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).generation, 1);
	/* A node that has missed a generation ends it all the same. */
	give_end(4);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).generation, 4);
	begin_generation(5);
	assert_int_equal(supervise_left(&node.supervise), TASKS);
}

TEST_WITH(orders_out_of_turn_are_left_alone, begin, finish)
{
	generation_take(&generation, DEAL_GO, "", 0);
	generation_take(&generation, DEAL_END, "", 0);
	generation_take(&generation, DEAL_QUIT, "", 0);
	generation_take(&generation, 99, key, sizeof(key));
	give_go(1, 1, TASKS + 1);
	give_go(1, 1, TASKS - 1);
	assert_int_equal(generation.number, 0);
	give_go(2, 1, TASKS);
	give_go(3, 1, TASKS);
	give_go(1, 1, TASKS);
	give_end(1);
	assert_int_equal(generation.number, 2);
	assert_int_equal(generation.state, GENERATION_RUNS);
}

TEST_WITH(a_node_without_srun_ends_its_ranks, begin, finish)
{
	int place;

	begin_generation(1);
	lease = FENCE_MS - 1;
	look();
	assert_int_equal(generation.state, GENERATION_RUNS);
	lease = FENCE_MS;
	place = await(DEAL_CLEAR);
	assert_true(clear_at(place).fenced);
	assert_int_equal(clear_at(place).generation, 1);
	lease = 0;
	give_end(1);
	assert_true(clear_at(frame_count - 1).fenced);
	begin_generation(2);
	/* A spare has nothing to end. */
	give_end(2);
	await(DEAL_CLEAR);
	give_go(3, DEAL_SPARE, 0);
	lease = FENCE_MS;
	look();
	assert_int_equal(generation.state, GENERATION_RUNS);
	lease = 20000;
	look();
	assert_int_equal(generation.state, GENERATION_QUITS);
	assert_string_equal(said, "n3 has not reached srun for 20 s, so it ends its part of the step");
	await_end_of_agents();
	assert_int_equal(waitpid(node.supervise.agents.pids[0], &place, 0), node.supervise.agents.pids[0]);
	assert_int_equal(place, W_EXITCODE(1, 0));
}

TEST_WITH(a_step_that_stops_does_not_wait_for_srun, begin, finish)
{
	begin_generation(1);
	atomic_store(&node.supervise.shared->witness.asked_to_stop, true);
	look();
	assert_int_equal(generation.state, GENERATION_RUNS);
	for (uint32_t i = 0; i < TASKS; i++)
		supervise_reaped(&node.supervise, i, W_EXITCODE(0, 0));
	look();
	assert_int_equal(generation.state, GENERATION_QUITS);
	await_end_of_agents();
}

TEST_WITH(a_stopped_agent_tells_of_its_program, begin, finish)
{
	uint64_t deadline_ns = ddp_now_ns() + 20000000000u;
	int status;

	begin_generation(1);
	while (supervise_pid(&node.supervise, 0) == 0)
		usleep(1000);
	kill(node.supervise.agents.pids[0], SIGSTOP);
	kill(supervise_pid(&node.supervise, 0), SIGKILL);
	while (supervise_state(&node.supervise, 0, &status) == TASK_RUNS && ddp_now_ns() < deadline_ns) {
		look();
		usleep(1000);
	}
	assert_int_equal(supervise_state(&node.supervise, 0, &status), TASK_ENDED);
	assert_int_equal(status, SIGKILL);
}

/* This process adopts it, as slurmstepd does, once its program has ended. */
static bool is_ended(pid_t pid)
{
	uint64_t deadline_ns = ddp_now_ns() + 20000000000u;

	for (; waitpid(pid, NULL, WNOHANG) != pid; usleep(1000)) {
		if (ddp_now_ns() >= deadline_ns)
			return false;
		look();
	}
	return true;
}

TEST_WITH(a_killed_agent_is_lost, begin, finish)
{
	struct deal_lost lost;
	int place, status = -1;

	atomic_store(&seen->leaves, true);
	begin_generation(1);
	while (atomic_load(&seen->left_behind) == 0)
		usleep(1000);
	kill(node.supervise.agents.pids[1], SIGKILL);
	place = await(DEAL_LOST);
	assert_true(deal_unpack_lost(frames[place].payload, frames[place].bytes, &lost));
	assert_int_equal(lost.generation, 1);
	assert_int_equal(lost.local_task, 1);
	/* What its program has left behind in its process group ends, too. */
	assert_true(is_ended(atomic_load(&seen->left_behind)));
	/* Its program has ended so, too. */
	assert_int_equal(supervise_state(&node.supervise, 1, &status), TASK_ENDED);
	assert_int_equal(status, SIGKILL);
	place = frame_count;
	look();
	assert_int_equal(frame_count, place);
	/* The other one goes on. */
	give_end(1);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).generation, 1);
}

static void kill_agent(uint32_t local)
{
	siginfo_t info;

	kill(node.supervise.agents.pids[local], SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)node.supervise.agents.pids[local], &info, WEXITED | WNOWAIT), 0);
}

/* As if the witness made it: in the tasks' process group, as soon as the first process is killed. */
static pid_t fork_late_keeper(pid_t first, pid_t group)
{
	pid_t keeper = fork();

	if (keeper == 0) {
		struct pollfd process = { .fd = handle_open(first), .events = POLLIN };
		poll(&process, process.fd >= 0, 20000);
		atomic_store(&node.supervise.shared->witness.keeper, getpid());
		setpgid(0, group);
		stay(NULL);
	}
	setpgid(keeper, keeper);
	return keeper;
}

/* It takes several rounds to end what the program has left behind. */
TEST_WITH(a_keeper_that_comes_meanwhile_is_no_program, begin, finish)
{
	pid_t keeper, group = getpgid(node.supervise.agents.pids[0]);

	atomic_store(&seen->leaves, true);
	atomic_store(&seen->chain, 15);
	give_go(1, 1, TASKS);
	while (atomic_load(&seen->left_behind) == 0 || atomic_load(&seen->chain) >= 0)
		usleep(1000);
	keeper = fork_late_keeper(atomic_load(&seen->left_behind), group);
	usleep(20000);
	kill_agent(1);
	await(DEAL_LOST);
	while (getpgid(keeper) != group && waitpid(keeper, NULL, WNOHANG) == 0)
		look();
	look();
	assert_int_equal(waitpid(keeper, NULL, WNOHANG), 0);
	kill(keeper, SIGKILL);
	assert_int_equal(waitpid(keeper, NULL, 0), keeper);
}

static bool has_told(uint32_t type)
{
	for (int i = 0; i < frame_count; i++)
		if (frames[i].type == type)
			return true;
	return false;
}

TEST_WITH(a_node_is_not_clear_while_a_process_of_a_lost_agent_ends, begin, finish)
{
	atomic_store(&seen->leaves, true);
	atomic_store(&seen->lingers, true);
	give_go(1, 1, TASKS);
	while (atomic_load(&seen->left_behind) == 0)
		usleep(1000);
	if (atomic_load(&seen->left_behind) < 0)
		skip(); /* it may make no namespace */
	kill_agent(1);
	await(DEAL_LOST);
	give_end(1);
	for (int i = 0; i < 10; i++) {
		look();
		usleep(10000);
	}
	assert_false(has_told(DEAL_CLEAR));
	assert_int_equal(waitpid(atomic_load(&seen->held), NULL, 0), atomic_load(&seen->held));
	await(DEAL_CLEAR);
}

/* SLURM kills one process after the other, and the witness may be the last one. */
TEST_WITH(an_agent_is_lost_if_others_live_on, begin, finish)
{
	begin_generation(1);
	kill_agent(1);
	look();
	assert_false(has_told(DEAL_LOST));
	give_end(1);
	assert_false(clear_at(await(DEAL_CLEAR)).fenced);
	/* srun does not deal the next generation before it knows. */
	assert_true(has_told(DEAL_LOST));
}

TEST_WITH(an_agent_is_lost_without_a_witness_too, begin, finish)
{
	pid_t ended = fork();

	if (ended == 0)
		_exit(0);
	assert_int_equal(waitpid(ended, NULL, 0), ended);
	atomic_store(&node.supervise.shared->witness.pid, ended);
	begin_generation(1);
	kill_agent(1);
	await(DEAL_LOST);
}

TEST_WITH(programs_that_became_root_are_ended, begin_as_user, finish)
{
	uint64_t deadline_ns = ddp_now_ns() + 40000000000u;

	if (geteuid() != 0)
		skip();
	give_go(1, 1, TASKS);
	while (atomic_load(&seen->programs) < TASKS)
		usleep(1000);
	give_end(1);
	assert_int_equal(clear_at(await(DEAL_CLEAR)).generation, 1);
	give_go(2, 1, TASKS);
	while (atomic_load(&seen->programs) < 2 * TASKS)
		usleep(1000);
	give_quit();
	while (supervise_processes(&node.supervise) > 0 && ddp_now_ns() < deadline_ns) {
		look();
		usleep(1000);
	}
	assert_int_equal(supervise_processes(&node.supervise), 0);
}

TEST_WITH(agents_quit_as_they_are_told, begin, finish)
{
	int status;

	begin_generation(14);
	while (supervise_state(&node.supervise, 0, &status) == TASK_RUNS)
		usleep(1000);
	give_quit();
	await_end_of_agents();
	assert_int_equal(waitpid(node.supervise.agents.pids[0], &status, 0), node.supervise.agents.pids[0]);
	assert_int_equal(status, W_EXITCODE(4, 0));
}
