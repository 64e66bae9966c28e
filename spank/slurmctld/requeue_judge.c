/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/slurmctld/requeue_judge.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank/base/text.h"

/* These texts stand behind the number of the run in a note, and before the number of a step. */
static const char note_begin[] = "[ddp: run ", at_once[] = " failed at once]", in_step[] = " failed in step ",
                  without_step[] = " failed without a step after ";

static bool write_words(char text[REQUEUE_TEXT_MAX], const char *words)
{
	snprintf(text, REQUEUE_TEXT_MAX, "%s", words);
	return false;
}

/* Without the nodes' reports srun knows of the stop by its own status alone. */
static bool was_stopped(const struct requeue_step *step)
{
	return !step->failed &&
	       (step->stopping || step->status == 128 + SIGTERM || step->status == 128 + SIGINT);
}

static bool asks_itself(const struct requeue_step *step)
{
	return step->status == REQUEUE_CODE;
}

/* A program that asks for another run knows better than srun whether it has made progress. */
static bool is_fruitless(const struct requeue_step *step, const struct requeue_job *job)
{
	if (!step->ended || !step->failed || asks_itself(step))
		return false;
	return step->at > 0 ? step->at <= job->before.step : step->seconds < REQUEUE_AT_ONCE_SECONDS;
}

/* Whether the step's end is a reason to requeue a job that runs on. */
static bool ended_for_a_reason(const struct requeue_step *step, const struct requeue_job *job)
{
	return !step->ended || job->state != REQUEUE_RUNS || step->failed || was_stopped(step) || asks_itself(step);
}

static void say_why(const struct requeue_step *step, const struct requeue_job *job, struct sink *sink)
{
	sink_add(sink, "the job is requeued (%u of %u): ", job->restarts + 1, step->allowed);
	if (!step->ended)
		sink_add(sink, "its time limit is near");
	else if (step->failed && !asks_itself(step))
		sink_add(sink, "the step has failed with code %d", step->status);
	else if (job->state == REQUEUE_TIMED_OUT)
		sink_add(sink, "its time limit has come");
	else if (job->preempted || job->state == REQUEUE_PREEMPTED)
		sink_add(sink, "it is preempted");
	else if (was_stopped(step))
		sink_add(sink, "the step was asked to stop, and ended with code %d", step->status);
	else
		sink_add(sink, "its program asks for it by code %d", step->status);
}

/* Whether this one would be one run too many. */
static bool is_too_often(const struct requeue_step *step, const struct requeue_job *job, struct sink *sink)
{
	if (job->restarts >= step->allowed)
		sink_add(sink, "the job is not requeued: it was requeued %u time%s before (requeue=%u)", job->restarts,
		         job->restarts == 1 ? "" : "s", step->allowed);
	else if (is_fruitless(step, job) && job->before.fruitless && step->at > 0)
		sink_add(sink, "the job is not requeued: two runs in a row have failed without a step after step %llu",
		         (unsigned long long)job->before.step);
	else if (is_fruitless(step, job) && job->before.fruitless)
		sink_add(sink, "the job is not requeued: two runs in a row have failed without progress, this one "
		         "within %d s", REQUEUE_AT_ONCE_SECONDS);
	return sink->used > 0;
}

/* SLURM has requeued the job itself, which it does whatever requeue= says, and may have ended the step before srun has
   said that nodes are missing. */
static bool judge_held(const struct requeue_step *step, const struct requeue_job *job, char text[REQUEUE_TEXT_MAX])
{
	struct sink sink = sink_on(text, REQUEUE_TEXT_MAX);
	bool releases = job->restarts <= step->allowed;

	if (releases)
		sink_add(&sink, "SLURM could not start the step on each node, has requeued the job (%u of %u) and held it; srun "
		         "releases it", job->restarts, step->allowed);
	else
		sink_add(&sink, "SLURM could not start the step on each node, has requeued the job and held it; srun does not "
		         "release it, because it was requeued %u time%s before (requeue=%u)", job->restarts - 1,
		         job->restarts == 2 ? "" : "s", step->allowed);
	return releases;
}

