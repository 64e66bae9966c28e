/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/witness/agent: an agent starts programs generation by generation, and leaves nothing of them. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/wire/deal.h"
#include "spank/witness/agent.h"
#include "tests/support/test.h"

enum { MEMBERS_MAX = 4096, TASKS_MAX = 4 };

/* What programs tell the test. */
static struct seen {
	atomic_uint count;         /* processes that were started, */
	_Atomic pid_t pid[MEMBERS_MAX]; /* and their numbers */
	atomic_uint ready;
	atomic_int mask_is_empty, child_is_ignored;
	atomic_uint asked; /* sruns that were asked to end */
	_Atomic uint32_t generation;
} *seen;

static struct agents agents;

/* This process is listed from now on. */
static void enlist(void)
{
	unsigned int place = atomic_fetch_add(&seen->count, 1);

	if (place < MEMBERS_MAX)
		atomic_store(&seen->pid[place], getpid());
}

static void wait_for_ever(void)
{
	atomic_fetch_add(&seen->ready, 1);
	for (;;)
		pause();
}

static bool holds(bool (*condition)(void), int seconds)
{
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)seconds * 1000000000;

	while (!condition()) {
		if (ddp_now_ns() > deadline_ns)
			return false;
		usleep(1000);
	}
	return true;
}

static uint32_t awaited; /* a generation, or a number */

static bool all_are_ready(void) { return agents_ready(&agents) == agents.count; }
static bool all_are_clear(void) { return agents_clear(&agents, awaited); }
static bool none_is_left(void) { return agents_left(&agents) == 0; }
static bool members_are_ready(void) { return atomic_load(&seen->ready) >= awaited; }

static bool child_has_ended(void)
{
	int ignored;

	return agents_child_ended(&agents, 0, awaited, &ignored);
}

static bool members_are_gone(void)
{
	unsigned int count = atomic_load(&seen->count);

	for (unsigned int i = 0; i < count && i < MEMBERS_MAX; i++) {
		pid_t pid = atomic_load(&seen->pid[i]);
		/* This process has adopted what a killed agent has left. */
		if (pid != 0 && waitpid(pid, NULL, WNOHANG) != pid && kill(pid, 0) == 0)
			return false;
	}
	return true;
}

static void forget(void)
{
	memset(seen, 0, sizeof(*seen));
}

/* Tasks that become agents, whose programs run `program`. */
static void start(uint32_t count, int (*program)(uint32_t generation))
{
	struct error error;

	seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(seen != MAP_FAILED);
	assert_true(agents_make(&agents, count, &error));
	for (uint32_t i = 0; i < count; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			agent_become(&agents, i);
			_exit(program(agent_serve()));
		}
		agents_forked(&agents, i, pid);
	}
	assert_true(holds(all_are_ready, 20));
}

static void order(enum agents_order what, uint32_t generation)
{
	agents_order(&agents, what, generation);
}

/* The first task's program of the generation, or its new start, ends by itself. */
static void run_to_the_end(uint32_t generation)
{
	order(AGENTS_RUN, awaited = generation);
	assert_true(holds(child_has_ended, 20));
}

static void end_generation(uint32_t generation)
{
	order(AGENTS_END, generation);
	awaited = generation;
	assert_true(holds(all_are_clear, 60));
}

static void keep_programs(uint32_t generation)
{
	order(AGENTS_KEEP, generation);
	awaited = generation;
	assert_true(holds(all_are_clear, 60));
}

/* The agents quit; gives the status of the first. */
static int quit(int status)
{
	int first = 0, ignored;

	atomic_store(&agents.shared->quit_status, status);
	order(AGENTS_QUIT, UINT16_MAX);
	assert_true(holds(none_is_left, 20));
	for (uint32_t i = 0; i < agents.count; i++)
		assert_int_equal(waitpid(agents.pids[i], i == 0 ? &first : &ignored, 0), agents.pids[i]);
	agents_free(&agents);
	munmap(seen, sizeof(*seen));
	return first;
}

static void wait_for_members(uint32_t count)
{
	awaited = count;
	assert_true(holds(members_are_ready, 60));
}

/* ---- programs --------------------------------------------------------------------------- */

static int by_generation(uint32_t generation)
{
	enlist();
	if (generation == 1)
		return 7;
	if (generation == 2)
		kill(getpid(), SIGUSR1);
	return 0;
}

static int waits(uint32_t generation)
{
	atomic_store(&seen->generation, generation);
	enlist();
	wait_for_ever();
	return 0;
}

