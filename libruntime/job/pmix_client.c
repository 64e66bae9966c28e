/* SPDX-License-Identifier: Apache-2.0 */
#include "job/pmix_client.h"

#include "base/error.h"

#ifdef HAVE_PMIX

#include <pmix.h>
#include <string.h>

#include "base/log.h"
#include "job/environment.h"

static struct {
	bool attached;
	pmix_proc_t self;
} client;

bool ddp_pmix_present(void)
{
	return ddp_environment("PMIX_NAMESPACE") != NULL && ddp_environment("PMIX_RANK") != NULL;
}

/* A number that the server gave us at start; never waits for another rank. */
static ddp_status job_value(pmix_rank_t rank, const char *key, int *value)
{
	pmix_proc_t whom;
	pmix_info_t optional;
	pmix_value_t *found = NULL;
	bool yes = true;

	PMIX_LOAD_PROCID(&whom, client.self.nspace, rank);
	PMIX_INFO_LOAD(&optional, PMIX_OPTIONAL, &yes, PMIX_BOOL);
	pmix_status_t rc = PMIx_Get(&whom, key, &optional, 1, &found);
	PMIX_INFO_DESTRUCT(&optional);
	if (rc != PMIX_SUCCESS)
		return ddp_fail(DDP_ERR_JOB, "the PMIx server does not tell %s: %s", key,
		                PMIx_Error_string(rc));

	uint64_t number = UINT64_MAX;
	if (found->type == PMIX_UINT32)
		number = found->data.uint32;
	else if (found->type == PMIX_UINT16)
		number = found->data.uint16;
	PMIX_VALUE_RELEASE(found);
	if (number > INT32_MAX)
		return ddp_fail(DDP_ERR_JOB, "the PMIx server gives %s in an unexpected form", key);
	*value = (int)number;
	return DDP_OK;
}

ddp_status ddp_pmix_attach(ddp_job *job)
{
	if (!client.attached) {
		pmix_status_t rc = PMIx_Init(&client.self, NULL, 0);
		if (rc != PMIX_SUCCESS)
			return ddp_fail(DDP_ERR_JOB, "cannot reach the PMIx server of this step: %s "
			                "(start with srun --mpi=pmix, or unset PMIX_NAMESPACE)",
			                PMIx_Error_string(rc));
		client.attached = true;
	}
	job->rank = (int)client.self.rank;
	job->node_rank = job->nnodes = DDP_UNKNOWN;
	ddp_status status = job_value(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, &job->world_size);
	if (status == DDP_OK)
		status = job_value(PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE, &job->local_world_size);
	if (status == DDP_OK)
		status = job_value(client.self.rank, PMIX_LOCAL_RANK, &job->local_rank);
	if (status == DDP_OK && (job->rank < 0 || job->rank >= job->world_size))
		status = ddp_fail(DDP_ERR_JOB, "PMIx says rank %d of %d", job->rank, job->world_size);
	if (status != DDP_OK)
		ddp_pmix_detach();
	return status;
}

void ddp_pmix_detach(void)
{
	if (!client.attached)
		return;
	client.attached = false;
	pmix_status_t rc = PMIx_Finalize(NULL, 0);
	if (rc != PMIX_SUCCESS)
		ddp_log(DDP_LOG_WARN, "leaving the PMIx server: %s", PMIx_Error_string(rc));
}

const char *ddp_pmix_namespace(void)
{
	return client.self.nspace;
}

#else

bool ddp_pmix_present(void)
{
	return false;
}

ddp_status ddp_pmix_attach(ddp_job *job)
{
	(void)job;
	return ddp_fail(DDP_ERR_UNSUPPORTED, "this build has no PMIx");
}

void ddp_pmix_detach(void)
{
}

const char *ddp_pmix_namespace(void)
{
	return "";
}

#endif
