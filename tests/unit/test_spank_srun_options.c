/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/srun_options: what a user told srun of a step's end. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank/launch/srun_options.h"
#include "tests/support/test.h"

/* In the lines of these tests '|' stands for the NUL behind a word. The copy is as long as
   the words, for the sanitizers. */
static struct srun_words take(const char *line, int own, char **copy)
{
	size_t bytes = strlen(line);

	*copy = malloc(bytes + 1);
	assert_non_null(*copy);
	memcpy(*copy, line, bytes + 1);
	for (size_t k = 0; k < bytes; k++)
		if ((*copy)[k] == '|')
			(*copy)[k] = '\0';
	return (struct srun_words){ *copy, bytes, own };
}

TEST(kill_on_bad_exit_is_read_as_srun_does)
{
	static const struct { const char *words; int own; const char *variable; enum srun_say say; } cases[] = {
		{ "srun|--ddp|-K0|-n2|true|", 4, NULL, SRUN_NO },
		{ "srun|--ddp|-K|-n2|true|", 4, NULL, SRUN_YES },
		{ "srun|--ddp|-K1|-n2|true|", 4, NULL, SRUN_YES },
		{ "srun|--ddp|true|", 2, NULL, SRUN_SILENT },
		{ "srun|-lK0|true|", 2, NULL, SRUN_NO },
		{ "srun|-vvulK0|true|", 2, NULL, SRUN_NO },
		{ "srun|-lK|true|", 2, NULL, SRUN_YES },
		{ "srun|-n2K0|true|", 2, NULL, SRUN_SILENT }, /* a number of tasks that srun refuses */
		{ "srun|-JK0|true|", 2, NULL, SRUN_SILENT },  /* a job's name */
		{ "srun||-|--|K0|lK0|true|", 6, NULL, SRUN_SILENT },
		{ "srun|--kill-on-bad-exit=0|true|", 2, NULL, SRUN_NO },
		{ "srun|--kill-on-bad-exit=1|true|", 2, NULL, SRUN_YES },
		{ "srun|--kill-on-bad-exit|true|", 2, NULL, SRUN_YES },
		{ "srun|--kill=0|true|", 2, NULL, SRUN_NO },
		{ "srun|--kill-on-bad-exits=0|true|", 2, NULL, SRUN_SILENT },
		{ "srun|-K0|-K1|true|", 3, NULL, SRUN_YES },
		{ "srun|-K1|-K0|true|", 3, NULL, SRUN_NO },
		{ "srun|true|-K0|", 1, NULL, SRUN_SILENT },
		{ "srun|true|", 1, "0", SRUN_NO },
		{ "srun|true|", 1, "1", SRUN_YES },
		{ "srun|-K1|true|", 2, "0", SRUN_YES },
		{ "srun|-K0|true|", 2, "1", SRUN_NO },
		{ "srun|-K0", 2, NULL, SRUN_SILENT },
		{ "", 3, NULL, SRUN_SILENT },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *copy;
		struct srun_words given = take(cases[i].words, cases[i].own, &copy);
		if (srun_kill_on_bad_exit(&given, cases[i].variable) != cases[i].say)
			fail_msg("'%s' was taken wrongly", cases[i].words);
		free(copy);
	}
}

TEST(bcast_is_seen)
{
	static const struct { const char *words; int own; const char *variable; bool copies; } cases[] = {
		{ "srun|--ddp=check|true|", 2, NULL, false },
		{ "srun|--bcast|true|", 2, NULL, true },
		{ "srun|--bcast=/tmp/x|true|", 2, NULL, true },
		{ "srun|--bcast-exclude=/lib|true|", 2, NULL, false },
		{ "srun|--begin=now|true|", 2, NULL, false },
		{ "srun|true|--bcast|", 1, NULL, false },
		{ "srun|true|", 1, "/tmp/x", true },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *copy;
		struct srun_words given = take(cases[i].words, cases[i].own, &copy);
		if (srun_broadcasts(&given, cases[i].variable) != cases[i].copies)
			fail_msg("'%s' was taken wrongly", cases[i].words);
		free(copy);
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
		char *copy;
		struct srun_words given = take(cases[i].words, cases[i].own, &copy);
		if (srun_wait_seconds(&given, cases[i].variable) != cases[i].seconds)
			fail_msg("'%s' was taken wrongly", cases[i].words);
		free(copy);
	}
}