/* One that leaves its session and its parent. */
static void fork_daemon(void (*run)(void))
{
	if (fork() != 0)
		return;
	setsid();
	if (fork() != 0)
		_exit(0);
	enlist();
	run();
}

static void be_stopped(void)
{
	atomic_fetch_add(&seen->ready, 1);
	raise(SIGSTOP);
	_exit(0);
}

static int leaves_a_tree(uint32_t generation)
{
	enlist();
	for (int i = 0; i < 4; i++)
		fork_daemon(i % 2 == 0 ? wait_for_ever : be_stopped);
	while (wait(NULL) > 0)
		continue;
	wait_for_ever();
	return 0;
}

/* 100 beside one another, and 100 each of which is the child of the one before. */
static int has_many(uint32_t generation)
{
	for (int i = 0; i < 100; i++)
		if (fork() == 0) {
			enlist();
			wait_for_ever();
		}
	for (int i = 0; i < 100; i++)
		if (fork() != 0) {
			enlist();
			wait_for_ever();
		}
	enlist();
	wait_for_ever();
	return 0;
}

/* Each makes the next one and ends, so that there is always one, and never the same. */
static void run_away(void)
{
	atomic_fetch_add(&seen->ready, 1);
	while (fork() == 0)
		setsid();
	_exit(0);
}

static int storms(uint32_t generation)
{
	for (int i = 0; i < 3; i++)
		if (fork() == 0)
			run_away();
	wait_for_ever();
	return 0;
}

static int tells_its_signals(uint32_t generation)
{
	struct sigaction action;
	sigset_t mask;
	bool any = false;

	sigprocmask(SIG_SETMASK, NULL, &mask);
	for (int i = 1; i < 32; i++)
		any |= sigismember(&mask, i) == 1;
	sigaction(SIGCHLD, NULL, &action);
	atomic_store(&seen->mask_is_empty, !any);
	atomic_store(&seen->child_is_ignored, action.sa_handler == SIG_IGN);
	return 3;
}

static void note_asked(int number)
{
	atomic_fetch_add(&seen->asked, 1);
	_exit(0);
}

static void be_srun(void)
{
	prctl(PR_SET_NAME, "srun");
	signal(SIGTERM, note_asked);
	wait_for_ever();
}

static void be_stubborn_srun(void)
{
	prctl(PR_SET_NAME, "srun");
	signal(SIGTERM, SIG_IGN);
	wait_for_ever();
}

static int starts_steps(uint32_t generation)
{
	enlist();
	fork_daemon(be_srun);
	fork_daemon(be_stubborn_srun);
	while (wait(NULL) > 0)
		continue;
	wait_for_ever();
	return 0;
}

static int input[2] = { -1, -1 };

static int reads_to_the_end(uint32_t generation)
{
	char byte;
	ssize_t got;

	while ((got = read(input[0], &byte, 1)) > 0)
		continue;
	return got == 0 ? 0 : 1;
}

/* ---- cases ------------------------------------------------------------------------------ */

TEST(each_generation_has_its_end)
{
	int status = -1;

	start(1, by_generation);
	for (uint32_t number = 1; number <= 3; number++) {
		run_to_the_end(number);
		assert_true(agents_child_ended(&agents, 0, number, &status));
		assert_int_equal(status, number == 1 ? W_EXITCODE(7, 0) : number == 2 ? SIGUSR1 : 0);
		assert_false(agents_child_ended(&agents, 0, number + 1, &status));
	}
	assert_int_equal(atomic_load(&seen->count), 3);
	assert_int_equal(quit(AGENTS_OWN_STATUS), 0);
}

static int missing_then_there(uint32_t generation)
{
	execl(generation == 1 ? "/nonexistent" : "/bin/sh", "sh", "-c", "exit 2", (char *)NULL);
	return 2;
}

/* Both end with code 2. */
TEST(a_program_that_is_missing_is_told_from_one_that_fails)
{
	int status;

	start(1, missing_then_there);
	for (uint32_t number = 1; number <= 2; number++) {
		run_to_the_end(number);
		assert_true(agents_child_ended(&agents, 0, number, &status));
		assert_int_equal(status, W_EXITCODE(2, 0));
		assert_int_equal(agents_child_never_ran(&agents, 0, number), number == 1);
	}
	assert_int_equal(quit(AGENTS_OWN_STATUS), W_EXITCODE(2, 0));
}

