/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* watch/page and spank/wire/progress_page: several contexts of a process on one progress page.
   watch/stacks and spank/witness/stack: the stacks of a process's threads, on demand. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "job/job.h"
#include "spank/node/stall.h"
#include "spank/wire/progress_page.h"
#include "spank/witness/dump.h"
#include "tests/support/hung.h"
#include "tests/support/test.h"
#include "watch/page.h"
#include "watch/stacks.h"
#include "watch/watch.h"

static int page_fd;

/* The rank's identity in the step: rank 3 of 8, the second of its node. */
static const ddp_job job = { .rank = 3, .world_size = 8, .local_rank = 1, .local_world_size = 2,
	                     .identity_source = DDP_SOURCE_ENVIRONMENT, .hostname = "n1" };
/* And in a group of the program's, which was given to ddp_init(). */
static const ddp_job part = { .rank = 0, .world_size = 2, .identity_source = DDP_SOURCE_GIVEN, .hostname = "n1" };

static int make_page(void **state)
{
	char text[16];

	page_fd = memfd_create("ddp_progress", MFD_CLOEXEC);
	if (page_fd < 0 || ftruncate(page_fd, 2 * DDP_PROGRESS_BYTES) != 0)
		return -1;
	snprintf(text, sizeof(text), "%d", page_fd);
	return setenv("DDP_PROGRESS_FD", text, 1) | setenv("RANK", "3", 1) | setenv("WORLD_SIZE", "8", 1) |
	       setenv("LOCAL_RANK", "1", 1);
}

static int drop_page(void **state)
{
	static const char *const names[] = { "DDP_PROGRESS_FD", "RANK", "WORLD_SIZE", "LOCAL_RANK" };

	for (size_t i = 0; i < COUNT(names); i++)
		unsetenv(names[i]);
	return close(page_fd);
}

/* What the plugin's readers take from the page. */
static struct ddp_progress shown(void)
{
	struct ddp_progress slots[DDP_PROGRESS_SLOTS], one;

	assert_int_equal(pread(page_fd, slots, sizeof(slots), DDP_PROGRESS_BYTES), sizeof(slots));
	slots_read(slots, &one);
	return one;
}

static struct progress_text progress_now(void)
{
	const struct ddp_progress page = shown();
	struct progress_text progress;

	progress_text_read(&page, ddp_now_ns(), &progress);
	return progress;
}

static ddp_watch *open_watch(const ddp_job *of)
{
	ddp_watch *watch;

	assert_int_equal(ddp_watch_open(of, &watch), DDP_OK);
	return watch;
}

TEST_WITH(second_context_leaves_the_firsts_slot, make_page, drop_page)
{
	ddp_watch *first = open_watch(&job);

	ddp_watch_begin_step(first, 12, 5);
	ddp_watch_phase(first, DDP_PHASE_BACKWARD);
	ddp_page_collective(ddp_watch_page(first), 45, ddp_coarse_ns());
	ddp_watch *second = open_watch(&job);
	struct progress_text progress = progress_now();
	assert_int_equal(progress.step, 12);
	assert_int_equal(progress.phase, DDP_PHASE_BACKWARD);
	assert_int_equal(progress.collective, 45);
	assert_false(progress.closed);
	/* A training by the second one is seen, too. */
	ddp_watch_begin_step(second, 13, 5);
	ddp_watch_phase(second, DDP_PHASE_FORWARD);
	progress = progress_now();
	assert_int_equal(progress.step, 13);
	assert_int_equal(progress.phase, DDP_PHASE_FORWARD);
	ddp_watch_close(second);
	assert_int_equal(progress_now().step, 12);
	ddp_watch_close(first);
	assert_true(progress_now().closed);
}

TEST_WITH(end_of_one_context_blinds_nobody, make_page, drop_page)
{
	ddp_watch *first = open_watch(&job), *second = open_watch(&job);
	struct stall_rank rank = { .rank = 3 };
	struct ddp_progress page;

	ddp_watch_begin_step(second, 7, 1);
	ddp_watch_close(first);
	page = shown();
	stall_see(&rank, &page, STALL_NO_END, false, 1000);
	assert_int_equal(rank.closed_ns, 0);
	assert_false(progress_now().closed);
	assert_int_equal(progress_now().step, 7);
	/* The next context takes the place of the one that has ended. */
	first = open_watch(&job);
	for (int i = 0; i < 100; i++)
		ddp_watch_close(open_watch(&job));
	ddp_watch_close(first);
	ddp_watch_close(second);
	assert_true(progress_now().closed);
}

