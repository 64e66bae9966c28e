/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/node/ends and spank/base/child: how slurmstepd learns of its tasks' ends, also where Slurm calls back
   in a child that shares its memory and nothing else (SlurmdParameters=contain_spank). */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/node/ends.h"
#include "spank/node/stall.h"
#include "spank/srun/links.h"
#include "spank/wire/relay.h"
#include "spank/witness/witness.h"
#include "tests/support/sanitizers.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

enum { TASKS = 2, OTHERS = 8, STACK_BYTES = 1 << 20, LIMIT_SECONDS = 30 };

static struct node node;
static int times_spoken, answer, asked_task;
static char spoken[RELAY_TEXT_MAX + 1];

static void say(const char *text)
{
	times_spoken++;
	snprintf(spoken, sizeof(spoken), "%s", text);
}

static void act(enum end_delay delay)
{
	answer = (int)delay;
}

static int run_and_end(void *work)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	(*(void (**)(void))work)();
	_exit(0);
}

/* As slurmstepd does, which waits meanwhile. */
static void call_contained(void (*work)(void))
{
	char *stack;
	int status = -1;
	pid_t pid;

	/* Its run-time follows no child that shares memory without being a thread. */
	if (THREAD_SANITIZER)
		skip();
	stack = malloc(STACK_BYTES);
	assert_non_null(stack);
	pid = clone(run_and_end, stack + STACK_BYTES, CLONE_VM | SIGCHLD, &work);
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	free(stack);
}

static bool has_answer(void)
{
	return atomic_load(&node.supervise.shared->answered);
}

static bool has_first_end(void)
{
	return atomic_load(&node.supervise.shared->task[0].end) != STALL_NO_END;
}

static bool has_no_witness(void)
{
	return kill(node.supervise.shared->witness.pid, 0) != 0;
}

/* For up to 20 s, as wait_for(). */
static void await(bool (*condition)(void))
{
	for (int i = 0; i < 20000 && !condition(); i++)
		usleep(1000);
	assert_true(condition());
}

static bool started;

static void begin(void)
{
	struct error ignored;

	started = supervise_start(&node.supervise, TASKS, geteuid(), &ignored);
}

static void watch(void)
{
	ends_watch(&node, act, true);
}

/* A task that has become the user's program. It waits to be killed, and ends well after SIGTERM. */
static void fork_tasks(void)
{
	sigset_t term, before;
	int number;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	assert_int_equal(sigprocmask(SIG_BLOCK, &term, &before), 0);
	for (uint32_t i = 0; i < TASKS; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			sigwait(&term, &number);
			_exit(0);
		}
		node.supervise.shared->task[i].rank = i;
		atomic_store(&node.supervise.shared->task[i].start_ns, 1);
		supervise_forked(&node.supervise, i, pid);
	}
	assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
	node.supervise.shared->world_size = TASKS;
	strcpy(node.supervise.shared->node, "n0");
}

static void kill_and_reap(uint32_t local_task, int number)
{
	kill(node.supervise.pids[local_task], number);
	assert_int_equal(waitpid(node.supervise.pids[local_task], NULL, 0), node.supervise.pids[local_task]);
}

static void make_witness(void)
{
	const struct witness_words words = { .address = "", .text = "" };
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		witness_make(&node.supervise.shared->witness, &words);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_true(node.supervise.shared->witness.pid > 0);
}

static void start(void)
{
	/* A callback that hangs hangs slurmstepd. */
	alarm(LIMIT_SECONDS);
	node = (struct node){ .kill_on_failure = true, .say = say };
	times_spoken = 0;
	answer = DELAY_NEVER;
	started = false;
	contained_note_slurmstepd();
}

/* Tasks begin, whose ends this srun is told of. */
static void watch_for_srun(const struct relay *relay, pid_t tasks[TASKS])
{
	start();
	begin();
	fork_tasks();
	memcpy(tasks, node.supervise.pids, TASKS * sizeof(*tasks));
	node.relay = *relay;
	node.relay.sender = relay_start_sender(&node.supervise.shared->sender);
	node.silence_ms = LONG_MS;
	strcpy(node.supervise.shared->srun_address, "127.0.0.1");
	atomic_store(&node.supervise.shared->noted, true);
	watch();
}

static int status_taken;
static bool last;

static void take_first(void)
{
	last = ends_take(&(struct node_task){ .local_id = 0, .global_id = 0, .wait_status = status_taken });
}

static void take_second(void)
{
	last = ends_take(&(struct node_task){ .local_id = 1, .global_id = 1, .wait_status = status_taken });
}

