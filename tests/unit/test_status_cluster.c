/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/status/cluster: what ddp-status asks of Slurm by its commands, which are scripts here. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "spank/status/cluster.h"
#include "tests/support/folder.h"

static int forks_that_fail;

/* Stands before the C library's. */
pid_t fork(void)
{
	pid_t (*real)(void);

	if (forks_that_fail > 0) {
		forks_that_fail--;
		errno = EAGAIN;
		return -1;
	}
	*(void **)&real = dlsym(RTLD_NEXT, "fork");
	return real();
}

static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(folder);
	while (readdir(folder) != NULL)
		count++;
	closedir(folder);
	return count;
}

/* Makes one of Slurm's commands, in the folder in which commands are looked for. */
static void make_command(const char *name, const char *script)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", test_folder, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "#!/bin/sh\n%s\n", script);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(chmod(path, 0755), 0);
}

/* `text` gets what the search says on stderr. */
static bool find_job(struct job *job, char text[256])
{
	FILE *file = tmpfile();
	const int kept = dup(STDERR_FILENO);
	size_t count;
	bool found;

	assert_non_null(file);
	assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
	found = cluster_find_job("7", job);
	assert_true(dup2(kept, STDERR_FILENO) >= 0);
	close(kept);
	rewind(file);
	count = fread(text, 1, 255, file);
	text[count] = '\0';
	fclose(file);
	return found;
}

static void a_running_job_is_found(void **state)
{
	struct job job;
	char text[256];

	(void)state;
	make_command("squeue", "case $* in *--steps*) echo '7.0 3'; echo '7.1 4' ;; *) echo \"7 1000 2 8 RUNNING\" ;; esac");
	assert_true(find_job(&job, text));
	assert_string_equal(text, "");
	assert_string_equal(job.id, "7");
	assert_string_equal(job.nodes, "2");
	assert_int_equal(job.owner, 1000);
	assert_int_equal(job.ranks_max, 3 + 4 + 16 * 8);
	make_command("squeue", "echo '7 1000 2 8 PENDING'");
	assert_false(find_job(&job, text));
	assert_string_equal(text, "ddp-status: job 7 does not run: it is PENDING\n");
	make_command("squeue", "exit 1");
	assert_false(find_job(&job, text));
	assert_string_equal(text, "ddp-status: Slurm tells of no job 7\n");
}

/* The user has as many processes as he may have. */
static void a_command_that_cannot_be_started_leaves_nothing(void **state)
{
	const int before = descriptors();
	struct job job;
	char text[256];

	(void)state;
	for (int i = 0; i < 3; i++) {
		forks_that_fail = 1;
		assert_false(find_job(&job, text));
		assert_int_equal(strncmp(text, "ddp-status: cannot start squeue: ", 33), 0);
		assert_non_null(strstr(text, strerror(EAGAIN)));
	}
	assert_int_equal(descriptors(), before);
	assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

static int make_folder(void **state)
{
	char path[4096];

	if (folder_make(state) != 0 || getenv("PATH") == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s:%s", test_folder, getenv("PATH"));
	return setenv("PATH", path, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_running_job_is_found),
		cmocka_unit_test(a_command_that_cannot_be_started_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, make_folder, folder_remove);
}
