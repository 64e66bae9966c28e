/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/launch/preflight: the command of the step before the step, and its answer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank/base/text.h"
#include "spank/launch/preflight.h"
#include "spank/launch/srun_options.h"
#include "spank/options/site.h"
#include "tests/support/test.h"

static const char *command_of(const struct preflight_step *step, const char *list)
{
	static char text[4096];
	struct sink sink = sink_on(text, sizeof(text));
	struct preflight_command command;
	struct settings settings;
	struct error error = { "" };

	settings_init(&settings);
	assert_true(user_list_read(&settings, list, 0, &error));
	assert_true(preflight_step_command(&command, step, &settings, &error));
	for (int i = 0; command.words[i] != NULL; i++)
		sink_add(&sink, "%s%s", i > 0 ? " " : "", command.words[i]);
	preflight_step_free(&command);
	return text;
}

TEST(the_command_has_the_step_s_layout)
{
	const struct preflight_step step = { .job_id = 12, .tasks = 8, .nodes = 4, .srun = "/usr/bin/srun", .program = "ddp-preflight",
		                             .node_list = "n[0-3]", .cpus_per_task = "6" };
	struct preflight_step uneven = step;

	assert_string_equal(command_of(&step, "restart=1,spare=1,preflight=exclude"),
	                    "/usr/bin/srun --overlap --quiet --mpi=none --input=none --jobid=12 --nodes=4 --ntasks=8 "
	                    "--ntasks-per-node=2 --cpus-per-task=6 --nodelist=n[0-3] --ddp ddp-preflight --for-srun --quiet");
	uneven.tasks = 7;
	uneven.node_list = uneven.cpus_per_task = NULL;
	assert_string_equal(command_of(&uneven, "addr=ip,addr-suffix=-ib,port=20000"),
	                    "/usr/bin/srun --overlap --quiet --mpi=none --input=none --jobid=12 --nodes=4 --ntasks=7 "
	                    "--ddp=addr=ip,addr-suffix=-ib ddp-preflight --for-srun --quiet");
}

TEST(a_command_that_does_not_fit_is_an_error)
{
	static char long_words[PREFLIGHT_STEP_TEXT + 1];
	const struct preflight_step step = { .tasks = 1, .nodes = 1, .srun = "srun", .program = "p", .cpus_per_task = long_words };
	struct preflight_command command;
	struct settings settings;
	struct error error = { "" };

	memset(long_words, '1', sizeof(long_words) - 1);
	settings_init(&settings);
	assert_false(preflight_step_command(&command, &step, &settings, &error));
	assert_string_equal(error.text, "its command is too long");
	preflight_step_free(&command);
}

TEST(an_answer_is_read)
{
	static const struct { const char *text; bool taken; uint32_t odd, nodes; const char *list; } cases[] = {
		{ "0 0 \n", true, 0, 0, "" }, { "3 2 n1,n2\n", true, 3, 2, "n1,n2" }, { "1 1 node-1.site_a\nmore", true, 1, 1, "node-1.site_a" },
		{ "", false, 0, 0, "" }, { "\n", false, 0, 0, "" }, { "1 1 n1", false, 0, 0, "" }, { "1\n", false, 0, 0, "" },
		{ "-1 0 \n", false, 0, 0, "" }, { "x 0 \n", false, 0, 0, "" }, { "99999999999999999999 0 \n", false, 0, 0, "" },
		{ "1 1 n1;rm\n", false, 0, 0, "" }, { "1 1 n1\033[2J\n", false, 0, 0, "" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[64];
		struct preflight_answer answer;
		snprintf(text, sizeof(text), "%s", cases[i].text);
		assert_int_equal(preflight_step_answer(text, &answer), cases[i].taken);
		if (!cases[i].taken)
			continue;
		assert_int_equal(answer.odd, cases[i].odd);
		assert_int_equal(answer.nodes, cases[i].nodes);
		assert_string_equal(answer.node_list, cases[i].list);
	}
}

TEST(lists_have_whole_names)
{
	assert_true(preflight_step_lists("n1,n12,n3", "n1") && preflight_step_lists("n1,n12,n3", "n12") &&
	            preflight_step_lists("n1,n12,n3", "n3"));
	assert_false(preflight_step_lists("n1,n12,n3", "n2") || preflight_step_lists("n12", "n1") || preflight_step_lists("n1", "n12") ||
	             preflight_step_lists(NULL, "n1") || preflight_step_lists("", "") || preflight_step_lists("n1,,n2", ""));
}

static bool has(char *const list[], const char *entry)
{
	for (; *list != NULL; list++)
		if (strcmp(*list, entry) == 0)
			return true;
	return false;
}

/* With labels, srun's lines are no answer; another layout would be of other ranks. */
TEST(another_srun_takes_no_options_from_the_job)
{
	static char mark[] = "MARK=yes";
	char *const environment[] = { "PATH=/bin", "SLURM_LABELIO=1", "SLURM_CONF=/etc/slurm.conf", "SLURM_NTASKS_PER_NODE=3",
		                      "SRUN_OUTPUT=file", "SLURM_CPU_BIND_TYPE=mask_cpu:", "SLURM_GPUS_PER_TASK=1",
		                      "SLURM_WORKING_CLUSTER=other:host:6817:9728", "SLURMD_NODENAME=n1", NULL };
	char **list;

	for (int binds = 0; binds < 2; binds++) {
		list = srun_environment(environment, binds, binds ? mark : NULL);
		assert_non_null(list);
		assert_true(has(list, "PATH=/bin") && has(list, "SLURM_CONF=/etc/slurm.conf") && has(list, "SLURMD_NODENAME=n1"));
		assert_true(has(list, "SLURM_WORKING_CLUSTER=other:host:6817:9728"));
		assert_false(has(list, "SLURM_LABELIO=1") || has(list, "SLURM_NTASKS_PER_NODE=3") || has(list, "SRUN_OUTPUT=file"));
		assert_int_equal(has(list, "SLURM_CPU_BIND_TYPE=mask_cpu:"), binds);
		assert_int_equal(has(list, "SLURM_GPUS_PER_TASK=1"), binds);
		assert_int_equal(has(list, mark), binds);
		free(list);
	}
}
