/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of a test program, which cmocka runs in the order in which they stand in its source. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* What calls a test's functions gives them more than each of them uses. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* TEST(name) { ... } is a case. TEST_RUNS(name, call) is one that makes a call only. */
#define TEST(name) TEST_WITH(name, NULL, NULL)
#define TEST_RUNS(name, ...) \
	TEST(name) \
	{ \
		__VA_ARGS__; \
	} \
	static void name(void **)

/* The same, behind a call of `before`. */
#define TEST_RUNS_BEHIND(before, name, ...) \
	TEST_WITH(name, before, NULL) \
	{ \
		__VA_ARGS__; \
	} \
	static void name(void **)

/* A case before which `before` runs, and behind which `after` does, also if the case fails; NULL: nothing. */
#define TEST_WITH(name, before, after) TEST_OF(name, true, before, after)

/* A case of programs for which this is true before main(). */
#define TEST_IF(condition, name) TEST_OF(name, condition, NULL, NULL)

#define TEST_RUNS_IF(condition, name, ...) \
	TEST_IF(condition, name) \
	{ \
		__VA_ARGS__; \
	} \
	static void name(void **)

#define TEST_OF(name, condition, before, after) \
	static void name(void **); \
	__attribute__((constructor)) static void name##_is_a_case(void) \
	{ \
		if (condition) \
			test_add(__LINE__, (struct CMUnitTest)cmocka_unit_test_setup_teardown(name, before, after)); \
	} \
	static void name(void **state)

/* Runs all cases, `before` before the first of them and `after` behind the last (NULL: nothing). A program without a
   main() has one that does so without both. Returns how many failed. */
int test_run(CMFixtureFunction before, CMFixtureFunction after);
#define TEST_MAIN(before, after) int main(void) { return test_run(before, after); }

void test_add(int line, struct CMUnitTest added);