TEST_WITH(oldest_wait_is_told, make_page, drop_page)
{
	ddp_watch *first = open_watch(&job), *second = open_watch(&job);
	const uint64_t now = ddp_now_ns();

	ddp_page_collective(ddp_watch_page(first), 45, ddp_coarse_ns());
	ddp_page_wait(ddp_watch_page(second), 0, now - 9000000000u, "recv from rank 2");
	struct progress_text progress = progress_now();
	assert_int_equal(progress.wait, PROGRESS_WAITS_OTHERWISE);
	assert_string_equal(progress.text, "recv from rank 2");
	assert_true(progress.wait_seconds >= 9);
	assert_int_equal(progress.collective, 45);
	ddp_page_collective(ddp_watch_page(first), 46, ddp_coarse_ns());
	ddp_page_wait(ddp_watch_page(first), 46, now - 20000000000u, "barrier");
	progress = progress_now();
	assert_int_equal(progress.wait, PROGRESS_WAITS_IN_COLLECTIVE);
	assert_string_equal(progress.text, "barrier");
	ddp_page_go_on(ddp_watch_page(first));
	/* Numbers of the second one's collectives are not the first one's. */
	ddp_page_collective(ddp_watch_page(second), 2, ddp_coarse_ns());
	ddp_page_wait(ddp_watch_page(second), 2, now - 9000000000u, "all_reduce f32[8] sum");
	progress = progress_now();
	assert_int_equal(progress.wait, PROGRESS_WAITS_OTHERWISE);
	assert_string_equal(progress.text, "all_reduce f32[8] sum");
	assert_int_equal(progress.collective, 46);
	ddp_watch_close(second);
	assert_int_equal(progress_now().wait, PROGRESS_NO_WAIT);
	ddp_watch_close(first);
}

/* Whichever context goes on, the rank does. */
TEST_WITH(progress_in_any_context_is_progress, make_page, drop_page)
{
	ddp_watch *watches[] = { open_watch(&job), open_watch(&part), open_watch(&part) };
	struct stall_rank rank = { .rank = 3 };
	uint64_t now = 1000;

	ddp_page_wait(ddp_watch_page(watches[1]), 0, 5, "recv from rank 1");
	for (size_t i = 0; i < 2 * COUNT(watches); i++) {
		struct ddp_progress page = shown();
		stall_see(&rank, &page, STALL_NO_END, false, now++);
		const uint64_t before = rank.changed_ns;
		stall_see(&rank, &page, STALL_NO_END, false, now++);
		assert_int_equal(rank.changed_ns, before);
		ddp_page_collective(ddp_watch_page(watches[i % COUNT(watches)]), i + 1, ddp_coarse_ns());
		page = shown();
		stall_see(&rank, &page, STALL_NO_END, false, now);
		assert_int_equal(rank.changed_ns, now++);
	}
	for (size_t i = 0; i < COUNT(watches); i++)
		ddp_watch_close(watches[i]);
}

/* In a group its rank 1 is another one of the step. */
TEST_WITH(error_of_a_group_names_no_rank_of_the_step, make_page, drop_page)
{
	ddp_watch *first = open_watch(&job), *group = open_watch(&part);

	ddp_page_error(ddp_watch_page(group), DDP_ERR_PEER, DDP_ERROR_FINAL, 1, "n1", "rank 1 of 2 on n1 is gone");
	struct ddp_progress page = shown();
	assert_string_equal(page.error, "rank 1 of 2 on n1 is gone");
	assert_true(blame_is_of_peer(&page, 3));
	assert_true(blame_of(&page, 3) >= 8);
	assert_true(blame_ends_in_error(&page));
	/* An error of the step's context that is open yields to it. */
	ddp_page_error(ddp_watch_page(first), DDP_ERR_IO, DDP_ERROR_OPEN, 2, NULL, "the disk is full");
	page = shown();
	assert_int_equal(page.status, DDP_ERR_PEER);
	ddp_watch_close(group);
	/* Who goes on without the group opens another context in its place. */
	group = open_watch(&part);
	page = shown();
	assert_int_equal(page.status, DDP_ERR_IO);
	assert_int_equal(blame_of(&page, 3), BLAME_NOBODY);
	assert_int_equal(page.culprit, 3);
	ddp_watch_close(group);
	ddp_watch_close(first);
}

