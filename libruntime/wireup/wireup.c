/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/wireup.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "job/environment.h"
#include "job/pmix_client.h"
#include "wireup/open.h"

/* ---- a world of one: there is nobody to wait for ------------------------------------- */

static ddp_status self_exchange(ddp_wireup *wireup, const void *blob, size_t bytes,
                                uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	(void)wireup;
	(void)deadline_ns;
	if (bytes > DDP_BLOB_MAX)
		return ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes; %d are possible", bytes, DDP_BLOB_MAX);
	blobs[0] = malloc(bytes > 0 ? bytes : 1);
	if (blobs[0] == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a blob of %zu bytes", bytes);
	if (bytes > 0)
		memcpy(blobs[0], blob, bytes);
	sizes[0] = bytes;
	return DDP_OK;
}

static void self_close(ddp_wireup *wireup)
{
	free(wireup);
}

static const ddp_wireup_ops self_ops = { .name = "self", .exchange = self_exchange, .close = self_close };

ddp_status ddp_self_open(const ddp_job *job, ddp_wireup **wireup)
{
	ddp_wireup *self = malloc(sizeof(*self));

	if (self == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	self->ops = &self_ops;
	self->job = job;
	*wireup = self;
	return DDP_OK;
}

/* ---- the choice ---------------------------------------------------------------------- */

static bool is(const char *preferred, const char *name)
{
	return preferred != NULL && strcmp(preferred, name) == 0;
}

static ddp_status check_preferred(const ddp_job *job, const char *preferred)
{
	if (preferred != NULL && !is(preferred, "pmix") && !is(preferred, "tcp"))
		return ddp_fail(DDP_ERR_INVALID, "wire-up \"%.40s\" is not known; \"pmix\" or \"tcp\" are",
		                preferred);
	if (preferred != NULL && job->identity_source == DDP_SOURCE_SPAWN)
		return ddp_fail(DDP_ERR_INVALID, "wire-up \"%s\" was asked for, but the ranks of ddp_spawn() "
		                "have one of their own", preferred);
	if (is(preferred, "pmix") && !ddp_pmix_present())
		return ddp_fail(DDP_ERR_JOB, "wire-up \"pmix\" was asked for, but no PMIx server has started "
		                "this process, or this build has no PMIx: start with srun --mpi=pmix");
	return DDP_OK;
}

/* Whether the PMIx server's processes are the job's ranks. They are not where
   it started one torchrun per node, whose children are the ranks. */
static ddp_status pmix_has_all(const ddp_job *job, bool *all)
{
	ddp_job seen = { 0 };
	int64_t tasks = job->world_size;

	/* Asked first, as only one of several such children could attach. */
	*all = !ddp_environment_step_tasks(&tasks) || tasks == job->world_size;
	if (*all) {
		ddp_status status = ddp_pmix_attach(&seen);
		if (status != DDP_OK)
			return status;
		*all = seen.world_size == job->world_size;
		tasks = seen.world_size;
	}
	if (!*all) {
		ddp_pmix_detach();
		ddp_log(DDP_LOG_INFO, "PMIx counts %lld processes, the job %d ranks: not used for wire-up",
		        (long long)tasks, job->world_size);
	}
	return DDP_OK;
}

/* Whatever the launcher gave for TCP is better than PMIx: under Slurm, PMIx's fence may never end (see pmix.c). */
static bool has_address(const ddp_job *job, const ddp_key *key)
{
	return job->master_addr[0] != '\0' && key->present;
}

static ddp_status open_suitable(const ddp_job *job, const ddp_key *key, const char *preferred,
                                uint64_t deadline_ns, ddp_wireup **wireup)
{
	bool by_pmix = false;
	ddp_status status = check_preferred(job, preferred);

	if (status != DDP_OK)
		return status;
	if (job->world_size == 1 && preferred == NULL)
		return ddp_self_open(job, wireup);
	if (job->identity_source == DDP_SOURCE_SPAWN)
		return ddp_local_open(job, key, deadline_ns, wireup);
	if (is(preferred, "tcp") || (preferred == NULL && (has_address(job, key) || !ddp_pmix_present())))
		return ddp_tcp_open(job, key, deadline_ns, wireup);

	status = pmix_has_all(job, &by_pmix);
	if (status != DDP_OK)
		return status;
	if (by_pmix)
		return ddp_pmix_open(job, wireup);
	if (preferred == NULL)
		return ddp_tcp_open(job, key, deadline_ns, wireup);
	return ddp_fail(DDP_ERR_JOB, "wire-up \"pmix\" was asked for, but the PMIx server has not started "
	                "all %d ranks of the job", job->world_size);
}

ddp_status ddp_wireup_open(const ddp_job *job, const ddp_key *key, const char *preferred,
                           uint64_t deadline_ns, ddp_wireup **wireup)
{
	ddp_status status = open_suitable(job, key, preferred, deadline_ns, wireup);

	if (status == DDP_OK)
		(*wireup)->key = key;
	return status;
}
