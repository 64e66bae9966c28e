/* SPDX-License-Identifier: Apache-2.0 */
/* Wire-up through the step's PMIx server: one blob per rank and exchange, committed and collected by one fence. A
   fence's own timeout may be ignored by the server (Slurm's is), so the fence runs aside and the wait for it is
   ours. */
#include "wireup/open.h"

#include "base/error.h"

#ifdef HAVE_PMIX

#include <pmix.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "job/nodes.h"
#include "job/pmix_client.h"

/* Ranks try for so long to find out who has not come, if there are at most so many, because each rank asks for each. */
static const uint64_t probe_ns = 1000000000u;
enum { PROBE_MAX = 512 };

struct pmix_wireup {
	ddp_wireup base;
	unsigned int sequence;
	bool fence_pending; /* given up, but the server may still answer it */
};

/* Shared with the callback, which may come after the wait was given up. */
struct fence {
	ddp_pending pending;
	pmix_status_t rc;
};

static struct fence *fence_new(void)
{
	struct fence *fence = calloc(1, sizeof(*fence));

	if (fence == NULL)
		return NULL;
	ddp_pending_init(&fence->pending);
	return fence;
}

static void fence_free(struct fence *fence)
{
	ddp_pending_destroy(&fence->pending);
	free(fence);
}

static void fence_ended(pmix_status_t rc, void *argument)
{
	struct fence *fence = argument;

	fence->rc = rc;
	if (!ddp_pending_finish(&fence->pending))
		fence_free(fence);
}

/* The key of this exchange; each has one of its own. */
static void key_of(const struct pmix_wireup *wireup, char *key)
{
	snprintf(key, PMIX_MAX_KEYLEN, "ddp.%u", wireup->sequence);
}

