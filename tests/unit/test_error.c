/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* base/error: the last error is a sentence of the failing thread's own.
   Options of programs that were compiled with another release. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "reduce/hypers.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

TEST(long_message_is_cut_not_overrun)
{
	char text[4000];

	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	ddp_fail_errno(DDP_ERR_IO, EIO, "%s", text);
	assert_int_equal(strlen(ddp_last_error()), 1023);
}

TEST(message_may_quote_the_message_before)
{
	ddp_fail(DDP_ERR_IO, "inner");
	ddp_fail(DDP_ERR_IO, "outer (%s)", ddp_last_error());
	assert_string_equal(ddp_last_error(), "outer (inner)");
}

TEST(program_gives_a_reason_of_its_own)
{
	ddp_set_error("file %s, line %d", "a.csv", 7);
	assert_string_equal(ddp_last_error(), "file a.csv, line 7");
	ddp_set_error("%s", "");
	assert_string_equal(ddp_last_error(), "");
}

static void *other_thread(void *seen)
{
	strcpy(seen, ddp_last_error());
	ddp_fail(DDP_ERR_PEER, "mine");
	return NULL;
}

TEST(threads_have_their_own)
{
	char seen[64] = "unset";
	pthread_t thread;

	ddp_fail(DDP_ERR_IO, "first");
	assert_int_equal(pthread_create(&thread, NULL, other_thread, seen), 0);
	pthread_join(thread, NULL);
	assert_string_equal(seen, "");
	assert_string_equal(ddp_last_error(), "first");
}

TEST(every_status_has_a_name)
{
	for (int s = DDP_OK; s <= DDP_ERR_INTERNAL; s++)
		assert_memory_equal(ddp_status_name((ddp_status)s), s == DDP_OK ? "DDP_OK" : "DDP_ERR_", 6);
	assert_string_equal(ddp_status_name((ddp_status)999), "DDP_ERR_UNKNOWN");
}

/* ---- messages ---------------------------------------------------------------------------- */

static int heard;
static unsigned told_left_out;

static void hear(void *user, ddp_log_level level, const char *message)
{
	const char *at = strchr(message, '(');

	heard++;
	if (at != NULL)
		assert_int_equal(sscanf(at, "(%u messages like this one were left out before it)", &told_left_out), 1);
}

TEST(messages_that_others_cause_are_limited)
{
	ddp_log_limit limit = { 0 };

	heard = 0;
	ddp_set_log(hear, NULL, DDP_LOG_INFO);
	for (int i = 0; i < 1000; i++)
		ddp_log_limited(&limit, DDP_LOG_INFO, "connection %d was dropped", i);
	assert_in_range(heard, DDP_LOG_UNLIMITED, DDP_LOG_UNLIMITED + 10);
	const int before = heard;
	nanosleep(&(struct timespec){ .tv_sec = 1, .tv_nsec = 10000000 }, NULL);
	ddp_log_limited(&limit, DDP_LOG_INFO, "connection 1000 was dropped");
	assert_int_equal(heard, before + 1);
	assert_true(told_left_out > 900);
	/* What nobody is told of is not counted either. */
	ddp_log_limited(&limit, DDP_LOG_DEBUG, "connection 1001 was dropped");
	ddp_log_limit_end(&limit, DDP_LOG_INFO, "connections");
	assert_int_equal(heard, before + 1);
	ddp_log_limited(&limit, DDP_LOG_INFO, "connection 1002 was dropped");
	ddp_log_limit_end(&limit, DDP_LOG_INFO, "connections");
	assert_int_equal(heard, before + 2);
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
}

/* ---- Options of programs that were compiled with another release. --------------- */

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
	*options = (known){ sizeof(*options), 0.25, 3 };
	return ddp_options_copy("known", given, options, sizeof(*options));
}

TEST(options_are_copied)
{
	const known given = { .size = sizeof(given), .first = 0.5, .second = 7 };
	known options;

	assert_int_equal(copy(&given, &options), DDP_OK);
	assert_memory_equal(&options, &given, sizeof(given));
	assert_int_equal(copy(NULL, &options), DDP_OK);
	assert_memory_equal(&options, (&(known){ sizeof(known), 0.25, 3 }), sizeof(known));
}

