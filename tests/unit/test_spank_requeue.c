/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/slurmctld/requeue_judge: when srun asks Slurm to start the job again, and what it says.
   spank/wire/report: a failure as a line that programs read. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "spank/slurmctld/requeue_judge.h"
#include "spank/wire/report.h"
#include "tests/support/test.h"

/* A job of sbatch in its first run, and a step with requeue=3 that failed with code 9 after ten minutes. */
static const struct requeue_job running = { .state = REQUEUE_RUNS, .batch = true, .may_requeue = true };
static const struct requeue_step failed = { .allowed = 3, .given = true, .ended = true, .status = 9,
	                                    .failed = true, .seconds = 600 };

static void refuses(struct requeue_step step, struct requeue_job job, const char *words)
{
	char text[REQUEUE_TEXT_MAX];

	assert_false(requeue_judge(&step, &job, text));
	if (words[0] == '\0')
		assert_string_equal(text, "");
	else
		assert_non_null(strstr(text, words));
}

static void asks(struct requeue_step step, struct requeue_job job, const char *sentence)
{
	char text[REQUEUE_TEXT_MAX];

	assert_true(requeue_judge(&step, &job, text));
	assert_string_equal(text, sentence);
}

TEST(a_failure_is_a_reason)
{
	struct requeue_step step = failed;

	asks(step, running, "the job is requeued (1 of 3): the step has failed with code 9");
	step.stopping = true;
	asks(step, running, "the job is requeued (1 of 3): the step has failed with code 9");
	step.status = 139;
	asks(step, running, "the job is requeued (1 of 3): the step has failed with code 139");
}

TEST(a_success_is_none)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;

	step.status = 0;
	step.failed = false;
	refuses(step, running, "");
	step.stopping = true;
	refuses(step, running, "");
	job.state = REQUEUE_TIMED_OUT;
	refuses(step, job, "");
}

TEST(a_stop_is_a_reason)
{
	struct requeue_step step = { .allowed = 2, .given = true, .ended = true, .status = 75, .stopping = true };
	struct requeue_job job = running;

	asks(step, job, "the job is requeued (1 of 2): the step was asked to stop, and ended with code 75");
	step.status = 143;
	asks(step, job, "the job is requeued (1 of 2): the step was asked to stop, and ended with code 143");
	/* Without reports of the nodes srun has its status alone. */
	step.stopping = false;
	asks(step, job, "the job is requeued (1 of 2): the step was asked to stop, and ended with code 143");
	job.preempted = true;
	asks(step, job, "the job is requeued (1 of 2): it is preempted");
	job.state = REQUEUE_PREEMPTED;
	job.preempted = false;
	asks(step, job, "the job is requeued (1 of 2): it is preempted");
	job.state = REQUEUE_TIMED_OUT;
	asks(step, job, "the job is requeued (1 of 2): its time limit has come");
}

TEST(code_75_is_a_reason_by_itself)
{
	struct requeue_step step = { .allowed = 2, .given = true, .ended = true, .status = 75 };
	struct requeue_job job = running;
	struct requeue_note note;

	asks(step, job, "the job is requeued (1 of 2): its program asks for it by code 75");
	/* Its program knows better than the clock whether it has made progress. */
	step.failed = true;
	job.restarts = 1;
	job.before.fruitless = true;
	asks(step, job, "the job is requeued (2 of 2): its program asks for it by code 75");
	assert_false(requeue_make_note(&step, &job, &note));
}

TEST(the_time_limit_is_a_reason)
{
	struct requeue_step step = { .allowed = 2, .given = true };
	struct requeue_job job = running;

	asks(step, job, "the job is requeued (1 of 2): its time limit is near");
	job.restarts = 2;
	refuses(step, job, "it was requeued 2 times before (requeue=2)");
	job.state = REQUEUE_CANCELLED;
	refuses(step, job, "it was cancelled");
}

TEST(who_ends_the_job_wants_its_end)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;

	job.state = REQUEUE_CANCELLED;
	refuses(step, job, "the job is not requeued: it was cancelled");
	job.state = REQUEUE_OVER;
	refuses(step, job, "the job is not requeued: it has ended");
	/* Nothing failed, nobody asked the step to stop, and yet it has ended: scancel of the step. */
	step.failed = false;
	step.status = 137;
	refuses(step, running, "the step was cancelled, or has not started");
	step.status = 1;
	refuses(step, running, "the step was cancelled, or has not started");
}

#define RELEASES "SLURM could not start the step on each node, has requeued the job (3 of 3) and held it; srun releases it"