/* slurmstepd's own, which get the numbers of what a callback has opened. */
static void open_others(int others[OTHERS])
{
	for (int i = 0; i < OTHERS; i++) {
		others[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		assert_true(others[i] >= 0);
	}
}

/* Nobody has written to them, nor closed one. */
static void close_others(const int others[OTHERS])
{
	for (int i = 0; i < OTHERS; i++) {
		uint64_t times;
		assert_int_equal(read(others[i], &times, sizeof(times)), -1);
		assert_int_equal(errno, EAGAIN);
		assert_int_equal(close(others[i]), 0);
	}
}

/* One of two tasks crashes, and Slurm calls back once it has reaped it. */
TEST(contained_callbacks_learn_of_ends)
{
	int others[OTHERS];

	start();
	call_contained(begin);
	assert_true(started);
	/* The file's number is nothing, or another file, once the callback is over. */
	assert_int_equal(node.supervise.progress_fd, -1);
	assert_true(node.supervise.contained);
	fork_tasks();
	make_witness();
	call_contained(watch);
	open_others(others);
	kill_and_reap(0, SIGABRT);
	status_taken = SIGABRT;
	call_contained(take_first);
	assert_false(last);
	assert_int_equal(times_spoken, 1);
	assert_non_null(strstr(spoken, "rank 0 of 2 on n0"));
	assert_non_null(strstr(spoken, "SIGABRT"));
	assert_int_equal(answer, DELAY_NONE);
	kill_and_reap(1, SIGKILL);
	status_taken = SIGKILL;
	call_contained(take_second);
	assert_true(last);
	assert_int_equal(times_spoken, 1);
	/* As at slurmstepd's own end. */
	assert_true(ends_finish());
	close_others(others);
	witness_end(&node.supervise.shared->witness);
	supervise_end(&node.supervise);
}

static enum slurm_sent sent;
static bool witness_killed;
static enum task_state states[TASKS];
static struct supervise_ends looked;
static int wait_status;

static void look(void)
{
	sent = witness_sent(&node.supervise.shared->witness);
	witness_killed = witness_was_killed(&node.supervise.shared->witness);
	for (uint32_t i = 0; i < TASKS; i++)
		states[i] = supervise_state(&node.supervise, i, &wait_status);
	looked = supervise_count_ends(&node.supervise);
}

static void end_witness(void)
{
	witness_end(&node.supervise.shared->witness);
}

static bool ask(uint32_t local_task, int *status)
{
	asked_task = (int)local_task;
	*status = W_EXITCODE(3, 0);
	return true;
}

/* The tasks and the witness are children of slurmstepd, but not of the callback. */
TEST(contained_callback_takes_no_running_process_for_ended)
{
	start();
	begin();
	assert_true(started && node.supervise.progress_fd >= 0 && !node.supervise.contained);
	fork_tasks();
	make_witness();
	call_contained(look);
	assert_int_equal(sent, SENT_NOTHING);
	assert_false(witness_killed);
	assert_int_equal(states[0], TASK_RUNS);
	assert_int_equal(states[1], TASK_RUNS);
	assert_false(looked.all_ended || looked.all_killed);
	/* Slurm has reaped the first, and tells how it has ended. */
	node.supervise.ask = ask;
	asked_task = -1;
	kill_and_reap(0, SIGKILL);
	kill(node.supervise.pids[1], SIGKILL);
	call_contained(look);
	assert_int_equal(states[0], TASK_ENDED);
	assert_int_equal(wait_status, W_EXITCODE(3, 0));
	assert_int_equal(asked_task, 0);
	/* The second one may have ended, but how is not known. */
	assert_int_equal(states[1], TASK_RUNS);
	assert_int_equal(waitpid(node.supervise.pids[1], NULL, 0), node.supervise.pids[1]);
	kill_witness(&node.supervise.shared->witness);
	call_contained(look);
	assert_true(witness_killed);
	assert_int_equal(sent, SENT_KILL);
	witness_end(&node.supervise.shared->witness);
	supervise_end(&node.supervise);
}

TEST(contained_callback_ends_the_witness)
{
	siginfo_t info = { .si_pid = 0 };

	start();
	begin();
	make_witness();
	call_contained(end_witness);
	/* It has ended, and its parent may reap it. */
	assert_int_equal(waitid(P_PID, (id_t)node.supervise.shared->witness.pid, &info, WEXITED | WNOHANG), 0);
	assert_int_equal(info.si_pid, node.supervise.shared->witness.pid);
	supervise_end(&node.supervise);
}

/* Slurm's own word comes late, as behind a TaskEpilog. */
TEST(thread_takes_ends_before_slurm_does)
{
	pid_t first, second;

	start();
	begin();
	fork_tasks();
	/* The thread writes to the list. */
	first = node.supervise.pids[0];
	second = node.supervise.pids[1];
	watch();
	kill(first, SIGABRT);
	await(has_first_end);
	assert_int_equal(waitpid(first, NULL, 0), first);
	status_taken = SIGABRT;
	take_first();
	assert_false(last);
	assert_int_equal(times_spoken, 1);
	kill(second, SIGKILL);
	assert_int_equal(waitpid(second, NULL, 0), second);
	status_taken = SIGKILL;
	take_second();
	assert_true(last);
	/* The witness is needed until the request to end the step is over. */
	assert_true(ends_leaves_rest());
	assert_true(ends_finish());
	supervise_end(&node.supervise);
}

/* Slurm waits 100 ms after the first of several ends. Meanwhile the thread does all that follows the last end. */
TEST(thread_ends_the_witness_before_slurm_reaps)
{
	pid_t tasks[TASKS], keeper;

	start();
	begin();
	fork_tasks();
	make_witness();
	for (int i = 0; i < TASKS; i++)
		tasks[i] = node.supervise.pids[i];
	keeper = node.supervise.shared->witness.keeper;
	watch();
	assert_true(atomic_load(&node.supervise.shared->watched));
	for (int i = 0; i < TASKS; i++)
		kill(tasks[i], SIGTERM);
	await(has_no_witness);
	status_taken = 0;
	/* The first callback waits for nothing that the last one has to wait for. */
	assert_int_equal(waitpid(tasks[0], NULL, 0), tasks[0]);
	take_first();
	assert_false(last);
	assert_int_equal(waitpid(tasks[1], NULL, 0), tasks[1]);
	take_second();
	assert_true(last);
	assert_false(ends_leaves_rest());
	assert_true(ends_finish());
	/* Nothing is left of the witness's keeper. */
	assert_true(keeper == 0 || kill(keeper, 0) != 0);
	supervise_end(&node.supervise);
}

/* srun holds a failure until each node has told of its own earlier ones. */
TEST(thread_answers_srun_when_it_has_told_all)
{
	const struct step_policy policy = { .ask_ms = LONG_MS, .silence_ms = LONG_MS, .doubt_ms = LONG_MS, .grace_ms = LONG_MS,
		                            .kill_on_failure = true };
	const struct relay_news later = { .text = "later", .wait_status = W_EXITCODE(7, 0),
		                          .facts = { .end = END_CODE, .sent = SENT_NOTHING, .blames_peer = true } };
	pid_t tasks[TASKS];

	for (int fails = 0; fails < 2; fails++) {
		struct relay relay = open_srun(&policy);
		watch_for_srun(&relay, tasks);
		await(has_answer);
		if (fails) {
			siginfo_t end;
			kill(tasks[0], SIGABRT);
			assert_int_equal(waitid(P_PID, (id_t)tasks[0], &end, WEXITED | WNOWAIT), 0);
		}
		assert_true(relay_tell(&relay, "127.0.0.1", &later));
		wait_for(&times_said, 1);
		assert_non_null(strstr(said, fails ? "rank 0 of 2 on n0 was killed by signal 6" : "later"));
		for (int i = 0; i < TASKS; i++) {
			kill(tasks[i], SIGTERM);
			assert_int_equal(waitpid(tasks[i], &status_taken, 0), tasks[i]);
		}
		take_first();
		take_second();
		assert_true(last);
		assert_true(ends_finish());
		link_end(&node.link);
		relay_close();
		supervise_end(&node.supervise);
	}
}

static atomic_int byes;

static void note_bye(uint32_t link, enum links_event event)
{
	atomic_fetch_add(&byes, event == LINK_BYE);
}

/* srun is slow, and answers the link's opening when all tasks have ended. Slurm is still calling other plugins, and their
   work may take longer than silence=. */
TEST(srun_hears_the_good_bye_of_a_link_that_opens_late)
{
	const struct links_actions take = { .event = note_bye };
	struct relay relay = { .secret = "a secret of 16 b" };
	struct relay_message message;
	pid_t tasks[TASKS];
	struct links links;
	int listener = listen_here(&relay.port), link;

	watch_for_srun(&relay, tasks);
	link = accept(listener, NULL, NULL);
	assert_int_equal(recv(link, &message, sizeof(message), MSG_WAITALL), sizeof(message));
	for (int i = 0; i < TASKS; i++) {
		kill(tasks[i], SIGTERM);
		assert_int_equal(waitpid(tasks[i], &status_taken, 0), tasks[i]);
	}
	take_first();
	take_second();
	assert_true(last);
	atomic_store(&byes, 0);
	links_start(&links, relay.secret, LONG_MS, &take);
	assert_true(links_adopt(&links, link, &relay, &message, ddp_now_ns()));
	/* LIMIT_SECONDS end this. */
	while (atomic_load(&byes) == 0) {
		links_read(&links, ddp_now_ns());
		usleep(1000);
	}
	assert_true(ends_finish());
	link_end(&node.link);
	links_end(&links);
	close(listener);
	supervise_end(&node.supervise);
}

/* Where the kernel has no pidfd_open(). */
TEST(looks_at_tasks_grow_rare)
{
	int ms = 50, total_ms = 0, looks = 0;

	for (; total_ms < 3600 * 1000; looks++) {
		int next_ms = ends_next_look_ms(ms);
		assert_true(next_ms >= ms && next_ms <= 1000);
		ms = next_ms;
		total_ms += ms;
	}
	assert_int_equal(ms, 1000);
	assert_true(looks < 3700);
}
