/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 17 */
/* ddp_init() with an identity that the program gives, where ranks meet in a store or in a file. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/wire/progress_page.h"
#include "tests/support/device_checks.h"
#include "tests/support/folder.h"
#include "tests/support/hung.h"
#include "tests/support/options.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"
#include "watch/progress.h"
#include "wireup/file_store.h"

enum { KEYS = 256, KEY_BYTES = 96, VALUE_BYTES = 16384, RANKS = 3 };

/* ---- a store in memory that processes share ------------------------------------------------ */

struct shared_store {
	pthread_mutex_t lock;
	int count;
	bool broken;
	int far_ms; /* so long an answer takes */
	struct { char key[KEY_BYTES]; size_t bytes; char value[VALUE_BYTES]; } of[KEYS];
};

/* A group's part of the store, as c10d's PrefixStore is. */
struct view {
	struct shared_store *store;
	const char *prefix;
};

static int place_of(const struct shared_store *s, const char *key)
{
	for (int i = 0; i < s->count; i++)
		if (strcmp(s->of[i].key, key) == 0)
			return i;
	return -1;
}

static void name(const struct view *view, const char *key, char text[KEY_BYTES])
{
	CHECK(snprintf(text, KEY_BYTES, "%s%s", view->prefix, key) < KEY_BYTES);
}

static ddp_status set(void *user, const char *key, const void *value, size_t bytes)
{
	const struct view *view = user;
	struct shared_store *s = view->store;
	char text[KEY_BYTES];

	if (s->broken) {
		ddp_set_error("the server is gone");
		return DDP_ERR_IO;
	}
	name(view, key, text);
	CHECK(bytes <= VALUE_BYTES);
	pthread_mutex_lock(&s->lock);
	int i = place_of(s, text);
	if (i < 0) {
		CHECK(s->count < KEYS);
		i = s->count++;
	}
	strcpy(s->of[i].key, text);
	memcpy(s->of[i].value, value, bytes);
	s->of[i].bytes = bytes;
	pthread_mutex_unlock(&s->lock);
	return DDP_OK;
}

static ddp_status get(void *user, const char *key, void *value, size_t room, size_t *bytes)
{
	const struct view *view = user;
	struct shared_store *s = view->store;
	char text[KEY_BYTES];

	name(view, key, text);
	pthread_mutex_lock(&s->lock);
	const int i = place_of(s, text);
	if (i >= 0) {
		*bytes = s->of[i].bytes;
		if (*bytes <= room)
			memcpy(value, s->of[i].value, *bytes);
	}
	pthread_mutex_unlock(&s->lock);
	return i >= 0 ? DDP_OK : DDP_ERR_STATE;
}

static ddp_status wait_for(void *user, const char *key, int timeout_ms)
{
	const struct view *view = user;
	const uint64_t start_ns = ddp_now_ns();
	char text[KEY_BYTES];

	CHECK(timeout_ms > 0);
	name(view, key, text);
	for (;;) {
		pthread_mutex_lock(&view->store->lock);
		const bool there = place_of(view->store, text) >= 0;
		pthread_mutex_unlock(&view->store->lock);
		if (there && ddp_seconds_since(start_ns) * 1e3 >= view->store->far_ms)
			return DDP_OK;
		if (ddp_seconds_since(start_ns) * 1e3 >= timeout_ms)
			return DDP_ERR_TIMEOUT;
		usleep(500);
	}
}

static struct shared_store *new_store(void)
{
	struct shared_store *s = test_share(sizeof(*s));
	pthread_mutexattr_t shared;

	pthread_mutexattr_init(&shared);
	pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&s->lock, &shared);
	pthread_mutexattr_destroy(&shared);
	return s;
}

/* ---- ranks that meet ------------------------------------------------------------------------ */

/* By a store, or by the file of the test's folder. */
struct place {
	struct view view;
	bool file;
	int timeout_ms;
};

static ddp_status meet(const struct place *place, const ddp_job *job, ddp_context **context)
{
	char path[TEST_FOLDER_BYTES + 16];
	struct view view = place->view;
	const ddp_store store = { .user = &view, .set = set, .get = get, .wait = wait_for };
	const ddp_options options = { DDP_OPTIONS_FIELDS, .timeout_ms = place->timeout_ms, .job = job,
		                      .store = place->file ? NULL : &store, .wireup = place->file ? path : NULL };

	snprintf(path, sizeof(path), "file://%s/meet", test_folder);
	return ddp_init(&options, context);
}

