/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/node/stall_watch: what a node tells srun of its ranks, and when. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/node/stall_watch.h"
#include "spank/node/supervise.h"
#include "spank/srun/relay_srun.h"
#include "spank/srun/step.h"
#include "spank/wire/relay.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

#define SECOND 1000000000ull

static struct relay open_relay(bool kill)
{
	return open_srun(&(struct step_policy){ .stall_seconds = 2, .kill_on_stall = kill });
}

struct fixture {
	struct supervise supervise;
	struct stall_watch watch;
	pid_t task;
	uint64_t now_ns; /* looks are as far apart as they should be, whatever the clock says */
};

static const struct relay nowhere;

/* A node with one rank, which is a process that does nothing. `seconds`: of stall=. */
static void begin_node(struct fixture *node, const struct relay *relay, uint32_t seconds)
{
	struct error error;

	if (!supervise_start(&node->supervise, 1, geteuid(), &error))
		fail_msg("%s", error.text);
	node->task = fork();
	assert_true(node->task >= 0);
	if (node->task == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	node->supervise.shared->task[0].rank = 0;
	node->supervise.shared->task[0].pid = node->task;
	node->supervise.shared->world_size = 1;
	strcpy(node->supervise.shared->node, "n0");
	strcpy(node->supervise.shared->srun_address, "127.0.0.1");
	if (!stall_watch_open(&node->watch, &node->supervise, seconds, &error))
		fail_msg("%s", error.text);
	node->watch.relay = *relay;
	node->now_ns = ddp_now_ns();
}

static void end_node(struct fixture *node)
{
	kill(node->task, SIGKILL);
	assert_int_equal(waitpid(node->task, NULL, 0), node->task);
	supervise_end(&node->supervise);
}

static void write_page(const struct fixture *node, const struct ddp_progress *page)
{
	assert_int_equal(pwrite(node->supervise.progress_fd, page, sizeof(*page), 0), sizeof(*page));
}

static void look(struct fixture *node, int times, bool stopping)
{
	for (int i = 0; i < times; i++) {
		node->now_ns += stall_watch_period_ms(2) * (SECOND / 1000);
		stall_watch_check(&node->watch, stopping, node->now_ns);
	}
}

TEST(node_tells_of_changes_only)
{
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .phase = DDP_PHASE_EVAL };
	struct relay relay = open_relay(false);
	struct fixture node;

	begin_node(&node, &relay, 2);
	write_page(&node, &page);
	look(&node, 20, false);
	assert_false(node.watch.told);
	/* Stopped by a signal, it evaluates no more. For a moment, as one is of a step that
	   goes on after its suspension, it may be. */
	kill(node.task, SIGSTOP);
	assert_int_equal(waitpid(node.task, NULL, WUNTRACED), node.task);
	look(&node, 4, false);
	assert_false(node.watch.told);
	look(&node, 1, false);
	assert_true(node.watch.told);
	wait_for(&times_said, 1);
	assert_non_null(strstr(said, "rank 0 of 1 on n0 is stopped by a signal or a debugger, in evaluation"));
	look(&node, 20, false);
	kill(node.task, SIGCONT);
	page.step++;
	write_page(&node, &page);
	look(&node, 1, false);
	assert_false(node.watch.told);
	page.phase = DDP_PHASE_FORWARD;
	write_page(&node, &page);
	look(&node, 4, false);
	assert_false(node.watch.told);
	look(&node, 1, false);
	assert_true(node.watch.told);
	wait_for(&times_said, 2);
	assert_int_equal(times_ended, 0);
	assert_int_equal(node.watch.node->stalls, 2);
	assert_int_equal(supervise_stalls(&node.supervise), 2);
	assert_int_equal(node.watch.node->stall_seconds, 2);
	end_node(&node);
	relay_close();
}

TEST(a_generation_begins_without_the_last_ones_stall)
{
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .phase = DDP_PHASE_FORWARD };
	struct relay relay = open_relay(false);
	struct fixture node;

	begin_node(&node, &relay, 2);
	atomic_store(&node.supervise.shared->generation, 1);
	write_page(&node, &page);
	look(&node, 5, false);
	assert_true(node.watch.told);
	assert_int_equal(node.watch.generation, 1);
	/* The page says the same, but another program has written it. */
	atomic_store(&node.supervise.shared->generation, 2);
	look(&node, 1, false);
	assert_false(node.watch.told);
	assert_int_equal(node.watch.generation, 2);
	look(&node, 3, false);
	assert_false(node.watch.told);
	look(&node, 1, false);
	assert_true(node.watch.told);
	/* Nobody wakes the witness for another one, so its looks never end. */
	node.watch.seconds = 0;
	node.now_ns += STALL_START_SECONDS * (uint64_t)SECOND;
	assert_int_equal(stall_watch_check(&node.watch, false, node.now_ns), STALL_START_MAX_MS);
	end_node(&node);
	relay_close();
}

