/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/slurmctld/comment.h"

#include <pthread.h>
#include <string.h>

#include "spank/slurmctld/ask.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* False: slurmctld does not tell the comment, or it is too long to be kept whole. */
static bool read_comment(uint32_t job_id, size_t most, char before[COMMENT_MAX], char name[ASK_JOB_NAME_MAX])
{
	job_info_msg_t *jobs = ask_jobs(job_id);
	bool whole = false;

	for (uint32_t i = 0; jobs != NULL && i < jobs->record_count; i++) {
		const job_info_t *job = &jobs->job_array[i];
		const char *text = job->comment != NULL ? job->comment : "";
		if (job->job_id != job_id || strlen(text) >= most || strlen(text) >= COMMENT_MAX)
			continue;
		whole = true;
		memcpy(before, text, strlen(text) + 1);
		ask_name_job(job, name);
	}
	ask_free_jobs(jobs);
	return whole;
}

int comment_change(uint32_t job_id, size_t most, comment_edit *edit, const void *about)
{
	char before[COMMENT_MAX], after[2 * COMMENT_MAX], name[ASK_JOB_NAME_MAX];
	int code = -1;

	pthread_mutex_lock(&lock);
	if (read_comment(job_id, most, before, name) && edit(about, before, after, sizeof(after)))
		code = ask_to_change(name, NULL, after, false);
	pthread_mutex_unlock(&lock);
	return code;
}
