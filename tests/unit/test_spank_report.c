/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/wire/report: the sentence about a failed task, from a page not to trust.
   spank/wire/judge: what follows from the end of a task, one line per case.
   spank/wire/progress_page, spank/node/node: who is named when ranks give up because of another one, and
   what that one was doing. */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/node/node.h"
#include "spank/wire/judge.h"
#include "spank/wire/progress_page.h"
#include "spank/wire/report.h"
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
	for (int round = 0; round < 4000; round++) {
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

/* ---- spank/wire/judge ----------------------------------------------------------- */

TEST(ends_are_told_apart)
{
	static const struct { int status; enum task_end end; } cases[] = {
		{ EXITED(0), END_FINE }, { EXITED(1), END_CODE }, { EXITED(255), END_CODE },
		{ EXITED(127), END_CODE }, { EXITED(128), END_CODE }, { EXITED(193), END_CODE },
		{ SIGSEGV, END_CRASH }, { SIGABRT | 0x80, END_CRASH }, { EXITED(139), END_CRASH },
		{ SIGKILL, END_BY_KILL }, { EXITED(137), END_BY_KILL },
		{ SIGTERM, END_BY_REQUEST }, { SIGINT, END_BY_REQUEST },
		{ EXITED(143), END_BY_REQUEST }, { EXITED(130), END_BY_REQUEST },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		assert_int_equal(judge_task_end(cases[i].status), cases[i].end);
	assert_true(judge_is_stop(SIGTERM) && judge_is_stop(SIGINT));
	assert_false(judge_is_stop(SIGUSR1) || judge_is_stop(SIGCONT) || judge_is_stop(SIGKILL));
	assert_true(judge_is_farewell(W_EXITCODE(75, 0)) && judge_is_farewell(SIGUSR1));
	assert_true(judge_is_farewell(W_EXITCODE(128 + SIGHUP, 0)) && judge_is_farewell(SIGTERM));
	assert_false(judge_is_farewell(W_EXITCODE(1, 0)) || judge_is_farewell(SIGKILL) || judge_is_farewell(SIGSEGV));
	assert_false(judge_is_farewell(W_EXITCODE(128 + SIGABRT, 0)) || judge_is_farewell(W_EXITCODE(255, 0)));
	assert_true(judge_is_user_signal(SIGUSR1) && judge_is_user_signal(SIGHUP) && judge_is_user_signal(SIGRTMIN + 3));
	assert_false(judge_is_user_signal(SIGTERM) || judge_is_user_signal(SIGINT) || judge_is_user_signal(SIGKILL));
	assert_false(judge_is_user_signal(SIGCONT) || judge_is_user_signal(SIGTSTP) || judge_is_user_signal(SIGWINCH) || judge_is_user_signal(0));
}

/* Which of the facts are true, and what is wanted, as letters: lone, all_killed,
   other_failed, blames_peer (p), out_of_memory (m), ending, continue, node_failed (N), outlives_nodes (s). */
static const struct {
	const char *name;
	enum task_end end;
	enum slurm_sent sent;
	const char *facts;
	enum end_words words;
	enum end_delay say, kill;
} verdicts[] = {
	/* Nothing was asked of the step. */
	{ "a task is done", END_FINE, SENT_NOTHING, "", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "a rank exits with 7", END_CODE, SENT_NOTHING, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "so does a node's only one", END_CODE, SENT_NOTHING, "l", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a rank crashes", END_CRASH, SENT_NOTHING, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a rank follows another", END_CODE, SENT_NOTHING, "p", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a rank is killed", END_BY_KILL, SENT_NOTHING, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a node's only rank is killed", END_BY_KILL, SENT_NOTHING, "la", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "all tasks of a node are killed", END_BY_KILL, SENT_NOTHING, "a", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "for want of memory", END_BY_KILL, SENT_NOTHING, "am", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "a killed rank takes another along", END_BY_KILL, SENT_NOTHING, "o", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a person ends a rank by SIGTERM", END_BY_REQUEST, SENT_NOTHING, "", WORDS_RANK, DELAY_GRACE, DELAY_GRACE },
	{ "or a node's only rank", END_BY_REQUEST, SENT_NOTHING, "l", WORDS_RANK, DELAY_GRACE, DELAY_GRACE },
	{ "beside it another fails", END_CODE, SENT_NOTHING, "o", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	/* Slurm has asked the step to stop. */
	{ "rank 1 ends at once, rank 0 saves", END_BY_REQUEST, SENT_STOP, "", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "a launcher of a node ends", END_BY_REQUEST, SENT_STOP, "l", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "a rank has saved, and exits with 0", END_FINE, SENT_STOP, "", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "with a code of its own", END_CODE, SENT_STOP, "", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "a rank follows one that stopped", END_CODE, SENT_STOP, "p", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "or is aborted for it", END_CRASH, SENT_STOP, "p", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "a rank crashes while it saves", END_CRASH, SENT_STOP, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "Slurm's KillWait is over", END_BY_KILL, SENT_STOP, "a", WORDS_NODE, DELAY_STOP, DELAY_STOP },
	{ "the memory is over", END_BY_KILL, SENT_STOP, "m", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "one stops under continue", END_BY_REQUEST, SENT_STOP, "c", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "one crashes under continue", END_CRASH, SENT_STOP, "c", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	/* Slurm has sent another signal, such as SIGUSR1. */
	{ "a rank has saved, and exits with 75", END_CODE, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "so does a node's only one", END_CODE, SENT_SIGNAL, "l", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "a rank has saved, and exits with 0", END_FINE, SENT_SIGNAL, "", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "a rank ends by the signal itself", END_CRASH, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "a rank crashes while it saves", END_CRASH, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "a rank follows one that has saved", END_CODE, SENT_SIGNAL, "p", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "or is aborted for it", END_CRASH, SENT_SIGNAL, "p", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "it ends itself by SIGTERM", END_BY_REQUEST, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "a rank is killed while others save", END_BY_KILL, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "all of a node are", END_BY_KILL, SENT_SIGNAL, "a", WORDS_NODE, DELAY_NONE, DELAY_STOP },
	{ "the memory is over while they save", END_BY_KILL, SENT_SIGNAL, "m", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "the plugin ends the step", END_CODE, SENT_SIGNAL, "e", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "one saves under continue", END_CODE, SENT_SIGNAL, "c", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	/* Slurm has killed the step, or somebody the tasks and the witness. */
	{ "a task is killed with the step", END_BY_KILL, SENT_KILL, "", WORDS_RANK, DELAY_DOUBT, DELAY_DOUBT },
	{ "all of a node are", END_BY_KILL, SENT_KILL, "a", WORDS_NODE, DELAY_DOUBT, DELAY_DOUBT },
	{ "a task notes that others are", END_CODE, SENT_KILL, "", WORDS_RANK, DELAY_DOUBT, DELAY_DOUBT },
	{ "a rank fails after the witness was killed", END_CRASH, SENT_KILL, "", WORDS_RANK, DELAY_DOUBT, DELAY_DOUBT },
	{ "the kernel killed the whole cgroup", END_BY_KILL, SENT_KILL, "am", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	/* Nobody knows what Slurm has sent. */
	{ "a rank ends by SIGTERM", END_BY_REQUEST, SENT_UNKNOWN, "", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "beside one that failed", END_BY_REQUEST, SENT_UNKNOWN, "o", WORDS_RANK, DELAY_GRACE, DELAY_GRACE },
	{ "a rank fails", END_CODE, SENT_UNKNOWN, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a rank is killed alone", END_BY_KILL, SENT_UNKNOWN, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "all of a node are killed", END_BY_KILL, SENT_UNKNOWN, "a", WORDS_NONE, DELAY_NEVER, DELAY_NONE },
	{ "and one of them failed", END_BY_KILL, SENT_UNKNOWN, "ao", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "the kernel tells why", END_BY_KILL, SENT_UNKNOWN, "am", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "a lone task is killed", END_BY_KILL, SENT_UNKNOWN, "la", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	/* Slurm takes the node for down. */
	{ "a node fails", END_BY_KILL, SENT_KILL, "aN", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "so does one of one task", END_BY_KILL, SENT_KILL, "alN", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "or one without a witness", END_BY_KILL, SENT_UNKNOWN, "aN", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "the step outlives it", END_BY_KILL, SENT_KILL, "aNs", WORDS_NODE, DELAY_NONE, DELAY_NEVER },
	{ "without a witness, too", END_BY_KILL, SENT_UNKNOWN, "aNs", WORDS_NODE, DELAY_NONE, DELAY_NEVER },
	{ "but no failure of a rank", END_CODE, SENT_NOTHING, "s", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	/* The plugin ends the step. */
	{ "a bystander is killed", END_BY_KILL, SENT_KILL, "e", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "a bystander fails meanwhile", END_CODE, SENT_NOTHING, "e", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	/* The program says that its other ranks go on. */
	{ "a rank of a program that survives is killed", END_BY_KILL, SENT_NOTHING, "g", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	{ "and all of a node are", END_BY_KILL, SENT_NOTHING, "ga", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	{ "or one crashes", END_CRASH, SENT_UNKNOWN, "g", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	/* on-failure=continue, or -K0. */
	{ "a rank fails under continue", END_CODE, SENT_NOTHING, "c", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	{ "a rank is killed under continue", END_BY_KILL, SENT_NOTHING, "c", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	{ "a person's SIGTERM under continue", END_BY_REQUEST, SENT_NOTHING, "c", WORDS_RANK, DELAY_GRACE, DELAY_NEVER },
};

static bool has(const char *facts, char letter)
{
	for (; *facts != '\0'; facts++)
		if (*facts == letter)
			return true;
	return false;
}

TEST(each_end_has_its_verdict)
{
	for (size_t i = 0; i < COUNT(verdicts); i++) {
		const struct end_facts facts = {
			.end = verdicts[i].end,
			.sent = verdicts[i].sent,
			.lone = has(verdicts[i].facts, 'l'),
			.all_killed = has(verdicts[i].facts, 'a'),
			.other_failed = has(verdicts[i].facts, 'o'),
			.blames_peer = has(verdicts[i].facts, 'p'),
			.out_of_memory = has(verdicts[i].facts, 'm'),
			.node_failed = has(verdicts[i].facts, 'N'),
			.outlives_nodes = has(verdicts[i].facts, 's'),
			.ending = has(verdicts[i].facts, 'e'),
			.survived = has(verdicts[i].facts, 'g'),
			.kill_on_failure = !has(verdicts[i].facts, 'c'),
		};
		struct end_verdict got = judge_end(&facts);
		if (got.words != verdicts[i].words || got.say != verdicts[i].say || got.kill != verdicts[i].kill)
			fail_msg("%s: words %d, say %d, kill %d, not %d, %d, %d", verdicts[i].name, got.words,
			         got.say, got.kill, verdicts[i].words, verdicts[i].say, verdicts[i].kill);
	}
}

TEST(who_is_asked_to_end_does_not_survive)
{
	const struct end_facts killed = { .end = END_BY_KILL, .sent = SENT_NOTHING }, all = { .end = END_BY_KILL, .all_killed = true };
	const struct end_facts stopped = { .end = END_BY_KILL, .sent = SENT_STOP }, with_step = { .end = END_BY_KILL, .sent = SENT_KILL };
	const struct end_facts asked = { .end = END_BY_REQUEST, .sent = SENT_NOTHING }, fine = { .end = END_FINE };

	assert_true(judge_survived(&killed, true));
	assert_false(judge_survived(&killed, false));
	assert_false(judge_survived(&all, true));
	assert_false(judge_survived(&stopped, true) || judge_survived(&with_step, true));
	assert_false(judge_survived(&asked, true) || judge_survived(&fine, true));
}

/* A verdict that waits, and one that is due: which facts, as letters: blames_peer (p), names_peer (n),
   cause_late (t). */
TEST(waiting_verdict_outweighs_hearsay)
{
	static const struct { const char *name; enum task_end end; enum slurm_sent sent;
		              const char *waiting, *due; bool earlier, explains; } pairs[] = {
		{ "kill -TERM, and a rank that lost that one", END_BY_REQUEST, SENT_NOTHING, "", "p", true, true },
		{ "told a little later, by a busy node", END_BY_REQUEST, SENT_NOTHING, "", "p", false, true },
		{ "in ddp_init(), where nobody is lost", END_BY_REQUEST, SENT_NOTHING, "", "pt", true, true },
		{ "one that is ended when others have given up", END_BY_REQUEST, SENT_NOTHING, "", "pt", false, false },
		{ "without a witness", END_BY_REQUEST, SENT_UNKNOWN, "", "p", true, true },
		{ "tasks killed with their witness", END_BY_KILL, SENT_KILL, "", "p", true, true },
		{ "beside it a rank fails on its own account", END_BY_REQUEST, SENT_NOTHING, "", "", true, false },
		{ "or its node knows of one that hangs", END_BY_REQUEST, SENT_NOTHING, "", "ptn", true, false },
		{ "who ends as it lost another", END_CODE, SENT_KILL, "p", "p", true, false },
	};

	for (size_t i = 0; i < COUNT(pairs); i++) {
		const struct end_facts waiting = { .end = pairs[i].end, .sent = pairs[i].sent,
			                           .blames_peer = has(pairs[i].waiting, 'p') };
		const struct end_facts due = { .end = END_CODE, .sent = SENT_NOTHING,
			                       .blames_peer = has(pairs[i].due, 'p'),
			                       .cause_late = has(pairs[i].due, 't'),
			                       .names_peer = has(pairs[i].due, 'n') };
		if (judge_explains(&waiting, &due, pairs[i].earlier) != pairs[i].explains)
			fail_msg("%s", pairs[i].name);
	}
}

/* ---- spank/wire/progress_page, spank/node/node ---------------------------------- */

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
