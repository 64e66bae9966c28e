/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/launch: what srun's side leaves in srun's environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/launch/names.h"
#include "spank/launch/prepare.h"
#include "tests/support/test.h"

static struct settings defaults(void)
{
	struct settings settings;

	settings_init(&settings);
	return settings;
}

static int clear(void **state)
{
	for (int i = 0; name_at(i) != NULL; i++)
		unsetenv(name_at(i)->text);
	return 0;
}

TEST_WITH(key_is_made_once_for_all_components, clear, NULL)
{
	struct settings settings = defaults();
	struct error error = { "" };
	char first[80];

	assert_true(launch_prepare(&settings, NULL, &error));
	snprintf(first, sizeof(first), "%s", getenv("SLURM_DDP_KEY"));
	assert_int_equal(strlen(first), 64);
	assert_int_equal(strspn(first, "0123456789abcdef"), 64);
	unsetenv("SLURM_DDP_KEY");
	assert_true(launch_prepare(&settings, NULL, &error));
	assert_string_equal(getenv("SLURM_DDP_KEY"), first);
}

TEST_WITH(ranks_of_a_node_without_the_plugin_are_no_numbers, clear, NULL)
{
	struct settings settings = defaults();
	struct error error;

	setenv("RANK", "7", 1);
	for (int launcher = 0; launcher < 2; launcher++) {
		settings.launcher = launcher > 0;
		assert_true(launch_prepare(&settings, NULL, &error));
		for (int i = 0; name_at(i) != NULL; i++) {
			const char *name = name_at(i)->text, *value = getenv(name);
			bool told = strncmp(name, "PET_", 4) == 0 || (launcher == 0 && name_at(i)->kind == NAME_RANK);
			if (told != (value != NULL && strstr(value, "absent on this node") != NULL))
				fail_msg("%s is %s", name, value != NULL ? value : "not set");
		}
		clear(NULL);
	}
}

TEST_WITH(first_host_of_a_hostfile_is_found, clear, NULL)
{
	static const struct { const char *text, *host; } cases[] = {
		{ "n2\nn0\n", "n2" }, { "n2", "n2" }, { "\n\n  n2 \nn0", "n2" }, { "n2,n0,n1\n", "n2" },
		{ "n[2-3]\n", "n2" }, { "n2*4\n", "n2" }, { "# comment\nn2\n", "n2" }, { "n2\r\nn0\r\n", "n2" },
		{ "", NULL }, { "\n\n", NULL }, { "# none\n", NULL }, { "n[2-\n", NULL }, { "n/2\n", NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char path[] = "/tmp/test_spank_prepare.XXXXXX";
		int fd = mkstemp(path);
		struct settings settings = defaults();
		struct error error = { "" };
		assert_true(fd >= 0);
		assert_int_equal(write(fd, cases[i].text, strlen(cases[i].text)), (ssize_t)strlen(cases[i].text));
		close(fd);
		if (launch_prepare(&settings, path, &error) != (cases[i].host != NULL))
			fail_msg("case %zu: %s", i, error.text);
		if (cases[i].host != NULL)
			assert_string_equal(getenv("SLURM_DDP_FIRST_HOST"), cases[i].host);
		else
			assert_true(error.text[0] != '\0');
		/* The nodes refuse a step without. */
		assert_int_equal(getenv("SLURM_DDP_KEY") != NULL, cases[i].host != NULL);
		unlink(path);
	}
}

TEST_WITH(missing_hostfile_is_an_error_that_names_it, clear, NULL)
{
	struct settings settings = defaults();
	struct error error;

	assert_false(launch_prepare(&settings, "/nonexistent/hosts", &error));
	assert_non_null(strstr(error.text, "/nonexistent/hosts"));
	setenv("SLURM_DDP_FIRST_HOST", "stale", 1);
	assert_true(launch_prepare(&settings, NULL, &error));
	assert_null(getenv("SLURM_DDP_FIRST_HOST"));
}

TEST_WITH(stale_variables_are_listed, clear, NULL)
{
	char text[512], small[8];
	struct settings settings = defaults();
	struct error error;

	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "");
	setenv("MASTER_ADDR", "n9", 1);
	setenv("RANK", "7", 1);
	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "RANK=7 MASTER_ADDR=n9");
	launch_list_stale(small, sizeof(small));
	assert_string_equal(small, "RANK=7 ");
	setenv("MASTER_ADDR", "n9\n\033[2J", 1);
	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "RANK=7 MASTER_ADDR=n9??[2J");
	unsetenv("MASTER_ADDR");
	assert_true(launch_prepare(&settings, NULL, &error));
	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "");
}