TEST(slurm_may_be_first)
{
	struct requeue_job job = running;

	job.state = REQUEUE_WAITS;
	job.preempted = true;
	refuses(failed, job, "");
	/* It counts, and holds, the job whose Prolog fails. */
	job.preempted = false;
	job.held = true;
	job.restarts = 3;
	asks(failed, job, RELEASES);
	asks((struct requeue_step){ .allowed = 3, .ended = true, .stopping = true, .status = 143 }, job, RELEASES);
	job.restarts = 4;
	refuses(failed, job, "srun does not release it, because it was requeued 3 times before (requeue=3)");
	refuses((struct requeue_step){ .ended = true, .status = 1 }, job, "");
}

TEST(not_more_often_than_allowed)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;

	job.restarts = 2;
	asks(step, job, "the job is requeued (3 of 3): the step has failed with code 9");
	job.restarts = 3;
	refuses(step, job, "it was requeued 3 times before (requeue=3)");
	job.restarts = 1;
	step.allowed = 1;
	refuses(step, job, "it was requeued 1 time before (requeue=1)");
	step.allowed = 0;
	refuses(step, job, "");
}

TEST(two_failures_at_once_are_enough)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;
	struct requeue_note note;

	assert_false(requeue_make_note(&step, &job, &note));
	step.seconds = REQUEUE_AT_ONCE_SECONDS - 1;
	assert_true(requeue_make_note(&step, &job, &note));
	assert_true(note.fruitless && note.step == 0);
	asks(step, job, "the job is requeued (1 of 3): the step has failed with code 9");
	job.restarts = 1;
	asks(step, job, "the job is requeued (2 of 3): the step has failed with code 9");
	job.before = note;
	refuses(step, job, "two runs in a row have failed without progress, this one within 60 s");
	step.seconds = REQUEUE_AT_ONCE_SECONDS;
	assert_false(requeue_make_note(&step, &job, &note));
	asks(step, job, "the job is requeued (2 of 3): the step has failed with code 9");
	/* A stop is no failure. */
	step = (struct requeue_step){ .allowed = 3, .ended = true, .status = 143, .stopping = true, .seconds = 1 };
	assert_false(requeue_make_note(&step, &job, &note));
	asks(step, job, "the job is requeued (2 of 3): the step was asked to stop, and ended with code 143");
}

/* Runs of a job with requeue=100, which fail in these steps, in this order; 0: at once, without a step. Returns how many
   runs there are. */
static int runs(const uint64_t *steps, int count)
{
	struct requeue_job job = running;
	char comment[128] = "", text[REQUEUE_TEXT_MAX], next[128];

	for (int run = 0; run < count; run++) {
		struct requeue_step step = failed;
		struct requeue_note note;
		step.allowed = 100;
		step.at = steps[run];
		step.seconds = 5;
		job.restarts = (uint32_t)run;
		requeue_read_note(comment, job.restarts - 1, &job.before);
		if (!requeue_judge(&step, &job, text))
			return run + 1;
		if (!requeue_make_note(&step, &job, &note))
			continue;
		assert_true(requeue_write_note(comment, job.restarts, &note, next, sizeof(next)));
		memcpy(comment, next, sizeof(comment));
	}
	return count;
}