/* The step's ranks may be given, too: c10d's group of all. */
TEST_WITH(given_identity_of_the_step_is_the_steps, make_page, drop_page)
{
	ddp_job given = job;

	given.identity_source = DDP_SOURCE_GIVEN;
	given.local_rank = DDP_UNKNOWN;
	ddp_watch *watch = open_watch(&given);
	ddp_page_wait(ddp_watch_page(watch), 4, 0, "barrier");
	ddp_page_collective(ddp_watch_page(watch), 4, ddp_coarse_ns());
	ddp_page_error(ddp_watch_page(watch), DDP_ERR_TIMEOUT, DDP_ERROR_FINAL, 1, NULL, "rank 1 did not come");
	struct ddp_progress page = shown();
	assert_int_equal(blame_of(&page, 3), 1);
	assert_int_equal(progress_now().wait, PROGRESS_WAITS_IN_COLLECTIVE);
	ddp_watch_close(watch);
}

TEST_WITH(more_contexts_than_slots_are_unseen, make_page, drop_page)
{
	ddp_watch *watches[DDP_PROGRESS_SLOTS + 1];

	for (int i = 0; i <= DDP_PROGRESS_SLOTS; i++) {
		watches[i] = open_watch(&job);
		ddp_watch_begin_step(watches[i], i + 1, 1);
	}
	assert_int_equal(progress_now().step, DDP_PROGRESS_SLOTS);
	ddp_watch_close(watches[0]);
	watches[0] = open_watch(&job);
	ddp_watch_begin_step(watches[0], 99, 1);
	assert_int_equal(progress_now().step, 99);
	for (int i = 0; i <= DDP_PROGRESS_SLOTS; i++)
		ddp_watch_close(watches[i]);
}

