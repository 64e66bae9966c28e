/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* state/store: an error at each write, fsync, close, rename and unlink of a save, and a death before each, leave
   the last
   good checkpoint, and the next save goes through.
   state/lock: a later start of a step takes a checkpoint directory over from a process that still has it locked, and
   this process changes nothing there any more when it wakes up. It stops before each call of a save in turn.
   The linker sends these calls here. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp.h"
#include "base/error.h"
#include "state/lock.h"
#include "state/store.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

enum { LETTERS_MAX = 64 };

static int before_fault; /* calls; 0: there is none */
static int before_stop;  /* those that change or read the folder; 0: the process does not stop */
static int fault;        /* errno; 0: the process dies */
static char letters[LETTERS_MAX]; /* of the calls, a run of writes counting as one */

static void note(char letter)
{
	size_t length = strlen(letters);

	if (length + 1 < LETTERS_MAX && (letter != 'w' || length == 0 || letters[length - 1] != 'w'))
		letters[length] = letter;
}

/* Whether this call is to fail. */
static bool fails(char letter)
{
	note(letter);
	if (before_fault == 0 || --before_fault > 0)
		return false;
	if (fault == 0)
		_exit(0);
	errno = fault;
	return true;
}

static void count_call(void)
{
	if (before_stop > 0 && --before_stop == 0)
		raise(SIGSTOP);
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_close(int fd);
int __wrap_close(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
	return fails('w') ? -1 : __real_write(fd, data, bytes);
}

int __wrap_fsync(int fd)
{
	count_call();
	return fails('f') ? -1 : __real_fsync(fd);
}

/* A descriptor is gone also where close() tells of an error. */
int __wrap_close(int fd)
{
	const bool failed = fails('c');
	const int result = __real_close(fd);

	errno = failed ? fault : errno;
	return failed ? -1 : result;
}

int __wrap_rename(const char *from, const char *to)
{
	count_call();
	return fails('r') ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path)
{
	count_call();
	return fails('u') ? -1 : __real_unlink(path);
}

DIR *__wrap_opendir(const char *path)
{
	count_call();
	return __real_opendir(path);
}

static ddp_status write_number(const ddp_store_writer *writer, int64_t step, int keep, float number)
{
	const ddp_safetensors_tensor tensor = { "w", 1, (int64_t[]){ 1 }, &number, false };
	ddp_later later;

	ddp_store_list_later(test_folder, step, &later);
	ddp_status status = ddp_store_write(test_folder, step, &tensor, 1, NULL, 0, keep, &later, writer);
	free(later.steps);
	return status;
}

/* The number in the checkpoint that a load takes. */
static float newest(void)
{
	ddp_safetensors file;
	bool found;
	float number = -1;

	assert_int_equal(ddp_store_open(test_folder, NULL, &file, &found), DDP_OK);
	assert_true(found);
	assert_int_equal(ddp_safetensors_read(&file, &file.tensors[0], &number), DDP_OK);
	ddp_safetensors_close(&file);
	return number;
}

/* How many files have this in their names. */
static int files_with(const char *text)
{
	const struct dirent *entry;
	int count = 0;
	DIR *stream = opendir(test_folder);

	assert_non_null(stream);
	while ((entry = readdir(stream)) != NULL)
		count += strstr(entry->d_name, text) != NULL;
	closedir(stream);
	return count;
}

static ddp_status write_step(int64_t step)
{
	return write_number(NULL, step, 2, (float)step);
}

/* Two checkpoints, of which the next save removes one. */
static void begin(void)
{
	before_fault = 0;
	assert_int_equal(folder_empty(NULL), 0);
	assert_int_equal(write_step(10), DDP_OK);
	assert_int_equal(write_step(20), DDP_OK);
	assert_true(newest() == 20);
}

/* What a run that comes after finds, and does. */
static void go_on(bool saved)
{
	ddp_store_lock *lock;

	before_fault = 0;
	const float step = newest();
	assert_true(step == 30 || (step == 20 && !saved));
	assert_int_equal(ddp_store_lock_take(test_folder, &(ddp_store_writer){ .name = "test" }, NULL, &lock), DDP_OK);
	assert_int_equal(files_with(".tmp"), 0);
	assert_int_equal(write_step(50), DDP_OK);
	assert_true(newest() == 50);
	ddp_store_lock_release(lock);
}

TEST(each_call_that_fails_leaves_a_good_checkpoint)
{
	static const int errors[] = { ENOSPC, EIO };
	int faults = 0;

	for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
		for (int n = 1;; n++) {
			begin();
			before_fault = n;
			fault = errors[e];
			const ddp_status status = write_step(30);
			if (before_fault > 0)
				break;
			faults++;
			assert_true(status == DDP_OK || status == DDP_ERR_IO);
			if (status != DDP_OK)
				assert_non_null(strstr(ddp_last_error(), strerror(errors[e])));
			go_on(status == DDP_OK);
		}
	}
	/* Of the file: three writes, fsync, close, rename; of the directory: more. */
	assert_true(faults >= 2 * 9);
}

