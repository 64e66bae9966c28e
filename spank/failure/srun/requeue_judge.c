/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/srun/requeue_judge.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "spank/base/sink.h"

static const char note_begin[] = "[ddp: run ", note_end[] = " failed at once]";

static bool say(char text[REQUEUE_TEXT_MAX], const char *words)
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

bool requeue_failed_at_once(const struct requeue_step *step)
{
	return step->ended && step->failed && !asks_itself(step) && step->seconds < REQUEUE_AT_ONCE_SECONDS;
}

/* Whether the step's end, in a job that runs on, is a reason at all. */
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
	else if (requeue_failed_at_once(step) && job->failed_before)
		sink_add(sink, "the job is not requeued: it has failed within %d s, as in the run before",
		         REQUEUE_AT_ONCE_SECONDS);
	return sink->used > 0;
}

bool requeue_judge(const struct requeue_step *step, const struct requeue_job *job, char text[REQUEUE_TEXT_MAX])
{
	struct sink sink = sink_on(text, REQUEUE_TEXT_MAX);

	/* A job that is not of sbatch: the user was told so when the step started. */
	if (step->allowed == 0 || (step->ended && step->status == 0) || !job->batch || job->state == REQUEUE_WAITS)
		return false;
	if (job->state == REQUEUE_CANCELLED)
		return say(text, "the job is not requeued: it was cancelled");
	if (job->state == REQUEUE_OVER)
		return say(text, "the job is not requeued: it has ended");
	if (!ended_for_a_reason(step, job))
		return say(text, "the job is not requeued: the step was cancelled, or has not started");
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
		say(text, "the job is not requeued: SLURM does not allow it (--no-requeue, or JobRequeue=0 in "
		          "slurm.conf); sbatch --requeue does");
	else
		say(text, "requeue= has no effect here: SLURM can requeue jobs of sbatch only");
	return true;
}

bool requeue_read_note(const char *comment, uint32_t run)
{
	char note[REQUEUE_NOTE_MAX];

	snprintf(note, sizeof(note), "%s%u%s", note_begin, run, note_end);
	return comment != NULL && strstr(comment, note) != NULL;
}

bool requeue_write_note(const char *comment, uint32_t run, char *text, uint32_t bytes)
{
	const char *before = comment != NULL ? comment : "", *note = strstr(before, note_begin);
	struct sink sink = sink_on(text, bytes);
	size_t kept = note != NULL ? (size_t)(note - before) : strlen(before);

	while (kept > 0 && before[kept - 1] == ' ')
		kept--;
	sink_add(&sink, "%.*s%s%s%u%s", (int)kept, before, kept > 0 ? " " : "", note_begin, run, note_end);
	return !sink.full;
}
