/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/status: rows of ddp-status, which come from nodes not to be trusted. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/status/process.h"
#include "spank/status/row.h"
#include "spank/witness/stack.h"
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

TEST(seconds_stay_short)
{
	static const struct { double seconds; const char *text; } cases[] = {
		{ 0.04, " 0.0 s " }, { 99.9, " 99.9 s " }, { 150, " 150 s " }, { 600, " 10 min " },
		{ 7200, " 2.0 h " },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct row row = row_of("{\"slurm_step\":1,\"rank\":0,\"world_size\":1,\"state\":\"sleeping\"}");
		char *text = NULL;
		size_t bytes;
		FILE *file = open_memstream(&text, &bytes);
		assert_non_null(file);
		row.phase_seconds = cases[i].seconds;
		rows_print(file, &row, 1, "7", false);
		fclose(file);
		if (strstr(text, cases[i].text) == NULL)
			fail_msg("%s not in %s", cases[i].text, text);
		free(text);
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
		char *text = NULL;
		size_t bytes;
		FILE *file = open_memstream(&text, &bytes);
		assert_non_null(file);
		row.samples_per_second = cases[i].rate;
		row.step = cases[i].step;
		row.steps = cases[i].steps;
		rows_print(file, &row, 1, "7", false);
		fclose(file);
		if (strstr(text, cases[i].text) == NULL)
			fail_msg("%s not in %s", cases[i].text, text);
		free(text);
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

static void print_to(char text[4096], struct row *rows, size_t count)
{
	FILE *file = fmemopen(text, 4096, "w");

	assert_non_null(file);
	rows_print(file, rows, count, "7", false);
	fclose(file);
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