TEST(a_death_before_each_call_leaves_a_good_checkpoint)
{
	int ended = 0, deaths = 0;

	while (!ended) {
		begin();
		const pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			fault = 0;
			before_fault = deaths + 1;
			_exit(write_step(30) == DDP_OK ? 1 : 2);
		}
		int status;
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
		ended = WEXITSTATUS(status);
		deaths++;
		go_on(ended);
	}
	assert_true(deaths >= 9);
}

/* The machine may die, too: what is removed, or renamed, is so after the new checkpoint is on
   the disk, under its name. */
TEST(old_checkpoints_go_when_the_new_one_is_on_the_disk)
{
	begin();
	memset(letters, 0, sizeof(letters));
	assert_int_equal(write_step(30), DDP_OK);
	/* What was left of the name; the file; its name; the directory; one is removed. Closes before
	   that are of the way to the directory. */
	assert_string_equal(letters + strspn(letters, "c"), "uwfcrfcufc");
	memset(letters, 0, sizeof(letters));
	assert_int_equal(write_step(25), DDP_OK);
	assert_string_equal(letters + strspn(letters, "c"), "uwfcrfcrfc"); /* step 30 is set aside */
}


/* ---- state/lock ----------------------------------------------------------------- */

static const ddp_store_writer first = { .job_id = 7, .step_id = 1, .name = "rank 0 of job 7.1 on n0, process 5" };
static const ddp_store_writer second = { .job_id = 7, .step_id = 1, .restarts = 1, .name = "rank 0 of job 7.1 on n1, process 6" };
static const ddp_store_writer third = { .job_id = 7, .step_id = 1, .restarts = 2, .name = "rank 0 of job 7.1 on n2, process 7" };

static void touch(const char *name)
{
	char path[TEST_FOLDER_BYTES + 128];

	snprintf(path, sizeof(path), "%s/%s", test_folder, name);
	const int fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(close(fd), 0);
}

static void refuse(const ddp_store_writer *writer, const char *reason)
{
	ddp_store_lock *lock;

	assert_int_equal(ddp_store_lock_take(test_folder, writer, NULL, &lock), DDP_ERR_STATE);
	if (strstr(ddp_last_error(), reason) == NULL)
		fail_msg("\"%s\" is not in: %s", reason, ddp_last_error());
}

enum { PLACED = 0, REFUSED = 1, OTHERWISE = 2 };

/* A process owns the directory and saves step 20, before whose call number `call` it stops. Its exit code is one of
   the above. */