TEST(an_agent_ends_as_its_program)
{
	static const struct { uint32_t count, generation; int asked, status; } cases[] = {
		{ 2, 1, AGENTS_OWN_STATUS, W_EXITCODE(7, 0) }, { 1, 2, AGENTS_OWN_STATUS, SIGUSR1 },
		{ 1, 1, W_EXITCODE(9, 0), W_EXITCODE(9, 0) },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		start(cases[i].count, by_generation);
		run_to_the_end(cases[i].generation);
		assert_int_equal(quit(cases[i].asked), cases[i].status);
	}
	/* Another node has its place in the last generation. */
	start(1, by_generation);
	run_to_the_end(1);
	atomic_store(&agents.shared->agent[0].spare, true);
	order(AGENTS_RUN, 2);
	assert_int_equal(quit(AGENTS_OWN_STATUS), 0);
}

/* Notes which child this is, and waits, except if it only tells. */
static int waits_or_tells(uint32_t generation)
{
	if (agent_child_tells()) {
		atomic_store(&seen->generation, generation);
		return 0;
	}
	return waits(generation);
}

static bool child_is_gone(void) { return !agents_child_runs(&agents, 0); }
static bool child_is_known(void) { return atomic_load(&agents.shared->agent[0].child) != 0; }
static bool was_told(void) { return atomic_load(&seen->generation) == awaited; }

/* The program stays in the next generation, and is told so; afterwards it ends. If it has died, another one begins. */
TEST(a_program_may_stay)
{
	struct agent *agent;
	pid_t program;
	int status;

	start(1, waits_or_tells);
	agent = &agents.shared->agent[0];
	order(AGENTS_RUN, 1);
	wait_for_members(1);
	/* The program may run before its agent has noted it. */
	assert_true(holds(child_is_known, 60));
	program = atomic_load(&agent->child);
	for (uint32_t generation = 2; generation <= 3; generation++) {
		atomic_store(&agent->stays, true);
		keep_programs(generation - 1);
		order(AGENTS_RUN, generation);
		awaited = generation;
		assert_true(holds(was_told, 60));
		assert_true(agents_child_runs(&agents, 0));
		assert_int_equal(atomic_load(&agent->child), program);
	}
	keep_programs(3);
	assert_int_equal(kill(program, SIGKILL), 0);
	assert_true(holds(child_is_gone, 60));
	order(AGENTS_RUN, 4);
	wait_for_members(2);
	assert_true(atomic_load(&agent->child) != program);
	/* After all it is to end. */
	keep_programs(4);
	assert_true(agents_child_runs(&agents, 0));
	end_generation(4);
	assert_false(agents_child_runs(&agents, 0));
	assert_true(members_are_gone());
	assert_true(agents_child_ended(&agents, 0, 4, &status));
	quit(AGENTS_OWN_STATUS);
}

TEST(a_spare_has_no_program)
{
	start(2, waits);
	atomic_store(&agents.shared->agent[0].spare, true);
	order(AGENTS_RUN, 1);
	wait_for_members(1);
	end_generation(1);
	assert_int_equal(atomic_load(&seen->count), 1);
	assert_true(members_are_gone());
	/* In the next one it has. */
	atomic_store(&agents.shared->agent[0].spare, false);
	order(AGENTS_RUN, 2);
	wait_for_members(3);
	assert_int_equal(atomic_load(&seen->generation), 2);
	assert_int_equal(quit(0), 0);
}

static void nothing_outlives_its_generation(int (*program)(uint32_t generation), uint32_t members)
{
	start(1, program);
	for (uint32_t generation = 1; generation <= 2; generation++) {
		forget();
		order(AGENTS_RUN, generation);
		wait_for_members(members);
		end_generation(generation);
		assert_true(members_are_gone());
	}
	assert_int_equal(quit(0), 0);
}

TEST_RUNS(daemons_and_stopped_processes_are_ended, nothing_outlives_its_generation(leaves_a_tree, 5));

TEST_RUNS(two_hundred_are_ended, nothing_outlives_its_generation(has_many, 201));

TEST_RUNS(a_storm_of_forks_is_ended, nothing_outlives_its_generation(storms, 4));

TEST(an_inner_srun_may_end_its_step)
{
	start(1, starts_steps);
	order(AGENTS_RUN, 1);
	wait_for_members(3);
	end_generation(1);
	assert_int_equal(atomic_load(&seen->asked), 1);
	assert_true(members_are_gone());
	assert_int_equal(quit(0), 0);
}

TEST(an_early_end_leaves_the_rest_till_told)
{
	start(1, leaves_a_tree);
	order(AGENTS_RUN, 1);
	wait_for_members(5);
	/* The program itself is the first. */
	kill(atomic_load(&seen->pid[0]), SIGKILL);
	awaited = 1;
	assert_true(holds(child_has_ended, 20));
	assert_false(members_are_gone());
	assert_int_equal(quit(AGENTS_OWN_STATUS), SIGKILL);
}