TEST(two_runs_without_a_new_step_are_enough)
{
	static const struct { uint64_t steps[8]; int count, expected; } cases[] = {
		{ { 0, 0, 0 }, 3, 2 },
		{ { 120, 120, 120, 120 }, 4, 3 },
		{ { 120, 118, 119, 121 }, 4, 3 },
		{ { 120, 110, 130, 130, 131, 20, 140 }, 7, 7 },
		{ { 120, 240, 360, 0, 361, 0, 0 }, 7, 7 },
		{ { 120, 0, 0, 200 }, 4, 3 },
		{ { 0, 5, 5, 0, 6 }, 5, 4 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(runs(cases[i].steps, cases[i].count), cases[i].expected);
}

TEST(the_sentence_names_the_step)
{
	assert_int_equal(requeue_step_in(""), 0);
	assert_int_equal(requeue_step_in("rank 1 of 2 on n1 exited with code 9 after 1.0 s"), 0);
	assert_int_equal(requeue_step_in("the step stalls in the step, or step x"), 0);
	assert_int_equal(requeue_step_in("rank 1 of 2 on n1 exited with code 9 after 1.0 s, in forward of step 7 for 0.1 s"), 7);
	assert_int_equal(requeue_step_in("rank 3 did not come (in forward of step 12); rank 1 is in backward of step 9"), 12);
	assert_int_equal(requeue_step_in("of step 99999999999999999999999 for 1 s"), UINT64_MAX);
}

TEST(some_jobs_cannot_come_again)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;
	char text[REQUEUE_TEXT_MAX];

	assert_false(requeue_is_impossible(&step, &job, text));
	job.may_requeue = false;
	assert_true(requeue_is_impossible(&step, &job, text));
	assert_non_null(strstr(text, "--no-requeue"));
	refuses(step, job, "--no-requeue");
	job.batch = false;
	assert_true(requeue_is_impossible(&step, &job, text));
	assert_non_null(strstr(text, "jobs of sbatch only"));
	refuses(step, job, "");
	/* The site's default says nothing to those for whom it is not. */
	step.given = false;
	assert_true(requeue_is_impossible(&step, &job, text));
	assert_string_equal(text, "");
	job.batch = true;
	refuses(step, job, "");
}

TEST(the_note_is_of_one_run)
{
	static const struct requeue_note at_once = { .fruitless = true }, in_step = { .step = 120 },
	                                 without = { .fruitless = true, .step = 120 };
	struct requeue_note note = { .step = 3 };
	char text[128], again[128];

	assert_false(requeue_read_note(NULL, 0, &note));
	assert_int_equal(note.step, 0);
	assert_false(requeue_read_note("", 0, &note));
	assert_true(requeue_write_note(NULL, 0, &at_once, text, sizeof(text)));
	assert_string_equal(text, "[ddp: run 0 failed at once]");
	assert_true(requeue_read_note(text, 0, &note));
	assert_true(note.fruitless && note.step == 0);
	assert_false(requeue_read_note(text, 1, &note));
	assert_true(requeue_write_note(text, 11, &in_step, again, sizeof(again)));
	assert_string_equal(again, "[ddp: run 11 failed in step 120]");
	assert_false(requeue_read_note(again, 1, &note));
	assert_true(requeue_read_note(again, 11, &note));
	assert_true(!note.fruitless && note.step == 120);
	assert_true(requeue_write_note(again, 12, &without, text, sizeof(text)));
	assert_string_equal(text, "[ddp: run 12 failed without a step after 120]");
	assert_true(requeue_read_note(text, 12, &note));
	assert_true(note.fruitless && note.step == 120);
}

TEST(the_note_leaves_the_comment)
{
	static const struct requeue_note at_once = { .fruitless = true };
	char text[128], again[128], small[40];
	struct requeue_note note;

	assert_true(requeue_write_note("paper 7", 2, &at_once, text, sizeof(text)));
	assert_string_equal(text, "paper 7 [ddp: run 2 failed at once]");
	assert_true(requeue_read_note(text, 2, &note));
	assert_true(requeue_write_note(text, 3, &at_once, again, sizeof(again)));
	assert_string_equal(again, "paper 7 [ddp: run 3 failed at once]");
	assert_false(requeue_write_note("a comment that has no room for more", 2, &at_once, small, sizeof(small)));
}

/* A user may have written anything there. */
TEST(other_notes_are_none)
{
	static const char *const comments[] = {
		"[ddp: run ", "[ddp: run 2", "[ddp: run 2 ", "[ddp: run 2 failed", "[ddp: run 2 failed in step ",
		"[ddp: run 2 failed in step x]", "[ddp: run -2 failed at once]", "[ddp: run two failed at once]",
		"[ddp: run 99999999999999999999999999 failed at once]", "[ddp: run 2 failed without a step after ",
	};
	struct requeue_note note;

	for (size_t i = 0; i < sizeof(comments) / sizeof(comments[0]); i++) {
		assert_false(requeue_read_note(comments[i], 2, &note));
		assert_true(!note.fruitless && note.step == 0);
	}
}

/* ---- spank/wire/report ----------------------------------------------------------- */

static struct event crash(const char *text)
{
	struct event event = event_begin(EVENT_CRASH);

	event.job_id = 12;
	event.step_id = 0;
	event.uid = 1000;
	event.node = "n1";
	event.rank = 3;
	event.world_size = 4;
	event.wait_status = SIGSEGV;
	event.seconds = 8.25;
	event.training_step = 7;
	event.time = 1764151200;
	event.text = text;
	return event;
}

TEST(line_has_what_is_known)
{
	struct event event = crash("rank 3 of 4 on n1 was killed");
	char line[EVENT_LINE_MAX];

	event_write(&event, line, sizeof(line));
	assert_string_equal(line, "failure v=1 kind=crash job=12 step=0 uid=1000 node=n1 rank=3 ranks=4 signal=11 seconds=8.2 "
	                    "training_step=7 time=1764151200 text=\"rank 3 of 4 on n1 was killed\"");
	event = event_begin(EVENT_STALL);
	event.stalls = 2;
	event_write(&event, line, sizeof(line));
	assert_string_equal(line, "failure v=1 kind=stall stalls=2");
	event = event_begin(EVENT_EXIT);
	event.wait_status = 7 << 8;
	event_write(&event, line, sizeof(line));
	assert_string_equal(line, "failure v=1 kind=exit code=7");
}

TEST(nobody_forges_a_key_or_a_line)
{
	struct event event = crash("x\" kind=exit\ntext=\"\\ [ddp: run 1]\x1b\xff");
	char line[EVENT_LINE_MAX];

	event.node = "n1 kind=exit\n";
	event_write(&event, line, sizeof(line));
	assert_non_null(strstr(line, " node=n1?kind?exit? rank"));
	assert_non_null(strstr(line, " text=\"x\\\" kind=exit?text=\\\"\\\\ (ddp: run 1)??\""));
	assert_null(strchr(line, '\n'));
}

TEST(long_texts_are_cut_within_their_quotes)
{
	char text[2000], line[EVENT_LINE_MAX];
	struct event event;

	for (int quotes = 0; quotes < 2; quotes++) {
		memset(text, quotes ? '"' : 'x', sizeof(text) - 1);
		text[sizeof(text) - 1] = '\0';
		event = crash(text);
		for (size_t room = sizeof(line); room > 160; room -= 7) {
			event_write(&event, line, room);
			size_t length = strlen(line);
			assert_true(length < room);
			assert_int_equal(line[length - 1], '"');
			/* A backslash before the last quote would make it one of the text. */
			assert_true(!quotes || line[length - 2] == '"');
		}
	}
}

TEST(kinds_follow_from_the_facts)
{
	static const struct { struct end_facts facts; enum event_kind kind; } cases[] = {
		{ { .end = END_CODE }, EVENT_EXIT },
		{ { .end = END_CRASH }, EVENT_CRASH },
		{ { .end = END_BY_KILL }, EVENT_KILLED },
		{ { .end = END_BY_KILL, .out_of_memory = true }, EVENT_MEMORY },
		{ { .end = END_BY_REQUEST }, EVENT_STOPPED },
		{ { .end = END_CODE, .blames_peer = true }, EVENT_PEER },
		{ { .end = END_CODE, .blames_peer = true, .names_peer = true }, EVENT_EXIT },
		{ { .end = END_CODE, .silent = true }, EVENT_SILENCE },
		{ { .end = END_BY_KILL, .node_failed = true }, EVENT_NODE },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(event_kind_of(&cases[i].facts), cases[i].kind);
}

TEST(comment_keeps_the_users_words_and_one_note)
{
	static const struct { const char *before, *after; } cases[] = {
		{ NULL, "[ddp: failure v=1 kind=stall]" },
		{ "", "[ddp: failure v=1 kind=stall]" },
		{ "mine", "mine [ddp: failure v=1 kind=stall]" },
		{ "mine [ddp: failure v=1 kind=exit code=3 text=\"a\"]", "mine [ddp: failure v=1 kind=stall]" },
		{ "mine [ddp: failure v=1 kind=exit] [ddp: run 1 failed in step 12]",
		  "mine [ddp: failure v=1 kind=stall] [ddp: run 1 failed in step 12]" },
		{ "mine [ddp: run 0 failed at once]", "mine [ddp: failure v=1 kind=stall] [ddp: run 0 failed at once]" },
		{ "[ddp: failure is what I fear", "[ddp: failure is what I fear [ddp: failure v=1 kind=stall]" },
	};
	const struct event event = event_begin(EVENT_STALL);
	struct requeue_note note = { .step = 12 };
	char text[512], again[512];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_true(event_comment(&event, cases[i].before, text, sizeof(text)));
		assert_string_equal(text, cases[i].after);
		assert_true(event_comment(&event, text, again, sizeof(again)));
	}
	assert_false(event_comment(&event, "mine", text, 20));
	/* Both notes of one failure. */
	assert_true(event_comment(&event, "mine", text, sizeof(text)));
	assert_true(requeue_write_note(text, 1, &note, again, sizeof(again)));
	assert_string_equal(again, "mine [ddp: failure v=1 kind=stall] [ddp: run 1 failed in step 12]");
	assert_true(requeue_read_note(again, 1, &note));
	assert_int_equal(note.step, 12);
}
