/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/node: what a node makes of the ends of its tasks. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/node/ends.h"
#include "spank/node/node.h"
#include "spank/srun/relay_srun.h"
#include "spank/wire/relay.h"
#include "spank/wire/report.h"
#include "spank/wire/timeline.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

enum { TASKS = 64 };

static int times_spoken;

static void speak(const char *text)
{
	times_spoken++;
}

/* A node whose tasks sleep, each with a rank; the first one makes the witness. */
static void begin_with(struct node *node, const struct witness_words *words)
{
	struct error error = { "" };

	*node = (struct node){ .kill_on_failure = true, .say = speak };
	times_spoken = 0;
	if (!supervise_start(&node->supervise, TASKS, geteuid(), &error))
		fail_msg("%s", error.text);
	for (uint32_t i = 0; i < TASKS; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			/* Not to outlive a test that fails. */
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			witness_make(&node->supervise.shared->witness, words);
			pause();
			_exit(0);
		}
		node->supervise.shared->task[i].rank = i;
		supervise_forked(&node->supervise, i, pid);
	}
	while (atomic_load(&node->supervise.shared->witness.pid) == 0)
		usleep(1000);
}

static void begin(struct node *node)
{
	begin_with(node, &(struct witness_words){ .address = "", .text = "" });
}

/* The tasks from `first` on, killed and reaped, one after the other. */
static void take_killed(struct node *node, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++) {
		struct node_task task = { .local_id = i, .global_id = i };
		pid_t pid = node->supervise.pids[i];
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &task.wait_status, 0), pid);
		assert_int_equal(node_take_end(node, &task), DELAY_NEVER);
	}
}

/* The first tasks, as if they had ended with code 0. */
static void take_good(struct node *node, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct node_task task = { .local_id = i, .global_id = i };
		kill(node->supervise.pids[i], SIGKILL);
		assert_int_equal(waitpid(node->supervise.pids[i], NULL, 0), node->supervise.pids[i]);
		assert_int_equal(node_take_end(node, &task), DELAY_NEVER);
	}
}

static void end_node(struct node *node)
{
	node_end_witness(node);
	node_tell_end(node);
}

static void finish(struct node *node)
{
	witness_end(&node->supervise.shared->witness);
	take_killed(node, TASKS - 1, 1);
	supervise_end(&node->supervise);
}

static char logged[EVENT_LINE_MAX];
static int times_logged;

static void note_line(const char *line)
{
	times_logged++;
	snprintf(logged, sizeof(logged), "%s", line);
}

/* Of many tasks that Slurm kills each would take SETTLE_MS, while others still end. */
TEST(tasks_that_slurm_kills_are_looked_at_once)
{
	struct node node;
	uint64_t start;

	begin(&node);
	node.log = note_line;
	times_logged = 0;
	kill_witness(&node.supervise.shared->witness);
	/* On a busy machine it takes them long to end. */
	for (int i = 0; i < TASKS; i++) {
		siginfo_t info;
		kill(node.supervise.pids[i], SIGKILL);
		assert_int_equal(waitid(P_PID, (id_t)node.supervise.pids[i], &info, WEXITED | WNOWAIT), 0);
	}
	start = ddp_now_ns();
	take_killed(&node, 0, TASKS - 1);
	assert_true(ddp_now_ns() - start < (TASKS - 1) * SETTLE_MS * 1000000ull / 2);
	assert_true(node.told_later && !node.told_cause);
	assert_int_equal(times_spoken, 0);
	assert_int_equal(times_logged, 0);
	finish(&node);
}

/* A person ends a task by SIGTERM, for which there is grace, and then kills another. */
TEST(task_that_somebody_kills_is_a_failure_none_the_less)
{
	struct node_task asked = { .local_id = 0, .global_id = 0 }, killed = { .local_id = 1, .global_id = 1 };
	struct node node;
	uint64_t start;

	begin(&node);
	node.log = note_line;
	node.job_id = 12;
	atomic_store(&node.supervise.shared->task[1].start_ns, ddp_now_ns());
	times_logged = 0;
	kill(node.supervise.pids[0], SIGTERM);
	waitpid(node.supervise.pids[0], &asked.wait_status, 0);
	assert_int_equal(node_take_end(&node, &asked), DELAY_GRACE);
	kill(node.supervise.pids[1], SIGKILL);
	waitpid(node.supervise.pids[1], &killed.wait_status, 0);
	assert_int_equal(node_take_end(&node, &killed), DELAY_NONE);
	assert_int_equal(times_spoken, 1);
	assert_int_equal(times_logged, 2);
	assert_non_null(strstr(logged, "failure v=1 kind=killed job=12 "));
	assert_non_null(strstr(logged, " rank=1 "));
	assert_non_null(strstr(logged, " signal=9 "));
	/* A task that cannot start for it waits for nothing more to be told. */
	start = ddp_now_ns();
	supervise_await_told(&node.supervise);
	assert_true(ddp_now_ns() - start < (CONNECT_MS + REPLY_MS) * 1000000ull);
	take_killed(&node, 2, TASKS - 3);
	finish(&node);
}

