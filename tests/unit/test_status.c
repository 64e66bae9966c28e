/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/status: rows of ddp-status, which come from nodes not to be trusted.
   spank/status/cluster: what ddp-status asks of Slurm by its commands, which are scripts here. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/status/process.h"
#include "spank/status/row.h"
#include "spank/status/sources.h"
#include "spank/witness/dump.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

static struct row row_of(const char *text)
{
	json_t *json = json_loads(text, 0, NULL);
	struct row row;

	assert_true(row_from_json(json, &row));
	json_decref(json);
	return row;
}

TEST(row_survives_its_text)
{
	struct row row = row_of("{\"slurm_step\":0,\"rank\":3,\"world_size\":4,\"pid\":12,\"processes\":2,"
	                        "\"node\":\"n1\",\"program\":\"train\",\"state\":\"running\",\"cpu_percent\":99.5,"
	                        "\"phase\":\"forward\",\"phase_seconds\":1.5,\"step\":7,\"collective\":40,"
	                        "\"waiting\":true,\"waits_for\":\"#40 barrier\"}");
	json_t *again = row_to_json(&row);
	struct row same;

	assert_true(row_from_json(again, &same));
	assert_memory_equal(&row, &same, sizeof(row));
	json_decref(again);
	assert_int_equal(row.step, 7);
	assert_true(row.since_seconds < 0 && row.samples_per_second < 0);
	assert_string_equal(row.error, "");
}

/* A process has any bytes as its name, and a page has any number in it: both would cost the node all its rows. */
TEST(any_bytes_and_numbers_go_into_json)
{
	struct row row = row_unknown();
	json_t *json;

	row.slurm_step = row.rank = 0;
	row.steps_per_second = INFINITY;
	strcpy(row.program, "tr\xff\n\"in");
	json = row_to_json(&row);
	assert_non_null(json);
	assert_string_equal(json_string_value(json_object_get(json, "program")), "tr??\"in");
	assert_true(json_is_null(json_object_get(json, "steps_per_second")));
	assert_true(json_is_null(json_object_get(json, "restarts")));
	json_decref(json);
}

TEST(what_is_no_row_is_refused)
{
	static const char *const texts[] = { "[]", "{}", "{\"rank\":1}", "{\"slurm_step\":0,\"rank\":-1}",
		                             "{\"slurm_step\":0,\"rank\":\"1\"}",
		                             "{\"slurm_step\":0,\"rank\":1048576}",
		                             "{\"slurm_step\":0,\"rank\":0,\"world_size\":99999999}" };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		json_t *json = json_loads(texts[i], 0, NULL);
		struct row row;
		assert_false(row_from_json(json, &row));
		json_decref(json);
	}
}

TEST(texts_come_printable_and_cut)
{
	char text[2000], long_name[1000];
	struct row row;

	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	snprintf(text, sizeof(text), "{\"slurm_step\":0,\"rank\":0,\"node\":\"%s\",\"error\":\"a\\u001b[2Jb\\n\"}",
	         long_name);
	row = row_of(text);
	assert_int_equal(strlen(row.node), ROW_NAME_MAX - 1);
	assert_string_equal(row.error, "a?[2Jb?");
}

TEST(stragglers_come_first)
{
	/* Rank 2 has no row; 4 and 1 wait for nobody, and 4 has done less. */
	static const struct { int rank, step, collective; bool waiting; } cases[] = {
		{ 0, 9, 41, true }, { 1, 9, 40, false }, { 3, 9, 41, true }, { 4, 8, 39, false },
	};
	static const int order[] = { 2, 4, 1, 0, 3, 0 };
	struct row *rows = calloc(5, sizeof(*rows));
	size_t count = 5;

	assert_non_null(rows);
	for (int i = 0; i < 4; i++) {
		rows[i] = row_of("{\"slurm_step\":1,\"rank\":0,\"world_size\":5,\"state\":\"sleeping\"}");
		rows[i].rank = cases[i].rank;
		rows[i].step = cases[i].step;
		rows[i].collective = cases[i].collective;
		rows[i].waiting = cases[i].waiting;
	}
	rows[4] = row_of("{\"slurm_step\":2,\"rank\":0,\"world_size\":1,\"state\":\"sleeping\"}");
	assert_true(rows_arrange(&rows, &count, 5));
	assert_int_equal(count, 6);
	for (int i = 0; i < 6; i++)
		assert_int_equal(rows[i].rank, order[i]);
	assert_string_equal(rows[0].state, "gone");
	assert_int_equal(rows[5].slurm_step, 2);
	free(rows);
}

