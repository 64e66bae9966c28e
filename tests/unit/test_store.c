/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* state/store: checkpoints come whole or not at all, the newest whole one counts. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "state/lock.h"
#include "state/store.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

static char dir[TEST_FOLDER_BYTES + 16];
static char warnings[4096];

static void collect(void *user, ddp_log_level level, const char *message)
{
	strncat(warnings, message, sizeof(warnings) - strlen(warnings) - 1);
}

static void path_in(char *path, size_t bytes, const char *name)
{
	snprintf(path, bytes, "%s/%s", dir, name);
}

static int make_base(void **state)
{
	if (folder_make(state) != 0)
		return -1;
	snprintf(dir, sizeof(dir), "%s/a/b", test_folder);
	ddp_set_log(collect, NULL, DDP_LOG_WARN);
	return 0;
}

static int start_empty(void **state)
{
	warnings[0] = '\0';
	return folder_empty(state);
}

static ddp_status write_step(int64_t step, int keep)
{
	const float numbers[3] = { (float)step, 2, 3 };
	const ddp_safetensors_tensor tensor = { "w", 1, (int64_t[]){ 3 }, numbers, false };

	ddp_later later = { 0 };

	if (access(dir, F_OK) == 0)
		ddp_store_list_later(dir, step, &later);
	ddp_status status = ddp_store_write(dir, step, &tensor, 1, NULL, 0, keep, &later, NULL);
	free(later.steps);
	return status;
}

/* The directory's names, sorted, each followed by a blank. */
static const char *listing(void)
{
	static char names[1024];
	struct dirent **entries;
	int count = scandir(dir, &entries, NULL, alphasort);

	names[0] = '\0';
	for (int i = 0; i < count; i++) {
		if (entries[i]->d_name[0] != '.') {
			strncat(names, entries[i]->d_name, sizeof(names) - strlen(names) - 1);
			strncat(names, " ", sizeof(names) - strlen(names) - 1);
		}
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
	return names;
}

static void touch(const char *name, const char *content)
{
	char path[256];

	path_in(path, sizeof(path), name);
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(content, file);
	assert_int_equal(fclose(file), 0);
}

/* The number in the checkpoint that a load of `path` takes, or -1: none. */
static int taken(const char *path)
{
	ddp_safetensors file;
	bool found;
	float numbers[3] = { -1 };

	assert_int_equal(ddp_store_open(path, NULL, &file, &found), DDP_OK);
	if (!found)
		return -1;
	assert_int_equal(ddp_safetensors_read(&file, &file.tensors[0], numbers), DDP_OK);
	ddp_safetensors_close(&file);
	return (int)numbers[0];
}

TEST_WITH(directory_is_made_and_the_last_ones_are_kept, start_empty, NULL)
{
	for (int64_t step = 10; step <= 50; step += 10)
		assert_int_equal(write_step(step, 2), DDP_OK);
	assert_string_equal(listing(), "step-00000040.safetensors step-00000050.safetensors ");
	assert_int_equal(taken(dir), 50);
	assert_string_equal(warnings, "");
}

TEST_WITH(other_files_stay_and_later_steps_are_set_aside, start_empty, NULL)
{
	for (int again = 0; again < 2; again++) {
		assert_int_equal(write_step(100, 1), DDP_OK);
		touch("step-7.safetensors", "");
		touch("notes", "");
		assert_int_equal(write_step(20, 1), DDP_OK);
		assert_int_equal(taken(dir), 20);
	}
	assert_string_equal(listing(), "notes step-00000020.safetensors "
	                    "step-00000100.safetensors.aside step-00000100.safetensors.aside-2 "
	                    "step-7.safetensors ");
	assert_non_null(strstr(warnings, "step-00000100.safetensors is of a later step"));
	char path[256];
	path_in(path, sizeof(path), "step-00000100.safetensors.aside");
	assert_int_equal(taken(path), 100);
}

TEST_WITH(who_does_not_own_the_directory_only_adds_to_it, start_empty, NULL)
{
	const float numbers[1] = { 7 };
	const ddp_safetensors_tensor tensor = { "w", 1, (int64_t[]){ 1 }, numbers, false };

	assert_int_equal(write_step(10, 3), DDP_OK);
	assert_int_equal(write_step(30, 3), DDP_OK);
	assert_int_equal(ddp_store_write(dir, 20, &tensor, 1, NULL, 0, 1, NULL, NULL), DDP_OK);
	assert_string_equal(listing(), "step-00000010.safetensors step-00000020.safetensors "
	                    "step-00000030.safetensors ");
}

TEST_WITH(what_came_since_a_save_began_stays, start_empty, NULL)
{
	const float numbers[1] = { 7 };
	const ddp_safetensors_tensor tensor = { "w", 1, (int64_t[]){ 1 }, numbers, false };
	ddp_later later;

	assert_int_equal(write_step(40, 3), DDP_OK);
	ddp_store_list_later(dir, 20, &later);
	assert_int_equal(write_step(30, 3), DDP_OK);
	assert_int_equal(ddp_store_write(dir, 20, &tensor, 1, NULL, 0, 3, &later, NULL), DDP_OK);
	free(later.steps);
	assert_string_equal(listing(), "step-00000020.safetensors step-00000030.safetensors "
	                    "step-00000040.safetensors.aside ");
}

TEST_WITH(writers_do_not_touch_what_others_are_writing, start_empty, NULL)
{
	static const char *const others = "step-00000030.safetensors.elsewhere-17-0.tmp";
	ddp_store_lock *lock, *again;

	assert_int_equal(write_step(10, 3), DDP_OK);
	touch("step-00000001.safetensors.tmp", "left by a crash");
	assert_int_equal(ddp_store_lock_take(dir, &(ddp_store_writer){ .name = "this test" }, NULL, &lock), DDP_OK);
	assert_string_equal(listing(), "step-00000010.safetensors ");
	touch(others, "half");
	assert_int_equal(write_step(20, 3), DDP_OK);
	assert_int_equal(ddp_store_lock_take(dir, &(ddp_store_writer){ .name = "this test" }, NULL, &again), DDP_OK);
	assert_int_equal(write_step(30, 3), DDP_OK);
	assert_non_null(strstr(listing(), others));
	ddp_store_lock_release(again);
	ddp_store_lock_release(lock);
	ddp_store_lock_release(NULL);
}

/* Takes the lock in a child, which keeps it until its standard input ends. */
static pid_t own_in_a_child(int *keep)
{
	int ready[2], until[2];
	char byte;
	ddp_store_lock *lock;

	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(until), 0);
	pid_t child = fork();
	if (child == 0) {
		close(until[1]);
		if (ddp_store_lock_take(dir, &(ddp_store_writer){ .name = "rank 0 of job 7.1 on n3, process 5" }, NULL, &lock) != DDP_OK)
			_exit(1);
		if (write(ready[1], "", 1) != 1 || read(until[0], &byte, 1) < 0)
			_exit(1);
		_exit(0);
	}
	assert_true(child > 0);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	close(until[0]);
	*keep = until[1];
	return child;
}