static ddp_status meet_as(const struct place *place, int rank, int ranks, ddp_context **context)
{
	const ddp_job job = { .rank = rank, .world_size = ranks };

	return meet(place, &job, context);
}

static const char *file_path(void)
{
	static char path[TEST_FOLDER_BYTES + 16];

	snprintf(path, sizeof(path), "%s/meet", test_folder);
	return path;
}

static void check_sum(ddp_context *context)
{
	const int ranks = ddp_get_job(context)->world_size;
	float value = (float)(1 << ddp_get_job(context)->rank);

	CHECK_OK(ddp_all_reduce(ddp_world(context), NULL, &value, 1, DDP_F32, DDP_SUM));
	CHECK(value == (float)((1 << ranks) - 1));
}

/* Whom the environment means does not count: it may be the program's launcher, or another job's. */
static void spoil_environment(void)
{
	setenv("RANK", "7", 1);
	setenv("WORLD_SIZE", "2", 1);
	setenv("MASTER_ADDR", "nowhere.invalid", 1);
	setenv("MASTER_PORT", "x", 1);
	setenv("SLURM_JOB_ID", "5", 1);
	setenv("SLURM_STEP_ID", "0", 1);
	setenv("SLURM_STEP_NUM_TASKS", "64", 1);
	setenv("DDP_PLUGIN_VERSION", "1", 1);
}

static int meet_and_part(int rank, void *argument)
{
	const struct place *place = argument;
	ddp_context *context;

	spoil_environment();
	for (int round = 0; round < 5; round++) {
		/* Rank 0 is the first, or late. */
		if ((rank == 0) == (round % 2 == 1))
			usleep(20000);
		CHECK_OK(meet_as(place, rank, RANKS, &context));
		const ddp_job *job = ddp_get_job(context);
		CHECK(job->rank == rank && job->world_size == RANKS && job->local_rank == rank && job->local_world_size == RANKS);
		CHECK(job->nnodes == 1 && job->node_rank == 0 && job->identity_source == DDP_SOURCE_GIVEN && !job->plugin);
		CHECK(job->pid == getpid() && job->hostname[0] != '\0');
		check_sum(context);
		CHECK_OK(ddp_finalize(context));
	}
	return 0;
}

static int run(int ranks, int (*body)(int, void *), void *argument)
{
	return test_ranks_run(&(test_ranks){ .count = ranks, .body = body, .argument = argument });
}

TEST_WITH(given_ranks_meet_in_a_store, folder_empty, NULL)
{
	struct place place = { .view = { new_store(), "" }, .timeout_ms = 30000 };

	assert_int_equal(run(RANKS, meet_and_part, &place), 0);
	test_unshare(place.view.store, sizeof(*place.view.store));
}

TEST_WITH(given_ranks_meet_in_a_file_that_is_gone_then, folder_empty, NULL)
{
	struct place place = { .file = true, .timeout_ms = 30000 };

	assert_int_equal(run(RANKS, meet_and_part, &place), 0);
	assert_int_equal(folder_count(test_folder, "meet"), 0);
}

TEST_WITH(world_of_one_needs_no_place, folder_empty, NULL)
{
	struct place place = { .view = { new_store(), "" }, .timeout_ms = 500 };
	ddp_context *context;

	place.view.store->broken = true;
	for (int file = 0; file < 2; file++) {
		place.file = file;
		assert_int_equal(meet_as(&place, 0, 1, &context), DDP_OK);
		assert_int_equal(ddp_comm_size(ddp_world(context)), 1);
		assert_int_equal(folder_count(test_folder, "meet"), 0);
		assert_int_equal(ddp_finalize(context), DDP_OK);
	}
	test_unshare(place.view.store, sizeof(*place.view.store));
}

/* Rank r of the world is rank r - 1 of a group without rank 0. */
static int group_beside_world(int rank, void *argument)
{
	const struct place *place = argument;
	const struct place part = { .view = { place->view.store, "part/" }, .timeout_ms = place->timeout_ms };
	ddp_context *world, *group = NULL;

	CHECK_OK(meet_as(place, rank, RANKS, &world));
	if (rank > 0) {
		CHECK_OK(meet_as(&part, rank - 1, RANKS - 1, &group));
		check_sum(group);
	}
	check_sum(world);
	/* Either may end first. */
	if (rank > 0)
		CHECK_OK(ddp_finalize(group));
	check_sum(world);
	CHECK_OK(ddp_finalize(world));
	return 0;
}

