/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/test.h"

#include <signal.h>
#include <stdlib.h>

enum { CASES_MAX = 128 };

static struct CMUnitTest cases[CASES_MAX];
static int lines[CASES_MAX];
static size_t count;

/* The compiler chooses the order in which constructors of a file run. */
void test_add(int line, struct CMUnitTest added)
{
	size_t at = count++;

	if (at == CASES_MAX)
		abort();
	for (; at > 0 && lines[at - 1] > line; at--) {
		lines[at] = lines[at - 1];
		cases[at] = cases[at - 1];
	}
	lines[at] = line;
	cases[at] = added;
}

int test_run(CMFixtureFunction before, CMFixtureFunction after)
{
	const int asked[] = { SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2 };

	/* Who has started the tests, such as nohup or perf, may ignore some. */
	for (size_t i = 0; i < COUNT(asked); i++)
		signal(asked[i], SIG_DFL);
	return _cmocka_run_group_tests("tests", cases, count, before, after);
}

__attribute__((weak)) int main(void)
{
	return test_run(NULL, NULL);
}