TEST_WITH(directory_has_one_owner, start_empty, NULL)
{
	ddp_store_lock *lock, *other;
	int keep, status;

	pid_t child = own_in_a_child(&keep);
	assert_int_equal(ddp_store_lock_take(dir, &(ddp_store_writer){ .name = "me" }, NULL, &lock), DDP_ERR_STATE);
	assert_false(ddp_store_lock_is_here(dir));
	assert_non_null(strstr(ddp_last_error(), "is written to by rank 0 of job 7.1 on n3, process 5; give"));
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	close(keep);
	assert_int_equal(ddp_store_lock_take(dir, &(ddp_store_writer){ .name = "me" }, NULL, &lock), DDP_OK);
	assert_true(ddp_store_lock_holds(lock, dir));
	assert_true(ddp_store_lock_is_here(dir));
	assert_int_equal(ddp_store_lock_take(dir, &(ddp_store_writer){ .name = "me" }, &keep, &other), DDP_ERR_STATE);
	assert_non_null(strstr(ddp_last_error(), "is written to by another model of this program; give each"));
	folder_empty(NULL);
	assert_false(ddp_store_lock_holds(lock, dir));
	ddp_store_lock_release(lock);
}

TEST_WITH(temporary_and_broken_files_are_passed_over, start_empty, NULL)
{
	char path[256];

	assert_int_equal(write_step(10, 3), DDP_OK);
	touch("step-00000020.safetensors", "cut");
	touch("step-00000030.safetensors.tmp", "half");
	path_in(path, sizeof(path), "step-00000040.safetensors");
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(taken(dir), 10);
	assert_non_null(strstr(warnings, "step-00000040.safetensors is not a regular file; "));
	const char *cut = strstr(warnings, "step-00000020.safetensors: cut short");
	assert_non_null(cut);
	assert_non_null(strstr(cut, "step-00000010.safetensors is loaded in its place"));
}

/* Reads of this file fail: the disk is broken. */
static dev_t bad_device;
static ino_t bad_inode;

ssize_t __real_pread(int fd, void *buffer, size_t bytes, off_t offset);
ssize_t __wrap_pread(int fd, void *buffer, size_t bytes, off_t offset);

ssize_t __wrap_pread(int fd, void *buffer, size_t bytes, off_t offset)
{
	struct stat about;

	if (bad_inode != 0 && fstat(fd, &about) == 0 && about.st_dev == bad_device &&
	    about.st_ino == bad_inode) {
		errno = EIO;
		return -1;
	}
	return __real_pread(fd, buffer, bytes, offset);
}

TEST_WITH(broken_disk_is_no_broken_file, start_empty, NULL)
{
	struct stat about;
	ddp_safetensors file;
	char path[256];
	bool found;

	assert_int_equal(write_step(10, 3), DDP_OK);
	assert_int_equal(write_step(20, 3), DDP_OK);
	path_in(path, sizeof(path), "step-00000020.safetensors");
	assert_int_equal(stat(path, &about), 0);
	bad_device = about.st_dev;
	bad_inode = about.st_ino;
	ddp_status status = ddp_store_open(dir, NULL, &file, &found);
	bad_inode = 0;
	assert_int_equal(status, DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "step-00000020.safetensors: cannot read at byte"));
	assert_int_equal(taken(dir), 20);
}

TEST_WITH(directory_of_broken_files_only_is_an_error, start_empty, NULL)
{
	ddp_safetensors file;
	bool found;

	assert_int_equal(write_step(10, 3), DDP_OK);
	touch("step-00000010.safetensors", "cut");
	assert_int_equal(ddp_store_open(dir, NULL, &file, &found), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "none of its 1 checkpoints"));
}

TEST_WITH(path_through_a_file_is_an_error, start_empty, NULL)
{
	char path[256];

	assert_int_equal(write_step(10, 1), DDP_OK);
	touch("file", "");
	path_in(path, sizeof(path), "file");
	assert_int_equal(ddp_store_write(path, 1, NULL, 0, NULL, 0, 1, NULL, NULL), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "is a file"));
	path_in(path, sizeof(path), "file/sub");
	assert_int_equal(ddp_store_write(path, 1, NULL, 0, NULL, 0, 1, NULL, NULL), DDP_ERR_IO);
}

int main(void)
{
	return test_run(make_base, folder_remove);
}