/* Neither a world nor a rank beyond what Slurm says makes room for others. */
TEST(worlds_beyond_belief_are_not_filled)
{
	static const char *const liars[] = {
		"{\"slurm_step\":1,\"rank\":0,\"world_size\":1000000,\"state\":\"sleeping\"}",
		"{\"slurm_step\":1,\"rank\":999999,\"world_size\":2,\"state\":\"sleeping\"}",
	};

	for (size_t i = 0; i < sizeof(liars) / sizeof(liars[0]); i++) {
		struct row *rows = calloc(2, sizeof(*rows));
		size_t count = 2;
		assert_non_null(rows);
		rows[0] = row_of(liars[i]);
		rows[1] = row_of("{\"slurm_step\":2,\"rank\":0,\"world_size\":3,\"state\":\"sleeping\"}");
		assert_true(rows_arrange(&rows, &count, 16));
		assert_int_equal(count, 1 + 3);
		free(rows);
	}
}

static void print_to(char text[4096], struct row *rows, size_t count)
{
	FILE *file = fmemopen(text, 4096, "w");

	assert_non_null(file);
	rows_print(file, rows, count, "7", false);
	fclose(file);
}

static void expect_in_row(struct row *row, const char *part)
{
	char text[4096];

	print_to(text, row, 1);
	if (strstr(text, part) == NULL)
		fail_msg("%s not in %s", part, text);
}

TEST(seconds_stay_short)
{
	static const struct { double seconds; const char *text; } cases[] = {
		{ 0.04, " 0.0 s " }, { 99.9, " 99.9 s " }, { 150, " 150 s " }, { 600, " 10 min " },
		{ 7200, " 2.0 h " },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct row row = row_of("{\"slurm_step\":1,\"rank\":0,\"world_size\":1,\"state\":\"sleeping\"}");
		row.phase_seconds = cases[i].seconds;
		expect_in_row(&row, cases[i].text);
	}
}

TEST(rates_and_steps_are_told_in_full)
{
	static const struct { double rate; int64_t step, steps; const char *text; } cases[] = {
		{ 44870.4, 4, 250, " 4/250  - " }, { 44870.4, 4, 250, " 44870/s " }, { 999.94, 7, -1, " 999.9/s " },
		{ 1234567.8, 7, -1, " 1234568/s " }, { 3.14159, 7, -1, " 3.142/s " }, { 98765432, 7, -1, " 98765k/s " },
		{ 1e300, 7, -1, " 1e+300/s " }, { 3, 7, -1, " 7  - " },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct row row = row_of("{\"slurm_step\":1,\"rank\":0,\"world_size\":1,\"state\":\"sleeping\"}");
		row.samples_per_second = cases[i].rate;
		row.step = cases[i].step;
		row.steps = cases[i].steps;
		expect_in_row(&row, cases[i].text);
	}
}

TEST(process_is_read_by_any_name)
{
	struct process process;

	assert_true(process_read(getpid(), &process));
	assert_int_equal(process.pid, getpid());
	assert_int_equal(process.parent, getppid());
	assert_int_equal(process.state, 'R');
	assert_string_equal(process.name, "test_status");
	assert_false(process_read(0x7ffffff0, &process));
}