/* A program before this one, in the same task. */
TEST_WITH(dead_processes_leave_their_slots, make_page, drop_page)
{
	int status = -1;
	const pid_t pid = fork();

	if (pid == 0) {
		for (int i = 0; i < DDP_PROGRESS_SLOTS; i++) {
			ddp_watch *watch = open_watch(&job);
			ddp_page_wait(ddp_watch_page(watch), 0, 5, "recv from rank 1");
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(progress_now().wait, PROGRESS_WAITS_OTHERWISE);
	ddp_watch *watches[DDP_PROGRESS_SLOTS];
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
		watches[i] = open_watch(&job);
	assert_int_equal(progress_now().wait, PROGRESS_NO_WAIT);
	assert_int_equal(shown().pid, getpid());
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
		ddp_watch_close(watches[i]);
}

/* It had more contexts than the program that follows. */
TEST_WITH(dead_processes_are_not_shown, make_page, drop_page)
{
	int status = -1;
	const pid_t pid = fork();

	if (pid == 0) {
		for (int i = 0; i < 3; i++) {
			ddp_watch *watch = open_watch(&job);
			ddp_page_wait(ddp_watch_page(watch), 0, 5, "recv from rank 1");
			ddp_page_error(ddp_watch_page(watch), DDP_ERR_PEER, DDP_ERROR_FINAL, 1, NULL, "rank 1 is gone");
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	ddp_watch *watch = open_watch(&job);
	ddp_watch_begin_step(watch, 4, 1);
	assert_int_equal(progress_now().wait, PROGRESS_NO_WAIT);
	assert_int_equal(progress_now().step, 4);
	assert_string_equal(shown().error, "");
	ddp_watch_close(watch);
	assert_true(progress_now().closed);
}

/* A writer without libddp, such as a module in Python, fills in the first slot. */
TEST_WITH(page_of_a_simple_writer_is_read, make_page, drop_page)
{
	const struct ddp_progress plain = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .phase = DDP_PHASE_DATA, .step = 60 };

	assert_int_equal(pwrite(page_fd, &plain, sizeof(plain), DDP_PROGRESS_BYTES), sizeof(plain));
	assert_int_equal(progress_now().step, 60);
	/* A context of libddp in the same process does not take its place. */
	ddp_watch *watch = open_watch(&part);
	ddp_page_wait(ddp_watch_page(watch), 0, 5, "recv from rank 1");
	const struct progress_text progress = progress_now();
	assert_int_equal(progress.step, 60);
	assert_int_equal(progress.phase, DDP_PHASE_DATA);
	assert_string_equal(progress.text, "recv from rank 1");
	ddp_watch_close(watch);
	assert_false(progress_now().closed);
}

/* slurm_ddp of Python takes the last slot. */
static void write_python(const struct ddp_progress *slot)
{
	const off_t last = DDP_PROGRESS_BYTES + (DDP_PROGRESS_SLOTS - 1) * DDP_PROGRESS_SLOT_BYTES;

	assert_int_equal(pwrite(page_fd, slot, sizeof(*slot), last), sizeof(*slot));
}

TEST_WITH(python_tells_phases_beside_nccl, make_page, drop_page)
{
	struct ddp_progress python = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .writer = DDP_WRITER_PYTHON,
		                       .phase = DDP_PROGRESS_STARTING };
	double loss;

	write_python(&python);
	assert_string_equal(progress_phase_name(progress_now().phase), "starting");
	const struct progress_text starting = progress_now();
	assert_true(progress_text_is_busy(&starting));
	struct ddp_progress *nccl = ddp_page_map_for_nccl(&job, NULL);
	assert_non_null(nccl);
	/* A program that tells nothing has started once it has a communicator. */
	assert_int_equal(progress_now().phase, PROGRESS_NCCL);
	python.phase = DDP_PROGRESS_COMPUTING;
	python.step = 7;
	python.python.loss = 0.5;
	python.python.told = 1;
	write_python(&python);
	ddp_page_collective(nccl, 12, ddp_coarse_ns());
	ddp_page_wait(nccl, 12, 5, "AllReduce");
	const struct progress_text progress = progress_now();
	char text[256];
	struct sink sink = sink_on(text, sizeof(text));
	progress_text_add(&sink, &progress);
	assert_non_null(strstr(text, "computing step 7, waiting in collective #12 AllReduce for "));
	struct ddp_progress slots[DDP_PROGRESS_SLOTS];
	assert_int_equal(pread(page_fd, slots, sizeof(slots), DDP_PROGRESS_BYTES), sizeof(slots));
	assert_true(slots_loss(slots, &loss));
	assert_true(loss == 0.5);
	ddp_page_unmap(nccl);
}

TEST_WITH(python_tells_errors_beside_libddp, make_page, drop_page)
{
	const struct ddp_progress python = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .writer = DDP_WRITER_PYTHON,
		                             .phase = DDP_PHASE_DATA, .step = 60, .error = "ValueError: bad batch" };
	double loss;

	write_python(&python);
	ddp_watch *watch = open_watch(&job);
	ddp_page_wait(ddp_watch_page(watch), 45, 5, "all_reduce");
	assert_int_equal(progress_now().step, 60);
	assert_int_equal(progress_now().collective, 0); /* page_wait() does not begin one */
	assert_int_equal(progress_now().wait, PROGRESS_WAITS_IN_COLLECTIVE);
	assert_string_equal(progress_now().error, "ValueError: bad batch");
	assert_false(slots_loss(&(struct ddp_progress[DDP_PROGRESS_SLOTS]){ { .magic = 0 } }[0], &loss));
	/* What libddp could not go on after is the cause of Python's exception. */
	ddp_page_error(ddp_watch_page(watch), DDP_ERR_PEER, DDP_ERROR_OPEN, 5, "n2", "rank 5 is gone");
	assert_string_equal(progress_now().error, "rank 5 is gone");
	const struct ddp_progress page = shown();
	assert_true(blame_ends_in_error(&page));
	assert_int_equal(blame_of(&page, 3), 5);
	ddp_watch_close(watch);
}

/* Of ranks of which no collective is known, one that loads data keeps those waiting that compute the same step. */
TEST(data_of_a_step_comes_before_its_computation)
{
	struct progress_text data = { .known = true, .phase = DDP_PHASE_DATA, .step = 60 };
	struct progress_text computes = { .known = true, .phase = DDP_PROGRESS_COMPUTING, .step = 60 };
	struct progress_text next = { .known = true, .phase = DDP_PHASE_DATA, .step = 61 };

	assert_true(progress_text_place(&data) < progress_text_place(&computes));
	assert_true(progress_text_place(&computes) < progress_text_place(&next));
	data.collective = 3;
	assert_int_equal(progress_text_place(&data), 3);
}

TEST(computing_is_told_by_the_context_with_most_steps)
{
	struct ddp_progress slots[DDP_PROGRESS_SLOTS] = { { .magic = 0, .compute_steps = 9 } };
	struct slots_compute compute;

	assert_false(slots_compute(slots, &compute));
	slots[1] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .compute_steps = 4, .compute_ns = 40 };
	slots[2] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .compute_steps = 5, .compute_ns = 60, .pid = 7 };
	slots[3] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .compute_steps = 6, .closed = 1 };
	/* An error of an older libddp, which goes on there. */
	slots[4] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .compute_steps = 8 };
	memset(slots[4].error, 'x', sizeof(slots[4].error));
	assert_true(slots_compute(slots, &compute));
	assert_int_equal(compute.steps, 5);
	assert_int_equal(compute.ns, 60);
	assert_int_equal(compute.pid, 7);
}