TEST(what_an_older_program_lacks_has_its_default)
{
	const earlier given = { .size = sizeof(given), .first = 0.5 };
	known options;

	assert_int_equal(copy(&given, &options), DDP_OK);
	assert_memory_equal(&options, (&(known){ sizeof(known), 0.5, 3 }), sizeof(known));
}

TEST(a_newer_program_may_not_set_what_is_unknown)
{
	later given = { .size = sizeof(given), .first = 0.5, .second = 7 };
	known options;

	assert_int_equal(copy(&given, &options), DDP_OK);
	assert_int_equal(options.second, 7);
	given.third = 1;
	assert_int_equal(copy(&given, &options), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "a known of 32 bytes sets an option that libddp"));
}

TEST(a_size_that_was_not_set_is_refused)
{
	static const size_t sizes[] = { 0, 1, 7, 12, 4104, SIZE_MAX, (size_t)0xa5a5a5a5a5a5a5a5 };
	known options;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const known given = { .size = sizes[i] };
		assert_int_equal(copy(&given, &options), DDP_ERR_INVALID);
		assert_non_null(strstr(ddp_last_error(), "begins as its initialiser"));
	}
}

/* Each call that takes options looks at their size. */
TEST(calls_refuse_options_without_a_size)
{
	static const ddp_options options = { .timeout_ms = 1 };
	ddp_context *context;

	assert_int_equal(ddp_init(&options, &context), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "the size of a ddp_options is 0; it begins as its initialiser"));
}

/* Without a gap, but for what alignment leaves: an option that the table lacks would be one. */
TEST(the_table_has_each_option_of_a_model)
{
	static const size_t bytes[] = {
		[DDP_OPTION_FLAG] = sizeof(bool), [DDP_OPTION_INT] = sizeof(int), [DDP_OPTION_INT64] = sizeof(int64_t),
		[DDP_OPTION_UNSIGNED] = sizeof(unsigned), [DDP_OPTION_NUMBER] = sizeof(double),
		[DDP_OPTION_ADDRESS] = sizeof(void *),
	};
	size_t end = sizeof(size_t);

	for (int i = 0; i < ddp_model_option_count; i++) {
		const ddp_option *option = &ddp_model_option_table[i];
		const size_t size = bytes[option->type], aligned = (end + size - 1) / size * size;
		/* A structure in ddp_model_options may begin and end at a multiple of 4 or 8. */
		if (option->offset != aligned && option->offset != (end + 3) / 4 * 4 && option->offset != (end + 7) / 8 * 8)
			fail_msg("the table has nothing of the options in front of %s", option->name);
		end = option->offset + size;
	}
	assert_true((end + 7) / 8 * 8 == sizeof(ddp_model_options));
}

TEST(keys_of_checkpoints_are_unlike)
{
	for (int own = 0; own < DDP_HYPER_OPTIONS; own++)
		assert_non_null(ddp_hyper_key(own));
	for (int a = 0; a < DDP_HYPERS; a++) {
		for (int b = 0; b < a && ddp_hyper_key(a) != NULL; b++)
			assert_true(ddp_hyper_key(b) == NULL || strcmp(ddp_hyper_key(a), ddp_hyper_key(b)) != 0);
	}
}

/* What a program gets that begins with zeros, not with the initialiser. */
TEST(zeros_are_no_defaults)
{
	const ddp_model_options zeros = { .size = sizeof(zeros) };
	ddp_model_settings settings;

	assert_int_equal(ddp_model_settings_make(&zeros, &settings), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "model option epsilon is 0; it must be from 1.2e-38"));
	assert_non_null(strstr(ddp_last_error(), "Options begin as DDP_MODEL_OPTIONS"));
}

/* A program that knew the options up to the compression. */
TEST(a_shorter_structure_of_a_model_gets_the_rest)
{
	ddp_model_options older = DDP_MODEL_OPTIONS;
	ddp_model_settings settings;

	memset(&older.powersgd, 0xa5, sizeof(older) - offsetof(ddp_model_options, powersgd));
	older.size = offsetof(ddp_model_options, powersgd);
	older.learning_rate = 0;
	assert_int_equal(ddp_model_settings_make(&older, &settings), DDP_OK);
	assert_true(settings.options.learning_rate == 0 && settings.options.beta1 == 0.9);
	assert_true(settings.options.powersgd.rank == 1 && settings.options.powersgd.feedback);
	assert_null(settings.options.comm);
}