TEST(no_kill_is_read_as_srun_does)
{
	static const struct { const char *words; int own; const char *variable; bool outlives; } cases[] = {
		{ "srun|--ddp|true|", 2, NULL, false }, { "srun|-k|true|", 2, NULL, true },
		{ "srun|--no-kill|true|", 2, NULL, true }, { "srun|-lk|true|", 2, NULL, true },
		{ "srun|--no-kill=off|true|", 2, "", false }, { "srun|-koff|true|", 2, NULL, false },
		{ "srun|--no-k|true|", 2, NULL, true }, { "srun|--no-allocate|true|", 2, NULL, false },
		{ "srun|true|-k|", 1, NULL, false }, { "srun|true|", 1, "", true },
		{ "srun|true|", 1, "no", false }, { "", 3, NULL, false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *copy;
		struct srun_words given = take(cases[i].words, cases[i].own, &copy);
		if (srun_outlives_nodes(&given, cases[i].variable) != cases[i].outlives)
			fail_msg("'%s' was taken wrongly", cases[i].words);
		free(copy);
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
		char *copy;
		struct srun_words given = take(cases[i].words, cases[i].own, &copy);
		const char *mpi = srun_mpi(&given, cases[i].variable);
		if ((mpi == NULL) != (cases[i].mpi == NULL) || (mpi != NULL && strcmp(mpi, cases[i].mpi) != 0))
			fail_msg("'%s': --mpi=%s", cases[i].words, mpi != NULL ? mpi : "(none)");
		if (srun_runs_container(&given, cases[i].variable) != cases[i].container && cases[i].variable == NULL)
			fail_msg("'%s' was taken wrongly", cases[i].words);
		free(copy);
	}
}

TEST(waiting_for_children_is_found)
{
	static const struct { const char *words; int own; bool waits; } cases[] = {
		{ "srun|--ddp|--wait-for-children|true|", 3, true },
		{ "srun|--ddp|--wait-for-children|true|", 2, false },
		{ "srun|--wait-for|true|", 3, true },
		{ "srun|--wait-all-nodes=1|--wait=3|--wait-|true|--wait-for-children|", 4, false },
		{ "", 3, false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *copy;
		struct srun_words given = take(cases[i].words, cases[i].own, &copy);
		assert_int_equal(srun_waits_for_children(&given), cases[i].waits);
		free(copy);
	}
}

TEST(named_nodes_are_found)
{
	static const struct { const char *words; size_t bytes; int own; const char *nodes; } cases[] = {
#define WORDS(text) text, sizeof(text)
		{ WORDS("srun\0-wn0\0true"), 2, "n0" }, { WORDS("srun\0-w\0n0\0true"), 3, "n0" },
		{ WORDS("srun\0-lvw\0n0\0true"), 3, "n0" }, { WORDS("srun\0-lwn0\0true"), 2, "n0" },
		{ WORDS("srun\0--nodelist=n0,n1\0true"), 2, "n0,n1" }, { WORDS("srun\0--nodelist\0n0\0true"), 3, "n0" },
		{ WORDS("srun\0--nodel=n0\0true"), 2, "n0" }, { WORDS("srun\0-w\0n0\0-wn1\0true"), 4, "n1" },
		{ WORDS("srun\0-w\0./hosts\0true"), 3, "./hosts" }, { WORDS("srun\0-F\0hosts\0true"), 3, "hosts" },
		{ WORDS("srun\0--nodefile=hosts\0true"), 2, "hosts" },
		{ WORDS("srun\0--nodes=2\0--node\0-N2\0-W3\0true"), 5, NULL },
		{ WORDS("srun\0true\0-w\0n0"), 1, NULL }, { WORDS("srun\0-w"), 2, NULL }, { WORDS(""), 3, NULL },
#undef WORDS
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const char *nodes = srun_nodes(&(struct srun_words){ cases[i].words, cases[i].bytes, cases[i].own });
		if ((nodes != NULL) != (cases[i].nodes != NULL) || (nodes != NULL && strcmp(nodes, cases[i].nodes) != 0))
			fail_msg("case %zu: '%s'", i, nodes != NULL ? nodes : "(none)");
	}
}

TEST(nodes_that_are_left_out_are_found)
{
	static const char given[] = "srun\0--exclusive\0-x\0n0\0--exclude=n1,n2\0true\0-xn3";

	assert_string_equal(srun_excluded(&(struct srun_words){ given, sizeof(given), 5 }), "n1,n2");
	assert_string_equal(srun_excluded(&(struct srun_words){ given, sizeof(given), 4 }), "n0");
	assert_null(srun_excluded(&(struct srun_words){ given, sizeof(given), 2 }));
	assert_false(srun_names_job(&(struct srun_words){ given, sizeof(given), 5 }));
	assert_false(srun_names_job(&(struct srun_words){ "srun\0--job-name=a\0true\0--jobid=1", 33, 2 }));
	assert_true(srun_names_job(&(struct srun_words){ "srun\0--jobid\0001\0true", 20, 3 }));
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
		char *copy;
		struct srun_words given = take(cases[i].words, cases[i].own, &copy);
		if (srun_fits_fewer_nodes(&given, cases[i].gpus, cases[i].distribution) != cases[i].fits)
			fail_msg("'%s' was taken wrongly", cases[i].words);
		free(copy);
	}
}

TEST(shell_of_salloc_is_found)
{
	static const char given[] = "srun\0--interactive\0--preserve-env\0--pty\0bash";
	static const char other[] = "srun\0--input=none\0--in\0program\0--interactive";

	assert_true(srun_starts_a_shell(&(struct srun_words){ given, sizeof(given), 4 }));
	assert_false(srun_starts_a_shell(&(struct srun_words){ other, sizeof(other), 3 }));
	assert_false(srun_starts_a_shell(&(struct srun_words){ "", 0, 3 }));
}

TEST(the_program_is_found)
{
	char *copy;
	struct srun_words given = take("srun|-n2|/usr/bin/orted|-x|", 2, &copy);

	assert_string_equal(srun_program(&given), "/usr/bin/orted");
	given.own = 4;
	assert_string_equal(srun_program(&given), "");
	given.bytes = 0;
	assert_string_equal(srun_program(&given), "");
	free(copy);
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

TEST(components_are_seen_wherever_they_stand)
{
	static const struct { const char *words; int own; bool several; } cases[] = {
		{ "srun|-n2|true|", 2, false },
		{ "srun|-n2|true|:|-n1|true|", 2, true },
		{ "srun|-n2|echo|a:b|::|", 2, false },
		{ "srun|--het-group=0,1|true|", 2, true },
		{ "srun|--het-group|0-2|true|", 3, true },
		{ "srun|--het-group=1|true|", 2, false },
		{ "srun|--pack-group=0-1|true|", 2, true },
		{ "srun|true|--het-group=0,1|", 1, false },
		{ "", 1, false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *copy;
		struct srun_words given = take(cases[i].words, cases[i].own, &copy);
		if (srun_starts_components(&given) != cases[i].several)
			fail_msg("%s", cases[i].words);
		free(copy);
	}
}