/* Somebody has killed the witness, its keeper and a task: Slurm would have killed the other tasks, too. */
TEST(task_that_is_killed_with_the_witness_alone_is_a_failure)
{
	struct node_task killed = { .local_id = 1, .global_id = 1 };
	struct node node;

	begin(&node);
	atomic_store(&node.supervise.shared->task[1].start_ns, ddp_now_ns());
	kill_witness(&node.supervise.shared->witness);
	kill(node.supervise.pids[1], SIGKILL);
	waitpid(node.supervise.pids[1], &killed.wait_status, 0);
	assert_int_equal(node_take_end(&node, &killed), DELAY_NONE);
	assert_int_equal(times_spoken, 1);
	take_killed(&node, 0, 1);
	take_killed(&node, 2, TASKS - 3);
	finish(&node);
}

/* The page has an error of a checkpoint that rank 70 of another node has met, and all ranks have got. */
TEST(crash_behind_another_ranks_error_is_a_cause)
{
	static const int ends[] = { SIGXFSZ, SIGUSR1 };
	const struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .status = DDP_ERR_IO, .culprit = 71,
		                           .error_state = DDP_ERROR_OPEN };
	struct node node;

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		/* The second one exits by itself. */
		struct node_task task = { .local_id = 1, .global_id = 1 };
		begin(&node);
		atomic_store(&node.supervise.shared->task[1].start_ns, ddp_now_ns());
		assert_int_equal(pwrite(node.supervise.progress_fd, &page, sizeof(page), DDP_PROGRESS_BYTES), sizeof(page));
		kill(node.supervise.pids[1], ends[i]);
		waitpid(node.supervise.pids[1], &task.wait_status, 0);
		if (ends[i] == SIGUSR1)
			task.wait_status = W_EXITCODE(1, 0);
		assert_int_equal(node_take_end(&node, &task), DELAY_NONE);
		assert_int_equal(node.told_cause, ends[i] == SIGXFSZ);
		assert_int_equal(node.told_hearsay, ends[i] != SIGXFSZ);
		kill_witness(&node.supervise.shared->witness);
		for (int local = 0; local < TASKS; local++)
			kill(node.supervise.pids[local] != 0 ? node.supervise.pids[local] : INT32_MAX, SIGKILL);
		take_killed(&node, 0, 1);
		take_killed(&node, 2, TASKS - 3);
		finish(&node);
	}
}

/* In the witness: of one node more there is one rank. */
static int tell_that_it_goes_on(void *relay, bool asked_to_stop)
{
	const struct stall_note note = { .ranks = TASKS, .world_size = TASKS + 1 };
	unsigned char bytes[STALL_NOTE_BYTES];

	stall_pack(&note, bytes);
	relay_tell(relay, "127.0.0.1", &(struct relay_news){ .text = "", .stall = bytes });
	return 1;
}

TEST(end_of_a_node_is_the_last_that_srun_hears_of_it)
{
	const struct stall_note other = { .stalled = true, .ranks = 1, .lowest = TASKS, .at_work = 1,
		                          .world_size = TASKS + 1, .kind = STALL_WAITS };
	struct relay relay = open_srun(&(struct step_policy){ .stall_seconds = 1 });
	struct witness_words words = { .address = "", .text = "", .look_ms = 1,
		                       .look = tell_that_it_goes_on, .about = &relay };
	unsigned char bytes[STALL_NOTE_BYTES];
	struct node node;

	begin_with(&node, &words);
	node.kill_on_failure = false;
	node.stall_seconds = 1;
	node.relay = relay;
	node.supervise.shared->world_size = TASKS + 1;
	memcpy(node.supervise.shared->srun_address, "127.0.0.1", sizeof("127.0.0.1"));
	take_good(&node, TASKS - 1);
	/* Of this one the news wait for SETTLE_MS. */
	take_killed(&node, TASKS - 1, 1);
	end_node(&node);
	stall_pack(&other, bytes);
	assert_true(relay_tell(&relay, "127.0.0.1", &(struct relay_news){ .text = "", .stall = bytes }));
	/* First of the last task's end. */
	wait_for(&times_said, 2);
	relay_close();
	assert_non_null(strstr(said, "the step stalls: "));
	supervise_end(&node.supervise);
}