TEST_WITH(group_has_a_context_of_its_own, folder_empty, NULL)
{
	struct place place = { .view = { new_store(), "" }, .timeout_ms = 30000 };

	assert_int_equal(run(RANKS, group_beside_world, &place), 0);
	test_unshare(place.view.store, sizeof(*place.view.store));
}

/* ---- ranks that do not --------------------------------------------------------------------- */

/* Long enough for ranks that have begun together to come. */
static int short_ms(void)
{
	return 700 * test_slowness();
}

static int miss_the_last(int rank, void *argument)
{
	const struct place *place = argument;
	ddp_context *context;

	test_ranks_together();
	CHECK_FAILS(meet_as(place, rank, RANKS + 2, &context), DDP_ERR_TIMEOUT, "ranks 3-4 did not come to the ");
	return 0;
}

static int miss_the_first(int rank, void *argument)
{
	const struct place *place = argument;
	ddp_context *context;

	test_ranks_together();
	CHECK_FAILS(meet_as(place, rank + 1, RANKS + 1, &context), DDP_ERR_TIMEOUT, "rank 0 did not come to the ");
	return 0;
}

TEST_WITH(ranks_that_do_not_come_are_named, folder_empty, NULL)
{
	struct shared_store *store = new_store();

	for (int file = 0; file < 2; file++) {
		struct place place = { .view = { store, "last/" }, .file = file, .timeout_ms = short_ms() };
		assert_int_equal(run(RANKS, miss_the_last, &place), 0);
		place.view.prefix = "first/";
		assert_int_equal(run(RANKS, miss_the_first, &place), 0);
	}
	assert_int_equal(folder_count(test_folder, "meet"), 0);
	test_unshare(store, sizeof(*store));
}

/* A store on another node answers after a while, and has what is there all the same. */
TEST_WITH(far_store_has_who_came, folder_empty, NULL)
{
	struct place place = { .view = { new_store(), "" }, .timeout_ms = short_ms() };

	place.view.store->far_ms = 20;
	assert_int_equal(run(RANKS, miss_the_last, &place), 0);
	test_unshare(place.view.store, sizeof(*place.view.store));
}

/* What a run leaves that failed, or was killed, is not taken for the next one's. */
TEST_WITH(earlier_runs_are_no_harm, folder_empty, NULL)
{
	struct place place = { .view = { new_store(), "" }, .timeout_ms = short_ms() };

	assert_int_equal(run(RANKS, miss_the_last, &place), 0);
	place.timeout_ms = 30000;
	assert_int_equal(run(RANKS, meet_and_part, &place), 0);
	test_unshare(place.view.store, sizeof(*place.view.store));
}

/* A process that is alone in a world of three, until it is killed. */
static pid_t come_alone(const struct place *place, int rank)
{
	const pid_t pid = fork();
	struct stat about = { .st_size = 0 };

	if (pid == 0) {
		ddp_context *context;
		_exit(meet_as(place, rank, RANKS, &context) == DDP_OK);
	}
	assert_true(pid > 0);
	while (stat(file_path(), &about) != 0 || (rank == 0 && about.st_size == 0))
		usleep(1000);
	assert_int_equal(about.st_mode & 07777, 0600);
	return pid;
}

