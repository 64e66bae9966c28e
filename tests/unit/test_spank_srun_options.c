/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/launch/srun_options: what a user told srun of a step's end.
   spank/launch/preflight: the command of the step before the step, and its answer. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank/base/text.h"
#include "spank/launch/preflight.h"
#include "spank/launch/srun_options.h"
#include "spank/options/site.h"
#include "tests/support/test.h"

/* In the lines of these tests '|' stands for the NUL behind a word. The copy is as long as
   the words, for the sanitizers, and lasts until the next one is taken. */
static struct srun_words take(const char *line, int own)
{
	static char *copy;
	size_t bytes = strlen(line);

	free(copy);
	copy = malloc(bytes + 1);
	assert_non_null(copy);
	memcpy(copy, line, bytes + 1);
	for (size_t k = 0; k < bytes; k++)
		if (copy[k] == '|')
			copy[k] = '\0';
	return (struct srun_words){ copy, bytes, own };
}

TEST(kill_on_bad_exit_is_read_as_srun_does)
{
	static const struct { const char *words; int own; const char *variable; enum srun_say say; } cases[] = {
		{ "srun|--ddp|-K0|-n2|true|", 4, NULL, SRUN_NO },
		{ "srun|--ddp|-K|-n2|true|", 4, NULL, SRUN_YES },
		{ "srun|--ddp|true|", 2, NULL, SRUN_SILENT },
		{ "srun|-lK0|true|", 2, NULL, SRUN_NO },
		{ "srun|-vvulK0|true|", 2, NULL, SRUN_NO },
		{ "srun|-n2K0|true|", 2, NULL, SRUN_SILENT }, /* a number of tasks that srun refuses */
		{ "srun|-JK0|true|", 2, NULL, SRUN_SILENT },  /* a job's name */
		{ "srun||-|--|K0|lK0|true|", 6, NULL, SRUN_SILENT },
		{ "srun|--kill-on-bad-exit=0|true|", 2, NULL, SRUN_NO },
		{ "srun|--kill-on-bad-exit|true|", 2, NULL, SRUN_YES },
		{ "srun|--kill=0|true|", 2, NULL, SRUN_NO },
		{ "srun|--kill-on-bad-exits=0|true|", 2, NULL, SRUN_SILENT },
		{ "srun|-K0|-K1|true|", 3, NULL, SRUN_YES },
		{ "srun|true|-K0|", 1, NULL, SRUN_SILENT },
		{ "srun|true|", 1, "0", SRUN_NO },
		{ "srun|true|", 1, "1", SRUN_YES },
		{ "srun|-K1|true|", 2, "0", SRUN_YES },
		{ "srun|-K0|true|", 2, "1", SRUN_NO },
		{ "srun|-K0", 2, NULL, SRUN_SILENT },
		{ "", 3, NULL, SRUN_SILENT },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct srun_words given = take(cases[i].words, cases[i].own);
		if (srun_kill_on_bad_exit(&given, cases[i].variable) != cases[i].say)
			fail_msg("'%s' was taken wrongly", cases[i].words);
	}
}

