/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/pmix_probe.h"

#ifdef HAVE_PMIX

#include <pmix.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/wait.h"
#include "job/pmix_client.h"

/* Outlives the caller if PMIx answers late; the last to let go frees it. */
struct probe {
	pthread_mutex_t lock;
	pthread_cond_t heard;
	int open; /* questions without an answer */
	bool abandoned;
	struct question {
		struct probe *probe;
		bool came;
	} questions[];
};

static void unlock(struct probe *probe)
{
	bool unused = probe->abandoned && probe->open == 0;

	pthread_mutex_unlock(&probe->lock);
	if (!unused)
		return;
	pthread_cond_destroy(&probe->heard);
	pthread_mutex_destroy(&probe->lock);
	free(probe);
}

/* A thread of PMIx's calls this. */
static void answered(pmix_status_t rc, pmix_value_t *value, void *argument)
{
	struct question *question = argument;
	struct probe *probe = question->probe;

	(void)value;
	pthread_mutex_lock(&probe->lock);
	question->came = rc == PMIX_SUCCESS;
	probe->open--;
	pthread_cond_signal(&probe->heard);
	unlock(probe);
}

static void ask(struct probe *probe, const char *key, int process)
{
	struct question *question = &probe->questions[process];
	pmix_proc_t whom;

	question->probe = probe;
	PMIX_LOAD_PROCID(&whom, ddp_pmix_namespace(), (pmix_rank_t)process);
	pthread_mutex_lock(&probe->lock);
	probe->open++;
	pthread_mutex_unlock(&probe->lock);
	if (PMIx_Get_nb(&whom, key, NULL, 0, answered, question) == PMIX_SUCCESS)
		return;
	pthread_mutex_lock(&probe->lock);
	probe->open--;
	pthread_mutex_unlock(&probe->lock);
}

bool ddp_pmix_probe(const char *key, int count, uint64_t deadline_ns, bool *came)
{
	struct probe *probe = calloc(1, sizeof(*probe) + (size_t)count * sizeof(*probe->questions));

	if (probe == NULL)
		return false;
	pthread_mutex_init(&probe->lock, NULL);
	ddp_condition_init(&probe->heard);
	for (int p = 0; p < count; p++)
		ask(probe, key, p);

	pthread_mutex_lock(&probe->lock);
	while (probe->open > 0 && ddp_condition_wait(&probe->heard, &probe->lock, deadline_ns))
		;
	for (int p = 0; p < count; p++)
		came[p] = probe->questions[p].came;
	probe->abandoned = true;
	unlock(probe);
	return true;
}

#endif