TEST(variables_are_found_in_a_block)
{
	static const char block[] = "A=1\0RANK=12\0RANKS=7\0EMPTY=\0LAST=x";
	char value[4];

	assert_true(process_variable(block, sizeof(block), "RANK", value, sizeof(value)));
	assert_string_equal(value, "12");
	assert_true(process_variable(block, sizeof(block), "EMPTY", value, sizeof(value)));
	assert_string_equal(value, "");
	assert_true(process_variable(block, sizeof(block), "LAST", value, sizeof(value)));
	assert_false(process_variable(block, sizeof(block), "ANK", value, sizeof(value)));
	assert_false(process_variable(block, sizeof(block), "RANK", value, 2));
}

TEST(losses_have_a_column_if_there_are_any)
{
	struct row *rows = calloc(2, sizeof(*rows));
	char text[4096];

	rows[0] = row_of("{\"slurm_step\":0,\"rank\":0,\"world_size\":2,\"state\":\"running\",\"loss\":-2.5}");
	rows[1] = row_of("{\"slurm_step\":0,\"rank\":1,\"world_size\":2,\"state\":\"running\",\"loss\":null}");
	assert_true(rows[0].has_loss && rows[0].loss < -2.4 && !rows[1].has_loss);
	print_to(text, rows, 2);
	assert_non_null(strstr(text, "RATE       LOSS"));
	assert_non_null(strstr(text, "       -2.5 "));
	print_to(text, rows + 1, 1);
	assert_null(strstr(text, "LOSS"));
	rows_free(rows, 2);
}

TEST(restarts_are_said_if_there_were_any)
{
	struct row *rows = calloc(2, sizeof(*rows));
	char text[4096];

	rows[0] = row_of("{\"slurm_step\":0,\"rank\":0,\"world_size\":2,\"state\":\"running\",\"restarts\":0}");
	rows[1] = row_of("{\"slurm_step\":0,\"rank\":1,\"world_size\":2,\"state\":\"running\",\"restarts\":2}");
	print_to(text, rows, 2);
	assert_non_null(strstr(text, "step 7.0: 2 ranks, 0 waiting for others, restarted 2 times\n"));
	print_to(text, rows, 1);
	assert_null(strstr(text, "restarted"));
	rows_free(rows, 2);
}

/* A node that waits has no rank. It comes behind the ranks of its step, and is none of them. */
TEST(spares_come_last)
{
	struct row *rows = calloc(4, sizeof(*rows));
	size_t count = 4, bytes;
	char text[4096], *buffer;
	FILE *file;
	json_t *all, *spares;

	rows[0] = row_of("{\"slurm_step\":0,\"rank\":null,\"world_size\":2,\"state\":\"spare\",\"node\":\"n3\"}");
	rows[1] = row_of("{\"slurm_step\":0,\"rank\":0,\"world_size\":2,\"state\":\"running\",\"node\":\"n0\"}");
	rows[2] = row_of("{\"slurm_step\":0,\"world_size\":2,\"state\":\"spare\",\"node\":\"n2\"}");
	rows[3] = row_of("{\"slurm_step\":1,\"rank\":0,\"world_size\":1,\"state\":\"running\",\"node\":\"n1\"}");
	assert_true(row_is_spare(&rows[0]) && !row_is_spare(&rows[1]));
	assert_true(rows_arrange(&rows, &count, 16));
	assert_int_equal(count, 5);
	assert_string_equal(rows[0].state, "gone");
	assert_string_equal(rows[2].node, "n2");
	assert_string_equal(rows[3].node, "n3");
	print_to(text, rows, count);
	assert_non_null(strstr(text, "step 7.0: 2 ranks, 0 waiting for others, 1 gone, 2 spares\n"));
	assert_non_null(strstr(text, "\n     -  n2         spare      waits to take the place of another node\n"
	                             "     -  n3         spare "));
	file = open_memstream(&buffer, &bytes);
	assert_true(rows_print_json(file, rows, count, "7"));
	fclose(file);
	all = json_loads(buffer, 0, NULL);
	assert_int_equal(json_array_size(json_object_get(all, "ranks")), 3);
	spares = json_object_get(all, "spares");
	assert_int_equal(json_array_size(spares), 2);
	assert_string_equal(json_string_value(json_object_get(json_array_get(spares, 1), "node")), "n3");
	assert_string_equal(json_string_value(json_object_get(json_array_get(spares, 1), "state")), "spare");
	json_decref(all);
	free(buffer);
	rows_free(rows, count);
}