TEST(steps_that_pause_or_stop_do_not_stall)
{
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1 };
	struct relay relay = open_relay(true);
	struct fixture node;

	begin_node(&node, &relay, 2);
	write_page(&node, &page);
	look(&node, 3, false);
	/* Suspended for an hour. */
	node.now_ns += 3600 * SECOND;
	look(&node, 1, false);
	assert_false(node.watch.told);
	look(&node, 20, true);
	assert_false(node.watch.told);
	look(&node, 1, false);
	assert_true(node.watch.told);
	wait_for(&times_said, 1);
	wait_for(&times_ended, 1);
	end_node(&node);
	relay_close();
}

/* Before srun listens, or while it does not answer, it is told again. */
TEST(what_srun_has_not_got_is_told_again)
{
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1 };
	struct relay relay;
	struct fixture node;

	begin_node(&node, &nowhere, 2);
	write_page(&node, &page);
	look(&node, 20, false);
	assert_true(node.watch.unanswered);
	relay = open_relay(false);
	node.watch.relay = relay;
	look(&node, 1, false);
	assert_false(node.watch.unanswered);
	wait_for(&times_said, 1);
	/* Its task ends, with code 0, and it is the only one: nobody waits. */
	supervise_reaped(&node.supervise, 0, 0);
	stall_tell_end(&node.supervise, &relay);
	assert_int_equal(times_said, 1);
	end_node(&node);
	relay_close();
}

/* What it did not answer in time, it may have heard: then that the node goes on, too. */
TEST(what_srun_may_have_heard_is_taken_back)
{
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1 };
	const struct stall_note other = { .stalled = true, .ranks = 1, .lowest = 1, .world_size = 2,
		                          .at_work = 1, .quiet_ms = 2000, .rank = 1, .kind = STALL_WAITS };
	unsigned char bytes[STALL_NOTE_BYTES];
	struct relay relay = open_relay(false);
	struct fixture node;

	begin_node(&node, &relay, 2);
	node.supervise.shared->world_size = 2;
	write_page(&node, &page);
	node.watch.relay.reply_ms = 0;
	look(&node, 5, false);
	node.watch.relay.reply_ms = relay.reply_ms;
	page.step++;
	write_page(&node, &page);
	look(&node, 1, false);
	stall_pack(&other, bytes);
	assert_true(relay_tell(&relay, "127.0.0.1", &(struct relay_news){ .text = "", .stall = bytes }));
	relay_close();
	assert_int_equal(times_said, 0);
	end_node(&node);
}

/* A program without libddp never comes to ddp_init(). */
TEST(looks_for_the_start_grow_rare_and_end)
{
	struct fixture node;
	uint64_t waited_ms = 0;
	int looks = 0, ms;

	begin_node(&node, &nowhere, 0);
	node.now_ns = node.watch.opened_ns;
	do {
		ms = stall_watch_check(&node.watch, false, node.now_ns);
		node.now_ns += (uint64_t)ms * 1000000;
		waited_ms += (uint64_t)ms;
		/* A wait that begins now is noticed soon, measured by how long the step has run. */
		assert_true(ms <= STALL_START_MS || (uint64_t)ms * 8 <= waited_ms);
		looks++;
	} while (ms > 0 && looks < 2000);
	assert_true(waited_ms >= STALL_START_SECONDS * 1000ull);
	assert_in_range(looks, 10, 150);
	end_node(&node);
}

TEST(looks_for_the_start_end_with_it)
{
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .phase = DDP_PHASE_FORWARD };
	struct fixture node;

	begin_node(&node, &nowhere, 0);
	assert_int_equal(stall_watch_check(&node.watch, false, node.watch.opened_ns), STALL_START_MS);
	write_page(&node, &page);
	assert_int_equal(stall_watch_check(&node.watch, false, node.watch.opened_ns + SECOND), 0);
	end_node(&node);
}

/* Ranks that wait in ddp_init() may wait for one that is slow to start. srun is told, because it knows whether the other
   rank has ended; but the step does not stall before the time of stall=, so that nothing is counted or recorded. */