/* It was stopped, went on, and ended with 0 between two looks of the witness. */
TEST(rank_that_was_late_is_forgotten_with_its_node)
{
	const struct stall_note late = { .ranks = TASKS, .world_size = TASKS + 1, .kind = STALL_STOPPED, .rank = 1,
		                         .who = "rank 1 of 65 on n0" };
	const struct relay_news news = { .text = "rank 64 of 65 on n1 exited with code 1", .wait_status = W_EXITCODE(1, 0),
		                         .facts = { .end = END_CODE, .sent = SENT_NOTHING, .blames_peer = true } };
	struct relay relay = open_srun(&(struct step_policy){ .hold_ms = 0 });
	unsigned char bytes[STALL_NOTE_BYTES];
	struct node node;

	begin(&node);
	node.relay = relay;
	node.supervise.shared->world_size = TASKS + 1;
	memcpy(node.supervise.shared->srun_address, "127.0.0.1", sizeof("127.0.0.1"));
	stall_pack(&late, bytes);
	assert_true(relay_tell(&relay, "127.0.0.1", &(struct relay_news){ .text = "", .stall = bytes }));
	atomic_store(&node.supervise.shared->late, true);
	take_good(&node, TASKS);
	end_node(&node);
	assert_false(atomic_load(&node.supervise.shared->late));
	assert_true(relay_tell(&relay, "127.0.0.1", &news));
	wait_for(&times_said, 1);
	relay_close();
	assert_string_equal(said, news.text);
	supervise_end(&node.supervise);
}

/* ---- ends that the kernel tells --------------------------------------------------- */

static atomic_int times_acted, times_asked;
static pid_t started[TASKS]; /* the node's own list is the thread's, once it runs */

static void note_act(enum end_delay delay)
{
	assert_int_equal(delay, DELAY_NONE);
	atomic_fetch_add(&times_acted, 1);
}

static void start_programs(struct node *node)
{
	for (uint32_t i = 0; i < TASKS; i++) {
		atomic_store(&node->supervise.shared->task[i].start_ns, ddp_now_ns());
		started[i] = node->supervise.pids[i];
	}
	atomic_store(&times_acted, 0);
	atomic_store(&times_asked, 0);
}

/* The rest of the tasks, as Slurm reaps them, behind which the thread ends. */
static void end_watch(struct node *node)
{
	for (uint32_t i = 0; i < TASKS; i++) {
		struct node_task task = { .local_id = i, .global_id = i };
		if (started[i] == 0)
			continue;
		kill(started[i], SIGKILL);
		assert_int_equal(waitpid(started[i], &task.wait_status, 0), started[i]);
		ends_take(&task);
	}
	assert_true(ends_finish());
	if (ends_leaves_rest())
		end_node(node);
	supervise_end(&node->supervise);
}

/* Another plugin's callback may keep Slurm's word on a task for a minute. */
TEST(end_is_learnt_without_slurm)
{
	struct node_task task = { .local_id = 3, .global_id = 3 };
	struct node node;
	pid_t pid;

	begin(&node);
	start_programs(&node);
	pid = started[3];
	started[3] = 0;
	ends_watch(&node, note_act, true);
	kill(pid, SIGXFSZ);
	wait_for(&times_acted, 1);
	assert_int_equal(times_spoken, 1);
	/* Slurm's word comes later, and is no news. */
	assert_int_equal(waitpid(pid, &task.wait_status, 0), pid);
	assert_false(ends_take(&task));
	assert_int_equal(times_acted, 1);
	end_watch(&node);
}

/* Later all tasks are killed, and nobody is left to show that it was not Slurm. */
TEST(loss_of_the_witness_is_learnt_at_once)
{
	struct node node;

	begin(&node);
	start_programs(&node);
	ends_watch(&node, note_act, true);
	kill_witness(&node.supervise.shared->witness);
	for (int i = 0; i < 2000 && !atomic_load(&node.witness_lost); i++)
		usleep(10000);
	assert_true(atomic_load(&node.witness_lost));
	for (int i = 0; i < TASKS; i++)
		kill(started[i], SIGKILL);
	wait_for(&times_acted, 1);
	end_watch(&node);
}