TEST(a_program_dies_with_its_agent)
{
	start(2, waits);
	order(AGENTS_RUN, 1);
	wait_for_members(2);
	kill(agents.pids[0], SIGKILL);
	while (agents_agent_runs(&agents, 0))
		usleep(1000);
	assert_int_equal(agents_left(&agents), 1);
	/* The other one is clear, and the killed one does not count. */
	end_generation(1);
	assert_true(holds(members_are_gone, 20));
	assert_int_equal(quit(0), SIGKILL);
}

TEST(signals_go_past_an_agent)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGPIPE, SIGALRM, SIGPWR };

	start(1, waits);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		kill(agents.pids[0], signals[i]);
	/* One that is stopped goes on when it is told something. */
	kill(agents.pids[0], SIGSTOP);
	order(AGENTS_RUN, 1);
	wait_for_members(1);
	kill(agents.pids[0], SIGSTOP);
	end_generation(1);
	assert_true(members_are_gone());
	assert_int_equal(quit(0), 0);
}

static void note_signal(int number)
{
	atomic_store(&seen->asked, (unsigned int)number);
}

static int notes_signals(uint32_t generation)
{
	for (int i = 1; i < 32; i++)
		if (i != SIGKILL && i != SIGSTOP)
			signal(i, note_signal);
	return waits(generation);
}

static bool is_asked(void) { return atomic_load(&seen->asked) == awaited; }

static void send_to_agent(int number, bool from_another)
{
	pid_t sender = from_another ? fork() : 0;

	assert_true(sender >= 0);
	if (sender == 0)
		assert_int_equal(kill(agents.pids[0], number), 0);
	if (from_another && sender == 0)
		_exit(0);
	if (from_another)
		assert_int_equal(waitpid(sender, NULL, 0), sender);
}

/* proctrack/cgroup: SLURM sends signals to the children of slurmstepd only, and these are agents. */
TEST(an_agent_hands_slurms_signals_on)
{
	static const int numbers[] = { SIGUSR1, SIGTERM, SIGINT, SIGHUP, SIGUSR2 };

	start(1, notes_signals);
	agents.shared->hands_on = true;
	order(AGENTS_RUN, 1);
	wait_for_members(1);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		send_to_agent(numbers[i], false);
		awaited = (uint32_t)numbers[i];
		assert_true(holds(is_asked, 20));
	}
	/* Orders, the word of a dead parent and other senders are none of SLURM's. */
	send_to_agent(SIGCONT, false);
	send_to_agent(SIGPWR, false);
	send_to_agent(SIGTERM, true);
	usleep(50000);
	assert_int_equal(atomic_load(&seen->asked), SIGUSR2);
	quit(0);
}

/* A program ends by this signal until it has a handler. */
static int waits_for_usr1(uint32_t generation)
{
	execl("/bin/sh", "sh", "-c", "trap 'exit 8' ABRT; sleep 0.2; trap 'exit 9' USR1; while :; do sleep 0.05; done",
	      (char *)NULL);
	return 1;
}

TEST(a_signal_that_finds_no_program_is_for_the_next_one)
{
	int status = -1;

	start(1, waits_for_usr1);
	send_to_agent(SIGABRT, false);
	send_to_agent(SIGUSR1, false);
	run_to_the_end(1);
	assert_true(agents_child_ended(&agents, 0, 1, &status));
	assert_int_equal(status, W_EXITCODE(9, 0));
	send_to_agent(SIGUSR1, false);
	end_generation(1);
	run_to_the_end(2);
	assert_true(agents_child_ended(&agents, 0, 2, &status));
	assert_int_equal(status, W_EXITCODE(9, 0));
	end_generation(2);
	quit(0);
}

static bool program_has_handler(void)
{
	return (proc_status(atomic_load(&agents.shared->agent[0].child)).caught >> (SIGUSR1 - 1) & 1) != 0;
}

static bool spare_has_begun(void) { return atomic_load(&agents.shared->agent[0].begun) == awaited; }