TEST(slow_start_is_no_stall)
{
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .waiting = DDP_WAITING_OTHER,
		                     .collective_text = DDP_PROGRESS_FIRST_EXCHANGE };
	char folder[] = "/tmp/ddp-stall-watch-XXXXXX", path[64];
	struct fixture node;

	begin_node(&node, &nowhere, 2);
	node.supervise.shared->world_size = 2;
	assert_non_null(mkdtemp(folder));
	node.watch.flight.place = (struct record_place){ .job = 5, .step = 0, .owner = { .user = geteuid(), .group = getegid() } };
	strcpy(node.watch.flight.place.dir, folder);
	snprintf(path, sizeof(path), "%s/5.0/rank-0.jsonl", folder);
	page.collective_ns = node.now_ns;
	write_page(&node, &page);
	look(&node, 4, false);
	assert_true(node.watch.told);
	assert_int_equal(node.watch.node->stalls, 0);
	assert_int_not_equal(access(path, F_OK), 0);
	/* After the time of stall=, the same wait is a stall. */
	look(&node, 4, false);
	assert_int_equal(node.watch.node->stalls, 1);
	assert_int_equal(access(path, F_OK), 0);
	look(&node, 8, false);
	assert_int_equal(node.watch.node->stalls, 1);
	assert_int_equal(unlink(path), 0);
	*strrchr(path, '/') = '\0';
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(folder), 0);
	end_node(&node);
}

/* A node that needs no other look looks until srun has heard it, but not for ever as often. */
TEST(unheard_note_is_told_again_soon)
{
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .phase = DDP_PHASE_FORWARD };
	struct relay relay;
	struct fixture node;
	int ms;

	begin_node(&node, &nowhere, 0);
	write_page(&node, &page);
	stall_watch_begin_again(&node.watch);
	for (int looks = 0, limit_ms = STALL_START_MS; looks < 20; looks++, limit_ms *= limit_ms < STALL_START_MAX_MS ? 2 : 1) {
		ms = stall_watch_check(&node.watch, false, node.now_ns += SECOND);
		assert_in_range(ms, 1, limit_ms < STALL_START_MAX_MS ? limit_ms : STALL_START_MAX_MS);
	}
	assert_int_equal(ms, STALL_START_MAX_MS);
	assert_false(stall_watch_give_up(&node.watch));
	relay = open_relay(false);
	node.watch.relay = relay;
	assert_int_equal(stall_watch_check(&node.watch, false, node.now_ns += SECOND), 0);
	assert_false(node.watch.unanswered);
	assert_true(stall_watch_give_up(&node.watch));
	end_node(&node);
	relay_close();
}

/* A program of libddp over several nodes: ranks of other nodes may give up for one of this node. */
TEST(rank_that_is_stopped_is_looked_for)
{
	static const struct { uint32_t timeout_ms; int look_ms; } periods[] = {
		{ 300000, STALL_LATE_MAX_MS }, { UINT32_MAX, STALL_LATE_MAX_MS }, { 4000, 1000 },
		{ 1, STALL_LATE_MIN_MS }, { 0, 0 },
	};
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .phase = DDP_PHASE_FORWARD };
	struct relay relay = open_relay(false);
	struct fixture node;

	begin_node(&node, &nowhere, 0);
	node.supervise.shared->world_size = 2;
	for (size_t i = 0; i < sizeof(periods) / sizeof(periods[0]); i++) {
		page.timeout_ms = periods[i].timeout_ms;
		write_page(&node, &page);
		node.now_ns += SECOND;
		assert_int_equal(stall_watch_check(&node.watch, false, node.now_ns), periods[i].look_ms);
	}
	/* On one node slurmstepd itself sees it. */
	page.timeout_ms = 4000;
	write_page(&node, &page);
	node.supervise.shared->world_size = 1;
	assert_int_equal(stall_watch_check(&node.watch, false, node.now_ns += SECOND), 0);
	node.supervise.shared->world_size = 2;
	node.watch.relay = relay;
	kill(node.task, SIGSTOP);
	assert_int_equal(waitpid(node.task, NULL, WUNTRACED), node.task);
	stall_watch_check(&node.watch, false, node.now_ns += SECOND);
	assert_false(node.watch.late);
	stall_watch_check(&node.watch, false, node.now_ns += SECOND);
	assert_true(node.watch.late && !node.watch.told && !node.watch.unanswered);
	assert_true(atomic_load(&node.supervise.shared->late));
	kill(node.task, SIGCONT);
	assert_int_equal(waitpid(node.task, NULL, WCONTINUED), node.task);
	stall_watch_check(&node.watch, false, node.now_ns += SECOND);
	assert_false(node.watch.late || atomic_load(&node.supervise.shared->late));
	end_node(&node);
	relay_close();
}
