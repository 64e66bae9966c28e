/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/launch/check: how a dry run shows what tasks get. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "spank/launch/check.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

TEST(check_prints_a_row_for_the_task)
{
	static struct variables variables;
	char text[256];
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	build(&variables, "", &identity, &with);
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_string_equal(text, "rank 3/4  local 1/2  node 1/2 n1  master n0:20001  omp 4  gpus 0\n");
	with.master_address = "fd00::1";
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_non_null(strstr(text, "  master [fd00::1]:20001  "));
	assert_false(check_row(&identity, &with, &variables, text, 16));
}

TEST(check_shows_spares)
{
	static struct variables variables;
	char text[256], rows[] = "spare  local 1/2  node 3 n3  waits\nrank 1/4  local 1/2  node 0/2 n0\n"
	                         "spare  local 0/2  node 2 n2  waits\nrank 0/4  local 0/2  node 0/2 n0\nword\n";
	struct settings settings = { .restarts = 1, .spares = 2 };
	struct identity identity = { .world_size = 8, .local_world_size = 2, .node_count = 4, .node_name = "n3" };
	struct task_extras with = extras(ENVIRONMENT());
	const uint32_t cyclic[] = { 0, 4, 1, 5 }, dealt[] = { 0, 2, 1, 3 };

	identity.node_rank = 3, identity.rank = 7, identity.local_rank = 1;
	identity_without_spares(&identity, &settings);
	assert_true(identity.spare);
	assert_int_equal(identity.world_size, 4);
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_string_equal(text, "spare  local 1/2  node 3 n3  waits for the place of a lost node\n");
	assert_true(check_json(&identity, &(struct variable){ "spare", "yes", "spare=" }, text, sizeof(text)));
	assert_string_equal(text, "{\"rank\":null,\"world_size\":4,\"node\":\"n3\",\"name\":\"spare\",\"value\":\"yes\","
	                    "\"source\":\"spare=\"}\n");
	assert_true(table_sort(rows));
	assert_string_equal(rows, "word\nrank 0/4  local 0/2  node 0/2 n0\nrank 1/4  local 1/2  node 0/2 n0\n"
	                    "spare  local 1/2  node 3 n3  waits\nspare  local 0/2  node 2 n2  waits\n");
	for (uint32_t i = 0; i < COUNT(cyclic); i++) {
		identity = (struct identity){ .world_size = 8, .local_world_size = 2, .node_count = 4, .node_rank = i / 2,
			                      .local_rank = i % 2, .rank = cyclic[i] };
		identity_without_spares(&identity, &settings);
		assert_false(identity.spare);
		assert_int_equal(identity.rank, dealt[i]);
	}
}

/* slurmstepd writes the row into slurmd's log when verbose is on. */
TEST(check_row_is_one_printable_line)
{
	static struct variables variables;
	char text[256];
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT(V("OMP_NUM_THREADS=1\nslurmd: error: \033[2Jlies, and "
	                                               "more of them than a row has room for")));

	with.user_threads = environment_get(with.environment, "OMP_NUM_THREADS");
	build(&variables, "", &identity, &with);
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_string_equal(text, "rank 3/4  local 1/2  node 1/2 n1  master n0:20001  "
	                    "omp 1?slurmd: error: ?[2Jlies, and more of t  gpus 0\n");
}

TEST(check_prints_valid_json_for_each_variable)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	build(&variables, "trace=/a\"b\\c", &identity, &with);
	for (int i = 0; i < variables.count; i++) {
		const struct variable *variable = &variables.item[i];
		char text[1024];
		assert_int_equal(check_json(&identity, variable, text, sizeof(text)), variable->value != NULL);
		if (variable->value == NULL)
			continue;
		assert_int_equal(strchr(text, '\n') - text, (long)strlen(text) - 1);
		json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
		assert_non_null(root);
		assert_int_equal(json_integer_value(json_object_get(root, "rank")), 3);
		assert_string_equal(json_string_value(json_object_get(root, "name")), variable->name);
		assert_string_equal(json_string_value(json_object_get(root, "source")), variable->source);
		assert_string_equal(json_string_value(json_object_get(root, "value")),
		                    strcmp(variable->name, "DDP_KEY") == 0 ? "(secret)" : variable->value);
		json_decref(root);
	}
}