static void end_process(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

TEST_WITH(file_of_a_killed_run_is_no_harm, folder_empty, NULL)
{
	struct place place = { .file = true, .timeout_ms = 30000 };

	end_process(come_alone(&place, 0));
	assert_int_equal(folder_count(test_folder, "meet"), 1);
	assert_int_equal(run(RANKS, meet_and_part, &place), 0);
	assert_int_equal(folder_count(test_folder, "meet"), 0);
}

/* Whoever gives a wrong path loses nothing. */
TEST_WITH(file_that_holds_something_else_stays, folder_empty, NULL)
{
	const struct place place = { .file = true, .timeout_ms = 500 };
	static const char *const texts[] = { "notes", "ddps of another kind, and longer than the head of a record is" };
	ddp_context *context;

	for (size_t i = 0; i < 2; i++) {
		FILE *file = fopen(file_path(), "w");
		assert_non_null(file);
		fputs(texts[i], file);
		fclose(file);
		assert_int_equal(chmod(file_path(), 0600), 0);
		FAILS(meet_as(&place, 0, 2, &context), DDP_ERR_IO, "holds something else");
		char found[128] = "";
		file = fopen(file_path(), "r");
		assert_non_null(file);
		assert_int_equal(fread(found, 1, sizeof(found) - 1, file), strlen(texts[i]));
		fclose(file);
		assert_string_equal(found, texts[i]);
	}
}

/* What a rank that was killed may have left of its first record. */
TEST_WITH(file_with_half_a_record_is_no_harm, folder_empty, NULL)
{
	static const char half[10] = "ddps\7\0";
	struct place place = { .file = true, .timeout_ms = 30000 };
	FILE *file = fopen(file_path(), "w");

	assert_non_null(file);
	assert_int_equal(fwrite(half, 1, sizeof(half), file), sizeof(half));
	fclose(file);
	assert_int_equal(chmod(file_path(), 0600), 0);
	assert_int_equal(run(RANKS, meet_and_part, &place), 0);
}

/* A process that forks while ranks meet, as by system(), shares this rank's open file. */
TEST_WITH(forked_child_holds_no_lock, folder_empty, NULL)
{
	const ddp_job job = { .rank = 0, .world_size = 2, .hostname = "n0" };
	ddp_file_store *store;
	int hold[2];

	assert_int_equal(pipe(hold), 0);
	assert_int_equal(ddp_file_store_open(file_path(), &job, ddp_now_ns() + 5000000000u, &store), DDP_OK);
	const int other = open(file_path(), O_RDWR | O_CLOEXEC);
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	const pid_t child = fork();
	if (child == 0) {
		close(hold[1]);
		_exit(read(hold[0], &(char){ 0 }, 1) != 0);
	}
	assert_true(other >= 0 && child > 0);
	ddp_file_store_close(store);
	assert_int_equal(fcntl(other, F_OFD_GETLK, &lock), 0);
	assert_int_equal(lock.l_type, F_UNLCK);
	close(other);
	close(hold[0]);
	close(hold[1]);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

/* Two runs with one file, or two processes of one rank. */
TEST_WITH(rank_that_is_taken_is_refused, folder_empty, NULL)
{
	const struct place place = { .file = true, .timeout_ms = 30000 }, hasty = { .file = true, .timeout_ms = 300 };
	const pid_t other = come_alone(&place, 1);
	ddp_context *context;
	uint64_t start_ns = ddp_now_ns();

	/* The other one has its lock soon. */
	while (meet_as(&hasty, 1, RANKS, &context) != DDP_ERR_JOB)
		assert_true(ddp_seconds_since(start_ns) < 20 * test_slowness());
	assert_non_null(strstr(ddp_last_error(), "another process, which is still there, is rank 1 in the file"));
	end_process(other);
}

static int come_twice(int process, void *argument)
{
	const struct place *place = argument;
	ddp_context *context = NULL;

	const ddp_status status = meet_as(place, process == 0 ? 0 : 1, 2, &context);
	if (status == DDP_OK)
		return ddp_finalize(context) == DDP_OK ? 0 : 1;
	CHECK(process > 0 && status == DDP_ERR_TIMEOUT);
	CHECK_SAYS("another process has the same rank");
	return 5;
}

TEST_WITH(second_process_of_a_rank_stays_out, folder_empty, NULL)
{
	struct place place = { .view = { new_store(), "" }, .timeout_ms = 2000 };

	/* One that fails. */
	assert_int_equal(run(3, come_twice, &place), 1);
	test_unshare(place.view.store, sizeof(*place.view.store));
}

static int disagree(int rank, void *argument)
{
	const struct place *place = argument;
	ddp_context *context;

	CHECK(meet_as(place, rank, rank == 1 ? 2 : RANKS, &context) != DDP_OK);
	if (rank != 1)
		CHECK(strstr(ddp_last_error(), "rank 1 on ") != NULL && strstr(ddp_last_error(), "says that the world size is 2, but rank 0 on ") != NULL);
	return 0;
}

TEST_WITH(sizes_that_differ_are_told, folder_empty, NULL)
{
	struct place place = { .view = { new_store(), "" }, .timeout_ms = 5000 };

	assert_int_equal(run(RANKS, disagree, &place), 0);
	test_unshare(place.view.store, sizeof(*place.view.store));
}

TEST_WITH(error_of_the_store_is_told, folder_empty, NULL)
{
	struct place place = { .view = { new_store(), "" }, .timeout_ms = 500 };
	ddp_context *context;

	place.view.store->broken = true;
	FAILS(meet_as(&place, 0, 2, &context), DDP_ERR_IO,
	      "set() of \"ddp/run\" in the store failed with DDP_ERR_IO: the server is gone");
	test_unshare(place.view.store, sizeof(*place.view.store));
}

/* ---- what is refused ------------------------------------------------------------------------ */

TEST_WITH(wrong_jobs_and_stores_are_refused, folder_empty, NULL)
{
	static const ddp_job wrong[] = {
		{ .rank = 0, .world_size = 0 }, { .rank = 2, .world_size = 2 }, { .rank = -1, .world_size = 2 },
		{ .rank = 0, .world_size = 2, .local_rank = 1 }, { .rank = 0, .world_size = 2, .local_world_size = 3 },
		{ .rank = 0, .world_size = 2, .nnodes = 1, .node_rank = 1 }, { .rank = 0, .world_size = 2, .master_port = 5 },
		{ .rank = 0, .world_size = 2, .master_addr = "n0", .master_port = 70000 },
		{ .rank = 0, .world_size = 2, .reserved = { [3] = 1 } },
	};
	const struct place place = { .view = { new_store(), "" }, .timeout_ms = 500 };
	const ddp_job job = { .rank = 0, .world_size = 2 };
	struct view view = place.view;
	ddp_store store = { .user = &view, .set = set, .get = get };
	ddp_options options = { DDP_OPTIONS_FIELDS, .job = &job, .store = &store };
	ddp_context *context;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(meet(&place, &wrong[i], &context), DDP_ERR_INVALID);
	FAILS(ddp_init(&options, &context), DDP_ERR_INVALID, "needs set, get and wait");
	store.wait = wait_for;
	store.reserved[0] = 1;
	assert_int_equal(ddp_init(&options, &context), DDP_ERR_INVALID);
	store.reserved[0] = 0;
	options.wireup = "tcp";
	assert_int_equal(ddp_init(&options, &context), DDP_ERR_INVALID);
	options.store = NULL;
	options.wireup = "file://meet";
	assert_int_equal(ddp_init(&options, &context), DDP_ERR_INVALID);
	options.wireup = NULL;
	FAILS(ddp_init(&options, &context), DDP_ERR_JOB, "give a store, or wireup \"file:///PATH\"");
	test_unshare(place.view.store, sizeof(*place.view.store));
}

TEST_WITH(file_that_others_reach_is_refused, folder_empty, NULL)
{
	const struct place place = { .file = true, .timeout_ms = 500 };
	ddp_context *context;
	char target[TEST_FOLDER_BYTES + 16];

	snprintf(target, sizeof(target), "%s/target", test_folder);
	assert_int_equal(symlink(target, file_path()), 0);
	FAILS(meet_as(&place, 0, 2, &context), DDP_ERR_IO, "is a link");
	assert_int_equal(access(target, F_OK), -1);
	close(open(target, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(meet_as(&place, 0, 2, &context), DDP_ERR_IO);
	assert_int_equal(unlink(file_path()), 0);
	assert_int_equal(link(target, file_path()), 0);
	FAILS(meet_as(&place, 0, 2, &context), DDP_ERR_IO, "has another name");
	assert_int_equal(unlink(target), 0);
	assert_int_equal(chmod(file_path(), 0640), 0);
	FAILS(meet_as(&place, 0, 2, &context), DDP_ERR_IO, "can be read or written by others");
}

/* ---- programs without a model ---------------------------------------------------------------- */

static void be_task(int rank, int page_fd)
{
	const struct { const char *name; int value; } numbers[] = {
		{ "DDP_PROGRESS_FD", page_fd }, { "RANK", rank }, { "LOCAL_RANK", rank }, { "WORLD_SIZE", RANKS },
	};
	char text[16];

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		snprintf(text, sizeof(text), "%d", numbers[i].value);
		CHECK(setenv(numbers[i].name, text, 1) == 0);
	}
}

static struct progress_text progress_of(int rank, int page_fd)
{
	struct ddp_progress slots[DDP_PROGRESS_SLOTS], shown;
	struct progress_text progress;

	CHECK(pread(page_fd, slots, sizeof(slots), (off_t)rank * DDP_PROGRESS_BYTES) == (ssize_t)sizeof(slots));
	slots_read(slots, &shown);
	progress_text_read(&shown, ddp_now_ns(), &progress);
	return progress;
}

struct tasks {
	struct place place;
	int page_fd;
};

/* Rank 1 of the step comes late to a group's collective, which rank 2 waits in. */
static int show_both(int rank, void *argument)
{
	const struct tasks *tasks = argument;
	const struct place part = { .view = { tasks->place.view.store, "part/" }, .timeout_ms = tasks->place.timeout_ms };
	ddp_context *world, *group = NULL, *other;

	be_task(rank, tasks->page_fd);
	CHECK_OK(meet_as(&tasks->place, rank, RANKS, &world));
	if (rank > 0)
		CHECK_OK(meet_as(&part, rank - 1, RANKS - 1, &group));
	ddp_context_set_phase(world, DDP_PHASE_FORWARD);
	CHECK_OK(ddp_context_begin_step(world, 12, 100));
	check_sum(world);
	struct progress_text progress = progress_of(rank, tasks->page_fd);
	CHECK(progress.phase == DDP_PHASE_FORWARD && progress.step == 12 && progress.steps == 100 && progress.collective > 0);
	const ddp_step_stats stats = { .step = 12, .seconds = 0.5, .weight = 64 };
	CHECK_OK(ddp_context_end_step(world, &stats));
	CHECK(progress_of(rank, tasks->page_fd).step_weight == 64);
	if (rank == 1)
		do
			progress = progress_of(2, tasks->page_fd);
		while (progress.wait != PROGRESS_WAITS_OTHERWISE || strstr(progress.text, "all_reduce") == NULL);
	if (rank > 0) {
		check_sum(group);
		CHECK_OK(ddp_finalize(group));
	}
	progress = progress_of(rank, tasks->page_fd);
	CHECK(!progress.closed && progress.step == 12);
	/* The step's context ends first. */
	const struct place again = { .view = { tasks->place.view.store, "again/" }, .timeout_ms = tasks->place.timeout_ms };
	CHECK_OK(meet_as(&again, rank, RANKS, &other));
	CHECK_OK(ddp_finalize(world));
	CHECK(!progress_of(rank, tasks->page_fd).closed);
	check_sum(other);
	CHECK_OK(ddp_finalize(other));
	CHECK(progress_of(rank, tasks->page_fd).closed);
	return 0;
}

TEST_WITH(contexts_of_a_process_are_both_seen, folder_empty, NULL)
{
	struct tasks tasks = { .place = { .view = { new_store(), "" }, .timeout_ms = 30000 },
		               .page_fd = memfd_create("ddp_progress", 0) };

	assert_true(tasks.page_fd >= 0);
	assert_int_equal(ftruncate(tasks.page_fd, RANKS * DDP_PROGRESS_BYTES), 0);
	assert_int_equal(run(RANKS, show_both, &tasks), 0);
	close(tasks.page_fd);
	test_unshare(tasks.place.view.store, sizeof(*tasks.place.view.store));
}

/* As by an exception: the others are in a collective, or come to one later. */
static int one_leaves(int rank, void *argument)
{
	const struct tasks *tasks = argument;
	ddp_context *context;

	be_task(rank, tasks->page_fd);
	CHECK_OK(meet_as(&tasks->place, rank, RANKS, &context));
	check_sum(context);
	if (rank == 2) {
		CHECK_OK(ddp_context_fail(context, "ValueError: bad batch"));
		const struct progress_text progress = progress_of(rank, tasks->page_fd);
		CHECK(strcmp(progress.error, "ValueError: bad batch") == 0 && progress.culprit == 2);
		CHECK_OK(ddp_finalize(context));
		return 0;
	}
	if (rank == 1)
		usleep(100000);
	CHECK(ddp_barrier(ddp_world(context)) == DDP_ERR_ABORTED);
	CHECK(strncmp(ddp_last_error(), "rank 2 on ", 10) == 0 && strstr(ddp_last_error(), " left: ValueError: bad batch") != NULL);
	/* The exception that a rank makes of that is no cause. */
	CHECK_OK(ddp_context_fail(context, "RuntimeError: rank 2 left"));
	CHECK(progress_of(rank, tasks->page_fd).culprit == 2);
	CHECK_OK(ddp_finalize(context));
	return 0;
}

TEST_WITH(others_hear_why_a_rank_left, folder_empty, NULL)
{
	struct tasks tasks = { .place = { .view = { new_store(), "" }, .timeout_ms = 30000 },
		               .page_fd = memfd_create("ddp_progress", 0) };

	assert_true(tasks.page_fd >= 0);
	assert_int_equal(ftruncate(tasks.page_fd, RANKS * DDP_PROGRESS_BYTES), 0);
	assert_int_equal(run(RANKS, one_leaves, &tasks), 0);
	close(tasks.page_fd);
	test_unshare(tasks.place.view.store, sizeof(*tasks.place.view.store));
}

TEST_MAIN(folder_make, folder_remove)
