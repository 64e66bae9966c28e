/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* store: an error at each write, fsync, close, rename and unlink of a save, and a death before
   each, leave the last good checkpoint, and the next save goes through. The linker sends
   these calls here. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "ddp.h"
#include "state/lock.h"
#include "state/store.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

enum { LETTERS_MAX = 64 };

static int before_fault; /* calls; 0: there is none */
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

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
	return fails('w') ? -1 : __real_write(fd, data, bytes);
}

int __wrap_fsync(int fd)
{
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
	return fails('r') ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path)
{
	return fails('u') ? -1 : __real_unlink(path);
}

static ddp_status write_step(int64_t step)
{
	const float numbers[3] = { (float)step, 2, 3 };
	const ddp_safetensors_tensor tensor = { "w", 1, (int64_t[]){ 3 }, numbers, false };

	ddp_later later;

	ddp_store_list_later(test_folder, step, &later);
	ddp_status status = ddp_store_write(test_folder, step, &tensor, 1, NULL, 0, 2, &later, NULL);
	free(later.steps);
	return status;
}

/* The step whose checkpoint a load takes. */
static int taken(void)
{
	ddp_safetensors file;
	bool found;
	float numbers[3] = { -1 };

	assert_int_equal(ddp_store_open(test_folder, NULL, &file, &found), DDP_OK);
	assert_true(found);
	assert_int_equal(ddp_safetensors_read(&file, &file.tensors[0], numbers), DDP_OK);
	ddp_safetensors_close(&file);
	return (int)numbers[0];
}

static int temporaries(void)
{
	const struct dirent *entry;
	int count = 0;
	DIR *stream = opendir(test_folder);

	assert_non_null(stream);
	while ((entry = readdir(stream)) != NULL)
		count += strstr(entry->d_name, ".tmp") != NULL;
	closedir(stream);
	return count;
}

/* Two checkpoints, of which the next save removes one. */
static void begin(void)
{
	before_fault = 0;
	assert_int_equal(folder_empty(NULL), 0);
	assert_int_equal(write_step(10), DDP_OK);
	assert_int_equal(write_step(20), DDP_OK);
	assert_int_equal(taken(), 20);
}

/* What a run that comes after finds, and does. */
static void go_on(bool saved)
{
	ddp_store_lock *lock;

	before_fault = 0;
	const int step = taken();
	assert_true(step == 30 || (step == 20 && !saved));
	assert_int_equal(ddp_store_lock_take(test_folder, &(ddp_store_writer){ .name = "test" }, NULL, &lock), DDP_OK);
	assert_int_equal(temporaries(), 0);
	assert_int_equal(write_step(50), DDP_OK);
	assert_int_equal(taken(), 50);
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

static void ignore(void *user, ddp_log_level level, const char *message)
{
}

int main(void)
{
	ddp_set_log(ignore, NULL, DDP_LOG_WARN);
	return test_run(folder_make, folder_remove);
}
