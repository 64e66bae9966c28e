/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/report: the sentence about a failed task, from a page not to trust. */
#include <ctype.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp.h"
#include "spank/node/report.h"
#include "tests/support/test.h"

#define EXITED(code) ((code) << 8)

static struct failure failure(int wait_status)
{
	return (struct failure){ .rank = 3, .world_size = 4, .node = "n1", .wait_status = wait_status,
		                 .seconds = 12.34, .now_ns = 9000000000u };
}

TEST(the_name_fits_what_ended)
{
	struct failure what = failure(SIGKILL);
	char text[1024];

	what.launcher = true;
	report_failure(&what, text, sizeof(text));
	assert_string_equal(text, "launcher on node 3 of 4 (n1) was killed by signal 9 (SIGKILL) after 12.3 s");
	what.node_tasks = 2;
	what.node = "n\033[2J1\n";
	report_failure(&what, text, sizeof(text));
	assert_string_equal(text, "all 2 tasks on n?[2J1? were killed by signal 9 (SIGKILL) after 12.3 s");
	what.out_of_memory = true;
	report_failure(&what, text, sizeof(text));
	assert_non_null(strstr(text, "after 12.3 s: the kernel's out-of-memory killer"));
	report_slurmstepd("n\0331", 2, 4, text, sizeof(text));
	assert_string_equal(text, "slurmstepd on n?1 has died, with 2 of the step's 4 tasks in its care: "
	                          "nothing is known of them any more");
}

TEST(end_is_put_into_words)
{
	static const struct { int status; const char *text; } cases[] = {
		{ EXITED(7), "rank 3 of 4 on n1 exited with code 7 after 12.3 s" },
		{ EXITED(0), "rank 3 of 4 on n1 failed after 12.3 s, though its task exited with code 0" },
		{ SIGKILL, "rank 3 of 4 on n1 was killed by signal 9 (SIGKILL) after 12.3 s" },
		{ SIGSEGV, "rank 3 of 4 on n1 was killed by signal 11 (SIGSEGV) after 12.3 s" },
		{ SIGSEGV | 0x80, "rank 3 of 4 on n1 was killed by signal 11 (SIGSEGV), leaving a core dump, "
		                  "after 12.3 s" },
		{ 40, "rank 3 of 4 on n1 was killed by signal 40 (another) after 12.3 s" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct failure what = failure(cases[i].status);
		char text[1024];
		report_failure(&what, text, sizeof(text));
		assert_string_equal(text, cases[i].text);
	}
}

TEST(page_says_what_the_rank_was_doing)
{
	struct failure what = failure(SIGSEGV);
	char text[1024];

	what.progress = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .phase = 3, .step = 12,
		                               .updated_ns = 8700000000u, .bucket = 2, .buckets = 9,
		                               .collective = 45,
		                               .collective_text = "all_reduce f32[262144] sum",
		                               .error = "rank 1 on n0 died" };
	report_failure(&what, text, sizeof(text));
	assert_string_equal(text, "rank 3 of 4 on n1 was killed by signal 11 (SIGSEGV) after 12.3 s, in "
	                    "backward of step 12 for 0.3 s, bucket 3 of 9, collective #45 all_reduce "
	                    "f32[262144] sum: rank 1 on n0 died");
}

TEST(page_without_its_mark_says_nothing)
{
	struct failure what = failure(EXITED(1));
	char text[1024];

	what.progress = (struct ddp_progress){ .magic = 7, .phase = 3, .step = 12, .error = "lie" };
	report_failure(&what, text, sizeof(text));
	assert_string_equal(text, "rank 3 of 4 on n1 exited with code 1 after 12.3 s");
}

TEST(wild_fields_are_left_out)
{
	struct failure what = failure(EXITED(1));
	char text[1024];

	what.progress = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .phase = 99, .step = -5,
		                               .updated_ns = UINT64_MAX, .bucket = 7, .buckets = 3 };
	report_failure(&what, text, sizeof(text));
	assert_string_equal(text, "rank 3 of 4 on n1 exited with code 1 after 12.3 s, in an unknown phase");
}

TEST(control_bytes_never_reach_the_terminal)
{
	struct failure what = failure(EXITED(1));
	char text[1024];

	what.progress = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .collective = 1,
		                               .collective_text = "\033[2Jall_reduce",
		                               .error = "a\nb\r\033]0;x\007\303\244" };
	report_failure(&what, text, sizeof(text));
	for (const char *p = text; *p != '\0'; p++)
		assert_true(isprint((unsigned char)*p));
	assert_non_null(strstr(text, "?[2Jall_reduce: a?b??]0;x???"));
}

/* Texts without an end, random pages, short buffers. */
TEST(random_pages_stay_in_bounds)
{
	struct failure what = failure(EXITED(1));

	srandom(1);
	for (int round = 0; round < 20000; round++) {
		size_t bytes = 1 + (size_t)(random() % 700);
		char *text = malloc(bytes);
		assert_non_null(text);
		for (size_t i = 0; i < sizeof(what.progress); i++)
			((unsigned char *)&what.progress)[i] = (unsigned char)(random() % 255 + 1);
		what.progress.magic = DDP_PROGRESS_MAGIC;
		report_failure(&what, text, bytes);
		assert_true(memchr(text, '\0', bytes) != NULL);
		free(text);
	}
}
