/* SPDX-License-Identifier: Apache-2.0 */
/* Options of programs that were compiled with another release. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/options.h"

/* As the library knows them; and as a later one will, and an earlier one did. */
typedef struct known {
	size_t size;
	double first;
	int64_t second;
} known;

typedef struct later {
	size_t size;
	double first;
	int64_t second, third;
} later;

typedef struct earlier {
	size_t size;
	double first;
} earlier;

static ddp_status copy(const void *given, known *options)
{
	memset(options, 0xff, sizeof(*options));
	return ddp_options_copy("known", given, options, sizeof(*options));
}

static void options_are_copied(void **state)
{
	const known given = { .size = sizeof(given), .first = 0.5, .second = 7 };
	known options;

	(void)state;
	assert_int_equal(copy(&given, &options), DDP_OK);
	assert_memory_equal(&options, &given, sizeof(given));
	assert_int_equal(copy(NULL, &options), DDP_OK);
	assert_memory_equal(&options, (&(known){ .size = sizeof(known) }), sizeof(known));
}

static void what_an_older_program_lacks_is_zero(void **state)
{
	const earlier given = { .size = sizeof(given), .first = 0.5 };
	known options;

	(void)state;
	assert_int_equal(copy(&given, &options), DDP_OK);
	assert_memory_equal(&options, (&(known){ .size = sizeof(known), .first = 0.5 }), sizeof(known));
}

static void a_newer_program_may_not_set_what_is_unknown(void **state)
{
	later given = { .size = sizeof(given), .first = 0.5, .second = 7 };
	known options;

	(void)state;
	assert_int_equal(copy(&given, &options), DDP_OK);
	assert_int_equal(options.second, 7);
	given.third = 1;
	assert_int_equal(copy(&given, &options), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "a known of 32 bytes sets an option that libddp"));
}

static void a_size_that_was_not_set_is_refused(void **state)
{
	static const size_t sizes[] = { 0, 1, 7, 12, 4104, SIZE_MAX, (size_t)0xa5a5a5a5a5a5a5a5 };
	known options;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const known given = { .size = sizes[i] };
		assert_int_equal(copy(&given, &options), DDP_ERR_INVALID);
		assert_non_null(strstr(ddp_last_error(), "set .size = sizeof(known)"));
	}
}

/* Each call that takes options looks at their size. */
static void calls_refuse_options_without_a_size(void **state)
{
	static const ddp_options options = { .timeout_ms = 1 };
	ddp_context *context;

	(void)state;
	assert_int_equal(ddp_init(&options, &context), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "set .size = sizeof(ddp_options)"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_are_copied),
		cmocka_unit_test(what_an_older_program_lacks_is_zero),
		cmocka_unit_test(a_newer_program_may_not_set_what_is_unknown),
		cmocka_unit_test(a_size_that_was_not_set_is_refused),
		cmocka_unit_test(calls_refuse_options_without_a_size),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
