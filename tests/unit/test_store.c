/* state/store: checkpoints come whole or not at all, the newest whole one counts. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/folder.h"
#include "state/store.h"

static char dir[TEST_FOLDER_BYTES + 16];
static char warnings[4096];

static void collect(void *user, ddp_log_level level, const char *message)
{
	(void)user;
	(void)level;
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
	const ddp_safetensors_tensor tensor = { "w", 1, (int64_t[]){ 3 }, numbers };

	return ddp_store_write(dir, step, &tensor, 1, NULL, 0, keep);
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

	assert_int_equal(ddp_store_open(path, &file, &found), DDP_OK);
	if (!found)
		return -1;
	assert_int_equal(ddp_safetensors_read(&file, &file.tensors[0], numbers), DDP_OK);
	ddp_safetensors_close(&file);
	return (int)numbers[0];
}

static void directory_is_made_and_the_last_ones_are_kept(void **state)
{
	(void)state;
	for (int64_t step = 10; step <= 50; step += 10)
		assert_int_equal(write_step(step, 2), DDP_OK);
	assert_string_equal(listing(), "step-00000040.safetensors step-00000050.safetensors ");
	assert_int_equal(taken(dir), 50);
	assert_string_equal(warnings, "");
}

static void same_step_is_replaced(void **state)
{
	(void)state;
	assert_int_equal(write_step(10, 3), DDP_OK);
	assert_int_equal(write_step(10, 3), DDP_OK);
	assert_string_equal(listing(), "step-00000010.safetensors ");
}

static void other_files_and_later_steps_stay(void **state)
{
	(void)state;
	assert_int_equal(write_step(100, 1), DDP_OK);
	touch("step-7.safetensors", "");
	touch("notes", "");
	touch("step-00000001.safetensors.tmp", "left by a crash");
	assert_int_equal(write_step(20, 1), DDP_OK);
	assert_string_equal(listing(), "notes step-00000020.safetensors step-00000100.safetensors "
	                    "step-7.safetensors ");
	assert_non_null(strstr(warnings, "later steps, up to 100"));
}

static void temporary_and_broken_files_are_passed_over(void **state)
{
	(void)state;
	assert_int_equal(write_step(10, 3), DDP_OK);
	touch("step-00000020.safetensors", "cut");
	touch("step-00000030.safetensors.tmp", "half");
	assert_int_equal(taken(dir), 10);
	assert_non_null(strstr(warnings, "step-00000020.safetensors: cut short"));
}

static void directory_of_broken_files_only_is_an_error(void **state)
{
	ddp_safetensors file;
	bool found;

	(void)state;
	assert_int_equal(write_step(10, 3), DDP_OK);
	touch("step-00000010.safetensors", "cut");
	assert_int_equal(ddp_store_open(dir, &file, &found), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "none of its 1 checkpoints"));
}

static void absent_directory_holds_none_but_an_absent_file_is_an_error(void **state)
{
	ddp_safetensors file;
	char path[256];
	bool found;

	(void)state;
	assert_int_equal(taken(dir), -1);
	path_in(path, sizeof(path), "step-00000010.safetensors");
	assert_int_equal(ddp_store_open(path, &file, &found), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), path));
	assert_int_equal(write_step(10, 3), DDP_OK);
	assert_int_equal(taken(path), 10);
}

static void full_disk_leaves_the_old_checkpoint_and_nothing_else(void **state)
{
	struct rlimit before, small;

	(void)state;
	assert_int_equal(write_step(10, 1), DDP_OK);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	small = (struct rlimit){ .rlim_cur = 100, .rlim_max = before.rlim_max };
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	ddp_status status = write_step(20, 1);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(status, DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "File too large"));
	assert_string_equal(listing(), "step-00000010.safetensors ");
}

static void path_through_a_file_is_an_error(void **state)
{
	char path[256];

	(void)state;
	assert_int_equal(write_step(10, 1), DDP_OK);
	touch("file", "");
	path_in(path, sizeof(path), "file");
	assert_int_equal(ddp_store_write(path, 1, NULL, 0, NULL, 0, 1), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "is a file"));
	path_in(path, sizeof(path), "file/sub");
	assert_int_equal(ddp_store_write(path, 1, NULL, 0, NULL, 0, 1), DDP_ERR_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(directory_is_made_and_the_last_ones_are_kept, start_empty),
		cmocka_unit_test_setup(same_step_is_replaced, start_empty),
		cmocka_unit_test_setup(other_files_and_later_steps_stay, start_empty),
		cmocka_unit_test_setup(temporary_and_broken_files_are_passed_over, start_empty),
		cmocka_unit_test_setup(directory_of_broken_files_only_is_an_error, start_empty),
		cmocka_unit_test_setup(absent_directory_holds_none_but_an_absent_file_is_an_error, start_empty),
		cmocka_unit_test_setup(full_disk_leaves_the_old_checkpoint_and_nothing_else, start_empty),
		cmocka_unit_test_setup(path_through_a_file_is_an_error, start_empty),
	};
	return cmocka_run_group_tests(tests, make_base, folder_remove);
}
