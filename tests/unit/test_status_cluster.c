/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/status/cluster: what ddp-status asks of Slurm by its commands, which are scripts here. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank/status/cluster.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

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

TEST(a_running_job_is_found)
{
	struct job job;
	char text[256];

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
TEST(a_command_that_cannot_be_started_leaves_nothing)
{
	const int before = descriptors();
	struct job job;
	char text[256];

	for (int i = 0; i < 3; i++) {
		forks_that_fail = 1;
		assert_false(find_job(&job, text));
		assert_int_equal(strncmp(text, "ddp-status: cannot start squeue: ", 33), 0);
		assert_non_null(strstr(text, strerror(EAGAIN)));
	}
	assert_int_equal(descriptors(), before);
	assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

/* A task's row with a stack of so many bytes. */
static void write_row(FILE *file, int rank, size_t stack_bytes)
{
	struct row row = row_unknown();

	row.job = 7;
	row.slurm_step = 0;
	row.rank = rank;
	row.stack = calloc(1, stack_bytes + 1);
	assert_non_null(row.stack);
	memset(row.stack, 'a' + rank % 26, stack_bytes);
	assert_true(row_write(file, &row));
	free(row.stack);
}

static FILE *open_task(int task)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "%s/task%d", test_folder, task);
	file = fopen(path, "w");
	assert_non_null(file);
	return file;
}

/* srun forwards what its tasks write in pieces of 1,024 bytes, in turns, and begins each line of a piece with a label. */
static void make_srun(const char *end)
{
	char script[1024];

	snprintf(script, sizeof(script),
	         "case $* in *--label*) label=yes ;; esac; cd %s; for piece in 0 1 2 3 4 5 6 7; do for task in 0 1; do\n"
	         "dd if=task$task of=piece bs=1024 skip=$piece count=1 2>/dev/null; [ -s piece ] || continue\n"
	         "[ -z \"$label\" ] || { sed \"s/^/$task: /\" piece >labelled; mv labelled piece; }\n"
	         "cat piece; [ -z \"$label\" ] || [ -z \"$(tail -c 1 piece)\" ] || echo; done; done; %s",
	         test_folder, end);
	make_command("srun", script);
}

static const struct job two_nodes = { .id = "7", .nodes = "2", .ranks_max = 100 };

/* `text` gets what is said on stderr. */
static bool probe(struct row **rows, size_t *count, char text[512])
{
	FILE *file = tmpfile();
	const int kept = dup(STDERR_FILENO);
	struct job job = two_nodes;
	size_t got;
	bool fine;

	job.owner = geteuid();
	*rows = NULL;
	*count = 0;
	assert_non_null(file);
	assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
	fine = cluster_probe(&job, "ddp-status", "7", 50, true, NULL, rows, count);
	assert_true(dup2(kept, STDERR_FILENO) >= 0);
	close(kept);
	rewind(file);
	got = fread(text, 1, 511, file);
	text[got] = '\0';
	fclose(file);
	return fine;
}

TEST(rows_of_any_length_come_whole)
{
	static const size_t lengths[] = { 3000, 10, 1500, 700 };
	const size_t rows_count = sizeof(lengths) / sizeof(lengths[0]);
	FILE *tasks[2] = { open_task(0), open_task(1) };
	struct row *rows;
	size_t count;
	char text[512];

	/* A site's TaskProlog may print first. */
	fprintf(tasks[1], "welcome\n");
	for (size_t i = 0; i < rows_count; i++) {
		write_row(tasks[0], (int)i, lengths[i]);
		write_row(tasks[1], (int)(i + rows_count), lengths[i]);
	}
	assert_int_equal(fclose(tasks[0]) | fclose(tasks[1]), 0);
	make_srun("");
	assert_true(probe(&rows, &count, text));
	assert_string_equal(text, "");
	assert_int_equal(count, 2 * rows_count);
	for (size_t i = 0; i < count; i++) {
		const size_t rank = (size_t)rows[i].rank;
		assert_in_range(rank, 0, 2 * rows_count - 1);
		assert_non_null(rows[i].stack);
		assert_int_equal(strspn(rows[i].stack, (char[]){ (char)('a' + rank), '\0' }), lengths[rank % rows_count]);
		assert_int_equal(strlen(rows[i].stack), lengths[rank % rows_count]);
	}
	rows_free(rows, count);
}

/* A node's probe has died, or another program has written between. */
TEST(a_damaged_row_is_told)
{
	FILE *tasks[2] = { open_task(0), open_task(1) };
	struct row *rows;
	size_t count;
	char text[512];

	write_row(tasks[0], 0, 100);
	write_row(tasks[0], 1, 2000);
	assert_int_equal(fflush(tasks[0]), 0);
	assert_int_equal(ftruncate(fileno(tasks[0]), ftell(tasks[0]) - 500), 0);
	assert_int_equal(fclose(tasks[0]), 0);
	write_row(tasks[1], 2, 100);
	assert_int_equal(fclose(tasks[1]), 0);
	make_srun("exit 1");
	assert_true(probe(&rows, &count, text));
	assert_int_equal(count, 2);
	assert_string_equal(text, "ddp-status: job 7: 1 row is left out, as srun brought damaged text: first that of rank 1, "
	                          "from node 1 of 2; call ddp-status again\n");
	rows_free(rows, count);

	FILE *none = open_task(0), *half = open_task(1);
	fprintf(half, "%c{\"job\":7,", ROW_BEGIN);
	fclose(half);
	fclose(none);
	make_srun("");
	assert_false(probe(&rows, &count, text));
	assert_int_equal(count, 0);
	assert_string_equal(text, "ddp-status: job 7: 1 row is left out, as srun brought damaged text: first that of some rank, "
	                          "from node 2 of 2; call ddp-status again\n"
	                          "ddp-status: cannot look at the nodes of job 7\n");
}

/* The user's word on labels and lengths costs root nothing. */
TEST(what_is_no_row_is_passed_over)
{
	struct row *rows;
	size_t count;
	char text[512];

	make_command("srun", "printf '\\036{}\\n: \\036{}\\n9: \\036{}\\n-1: \\036{}\\n99999999999999999999: \\036{}\\n0:\\n\\n'");
	assert_true(probe(&rows, &count, text));
	assert_string_equal(text, "");
	assert_int_equal(count, 0);
	make_command("srun", "printf '0: \\036'; yes '0: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' | head -n 5000");
	assert_false(probe(&rows, &count, text));
	assert_non_null(strstr(text, "1 row is left out"));
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
	return test_run(make_folder, folder_remove);
}