TEST(stacks_are_lines_that_are_printable)
{
	struct row *rows = calloc(1, sizeof(*rows));
	char text[4096];

	rows[0] = row_of("{\"slurm_step\":0,\"rank\":0,\"world_size\":1,\"state\":\"running\","
	                 "\"stack\":\"Current thread:\\n  File \\u001b[2J\\n\"}");
	assert_string_equal(rows[0].stack, "Current thread:\n  File ?[2J\n");
	json_t *json = row_to_json(&rows[0]);
	assert_string_equal(json_string_value(json_object_get(json, "stack")), rows[0].stack);
	json_decref(json);
	print_to(text, rows, 1);
	assert_non_null(strstr(text, "\n        Current thread:\n          File ?[2J\n"));
	rows_free(rows, 1);
}

static int stack_file;

static void write_stack(int number)
{
	if (write(stack_file, "two\nlines\033\n", 11) != 11)
		abort();
}

TEST(process_is_asked_for_its_stack_if_it_can_tell)
{
	const struct sigaction action = { .sa_handler = write_stack };
	struct stack stack;
	char name[32];

	assert_int_equal(stack_signal("/memfd:ddp_stack-59 (deleted)"), 59);
	assert_int_equal(stack_signal("/memfd:ddp_stack-9 (deleted)"), 0);
	assert_int_equal(stack_signal("/memfd:ddp_stack-591 (deleted)"), 0);
	assert_int_equal(stack_signal("/memfd:ddp_stack-59x"), 0);
	assert_int_equal(stack_signal("/memfd:ddp_stack-"), 0);
	assert_int_equal(stack_signal("/tmp/ddp_stack-59"), 0);
	assert_false(stack_ask(getpid(), &stack));
	snprintf(name, sizeof(name), "ddp_stack-%d", SIGRTMAX - 3);
	stack_file = memfd_create(name, MFD_CLOEXEC);
	assert_true(stack_file >= 0 && fcntl(stack_file, F_SETFL, O_APPEND) == 0);
	/* It has no handler: the signal would end it. */
	assert_false(stack_ask(getpid(), &stack));
	assert_int_equal(sigaction(SIGRTMAX - 3, &action, NULL), 0);
	for (int i = 0; i < 2; i++) {
		assert_true(stack_ask(getpid(), &stack));
		char *text = stack_take(&stack, ddp_now_ns() + 10000000000ull);
		assert_string_equal(text, "two\nlines?\n");
		free(text);
	}
	close(stack_file);
}

/* ---- spank/status/cluster ------------------------------------------------------- */

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

static FILE *ear;
static int before_ear;

/* What is written to stderr until hear() goes there. */
static void listen_to_stderr(void)
{
	ear = tmpfile();
	before_ear = dup(STDERR_FILENO);
	assert_non_null(ear);
	assert_true(dup2(fileno(ear), STDERR_FILENO) >= 0);
}

static void hear(char *text, size_t bytes)
{
	assert_true(dup2(before_ear, STDERR_FILENO) >= 0);
	close(before_ear);
	rewind(ear);
	text[fread(text, 1, bytes - 1, ear)] = '\0';
	fclose(ear);
}

/* `text` gets what the search says on stderr. */
static bool find_job(struct job *job, char text[256])
{
	listen_to_stderr();
	const bool found = cluster_find_job("7", job);
	hear(text, 256);
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
	struct job job = two_nodes;

	job.owner = geteuid();
	*rows = NULL;
	*count = 0;
	listen_to_stderr();
	const bool fine = cluster_probe(&job, "ddp-status", "7", 50, true, NULL, rows, count);
	hear(text, 512);
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
