/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/wire/progress_page, spank/node: who is named when ranks give up because of
   another one, and what that one was doing. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/node/node.h"
#include "spank/wire/progress_page.h"
#include "tests/support/test.h"

#define EXITED(code) ((code) << 8)
#define SECOND 1000000000ull

static struct ddp_progress page_with(uint32_t status, uint32_t culprit)
{
	return (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .status = status, .culprit = culprit };
}

TEST(only_errors_that_others_cause_blame)
{
	static const struct { uint32_t status, culprit, blamed; } cases[] = {
		{ DDP_ERR_TIMEOUT, 4, 3 }, { DDP_ERR_PEER, 1, 0 }, { DDP_ERR_ABORTED, 4, 3 },
		{ DDP_ERR_TIMEOUT, 0, BLAME_NOBODY }, { DDP_ERR_PEER, 8, BLAME_NOBODY },
		{ DDP_ERR_INVALID, 4, BLAME_NOBODY }, { DDP_OK, 4, BLAME_NOBODY },
	};
	struct ddp_progress page;

	for (size_t i = 0; i < COUNT(cases); i++) {
		page = page_with(cases[i].status, cases[i].culprit);
		assert_int_equal(blame_of(&page, 7), cases[i].blamed);
	}
	page = page_with(DDP_ERR_TIMEOUT, 4);
	page.magic = 0;
	assert_int_equal(blame_of(&page, 7), BLAME_NOBODY);
}

