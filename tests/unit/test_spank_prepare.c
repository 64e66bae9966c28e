/* spank/launch: what srun's side leaves in srun's environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "spank/launch/variables.h"
#include "spank/launch/prepare.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct settings defaults(void)
{
	struct settings settings;

	settings_init(&settings);
	return settings;
}

static int clear(void **state)
{
	(void)state;
	for (int i = 0; environment_stale_name(i) != NULL; i++)
		unsetenv(environment_stale_name(i));
	unsetenv("SLURM_HOSTFILE");
	unsetenv("SLURM_DDP_KEY");
	unsetenv("SLURM_DDP_FIRST_HOST");
	return 0;
}

static void key_is_made_once_for_all_components(void **state)
{
	struct settings settings = defaults();
	struct error error = { "" };
	char first[80];

	(void)state;
	assert_true(launch_prepare(&settings, &error));
	snprintf(first, sizeof(first), "%s", getenv("SLURM_DDP_KEY"));
	assert_int_equal(strlen(first), 64);
	assert_int_equal(strspn(first, "0123456789abcdef"), 64);
	unsetenv("SLURM_DDP_KEY");
	assert_true(launch_prepare(&settings, &error));
	assert_string_equal(getenv("SLURM_DDP_KEY"), first);
}

static void ranks_of_a_node_without_the_plugin_are_no_numbers(void **state)
{
	struct settings settings = defaults();
	struct error error;

	(void)state;
	setenv("RANK", "7", 1);
	assert_true(launch_prepare(&settings, &error));
	assert_non_null(strstr(getenv("RANK"), "not active on this node"));
	assert_non_null(strstr(getenv("WORLD_SIZE"), "not active on this node"));
	assert_non_null(strstr(getenv("PET_NNODES"), "not active on this node"));
	clear(NULL);
	settings.launcher = true;
	assert_true(launch_prepare(&settings, &error));
	assert_non_null(strstr(getenv("PET_NNODES"), "not active on this node"));
	assert_null(getenv("RANK"));
}

static void first_host_of_a_hostfile_is_found(void **state)
{
	static const struct { const char *text, *host; } cases[] = {
		{ "n2\nn0\n", "n2" }, { "n2", "n2" }, { "\n\n  n2 \nn0", "n2" }, { "n2,n0,n1\n", "n2" },
		{ "n[2-3]\n", "n2" }, { "n2*4\n", "n2" }, { "# comment\nn2\n", "n2" }, { "n2\r\nn0\r\n", "n2" },
		{ "", NULL }, { "\n\n", NULL }, { "# none\n", NULL }, { "n[2-\n", NULL }, { "n/2\n", NULL },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char path[] = "/tmp/test_spank_prepare.XXXXXX";
		int fd = mkstemp(path);
		struct settings settings = defaults();
		struct error error = { "" };
		assert_true(fd >= 0);
		assert_int_equal(write(fd, cases[i].text, strlen(cases[i].text)), (ssize_t)strlen(cases[i].text));
		close(fd);
		setenv("SLURM_HOSTFILE", path, 1);
		if (launch_prepare(&settings, &error) != (cases[i].host != NULL))
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

static void missing_hostfile_is_an_error_that_names_it(void **state)
{
	struct settings settings = defaults();
	struct error error;

	(void)state;
	setenv("SLURM_HOSTFILE", "/nonexistent/hosts", 1);
	assert_false(launch_prepare(&settings, &error));
	assert_non_null(strstr(error.text, "/nonexistent/hosts"));
	unsetenv("SLURM_HOSTFILE");
	setenv("SLURM_DDP_FIRST_HOST", "stale", 1);
	assert_true(launch_prepare(&settings, &error));
	assert_null(getenv("SLURM_DDP_FIRST_HOST"));
}

static void stale_variables_are_listed(void **state)
{
	char text[512], small[8];
	struct settings settings = defaults();
	struct error error;

	(void)state;
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
	assert_true(launch_prepare(&settings, &error));
	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "");
}

static void variables_of_another_step_are_taken_out(void **state)
{
	static const char *const names[] = {
		"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "JAX_PROCESS_ID", "PET_NNODES",
		"DDP_LOCAL_DEVICE", "DDP_KEY", "DDP_PLUGIN_VERSION", "DDP_REQUESTED", "DDP_JOB_ID",
		"DDP_RESTART_COUNT", "DDP_NODE_NAME", "DDP_ON_FAILURE", "DDP_PROGRESS_FD",
		"SLURM_DDP_KEY", "SLURM_DDP_RELAY", "DDP_STEP_ID",
	};

	(void)state;
	/* The last one tells that the others are the plugin's. */
	for (size_t i = 0; i < COUNT(names) - 1; i++)
		setenv(names[i], "7", 1);
	launch_leave_step();
	for (size_t i = 0; i < COUNT(names) - 1; i++)
		assert_string_equal(getenv(names[i]), "7");
	/* Nor is a step's key left, whatever else a program has taken out. */
	setenv("DDP_KEY", "step:7", 1);
	launch_leave_step();
	assert_null(getenv("DDP_KEY"));
	setenv("DDP_KEY", "7", 1);
	setenv("DDP_STEP_ID", "7", 1);
	setenv("OMP_NUM_THREADS", "7", 1);
	launch_leave_step();
	for (size_t i = 0; i < COUNT(names); i++)
		if (getenv(names[i]) != NULL)
			fail_msg("%s is left", names[i]);
	assert_string_equal(getenv("OMP_NUM_THREADS"), "7");
	unsetenv("OMP_NUM_THREADS");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(key_is_made_once_for_all_components, clear),
		cmocka_unit_test_setup(ranks_of_a_node_without_the_plugin_are_no_numbers, clear),
		cmocka_unit_test_setup(first_host_of_a_hostfile_is_found, clear),
		cmocka_unit_test_setup(missing_hostfile_is_an_error_that_names_it, clear),
		cmocka_unit_test_setup(stale_variables_are_listed, clear),
		cmocka_unit_test_setup(variables_of_another_step_are_taken_out, clear),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
