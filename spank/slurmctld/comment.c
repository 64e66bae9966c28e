/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/slurmctld/comment.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "spank/base/worker.h"
#include "spank/identity/nodelist.h"
#include "spank/slurmctld/query.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* False: slurmctld does not tell the comment, or it is too long to be kept whole. */
static bool read_comment(uint32_t job_id, size_t most, char before[COMMENT_MAX], char name[QUERY_JOB_NAME_MAX])
{
	job_info_msg_t *jobs = query_jobs(job_id);
	const job_info_t *job = query_job_in(jobs, job_id);
	const char *text = job != NULL && job->comment != NULL ? job->comment : "";
	bool whole = job != NULL && strlen(text) < most && strlen(text) < COMMENT_MAX;

	if (whole) {
		memcpy(before, text, strlen(text) + 1);
		query_job_name(job, name);
	}
	query_free_jobs(jobs);
	return whole;
}

int comment_change(uint32_t job_id, size_t most, comment_edit *edit, const void *about)
{
	char before[COMMENT_MAX], after[2 * COMMENT_MAX], name[QUERY_JOB_NAME_MAX];
	int code = -1;

	pthread_mutex_lock(&lock);
	if (read_comment(job_id, most, before, name) && edit(about, before, after, sizeof(after)))
		code = change_job(name, NULL, after, false);
	pthread_mutex_unlock(&lock);
	return code;
}

enum {
	KEPT_MAX = 3072, /* of a comment, so that there is room for the note of requeue= */
	END_MS = 5000,
	SENTENCE_MAX = 1024,
};

static struct {
	pthread_mutex_t lock;
	pid_t process; /* 0: not begun */
	uint32_t job_id, step_id;
	struct event event; /* to be noted */
	char text[SENTENCE_MAX], node[HOST_NAME_MAX_BYTES];
	bool waits;   /* there is one */
	bool works;   /* the thread will look for more before it ends */
	bool started; /* the thread was started, and not joined */
	struct worker worker;
} note = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool take_event(struct event *event, char text[SENTENCE_MAX], char node[HOST_NAME_MAX_BYTES])
{
	bool any;

	pthread_mutex_lock(&note.lock);
	any = note.waits;
	*event = note.event;
	memcpy(text, note.text, sizeof(note.text));
	memcpy(node, note.node, sizeof(note.node));
	event->text = text;
	event->node = node;
	note.waits = false;
	note.works = any;
	pthread_mutex_unlock(&note.lock);
	return any;
}

static bool add_event(const void *about, const char *before, char *after, size_t bytes)
{
	return event_comment(about, before, after, bytes);
}

static void write_notes(void)
{
	char text[SENTENCE_MAX], node[HOST_NAME_MAX_BYTES];
	struct event event;

	while (take_event(&event, text, node)) {
		int code = comment_change(note.job_id, KEPT_MAX, add_event, &event);
		if (code < 0)
			slurm_debug("ddp: the failure is not in the job's comment: slurmctld does not tell the comment, or it is too long");
		else if (code > 0)
			slurm_debug("ddp: cannot note the failure in the job's comment: %s", spank_strerror((spank_err_t)code));
	}
}

void comment_begin(uint32_t job_id, uint32_t step_id)
{
	if (note.process != 0)
		return;
	note.job_id = job_id;
	note.step_id = step_id;
	note.process = getpid();
}

void comment_add_failure(const struct event *event)
{
	if (note.process != getpid())
		return;
	pthread_mutex_lock(&note.lock);
	note.event = *event;
	note.event.job_id = note.job_id;
	note.event.step_id = note.step_id;
	note.event.uid = getuid();
	note.event.time = time(NULL);
	snprintf(note.text, sizeof(note.text), "%s", event->text != NULL ? event->text : "");
	snprintf(note.node, sizeof(note.node), "%s", event->node != NULL ? event->node : "");
	note.waits = true;
	/* A thread that has looked for more in vain is about to end. */
	if (!note.works && note.started && worker_join(&note.worker, END_MS))
		note.started = false;
	if (!note.works && !note.started)
		note.started = note.works = worker_start(&note.worker, write_notes);
	pthread_mutex_unlock(&note.lock);
}

void comment_end(void)
{
	if (note.process != getpid())
		return;
	if (note.started && !worker_join(&note.worker, END_MS))
		slurm_debug("ddp: slurmctld does not answer: the failure may not be in the job's comment");
	note.process = 0;
}
