/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* base/error: the last error is a sentence of the failing thread's own. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "tests/support/test.h"

TEST(message_carries_the_reason_of_errno)
{
	assert_int_equal(ddp_fail_errno(DDP_ERR_IO, ENOENT, "cannot open %s", "x"), DDP_ERR_IO);
	assert_string_equal(ddp_last_error(), "cannot open x: No such file or directory");
}

TEST(context_goes_in_front)
{
	ddp_fail(DDP_ERR_FORMAT, "cut short");
	assert_int_equal(ddp_fail_context(DDP_ERR_FORMAT, "while reading %d", 3), DDP_ERR_FORMAT);
	assert_string_equal(ddp_last_error(), "while reading 3: cut short");
}

TEST(error_may_be_about_a_rank)
{
	assert_int_equal(ddp_error_about(ddp_fail(DDP_ERR_TIMEOUT, "rank 3 did not come"), 3), DDP_ERR_TIMEOUT);
	assert_int_equal(ddp_error_rank(), 3);
	ddp_fail_context(DDP_ERR_TIMEOUT, "while opening");
	assert_int_equal(ddp_error_rank(), 3);
	ddp_fail(DDP_ERR_IO, "another");
	assert_int_equal(ddp_error_rank(), -1);
}

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