static pid_t save_and_stop(const ddp_store_writer *writer, int call)
{
	ddp_store_lock *lock;
	const pid_t child = fork();

	assert_true(child >= 0);
	if (child > 0)
		return child;
	if (ddp_store_lock_take(test_folder, writer, NULL, &lock) != DDP_OK || write_number(writer, 10, 1, 10) != DDP_OK)
		_exit(OTHERWISE);
	before_stop = call;
	const ddp_status status = write_number(writer, 20, 1, 20);
	const int stopped = before_stop == 0;
	before_stop = 0;
	if (!stopped)
		raise(SIGKILL);
	if (status == DDP_OK)
		_exit(PLACED);
	_exit(status == DDP_ERR_STATE && strstr(ddp_last_error(), "belongs to restart 1 of step 7.1: this process (rank 0 of "
	                                        "job 7.1 on n0, process 5) is of an earlier generation") != NULL ?
	      REFUSED : OTHERWISE);
}

/* Whether the process stopped; otherwise it needs no more calls than that, and has ended. */
static bool has_stopped(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	if (WIFSIGNALED(status))
		return false;
	assert_true(WIFSTOPPED(status));
	return true;
}

static int end_of(pid_t child)
{
	int status;

	assert_int_equal(kill(child, SIGCONT), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

TEST_WITH(a_stopped_writer_places_nothing_after_a_later_start_came, folder_empty, NULL)
{
	ddp_store_lock *lock;
	int calls, placed = 0, refused = 0;

	for (calls = 1;; calls++) {
		folder_empty(NULL);
		const pid_t child = save_and_stop(&first, calls);
		if (!has_stopped(child))
			break;
		assert_int_equal(ddp_store_lock_take(test_folder, &second, NULL, &lock), DDP_OK);
		assert_int_equal(files_with(".tmp"), 0);
		assert_int_equal(write_number(&second, 20, 3, 120), DDP_OK);
		assert_int_equal(write_number(&second, 30, 3, 130), DDP_OK);
		const int end = end_of(child);
		assert_true(end == PLACED || end == REFUSED);
		*(end == PLACED ? &placed : &refused) += 1;
		assert_true(newest() == 130);
		assert_int_equal(files_with("step-00000020"), 1);
		assert_int_equal(files_with(".tmp"), 0);
		assert_true(ddp_store_lock_holds(lock, test_folder));
		ddp_store_lock_release(lock);
	}
	/* It placed its file before a later start came if it stopped at the end: where it syncs the folder and tidies up. */
	assert_true(refused >= 4 && placed >= 2);
}

/* A later start has the files of steps that the earlier process wanted to set aside. */
TEST_WITH(a_stopped_writer_sets_nothing_aside_after_a_later_start_came, folder_empty, NULL)
{
	ddp_store_lock *lock;
	int stops = 0, aside = 0;

	for (int call = 1;; call++) {
		folder_empty(NULL);
		assert_int_equal(write_number(NULL, 30, 9, 30), DDP_OK);
		const pid_t child = save_and_stop(&first, call);
		if (!has_stopped(child))
			break;
		stops++;
		assert_int_equal(ddp_store_lock_take(test_folder, &second, NULL, &lock), DDP_OK);
		end_of(child);
		aside += files_with("step-00000030.safetensors.aside");
		ddp_store_lock_release(lock);
	}
	/* Saving step 10 had set it aside before the first stop. */
	assert_int_equal(aside, stops);
}

TEST_WITH(a_lock_that_a_stopped_process_holds_is_handed_over, folder_empty, NULL)
{
	ddp_store_lock *lock;

	const pid_t child = save_and_stop(&first, 1);
	assert_true(has_stopped(child));
	refuse(&(ddp_store_writer){ .name = "me" }, "is written to by rank 0 of job 7.1 on n0, process 5; give each run");
	refuse(&(ddp_store_writer){ .job_id = 8, .step_id = 1, .restarts = 5 }, "is written to by rank 0 of job 7.1 on n0");
	refuse(&(ddp_store_writer){ .job_id = 7, .step_id = 2, .restarts = 5 }, "is written to by rank 0 of job 7.1 on n0");
	refuse(&first, "is written to by rank 0 of job 7.1 on n0");
	assert_int_equal(ddp_store_lock_take(test_folder, &third, NULL, &lock), DDP_OK);
	ddp_store_lock_release(lock);
	/* The earlier process holds the lock of a file that is nowhere any more. */
	assert_int_equal(ddp_store_lock_take(test_folder, &(ddp_store_writer){ .name = "me" }, NULL, &lock), DDP_OK);
	ddp_store_lock_release(lock);
	assert_int_equal(end_of(child), OTHERWISE); /* restart 2, not 1 */
}

TEST_WITH(an_earlier_start_cannot_come_back, folder_empty, NULL)
{
	ddp_store_lock *lock;

	assert_int_equal(ddp_store_lock_take(test_folder, &third, NULL, &lock), DDP_OK);
	ddp_store_lock_release(lock);
	refuse(&second, "belongs to restart 2 of step 7.1: this process (rank 0 of job 7.1 on n1, process 6) is of an earlier "
	       "generation (restart 1), and writes there no more");
	refuse(&first, "belongs to restart 2 of step 7.1");
	assert_int_equal(write_number(&second, 10, 3, 10), DDP_ERR_STATE);
	assert_int_equal(files_with("step-"), 0);
	assert_int_equal(ddp_store_lock_take(test_folder, &third, NULL, &lock), DDP_OK);
	ddp_store_lock_release(lock);
}

/* Slurm counts how often it has started a job; the step's restarts begin anew then. */
TEST_WITH(a_requeued_job_is_a_later_start, folder_empty, NULL)
{
	const ddp_store_writer before = { .job_id = 7, .step_id = 1, .restarts = 5, .name = "before" };
	const ddp_store_writer after = { .job_id = 7, .step_id = 0, .requeues = 1, .restarts = 1, .name = "after" };
	ddp_store_lock *lock;

	const pid_t child = save_and_stop(&before, 1);
	assert_true(has_stopped(child));
	assert_int_equal(ddp_store_lock_take(test_folder, &after, NULL, &lock), DDP_OK);
	ddp_store_lock_release(lock);
	refuse(&before, "belongs to a later start of job 7, which Slurm has requeued: this process (before) is of an earlier");
	end_of(child);
}

TEST_WITH(what_dead_writers_left_is_removed, folder_empty, NULL)
{
	ddp_store_lock *lock;

	touch("step-00000010.safetensors.start-7.1-0-0.n0-5-0.tmp");
	touch("step-00000020.safetensors.start-7.1-0-2.n2-7-0.tmp"); /* of a later start */
	touch("step-00000030.safetensors.start-7.2-0-0.n3-8-0.tmp");
	touch("step-00000040.safetensors.n3-8-0.tmp"); /* of an older version */
	touch(".probe-abcdef");
	touch(".lock.start-7.1-0-0");
	touch("notes.tmp");
	assert_int_equal(ddp_store_lock_take(test_folder, &second, NULL, &lock), DDP_OK);
	assert_int_equal(files_with("step-"), 1);
	assert_int_equal(files_with("start-7.1-0-2"), 1);
	assert_int_equal(files_with("probe"), 0);
	assert_int_equal(files_with(".lock.start"), 0);
	assert_int_equal(files_with("notes.tmp"), 1);
	ddp_store_lock_release(lock);
}

/* One mark stays, however often a step is restarted. */
TEST_WITH(marks_of_earlier_starts_are_removed, folder_empty, NULL)
{
	ddp_store_writer writer = first;
	ddp_store_lock *lock;

	for (; writer.restarts < 5; writer.restarts++) {
		assert_int_equal(ddp_store_lock_take(test_folder, &writer, NULL, &lock), DDP_OK);
		assert_int_equal(files_with(".generation-"), writer.restarts > 0 ? 1 : 0);
		ddp_store_lock_release(lock);
	}
}

static void ignore(void *user, ddp_log_level level, const char *message)
{
}

int main(void)
{
	ddp_set_log(ignore, NULL, DDP_LOG_WARN);
	return test_run(folder_make, folder_remove);
}