TEST(exposed_communication_is_told_by_libddp_only)
{
	struct ddp_progress slots[DDP_PROGRESS_SLOTS] = { { .magic = 0 } };
	double ratio = -1;

	slots[1] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .writer = DDP_WRITER_PYTHON, .exposed = 7 };
	assert_false(slots_exposed(slots, &ratio));
	slots[2] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .exposed = 250001, .updated_ns = 5 };
	slots[3] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .exposed = 1, .updated_ns = 4 };
	slots[4] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .exposed = 2000000, .updated_ns = 6 };
	assert_true(slots_exposed(slots, &ratio));
	assert_true(ratio > 0.2499 && ratio < 0.2501);
}

/* ---- watch/stacks and spank/witness/stack --------------------------------------- */

static int ready[2];

static void *sleep_on(void *argument)
{
	while (true)
		pause();
	return NULL;
}

/* A process with three threads that sleep. */
static pid_t start(const char *dir)
{
	pthread_t threads[2];
	char c;

	assert_int_equal(pipe(ready), 0);
	const pid_t pid = fork();
	if (pid != 0) {
		assert_int_equal(read(ready[0], &c, 1), 1);
		return pid;
	}
	setenv("DDP_RECORD_DIR", dir, 1);
	unsetenv("DDP_PYTHON");
	ddp_stacks_install();
	ddp_stacks_install();
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, sleep_on, NULL);
	if (write(ready[1], "r", 1) != 1)
		_exit(1);
	sleep_on(NULL);
	_exit(0);
}

static int count(const char *text, const char *word)
{
	int found = 0;

	for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
		found++;
	return found;
}

TEST(threads_tell_their_stacks)
{
	const pid_t pid = start("/records");
	struct stack stack;
	bool found = false;

	/* A reader does not wait for ever, so on a busy machine a stack may come too late for it. */
	const uint64_t end_ns = ddp_now_ns() + (uint64_t)(60e9 * test_slowness());
	for (int complete = 0; complete < 2 && ddp_now_ns() < end_ns;) {
		assert_true(stack_ask(pid, &stack));
		char *text = stack_take(&stack, ddp_now_ns() + 10000000000ull);
		found = text != NULL && count(text, "stack of thread ") >= 3 && count(text, "(pause+0x") >= 3;
		complete += found;
		free(text);
	}
	assert_true(found);
	/* It goes on. */
	assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

TEST(nothing_is_installed_without_record)
{
	const pid_t pid = start("");
	struct stack stack;

	assert_false(stack_ask(pid, &stack));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}