TEST(ranks_that_gave_up_for_another_are_known)
{
	static const struct { uint32_t magic, status; bool blames; uint32_t culprit; } cases[] = {
		{ DDP_PROGRESS_MAGIC, DDP_ERR_TIMEOUT, true, 4 }, { DDP_PROGRESS_MAGIC, DDP_OK, false, 4 },
		{ DDP_PROGRESS_MAGIC, DDP_ERR_PEER, true, 0 },
		{ DDP_PROGRESS_MAGIC, DDP_ERR_ABORTED, true, 0 },
		{ DDP_PROGRESS_MAGIC, DDP_ERR_TIMEOUT, false, 0 }, { DDP_PROGRESS_MAGIC, DDP_OK, false, 0 },
		{ DDP_PROGRESS_MAGIC, 4000000000u, false, 0 }, { 0, DDP_ERR_PEER, false, 0 },
		/* It is the one that all others miss. */
		{ DDP_PROGRESS_MAGIC, DDP_ERR_TIMEOUT, false, 8 }, { DDP_PROGRESS_MAGIC, DDP_ERR_PEER, false, 8 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ddp_progress page = { .magic = cases[i].magic, .status = cases[i].status,
			                     .culprit = cases[i].culprit };
		assert_int_equal(blame_is_of_peer(&page, 7), cases[i].blames);
	}
}

TEST(errors_of_another_rank_are_known)
{
	static const struct { uint32_t status, culprit, state; bool shared; } pages[] = {
		{ DDP_ERR_IO, 1, DDP_ERROR_OPEN, true }, { DDP_ERR_MISMATCH, 1, DDP_ERROR_FINAL, true },
		/* Its own, nobody's, one that it went on after, one of a rank that was lost. */
		{ DDP_ERR_IO, 4, DDP_ERROR_OPEN, false }, { DDP_ERR_IO, 0, DDP_ERROR_OPEN, false },
		{ DDP_ERR_IO, 1, DDP_ERROR_PAST, false }, { DDP_ERR_PEER, 1, DDP_ERROR_FINAL, false },
	};

	for (size_t i = 0; i < COUNT(pages); i++) {
		struct ddp_progress page = page_with(pages[i].status, pages[i].culprit);
		page.error_state = pages[i].state;
		assert_int_equal(blame_is_shared(&page, 3), pages[i].shared);
	}
}

TEST(rank_that_went_on_after_an_error_has_not_failed)
{
	static const struct { uint32_t magic, writer, error_state; bool ends; } cases[] = {
		{ DDP_PROGRESS_MAGIC, DDP_WRITER_LIBDDP, DDP_ERROR_FINAL, true },
		{ DDP_PROGRESS_MAGIC, DDP_WRITER_LIBDDP, DDP_ERROR_OPEN, true },
		{ DDP_PROGRESS_MAGIC, DDP_WRITER_LIBDDP, DDP_ERROR_PAST, false },
		{ DDP_PROGRESS_MAGIC, DDP_WRITER_LIBDDP, 4000000000u, false },
		{ DDP_PROGRESS_MAGIC, DDP_WRITER_NCCL, DDP_ERROR_FINAL, false },
		{ 0, DDP_WRITER_LIBDDP, DDP_ERROR_FINAL, false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ddp_progress page = { .magic = cases[i].magic, .writer = cases[i].writer,
			                     .status = DDP_ERR_PEER, .error_state = cases[i].error_state };
		assert_int_equal(blame_ends_in_error(&page), cases[i].ends);
	}
}

TEST(doing_says_waits_and_what_came_last)
{
	static const struct { struct ddp_progress page; const char *text; } cases[] = {
		{ { .phase = 2, .step = 4, .updated_ns = 2 * SECOND, .bucket = -1, .collective = 5,
		    .collective_ns = 3 * SECOND },
		  "in forward of step 4 for 8.0 s, last collective #5 7.0 s ago" },
		{ { .phase = 4, .step = 4, .updated_ns = 9 * SECOND, .bucket = -1, .collective = 6,
		    .collective_ns = 9 * SECOND, .described = 6, .waiting = DDP_WAITING_COLLECTIVE,
		    .collective_text = "all_reduce f32[10] sum" },
		  "waiting for gradients of step 4 for 1.0 s, waiting in collective #6 all_reduce f32[10] sum "
		  "for 1.0 s" },
		{ { .bucket = -1, .collective = 6, .collective_ns = 9 * SECOND, .described = 5,
		    .collective_text = "an older one" },
		  "between steps, last collective #6 1.0 s ago" },
		{ { .bucket = -1, .collective_ns = 9 * SECOND, .waiting = DDP_WAITING_OTHER,
		    .collective_text = "recv f32[1] from rank 2" },
		  "between steps, waiting in recv f32[1] from rank 2 for 1.0 s" },
		{ { .bucket = -1, .collective = 6, .waiting = 77, .collective_text = "barrier" },
		  "between steps, collective #6 barrier" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ddp_progress page = cases[i].page;
		struct progress_text progress;
		char text[300];
		struct sink sink = sink_on(text, sizeof(text));
		page.magic = DDP_PROGRESS_MAGIC;
		progress_text_read(&page, 10 * SECOND, &progress);
		progress_text_add(&sink, &progress);
		assert_string_equal(text, cases[i].text);
	}
}

TEST(blamed_ranks_are_described)
{
	static const struct { bool runs; int status; double ago; bool said; const char *text; } cases[] = {
		{ true, 0, -1, true, "rank 3 of 4 on n1 was still running" },
		{ true, 1, -1, true, "rank 3 of 4 on n1 was stopped by a signal or a debugger" },
		{ false, 0, 4.21, true, "rank 3 of 4 on n1 had ended with code 0, 4.2 s before" },
		{ false, 0, -1, true, "rank 3 of 4 on n1 had ended with code 0" },
		{ false, EXITED(7), 4, false, NULL }, { false, SIGSEGV, 4, false, NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct blamed blamed = { .rank = 3, .world_size = 4, .node = "n1", .runs = cases[i].runs,
			                 .stopped = cases[i].runs && cases[i].status != 0,
			                 .wait_status = cases[i].status, .seconds_ago = cases[i].ago };
		char text[300];
		assert_int_equal(blame_describe(&blamed, text, sizeof(text)), cases[i].said);
		if (cases[i].said)
			assert_string_equal(text, cases[i].text);
	}
}

/* Who gave up is not who leads. */
TEST(culprits_go_first)
{
	static const struct { uint32_t status, culprit; const char *node, *text, *with_node; } culprits[] = {
		{ DDP_ERR_TIMEOUT, 4, "n3", "rank 3 of 4 on n3 did not come; ", NULL },
		{ DDP_ERR_TIMEOUT, 4, "", "rank 3 of 4 did not come; ", "rank 3 of 4 on n9 did not come; " },
		{ DDP_ERR_PEER, 1, "n\x1b[1m", "rank 0 of 4 on n?[1m was lost; ", NULL },
		{ DDP_ERR_PEER, 1, "", "rank 0 of 4 was lost; ", "rank 0 of 4 on n9 was lost; " },
		/* Who aborts has an error of its own, and nobody blames himself, or a rank that there is not. */
		{ DDP_ERR_ABORTED, 4, "n3", "", NULL }, { DDP_ERR_TIMEOUT, 2, "n1", "", NULL },
		{ DDP_ERR_TIMEOUT, 0, "", "", NULL }, { DDP_ERR_TIMEOUT, 5, "n4", "", NULL },
		{ DDP_ERR_INVALID, 4, "n3", "", NULL },
	};

	for (size_t i = 0; i < COUNT(culprits); i++) {
		struct ddp_progress page = page_with(culprits[i].status, culprits[i].culprit);
		char text[300], whole[300];
		struct sink sink = sink_on(text, sizeof(text));
		const char *place;
		uint32_t rank = 99;
		strcpy(page.culprit_node, culprits[i].node);
		blame_add_culprit(&page, 1, 4, &sink);
		assert_string_equal(text, culprits[i].text);
		place = blame_place_of_node(text, &rank);
		assert_int_equal(place != NULL, culprits[i].with_node != NULL);
		if (place == NULL)
			continue;
		assert_int_equal(rank, culprits[i].culprit - 1);
		snprintf(whole, sizeof(whole), "%.*s on n9%s", (int)(place - text), text, place);
		assert_string_equal(whole, culprits[i].with_node);
	}
	/* The page's text may lack an end. */
	struct ddp_progress page = page_with(DDP_ERR_TIMEOUT, 4);
	char text[300];
	struct sink sink = sink_on(text, sizeof(text));
	memset(page.culprit_node, 'n', sizeof(page.culprit_node));
	blame_add_culprit(&page, 1, 4, &sink);
	assert_int_equal(strspn(text + strlen("rank 3 of 4 on "), "n"), sizeof(page.culprit_node));
}

/* ---- what a node knows ------------------------------------------------------------ */

static struct supervise node;

static int start_node(void **state)
{
	struct error error;

	if (!supervise_start(&node, 2, geteuid(), &error))
		return -1;
	node.shared->world_size = 4;
	strcpy(node.shared->node, "n1");
	node.shared->task[0].rank = 2;
	node.shared->task[1].rank = 3;
	return 0;
}

static int end_node(void **state)
{
	supervise_end(&node);
	return 0;
}

static void write_page(uint32_t local, struct ddp_progress page)
{
	page.magic = DDP_PROGRESS_MAGIC;
	page.bucket = -1;
	assert_int_equal(pwrite(node.progress_fd, &page, sizeof(page), (off_t)local * DDP_PROGRESS_BYTES),
	                 sizeof(page));
}

TEST_WITH(node_tells_of_a_rank_that_runs, start_node, end_node)
{
	uint64_t now = ddp_now_ns();
	char text[300];

	write_page(1, (struct ddp_progress){ .phase = 2, .step = 4, .updated_ns = now - 2 * SECOND });
	assert_true(blame_local(&node, 3, now, text, sizeof(text)));
	assert_string_equal(text, "rank 3 of 4 on n1 was still running, in forward of step 4 for 2.0 s");
	assert_false(blame_local(&node, 0, now, text, sizeof(text)));
	assert_false(blame_early_end(&node, now, text, sizeof(text)));
}

TEST_WITH(node_tells_of_a_rank_that_is_stopped, start_node, end_node)
{
	char text[300];
	pid_t task = fork();

	assert_true(task >= 0);
	if (task == 0) {
		raise(SIGSTOP);
		_exit(0);
	}
	assert_int_equal(waitpid(task, NULL, WUNTRACED), task);
	supervise_forked(&node, 1, task);
	assert_true(blame_local(&node, 3, ddp_now_ns(), text, sizeof(text)));
	assert_string_equal(text, "rank 3 of 4 on n1 was stopped by a signal or a debugger");
	kill(task, SIGKILL);
	assert_int_equal(waitpid(task, NULL, 0), task);
}

TEST_WITH(node_tells_of_a_rank_that_left, start_node, end_node)
{
	char text[300];

	supervise_reaped(&node, 1, EXITED(0));
	assert_true(blame_local(&node, 3, node.reaped[1].ns + 42 * SECOND / 10, text, sizeof(text)));
	assert_string_equal(text, "rank 3 of 4 on n1 had ended with code 0, 4.2 s before");
	assert_true(blame_early_end(&node, node.reaped[1].ns + SECOND, text, sizeof(text)));
	assert_string_equal(text, "rank 3 of 4 on n1 had ended with code 0, 1.0 s before");
	supervise_reaped(&node, 1, SIGSEGV);
	assert_false(blame_local(&node, 3, ddp_now_ns(), text, sizeof(text)));
}
