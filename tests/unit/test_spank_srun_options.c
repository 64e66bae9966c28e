/* spank/srun_options: what matters to the plugin among the words of srun. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "spank/failure/srun_options.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void zero_is_found_where_srun_would(void **state)
{
	/* In each line '|' stands for the NUL behind a word; `own` of them are srun's. */
	static const struct { const char *words; int own; const char *variable; bool zero; } cases[] = {
		{ "srun|--ddp|-K0|-n2|true|", 4, NULL, true },
		{ "srun|--ddp|-K|-n2|true|", 4, NULL, false },
		{ "srun|--ddp|-K1|-n2|true|", 4, NULL, false },
		{ "srun|--ddp|true|", 2, NULL, false },
		{ "srun|-lK0|true|", 2, NULL, true },
		{ "srun|-vvulK0|true|", 2, NULL, true },
		{ "srun|-lK|true|", 2, NULL, false },
		{ "srun|-n2K0|true|", 2, NULL, false }, /* a number of tasks that srun refuses */
		{ "srun|-JK0|true|", 2, NULL, false },  /* a job's name */
		{ "srun||-|--|K0|lK0|true|", 6, NULL, false },
		{ "srun|--kill-on-bad-exit=0|true|", 2, NULL, true },
		{ "srun|--kill-on-bad-exit=1|true|", 2, NULL, false },
		{ "srun|--kill-on-bad-exit|true|", 2, NULL, false },
		{ "srun|--kill=0|true|", 2, NULL, true },
		{ "srun|--kill-on-bad-exits=0|true|", 2, NULL, false },
		{ "srun|-K0|-K1|true|", 3, NULL, false },
		{ "srun|-K1|-K0|true|", 3, NULL, true },
		{ "srun|true|-K0|", 1, NULL, false },
		{ "srun|true|", 1, "0", true },
		{ "srun|true|", 1, "1", false },
		{ "srun|-K1|true|", 2, "0", false },
		{ "srun|-K0|true|", 2, "1", true },
		{ "srun|-K0", 2, NULL, false },
		{ "", 3, NULL, false },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		size_t bytes = strlen(cases[i].words);
		char *words = malloc(bytes + 1);
		assert_non_null(words);
		memcpy(words, cases[i].words, bytes + 1);
		for (size_t k = 0; k < bytes; k++)
			if (words[k] == '|')
				words[k] = '\0';
		if (srun_goes_on_after_failure(words, bytes, cases[i].own, cases[i].variable) != cases[i].zero)
			fail_msg("'%s' was taken wrongly", cases[i].words);
		free(words);
	}
}

static void waiting_for_children_is_found(void **state)
{
	static const char given[] = "srun\0--ddp\0--wait-for-children\0true";
	static const char cut[] = "srun\0--wait-for\0true";
	static const char other[] = "srun\0--wait-all-nodes=1\0--wait=3\0--wait-\0true\0--wait-for-children";

	(void)state;
	assert_true(srun_waits_for_children(given, sizeof(given), 3));
	assert_false(srun_waits_for_children(given, sizeof(given), 2));
	assert_true(srun_waits_for_children(cut, sizeof(cut), 2));
	assert_false(srun_waits_for_children(other, sizeof(other), 4));
	assert_false(srun_waits_for_children("", 0, 3));
}

static void named_nodes_are_found(void **state)
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

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		const char *nodes = srun_nodes(cases[i].words, cases[i].bytes, cases[i].own);
		if ((nodes != NULL) != (cases[i].nodes != NULL) || (nodes != NULL && strcmp(nodes, cases[i].nodes) != 0))
			fail_msg("case %zu: '%s'", i, nodes != NULL ? nodes : "(none)");
	}
}

static void shell_of_salloc_is_found(void **state)
{
	static const char given[] = "srun\0--interactive\0--preserve-env\0--pty\0bash";
	static const char other[] = "srun\0--input=none\0--in\0program\0--interactive";

	(void)state;
	assert_true(srun_starts_a_shell(given, sizeof(given), 4));
	assert_false(srun_starts_a_shell(other, sizeof(other), 3));
	assert_false(srun_starts_a_shell("", 0, 3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zero_is_found_where_srun_would),
		cmocka_unit_test(waiting_for_children_is_found),
		cmocka_unit_test(named_nodes_are_found),
		cmocka_unit_test(shell_of_salloc_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
