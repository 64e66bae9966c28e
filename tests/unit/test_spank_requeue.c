/* SPDX-License-Identifier: Apache-2.0 */
/* spank/requeue_judge: when srun asks Slurm to start the job again, and what it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "spank/failure/srun/requeue_judge.h"

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

static void a_failure_is_a_reason(void **state)
{
	struct requeue_step step = failed;

	(void)state;
	asks(step, running, "the job is requeued (1 of 3): the step has failed with code 9");
	step.stopping = true;
	asks(step, running, "the job is requeued (1 of 3): the step has failed with code 9");
	step.status = 139;
	asks(step, running, "the job is requeued (1 of 3): the step has failed with code 139");
}

static void a_success_is_none(void **state)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;

	(void)state;
	step.status = 0;
	step.failed = false;
	refuses(step, running, "");
	step.stopping = true;
	refuses(step, running, "");
	job.state = REQUEUE_TIMED_OUT;
	refuses(step, job, "");
}

static void a_stop_is_a_reason(void **state)
{
	struct requeue_step step = { .allowed = 2, .given = true, .ended = true, .status = 75, .stopping = true };
	struct requeue_job job = running;

	(void)state;
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

static void code_75_is_a_reason_by_itself(void **state)
{
	struct requeue_step step = { .allowed = 2, .given = true, .ended = true, .status = 75 };
	struct requeue_job job = running;

	(void)state;
	asks(step, job, "the job is requeued (1 of 2): its program asks for it by code 75");
	/* Its program knows better than the clock whether it has made progress. */
	step.failed = true;
	job.restarts = 1;
	job.failed_before = true;
	asks(step, job, "the job is requeued (2 of 2): its program asks for it by code 75");
	assert_false(requeue_failed_at_once(&step));
}

static void the_time_limit_is_a_reason(void **state)
{
	struct requeue_step step = { .allowed = 2, .given = true };
	struct requeue_job job = running;

	(void)state;
	asks(step, job, "the job is requeued (1 of 2): its time limit is near");
	job.restarts = 2;
	refuses(step, job, "it was requeued 2 times before (requeue=2)");
	job.state = REQUEUE_CANCELLED;
	refuses(step, job, "it was cancelled");
}

static void who_ends_the_job_wants_its_end(void **state)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;

	(void)state;
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

static void slurm_may_be_first(void **state)
{
	struct requeue_job job = running;

	(void)state;
	job.state = REQUEUE_WAITS;
	job.preempted = true;
	refuses(failed, job, "");
}

static void not_more_often_than_allowed(void **state)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;

	(void)state;
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

static void two_failures_at_once_are_enough(void **state)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;

	(void)state;
	step.seconds = REQUEUE_AT_ONCE_SECONDS - 1;
	assert_true(requeue_failed_at_once(&step));
	asks(step, job, "the job is requeued (1 of 3): the step has failed with code 9");
	job.restarts = 1;
	asks(step, job, "the job is requeued (2 of 3): the step has failed with code 9");
	job.failed_before = true;
	refuses(step, job, "it has failed within 60 s, as in the run before");
	step.seconds = REQUEUE_AT_ONCE_SECONDS;
	assert_false(requeue_failed_at_once(&step));
	asks(step, job, "the job is requeued (2 of 3): the step has failed with code 9");
	/* A stop is no failure. */
	step = (struct requeue_step){ .allowed = 3, .ended = true, .status = 143, .stopping = true, .seconds = 1 };
	assert_false(requeue_failed_at_once(&step));
	asks(step, job, "the job is requeued (2 of 3): the step was asked to stop, and ended with code 143");
}

static void some_jobs_cannot_come_again(void **state)
{
	struct requeue_step step = failed;
	struct requeue_job job = running;
	char text[REQUEUE_TEXT_MAX];

	(void)state;
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

static void the_note_is_of_one_run(void **state)
{
	char text[128], again[128];

	(void)state;
	assert_false(requeue_read_note(NULL, 0));
	assert_false(requeue_read_note("", 0));
	assert_true(requeue_write_note(NULL, 0, text, sizeof(text)));
	assert_string_equal(text, "[ddp: run 0 failed at once]");
	assert_true(requeue_read_note(text, 0));
	assert_false(requeue_read_note(text, 1));
	assert_true(requeue_write_note(text, 11, again, sizeof(again)));
	assert_string_equal(again, "[ddp: run 11 failed at once]");
	assert_false(requeue_read_note(again, 1));
	assert_true(requeue_read_note(again, 11));
}

static void the_note_leaves_the_comment(void **state)
{
	char text[128], again[128], small[40];

	(void)state;
	assert_true(requeue_write_note("paper 7", 2, text, sizeof(text)));
	assert_string_equal(text, "paper 7 [ddp: run 2 failed at once]");
	assert_true(requeue_read_note(text, 2));
	assert_true(requeue_write_note(text, 3, again, sizeof(again)));
	assert_string_equal(again, "paper 7 [ddp: run 3 failed at once]");
	assert_false(requeue_write_note("a comment that has no room for more", 2, small, sizeof(small)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_failure_is_a_reason),
		cmocka_unit_test(a_success_is_none),
		cmocka_unit_test(a_stop_is_a_reason),
		cmocka_unit_test(code_75_is_a_reason_by_itself),
		cmocka_unit_test(the_time_limit_is_a_reason),
		cmocka_unit_test(who_ends_the_job_wants_its_end),
		cmocka_unit_test(slurm_may_be_first),
		cmocka_unit_test(not_more_often_than_allowed),
		cmocka_unit_test(two_failures_at_once_are_enough),
		cmocka_unit_test(some_jobs_cannot_come_again),
		cmocka_unit_test(the_note_is_of_one_run),
		cmocka_unit_test(the_note_leaves_the_comment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
