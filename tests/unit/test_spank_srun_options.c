/* spank/srun_options: the -K0 of a user, among the words of srun. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zero_is_found_where_srun_would),
		cmocka_unit_test(waiting_for_children_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