bool requeue_judge(const struct requeue_step *step, const struct requeue_job *job, char text[REQUEUE_TEXT_MAX])
{
	struct sink sink = sink_on(text, REQUEUE_TEXT_MAX);

	/* If the job is not of sbatch, the user was told so when the step started. */
	if (step->allowed == 0 || (step->ended && step->status == 0) || !job->batch)
		return false;
	if (job->state == REQUEUE_WAITS)
		return job->held && judge_held(step, job, text);
	if (job->state == REQUEUE_CANCELLED)
		return write_words(text, "the job is not requeued: it was cancelled");
	if (job->state == REQUEUE_OVER)
		return write_words(text, "the job is not requeued: it has ended");
	if (!ended_for_a_reason(step, job))
		return write_words(text, "the job is not requeued: the step was cancelled, or has not started");
	if (requeue_is_impossible(step, job, text) || is_too_often(step, job, &sink))
		return false;
	say_why(step, job, &sink);
	return true;
}

bool requeue_is_impossible(const struct requeue_step *step, const struct requeue_job *job,
                           char text[REQUEUE_TEXT_MAX])
{
	text[0] = '\0';
	if (job->batch && job->may_requeue)
		return false;
	/* A site's default is for jobs that can be requeued. */
	if (!step->given)
		return true;
	if (job->batch)
		write_words(text, "the job is not requeued: SLURM does not allow it (--no-requeue, or JobRequeue=0 in "
		          "slurm.conf); sbatch --requeue does");
	else
		write_words(text, "requeue= has no effect here: SLURM can requeue jobs of sbatch only");
	return true;
}

/* Takes the number at the beginning of a text, which moves behind the number. False if there is none. */
static bool take_number(const char **text, uint64_t *number)
{
	char *end;

	if (!isdigit((unsigned char)**text))
		return false;
	*number = strtoull(*text, &end, 10);
	*text = end;
	return true;
}

static bool take_words(const char **text, const char *words)
{
	size_t length = strlen(words);

	if (strncmp(*text, words, length) != 0)
		return false;
	*text += length;
	return true;
}

uint64_t requeue_step_in(const char *sentence)
{
	static const char step[] = " step ";
	uint64_t highest = 0, number;

	for (const char *at = sentence; (at = strstr(at, step)) != NULL;) {
		at += strlen(step);
		if (take_number(&at, &number) && number > highest)
			highest = number;
	}
	return highest;
}

bool requeue_make_note(const struct requeue_step *step, const struct requeue_job *job, struct requeue_note *note)
{
	*note = (struct requeue_note){ .fruitless = is_fruitless(step, job), .step = job->before.step };
	if (step->at > note->step)
		note->step = step->at;
	return note->fruitless || (step->ended && step->failed && !asks_itself(step) && step->at > 0);
}

bool requeue_read_note(const char *comment, uint32_t run, struct requeue_note *note)
{
	const char *text = comment != NULL ? strstr(comment, note_begin) : NULL;
	uint64_t number;

	*note = (struct requeue_note){ .fruitless = false };
	if (text == NULL || !take_words(&text, note_begin) || !take_number(&text, &number) || number != run)
		return false;
	if (take_words(&text, at_once)) {
		note->fruitless = true;
		return true;
	}
	note->fruitless = take_words(&text, without_step);
	if ((note->fruitless || take_words(&text, in_step)) && take_number(&text, &note->step))
		return true;
	*note = (struct requeue_note){ .fruitless = false };
	return false;
}

bool requeue_write_note(const char *comment, uint32_t run, const struct requeue_note *note, char *text, uint32_t bytes)
{
	const char *before = comment != NULL ? comment : "", *earlier = strstr(before, note_begin);
	struct sink sink = sink_on(text, bytes);
	size_t kept = earlier != NULL ? (size_t)(earlier - before) : strlen(before);

	while (kept > 0 && before[kept - 1] == ' ')
		kept--;
	sink_add(&sink, "%.*s%s%s%u", (int)kept, before, kept > 0 ? " " : "", note_begin, run);
	if (note->step == 0)
		sink_add(&sink, "%s", at_once);
	else
		sink_add(&sink, "%s%llu]", note->fruitless ? without_step : in_step, (unsigned long long)note->step);
	return !sink.full;
}