/* Also if the order to end the generation reaches the spare before it has taken all signals. */
TEST(a_signal_that_a_spare_gets_is_for_no_later_program)
{
	static void (*const ends[])(uint32_t generation) = { end_generation, keep_programs };

	for (size_t i = 0; i < COUNT(ends); i++) {
		start(1, waits_for_usr1);
		atomic_store(&agents.shared->agent[0].spare, true);
		order(AGENTS_RUN, awaited = 1);
		assert_true(holds(spare_has_begun, 20));
		kill(agents.pids[0], SIGSTOP);
		assert_int_equal(waitpid(agents.pids[0], NULL, WUNTRACED), agents.pids[0]);
		send_to_agent(SIGINT, false);
		send_to_agent(SIGUSR1, false);
		ends[i](1);
		atomic_store(&agents.shared->agent[0].spare, false);
		order(AGENTS_RUN, awaited = 2);
		assert_true(holds(child_is_known, 20) && holds(program_has_handler, 20));
		for (int looks = 0; looks < 20; looks++) {
			agents_wake(&agents, 0);
			usleep(10000);
		}
		assert_false(child_has_ended());
		quit(0);
	}
}

TEST(a_program_has_the_tasks_signals)
{
	struct sigaction before, ignore = { .sa_handler = SIG_IGN };

	sigaction(SIGCHLD, &ignore, &before);
	start(1, tells_its_signals);
	sigaction(SIGCHLD, &before, NULL);
	run_to_the_end(1);
	assert_true(atomic_load(&seen->mask_is_empty));
	assert_true(atomic_load(&seen->child_is_ignored));
	assert_int_equal(quit(AGENTS_OWN_STATUS), W_EXITCODE(3, 0));
}

/* Each agent is forked while its slurmstepd has the writing ends of all tasks' standard inputs. */
TEST(a_program_reads_to_the_end_of_its_input)
{
	assert_int_equal(pipe2(input, O_CLOEXEC), 0);
	assert_int_equal(fcntl(input[0], F_SETFD, 0), 0);
	start(2, reads_to_the_end);
	for (awaited = 1; awaited <= 2; awaited++) {
		order(AGENTS_RUN, awaited);
		close(input[1]);
		assert_true(holds(child_has_ended, 20));
	}
	close(input[0]);
	assert_int_equal(quit(AGENTS_OWN_STATUS), 0);
}

TEST(older_orders_are_none)
{
	uint32_t generation;

	start(1, waits);
	end_generation(3);
	order(AGENTS_RUN, 2);
	order(AGENTS_RUN, 3);
	assert_int_equal(agents_ordered(&agents, &generation), AGENTS_END);
	assert_int_equal(generation, 3);
	assert_int_equal(quit(0), 0);
	assert_int_equal(agents_left(&agents), 0);
}

/* In a process in place of slurmstepd, which is killed. */
TEST(agents_end_with_slurmstepd)
{
	pid_t slurmstepd;

	seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	slurmstepd = fork();
	if (slurmstepd == 0) {
		struct error error;
		if (!agents_make(&agents, 2, &error))
			_exit(1);
		for (uint32_t i = 0; i < 2; i++) {
			pid_t pid = fork();
			if (pid == 0) {
				agent_become(&agents, i);
				_exit(leaves_a_tree(agent_serve()));
			}
			agents_forked(&agents, i, pid);
		}
		agents_order(&agents, AGENTS_RUN, 1);
		wait_for_ever();
	}
	awaited = 11;
	assert_true(holds(members_are_ready, 60));
	kill(slurmstepd, SIGKILL);
	assert_true(holds(members_are_gone, 60));
	while (wait(NULL) > 0)
		continue;
	assert_int_equal(errno, ECHILD);
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	munmap(seen, sizeof(*seen));
}

TEST(more_tasks_than_srun_can_deal_are_refused)
{
	struct agents many;
	struct error error;

	assert_true(agents_make(&many, DEAL_TASKS_MAX, &error));
	agents_free(&many);
	assert_false(agents_make(&many, DEAL_TASKS_MAX + 1, &error));
	assert_string_equal(error.text, "restart=: a node of the step may have at most 4096 tasks, and this node has 4097");
	assert_null(many.shared);
	agents_free(&many);
}

TEST(tasks_in_a_pid_namespace_are_refused)
{
	struct agents some;
	struct error error = { "" };
	int status;
	pid_t pid;

	assert_true(agents_make(&some, 1, &error));
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(agent_is_known(&some, &error) ? 0 : 1);
	assert_true(waitpid(pid, &status, 0) == pid && status == 0);
	pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(!agent_is_known(&some, &error) && strstr(error.text, "PID namespace") != NULL ? 0 : 1);
	agents_free(&some);
	if (pid < 0)
		skip(); /* only root may make one */
	assert_true(waitpid(pid, &status, 0) == pid && status == 0);
}