static bool ask(uint32_t local_task, int *wait_status)
{
	/* The thread may also ask about a task that end_watch() has just reaped. */
	if (local_task != 5)
		return false;
	*wait_status = W_EXITCODE(7, 0);
	return atomic_fetch_add(&times_asked, 1) >= 3;
}

/* Slurm is often the first to reap a task: how it had ended only Slurm knows then. */
TEST(status_of_a_reaped_task_is_slurms)
{
	struct node node;

	begin(&node);
	start_programs(&node);
	node.supervise.ask = ask;
	kill(node.supervise.pids[5], SIGKILL);
	assert_int_equal(waitpid(started[5], NULL, 0), started[5]);
	started[5] = 0;
	ends_watch(&node, note_act, true);
	wait_for(&times_acted, 1);
	assert_int_equal(times_asked, 4);
	assert_int_equal(node.supervise.reaped[5].wait_status, W_EXITCODE(7, 0));
	end_watch(&node);
}

/* Whether srun has answered the report, told again now. */
static bool reports(struct node *node)
{
	int wait_ms;

	node->report_ns = 1;
	wait_ms = node_report_again(node);
	assert_true(wait_ms == -1 || (wait_ms > 0 && wait_ms <= 10 * REPORT_MS));
	assert_int_equal(wait_ms == -1, atomic_load(&node->supervise.shared->answered));
	return wait_ms == -1;
}

/* The network may lose the task's own report. */
TEST(report_is_repeated_until_srun_answers)
{
	const struct step_policy policy = { .hold_ms = LONG_MS };
	struct supervise_shared *shared;
	struct node node;
	int wait_ms;

	begin(&node);
	shared = node.supervise.shared;
	assert_int_equal(node_report_again(&node), -1);
	memcpy(shared->srun_address, "127.0.0.1", sizeof("127.0.0.1"));
	memcpy(shared->node, "n1", sizeof("n1"));
	node.relay = open_srun(&policy);
	wait_ms = node_report_again(&node);
	assert_true(wait_ms > 0 && wait_ms <= REPORT_MS);
	/* The first word is a task's. */
	assert_false(reports(&node));
	atomic_store(&shared->noted, true);
	relay_close();
	for (int i = 0; i < 30; i++)
		assert_false(reports(&node));
	node.relay = open_srun(&policy);
	assert_true(reports(&node));
	assert_true(reports(&node));
	/* srun is to know of the node before the last good end, */
	atomic_store(&shared->answered, false);
	take_good(&node, 2);
	node.reported_ns = ddp_now_ns();
	node_end_witness(&node);
	/* but has just been told. */
	assert_false(atomic_load(&shared->answered));
	node.reported_ns -= REPORT_MS * 1000000ull;
	node_end_witness(&node);
	assert_true(atomic_load(&shared->answered));
	relay_close();
	node.relay.port = 0;
	/* Without the witness the rest counts as killed by Slurm. */
	for (int i = 2; i < TASKS; i++)
		kill(node.supervise.pids[i], SIGKILL);
	take_killed(&node, 2, TASKS - 3);
	finish(&node);
}

/* The fence of a step with restart= is not to wait for an srun that does not answer. */
TEST(restarts_wait_for_no_srun_that_is_out_of_reach)
{
	const struct relay_news news = node_error("it has failed");
	struct node node = { .say = speak };
	struct error error;
	uint64_t start_ns;
	uint16_t port;
	int listener = listen_here(&port);

	assert_true(supervise_start(&node.supervise, 1, geteuid(), &error));
	strcpy(node.supervise.shared->srun_address, "127.0.0.1");
	node.relay = (struct relay){ .port = port, .reply_ms = REPLY_MS };
	node.link.facts.silence_ms = 5000;
	node.link.was_open = true;
	node.link.lease.renewed_ns = ddp_now_ns() - 2000000000ull;
	start_ns = ddp_now_ns();
	assert_false(node_tell(&node, &news));
	assert_true(ddp_now_ns() - start_ns >= REPLY_MS * 1000000ull);
	node.relay.port = port;
	assert_true(agents_make(&node.supervise.agents, 1, &error));
	start_ns = ddp_now_ns();
	assert_false(node_tell(&node, &news));
	assert_true(ddp_now_ns() - start_ns < REPLY_MS * 1000000ull);
	/* It is asked again once it can be reached. */
	assert_int_equal(node.relay.port, port);
	supervise_end(&node.supervise);
	close(listener);
}