TEST(table_is_in_order_of_node_and_rank)
{
	static const struct { const char *text, *sorted; } cases[] = {
		{ "", "" }, { "\n", "\n" }, { "no row\n", "no row\n" },
		{ "rank 10/12  local 0/2  node 1/2 n1  x\nrank  2/12  local 0/2  node 0/2 n0  y\n"
		  "rank  1/12  local 0/2  node 1/2 n1  z\n",
		  "rank  2/12  local 0/2  node 0/2 n0  y\nrank  1/12  local 0/2  node 1/2 n1  z\n"
		  "rank 10/12  local 0/2  node 1/2 n1  x\n" },
		/* srun --label, and what else there may be. */
		{ "1: rank 1/2  local 0/1  node 1/2 n1\nb\n0: rank 0/2  local 0/1  node 0/2 n0\na\n",
		  "b\na\n0: rank 0/2  local 0/1  node 0/2 n0\n1: rank 1/2  local 0/1  node 1/2 n1\n" },
		{ "rank 1/2  node 1/2\nrank 0/2  node 0/2", "rank 0/2  node 0/2\nrank 1/2  node 1/2" },
		{ "rank x/2  node 1/2\nrank 0/2  node\n", "rank x/2  node 1/2\nrank 0/2  node\n" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[256];
		snprintf(text, sizeof(text), "%s", cases[i].text);
		assert_true(table_sort(text));
		assert_string_equal(text, cases[i].sorted);
	}
}

TEST(check_says_when_there_is_no_room)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
	const struct variable rank = { "RANK", "3", "the step" };

	build(&variables, "", &identity, &with);
	for (size_t bytes = 1; bytes < 60; bytes++) {
		char text[64];
		memset(text, 'x', sizeof(text));
		assert_false(check_json(&identity, &rank, text, bytes));
		assert_true(memchr(text, '\0', bytes) != NULL);
	}
}

/* How many descriptors a program would inherit, beside the first three. */
static int inherited(void)
{
	int count = 0;

	for (int fd = 3; fd < 256; fd++) {
		int flags = fcntl(fd, F_GETFD);
		count += flags >= 0 && (flags & FD_CLOEXEC) == 0;
	}
	return count;
}

/* What a process writes that keeps its table, and then leaves. */
static void written_by(void (*leave)(void), char *text, size_t bytes)
{
	size_t used = 0;
	ssize_t got;
	int ends[2], status = -1;
	pid_t pid;

	fflush(stdout);
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct error error;
		int before;
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		before = inherited();
		if (!table_begin(&error) || inherited() != before)
			_exit(1);
		printf("rank 1/2  local 0/1  node 1/2 n1\nrank 0/2  local 0/1  node 0/2 n0\n");
		leave();
		_exit(2);
	}
	close(ends[1]);
	while (used < bytes - 1 && (got = read(ends[0], text + used, bytes - 1 - used)) > 0)
		used += (size_t)got;
	text[used] = '\0';
	close(ends[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void leave_in_order(void)
{
	table_end();
	exit(0);
}

static void leave_at_once(void)
{
	exit(0);
}

/* A process that srun starts has no part in the table. */
static void leave_after_a_child(void)
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0)
		exit(0);
	waitpid(pid, &status, 0);
	exit(status);
}

TEST(table_is_written_however_srun_leaves)
{
	static void (*const leaves[])(void) = { leave_in_order, leave_at_once, leave_after_a_child };
	char text[512];

	for (size_t i = 0; i < COUNT(leaves); i++) {
		written_by(leaves[i], text, sizeof(text));
		assert_string_equal(text, "rank 0/2  local 0/1  node 0/2 n0\n"
		                          "rank 1/2  local 0/1  node 1/2 n1\n");
	}
}
