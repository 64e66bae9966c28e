/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* base/error: the last error is a sentence of the failing thread's own. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/log.h"

static void message_carries_the_reason_of_errno(void **state)
{
	(void)state;
	assert_int_equal(ddp_fail_errno(DDP_ERR_IO, ENOENT, "cannot open %s", "x"), DDP_ERR_IO);
	assert_string_equal(ddp_last_error(), "cannot open x: No such file or directory");
}

static void context_goes_in_front(void **state)
{
	(void)state;
	ddp_fail(DDP_ERR_FORMAT, "cut short");
	assert_int_equal(ddp_fail_context(DDP_ERR_FORMAT, "while reading %d", 3), DDP_ERR_FORMAT);
	assert_string_equal(ddp_last_error(), "while reading 3: cut short");
}

static void error_may_be_about_a_rank(void **state)
{
	(void)state;
	assert_int_equal(ddp_error_about(ddp_fail(DDP_ERR_TIMEOUT, "rank 3 did not come"), 3), DDP_ERR_TIMEOUT);
	assert_int_equal(ddp_error_rank(), 3);
	ddp_fail_context(DDP_ERR_TIMEOUT, "while opening");
	assert_int_equal(ddp_error_rank(), 3);
	ddp_fail(DDP_ERR_IO, "another");
	assert_int_equal(ddp_error_rank(), -1);
}

static void long_message_is_cut_not_overrun(void **state)
{
	char text[4000];

	(void)state;
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	ddp_fail_errno(DDP_ERR_IO, EIO, "%s", text);
	assert_int_equal(strlen(ddp_last_error()), 1023);
}

static void message_may_quote_the_message_before(void **state)
{
	(void)state;
	ddp_fail(DDP_ERR_IO, "inner");
	ddp_fail(DDP_ERR_IO, "outer (%s)", ddp_last_error());
	assert_string_equal(ddp_last_error(), "outer (inner)");
}

static void program_gives_a_reason_of_its_own(void **state)
{
	(void)state;
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

static void threads_have_their_own(void **state)
{
	char seen[64] = "unset";
	pthread_t thread;

	(void)state;
	ddp_fail(DDP_ERR_IO, "first");
	assert_int_equal(pthread_create(&thread, NULL, other_thread, seen), 0);
	pthread_join(thread, NULL);
	assert_string_equal(seen, "");
	assert_string_equal(ddp_last_error(), "first");
}

static void every_status_has_a_name(void **state)
{
	(void)state;
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

	(void)user;
	(void)level;
	heard++;
	if (at != NULL)
		assert_int_equal(sscanf(at, "(%u messages like this one were left out before it)", &told_left_out), 1);
}

static void messages_that_others_cause_are_limited(void **state)
{
	ddp_log_limit limit = { 0 };

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(message_carries_the_reason_of_errno),
		cmocka_unit_test(context_goes_in_front),
		cmocka_unit_test(error_may_be_about_a_rank),
		cmocka_unit_test(long_message_is_cut_not_overrun),
		cmocka_unit_test(message_may_quote_the_message_before),
		cmocka_unit_test(program_gives_a_reason_of_its_own),
		cmocka_unit_test(threads_have_their_own),
		cmocka_unit_test(every_status_has_a_name),
		cmocka_unit_test(messages_that_others_cause_are_limited),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