/* The names that are set now, except those of a kind, Slurm's, which a generation only changes, and the user's lists. */
static int count_left(enum name_kind except)
{
	int count = 0;

	for (int i = 0; name_at(i) != NULL; i++)
		count += name_at(i)->kind != except && name_at(i)->kind != NAME_RENUMBERED &&
		         name_at(i)->kind != NAME_LIST && getenv(name_at(i)->text) != NULL;
	return count;
}

TEST_WITH(variables_of_another_step_are_taken_out, clear, NULL)
{
	/* DDP_STEP_ID tells that the others are the plugin's. */
	for (int i = 0; name_at(i) != NULL; i++)
		if (name_at(i)->kind != NAME_HANDOVER && strcmp(name_at(i)->text, "DDP_STEP_ID") != 0)
			setenv(name_at(i)->text, "7", 1);
	launch_leave_step();
	for (int i = 0; name_at(i) != NULL; i++) {
		const char *name = name_at(i)->text;
		bool stays = name_at(i)->kind != NAME_HANDOVER && strcmp(name, "DDP_STEP_ID") != 0 &&
		             strcmp(name, "DDP_DERIVED") != 0;
		if ((getenv(name) != NULL) != stays)
			fail_msg("%s is %s", name, stays ? "taken out" : "left");
	}
	/* Nor is a step's key left, whatever else a program has taken out. */
	setenv("DDP_KEY", "step:7", 1);
	launch_leave_step();
	assert_null(getenv("DDP_KEY"));
	setenv("DDP_KEY", "7", 1);
	setenv("DDP_STEP_ID", "7", 1);
	setenv("SLURM_DDP_RELAY", "7", 1);
	launch_leave_step();
	assert_int_equal(count_left(NAME_CHOICE), 0);
	assert_string_equal(getenv("OMP_NUM_THREADS"), "7");
}

/* A node without the plugin leaves there what srun has put in. */
TEST_WITH(words_for_a_node_without_the_plugin_are_taken_out, clear, NULL)
{
	struct settings settings = defaults();
	struct error error;

	assert_true(launch_prepare(&settings, NULL, &error));
	setenv("DDP_REQUESTED", "7.0", 1);
	setenv("SLURM_STEP_RESV_PORTS", "20001", 1);
	setenv("OMP_NUM_THREADS", "7", 1);
	launch_leave_step();
	assert_int_equal(count_left(NAME_CHOICE), 0);
	assert_string_equal(getenv("OMP_NUM_THREADS"), "7");
}

TEST_WITH(derived_values_are_taken_out_and_others_stay, clear, NULL)
{
	static const struct { const char *derived, *threads, *trace; bool has_threads, has_trace; } cases[] = {
		{ "OMP_NUM_THREADS=4\tDDP_TRACE_DIR=/a b", "4", "/a b", false, false },
		{ "OMP_NUM_THREADS=4\tDDP_TRACE_DIR=/a b", "8", "/a b", true, false },
		{ "OMP_NUM_THREADS=4\tDDP_TRACE_DIR=/a b", "4", "/a", false, true },
		{ "OMP_NUM_THREADS=44\tDDP_TRACE_DIR=/a", "4", "/a b", true, true },
		{ "DDP_TRACE_DIR=/a", "4", "/a", true, false },
		{ "XOMP_NUM_THREADS=4\tOMP_NUM_THREADS", "4", "", true, true },
		{ "\t\t", "4", "", true, true }, { "", "4", "", true, true }, { NULL, "4", "/a", true, true },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		clear(NULL);
		if (cases[i].derived != NULL)
			setenv("DDP_DERIVED", cases[i].derived, 1);
		setenv("OMP_NUM_THREADS", cases[i].threads, 1);
		setenv("DDP_TRACE_DIR", cases[i].trace, 1);
		launch_leave_step();
		if ((getenv("OMP_NUM_THREADS") != NULL) != cases[i].has_threads ||
		    (getenv("DDP_TRACE_DIR") != NULL) != cases[i].has_trace)
			fail_msg("case %zu", i);
		assert_null(getenv("DDP_DERIVED"));
	}
}