/* A rank's contribution: its number in the job, which may differ from PMIx's, then the blob. */
static ddp_status publish(const struct pmix_wireup *wireup, const void *blob, size_t bytes)
{
	char key[PMIX_MAX_KEYLEN + 1];
	uint32_t rank = (uint32_t)wireup->base.job->rank;
	char *packed = malloc(sizeof(rank) + bytes);
	pmix_value_t value;

	if (packed == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a blob of %zu bytes", bytes);
	memcpy(packed, &rank, sizeof(rank));
	if (bytes > 0)
		memcpy(packed + sizeof(rank), blob, bytes);
	key_of(wireup, key);
	value.type = PMIX_BYTE_OBJECT;
	value.data.bo.bytes = packed;
	value.data.bo.size = sizeof(rank) + bytes;
	pmix_status_t rc = PMIx_Put(PMIX_GLOBAL, key, &value);
	if (rc == PMIX_SUCCESS)
		rc = PMIx_Commit();
	free(packed);
	if (rc != PMIX_SUCCESS)
		return ddp_fail(DDP_ERR_IO, "cannot give data to the PMIx server: %s", PMIx_Error_string(rc));
	return DDP_OK;
}

/* ---- who has not come ---------------------------------------------------------------- */

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

/* Sets came[p] for each process p of 0 .. count - 1 that is known by the deadline to have committed `key`. A server
   answers when the process has committed, also before the fence. False: no memory. */
static bool find_committed(const char *key, int count, uint64_t deadline_ns, bool *came)
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

static void list_missing(const ddp_job *job, const bool *missing, char *text, size_t bytes)
{
	ddp_nodes nodes;

	ddp_nodes_find(job, &nodes);
	ddp_nodes_list(&nodes, missing, text, bytes);
	ddp_nodes_free(&nodes);
}

/* Writes who has not come, as far as that can be found out; `first` is the first of them, or -1. */
static void name_missing(const struct pmix_wireup *wireup, char *text, size_t bytes, int *first)
{
	int count = wireup->base.job->world_size, missing = 0;
	bool *came = count <= PROBE_MAX ? calloc((size_t)count, sizeof(*came)) : NULL;
	char key[PMIX_MAX_KEYLEN + 1];

	*first = -1;
	snprintf(text, bytes, "some ranks");
	key_of(wireup, key);
	if (came != NULL && find_committed(key, count, ddp_now_ns() + probe_ns, came)) {
		for (int p = 0; p < count; p++) {
			came[p] = !came[p];
			missing += came[p];
			if (came[p] && *first < 0)
				*first = p;
		}
		if (missing > 0)
			list_missing(wireup->base.job, came, text, bytes);
	}
	free(came);
}

/* Says what else may be wrong with a fence. A slurmstepd that forks the tasks of another user runs as that user
   meanwhile. It then refuses the connection of another node's slurmstepd, because it looks at who sent the message,
   and expects root. */
static const char *slurms_part(const struct pmix_wireup *wireup)
{
	const ddp_job *job = wireup->base.job;

	if (job->local_world_size >= job->world_size || geteuid() == 0)
		return "";
	return " Between nodes, Slurm's PMIx plugin sometimes refuses its own connections in the step of "
	       "an ordinary user (slurmstepd then says \"Munge decode failed\"): started with "
	       "srun --mpi=none --ddp, ranks find each other by TCP, without PMIx";
}

static ddp_status too_late(struct pmix_wireup *wireup, uint64_t start_ns)
{
	double seconds = ddp_seconds_since(start_ns);
	char list[DDP_MISSING_BYTES];
	int first;

	wireup->fence_pending = true;
	name_missing(wireup, list, sizeof(list), &first);
	ddp_fail(DDP_ERR_TIMEOUT, "%s did not come to the PMIx server within %.1f s: did every task "
	         "start?%s", list, seconds, slurms_part(wireup));
	return ddp_error_about(DDP_ERR_TIMEOUT, first);
}

static ddp_status fence_all(struct pmix_wireup *wireup, uint64_t deadline_ns)
{
	struct fence *fence = fence_new();
	uint64_t start_ns = ddp_now_ns();
	pmix_proc_t all;
	pmix_info_t collect;
	bool yes = true;

	if (fence == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the PMIx fence");
	PMIX_LOAD_PROCID(&all, ddp_pmix_namespace(), PMIX_RANK_WILDCARD);
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	pmix_status_t rc = PMIx_Fence_nb(&all, 1, &collect, 1, fence_ended, fence);
	if (rc == PMIX_SUCCESS) {
		if (!ddp_pending_wait(&fence->pending, deadline_ns))
			return too_late(wireup, start_ns);
		rc = fence->rc;
	}
	PMIX_INFO_DESTRUCT(&collect);
	fence_free(fence);
	if (rc != PMIX_SUCCESS && rc != PMIX_OPERATION_SUCCEEDED)
		return ddp_fail(DDP_ERR_PEER, "the PMIx fence failed: %s; has a rank ended meanwhile?%s",
		                PMIx_Error_string(rc), slurms_part(wireup));
	return DDP_OK;
}

static ddp_status take(const pmix_byte_object_t *packed, int world_size, void **blobs, size_t *sizes)
{
	uint32_t rank;

	if (packed->size < sizeof(rank) || packed->size > sizeof(rank) + DDP_BLOB_MAX)
		return ddp_fail(DDP_ERR_FORMAT, "PMIx gives %zu bytes for a rank", packed->size);
	size_t bytes = packed->size - sizeof(rank);
	memcpy(&rank, packed->bytes, sizeof(rank));
	if (rank >= (uint32_t)world_size)
		return ddp_fail(DDP_ERR_JOB, "a process says that it is rank %u of %d", rank, world_size);
	if (blobs[rank] != NULL)
		return ddp_fail(DDP_ERR_JOB, "two processes say that they are rank %u", rank);
	blobs[rank] = malloc(bytes > 0 ? bytes : 1);
	if (blobs[rank] == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a blob of %zu bytes", bytes);
	memcpy(blobs[rank], packed->bytes + sizeof(rank), bytes);
	sizes[rank] = bytes;
	return DDP_OK;
}

static ddp_status has_ended(const ddp_job *job, int process, pmix_status_t rc)
{
	bool *ended = calloc((size_t)job->world_size, sizeof(*ended));
	char list[DDP_MISSING_BYTES];

	snprintf(list, sizeof(list), "rank %d", process);
	if (ended != NULL) {
		ended[process] = true;
		list_missing(job, ended, list, sizeof(list));
	}
	free(ended);
	return ddp_fail(DDP_ERR_PEER, "%s has ended, or its node was lost, before it gave its data (PMIx: %s)", list,
	                PMIx_Error_string(rc));
}

/* Gets the blob of the process that PMIx calls `process`, which the fence brought. */
static ddp_status get(const struct pmix_wireup *wireup, int process, void **blobs, size_t *sizes)
{
	char key[PMIX_MAX_KEYLEN + 1];
	pmix_value_t *value = NULL;
	pmix_info_t immediate;
	pmix_proc_t whom;
	bool yes = true;
	ddp_status status;

	key_of(wireup, key);
	PMIX_LOAD_PROCID(&whom, ddp_pmix_namespace(), (pmix_rank_t)process);
	PMIX_INFO_LOAD(&immediate, PMIX_IMMEDIATE, &yes, PMIX_BOOL);
	pmix_status_t rc = PMIx_Get(&whom, key, &immediate, 1, &value);
	PMIX_INFO_DESTRUCT(&immediate);
	/* A fence goes on without processes that have ended. */
	if (rc != PMIX_SUCCESS)
		return has_ended(wireup->base.job, process, rc);
	if (value->type == PMIX_BYTE_OBJECT)
		status = take(&value->data.bo, wireup->base.job->world_size, blobs, sizes);
	else
		status = ddp_fail(DDP_ERR_FORMAT, "PMIx gives no bytes for rank %d", process);
	PMIX_VALUE_RELEASE(value);
	return status;
}

static ddp_status pmix_exchange(ddp_wireup *wireup, const void *blob, size_t bytes,
                                uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	struct pmix_wireup *self = (struct pmix_wireup *)wireup;
	const ddp_job *job = wireup->job;

	if (bytes > DDP_BLOB_MAX)
		return ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes; %d are possible", bytes, DDP_BLOB_MAX);
	if (self->fence_pending)
		return ddp_fail(DDP_ERR_STATE, "an earlier exchange through PMIx was given up");
	self->sequence++;
	memset(blobs, 0, (size_t)job->world_size * sizeof(*blobs));
	ddp_status status = publish(self, blob, bytes);
	if (status == DDP_OK)
		status = fence_all(self, deadline_ns);
	for (int p = 0; p < job->world_size && status == DDP_OK; p++)
		status = get(self, p, blobs, sizes);
	if (status == DDP_OK)
		return DDP_OK;
	ddp_blobs_free(blobs, job->world_size);
	return ddp_fail_context(status, "rank %d on %s", job->rank, job->hostname);
}

static void pmix_close(ddp_wireup *wireup)
{
	ddp_pmix_detach();
	free(wireup);
}

static const ddp_wireup_ops pmix_ops = { .name = "pmix", .exchange = pmix_exchange, .close = pmix_close };

ddp_status ddp_pmix_open(const ddp_job *job, ddp_wireup **wireup)
{
	struct pmix_wireup *opened = calloc(1, sizeof(*opened));

	if (opened == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	opened->base.ops = &pmix_ops;
	opened->base.job = job;
	*wireup = &opened->base;
	return DDP_OK;
}

#else

ddp_status ddp_pmix_open(const ddp_job *job, ddp_wireup **wireup)
{
	(void)job;
	(void)wireup;
	return ddp_fail(DDP_ERR_UNSUPPORTED, "this build has no PMIx");
}

#endif