TEST(wait_is_read_as_srun_does)
{
	static const struct { const char *words; int own; const char *variable; long seconds; } cases[] = {
		{ "srun|--ddp|true|", 2, NULL, -1 },
		{ "srun|--wait=3|true|", 2, NULL, 3 },
		{ "srun|--wait|3|true|", 3, NULL, 3 },
		{ "srun|-W3|true|", 2, NULL, 3 },
		{ "srun|-W|3|true|", 3, NULL, 3 },
		{ "srun|-W0|true|", 2, "5", 0 },
		{ "srun|-W3|-W4|true|", 3, NULL, 4 },
		{ "srun|--wait-for-children|true|", 2, NULL, -1 },
		{ "srun|true|--wait=3|", 1, NULL, -1 },
		{ "srun|true|", 1, "5", 5 },
		{ "srun|-W", 2, NULL, -1 },
		{ "srun|-W|", 2, NULL, -1 },
		{ "", 3, NULL, -1 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct srun_words given = take(cases[i].words, cases[i].own);
		if (srun_wait_seconds(&given, cases[i].variable) != cases[i].seconds)
			fail_msg("'%s' was taken wrongly", cases[i].words);
	}
}

TEST(switches_are_read_as_srun_does)
{
	static const struct { bool (*is_on)(const struct srun_words *, const char *); const char *words; int own;
		              const char *variable; bool on; } cases[] = {
		{ srun_outlives_nodes, "srun|--ddp|true|", 2, NULL, false },
		{ srun_outlives_nodes, "srun|-k|true|", 2, NULL, true },
		{ srun_outlives_nodes, "srun|--no-kill|true|", 2, NULL, true },
		{ srun_outlives_nodes, "srun|-lk|true|", 2, NULL, true },
		{ srun_outlives_nodes, "srun|--no-kill=off|true|", 2, "", false },
		{ srun_outlives_nodes, "srun|-koff|true|", 2, NULL, false },
		{ srun_outlives_nodes, "srun|--no-k|true|", 2, NULL, true },
		{ srun_outlives_nodes, "srun|--no-allocate|true|", 2, NULL, false },
		{ srun_outlives_nodes, "srun|true|-k|", 1, NULL, false },
		{ srun_outlives_nodes, "srun|true|", 1, "", true },
		{ srun_outlives_nodes, "srun|true|", 1, "no", false },
		{ srun_outlives_nodes, "", 3, NULL, false },
		{ srun_broadcasts, "srun|--ddp=check|true|", 2, NULL, false },
		{ srun_broadcasts, "srun|--bcast|true|", 2, NULL, true },
		{ srun_broadcasts, "srun|--bcast=/tmp/x|true|", 2, NULL, true },
		{ srun_broadcasts, "srun|--bcast-exclude=/lib|true|", 2, NULL, false },
		{ srun_broadcasts, "srun|--begin=now|true|", 2, NULL, false },
		{ srun_broadcasts, "srun|true|--bcast|", 1, NULL, false },
		{ srun_broadcasts, "srun|true|", 1, "/tmp/x", true },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct srun_words given = take(cases[i].words, cases[i].own);
		if (cases[i].is_on(&given, cases[i].variable) != cases[i].on)
			fail_msg("'%s' was taken wrongly", cases[i].words);
	}
}

TEST(mpi_and_containers_are_found)
{
	static const struct { const char *words; int own; const char *variable, *mpi; bool container; } cases[] = {
		{ "srun|--ddp|true|", 2, NULL, NULL, false }, { "srun|--mpi=pmix|true|", 2, NULL, "pmix", false },
		{ "srun|--mpi|pmix|true|", 3, "none", "pmix", false }, { "srun|--mp=none|true|", 2, "pmix", "none", false },
		{ "srun|true|--mpi=pmix|", 1, NULL, NULL, false }, { "srun|true|", 1, "pmi2", "pmi2", true },
		{ "srun|--container=/c|true|", 2, NULL, NULL, true }, { "srun|--container|/c|true|", 3, NULL, NULL, true },
		{ "srun|--container-image=x|true|", 2, NULL, NULL, false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct srun_words given = take(cases[i].words, cases[i].own);
		const char *mpi = srun_mpi(&given, cases[i].variable);
		if ((mpi == NULL) != (cases[i].mpi == NULL) || (mpi != NULL && strcmp(mpi, cases[i].mpi) != 0))
			fail_msg("'%s': --mpi=%s", cases[i].words, mpi != NULL ? mpi : "(none)");
		if (srun_runs_container(&given, cases[i].variable) != cases[i].container && cases[i].variable == NULL)
			fail_msg("'%s' was taken wrongly", cases[i].words);
	}
}

TEST(named_nodes_are_found)
{
	static const struct { const char *words; int own; const char *nodes; } cases[] = {
		{ "srun|-wn0|true|", 2, "n0" }, { "srun|-w|n0|true|", 3, "n0" }, { "srun|-lvw|n0|true|", 3, "n0" },
		{ "srun|-lwn0|true|", 2, "n0" }, { "srun|--nodelist=n0,n1|true|", 2, "n0,n1" },
		{ "srun|--nodelist|n0|true|", 3, "n0" }, { "srun|--nodel=n0|true|", 2, "n0" },
		{ "srun|-w|n0|-wn1|true|", 4, "n1" }, { "srun|-w|./hosts|true|", 3, "./hosts" },
		{ "srun|-F|hosts|true|", 3, "hosts" }, { "srun|--nodefile=hosts|true|", 2, "hosts" },
		{ "srun|--nodes=2|--node|-N2|-W3|true|", 5, NULL }, { "srun|true|-w|n0|", 1, NULL },
		{ "srun|-w|", 2, NULL }, { "", 3, NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct srun_words given = take(cases[i].words, cases[i].own);
		const char *nodes = srun_nodes(&given);
		if ((nodes != NULL) != (cases[i].nodes != NULL) || (nodes != NULL && strcmp(nodes, cases[i].nodes) != 0))
			fail_msg("'%s': '%s'", cases[i].words, nodes != NULL ? nodes : "(none)");
	}
}

TEST(nodes_that_are_left_out_are_found)
{
	struct srun_words given = take("srun|--exclusive|-x|n0|--exclude=n1,n2|true|-xn3|", 5);

	assert_string_equal(srun_excluded(&given), "n1,n2");
	assert_false(srun_names_job(&given));
	given.own = 4;
	assert_string_equal(srun_excluded(&given), "n0");
	given.own = 2;
	assert_null(srun_excluded(&given));
	given = take("srun|--job-name=a|true|--jobid=1|", 2);
	assert_false(srun_names_job(&given));
	given = take("srun|--jobid|1|true|", 3);
	assert_true(srun_names_job(&given));
}

TEST(what_fits_fewer_nodes_is_told)
{
	static const struct { const char *words; int own; const char *gpus, *distribution; bool fits; } cases[] = {
		{ "srun|-N4|true|", 2, NULL, NULL, true }, { "srun|--gpus=8|true|", 2, NULL, NULL, false },
		{ "srun|-G|8|true|", 3, NULL, NULL, false }, { "srun|true|", 1, "8", NULL, false },
		{ "srun|--gpus-per-node=2|--gpus-per-task=1|true|", 3, NULL, "block", true },
		{ "srun|-m|arbitrary|true|", 3, NULL, NULL, false }, { "srun|--distribution=block|true|", 2, NULL, "arbitrary", true },
		{ "srun|true|-G8|", 1, NULL, "Arbitrary", false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct srun_words given = take(cases[i].words, cases[i].own);
		if (srun_fits_fewer_nodes(&given, cases[i].gpus, cases[i].distribution) != cases[i].fits)
			fail_msg("'%s' was taken wrongly", cases[i].words);
	}
}

TEST(shell_of_salloc_is_found)
{
	struct srun_words given = take("srun|--interactive|--preserve-env|--pty|bash|", 4);

	assert_true(srun_starts_a_shell(&given));
	given = take("srun|--input=none|--in|program|--interactive|", 3);
	assert_false(srun_starts_a_shell(&given));
	given = take("", 3);
	assert_false(srun_starts_a_shell(&given));
}

TEST(the_program_is_found)
{
	struct srun_words given = take("srun|-n2|/usr/bin/orted|-x|", 2);

	assert_string_equal(srun_program(&given), "/usr/bin/orted");
	given.own = 4;
	assert_string_equal(srun_program(&given), "");
	given.bytes = 0;
	assert_string_equal(srun_program(&given), "");
}

#define WAIT "srun ends the step 3 s after its first task has ended (--wait or SLURM_WAIT), "
#define SITE "srun ends the step 3 s after its first task has ended, by WaitTime in slurm.conf, " \
	"which the plugin cannot override here: srun --wait=0 does"
#define KILLS "srun itself sends SIGTERM to the step when a task fails (KillOnBadExit in slurm.conf, or -K), " \
	"which the plugin cannot override here, and a failure may then be taken for a step that was " \
	"asked to stop: srun -K0 --ddp=on-failure=kill does"

TEST(what_slurm_does_against_the_settings_is_said)
{
	static const struct { struct srun_ends ends; const char *text; } cases[] = {
		{ { true, false, 30, -1, 0, false }, "" },
		/* --wait is the user's wish, unless another one contradicts it. */
		{ { true, false, 30, 3, 0, false }, "" },
		{ { true, true, 2, 3, 0, false }, "" },
		{ { false, true, 60, 0, 0, false }, "" },
		{ { true, true, 60, 3, 0, false }, WAIT "and not grace=60 s later" },
		{ { false, false, 30, 3, 0, false }, WAIT "in spite of on-failure=continue" },
		{ { true, false, 30, -1, 3, false }, SITE },
		{ { true, false, 30, -1, 0, true }, KILLS },
		{ { true, false, 30, -1, 3, true }, SITE "; " KILLS },
	};
	char text[1024];

	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(srun_contradicts(&cases[i].ends, text, sizeof(text)), cases[i].text[0] != '\0');
		assert_string_equal(text, cases[i].text);
	}
}

TEST(components_and_waits_for_children_are_seen)
{
	static const struct { bool (*is_seen)(const struct srun_words *); const char *words; int own; bool seen; } cases[] = {
		{ srun_starts_components, "srun|-n2|true|", 2, false },
		{ srun_starts_components, "srun|-n2|true|:|-n1|true|", 2, true },
		{ srun_starts_components, "srun|-n2|echo|a:b|::|", 2, false },
		{ srun_starts_components, "srun|--het-group=0,1|true|", 2, true },
		{ srun_starts_components, "srun|--het-group|0-2|true|", 3, true },
		{ srun_starts_components, "srun|--het-group=1|true|", 2, false },
		{ srun_starts_components, "srun|--pack-group=0-1|true|", 2, true },
		{ srun_starts_components, "srun|true|--het-group=0,1|", 1, false },
		{ srun_starts_components, "", 1, false },
		{ srun_waits_for_children, "srun|--ddp|--wait-for-children|true|", 3, true },
		{ srun_waits_for_children, "srun|--ddp|--wait-for-children|true|", 2, false },
		{ srun_waits_for_children, "srun|--wait-for|true|", 3, true },
		{ srun_waits_for_children, "srun|--wait-all-nodes=1|--wait=3|--wait-|true|--wait-for-children|", 4, false },
		{ srun_waits_for_children, "", 3, false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct srun_words given = take(cases[i].words, cases[i].own);
		if (cases[i].is_seen(&given) != cases[i].seen)
			fail_msg("%s", cases[i].words);
	}
}

/* ---- spank/launch/preflight ----------------------------------------------------- */

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
