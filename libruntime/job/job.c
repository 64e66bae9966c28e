/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "job/environment.h"
#include "job/job.h"
#include "job/pmix_client.h"
#include "job/spawn.h"

static void be_spawned(const ddp_spawned *spawned, ddp_job *job, ddp_key *key)
{
	job->rank = job->local_rank = spawned->rank;
	job->world_size = job->local_world_size = spawned->world_size;
	job->nnodes = 1;
	job->identity_source = DDP_SOURCE_SPAWN;
	*key = spawned->key;
}

static void be_single(ddp_job *job)
{
	job->world_size = job->local_world_size = job->nnodes = 1;
	job->identity_source = DDP_SOURCE_SINGLE;
}

static ddp_status discover(ddp_job *job, ddp_key *key)
{
	const ddp_spawned *spawned = ddp_spawned_get();
	ddp_status status = ddp_environment_slurm_ids(job);

	if (status != DDP_OK)
		return status;
	if (spawned != NULL) {
		be_spawned(spawned, job, key);
		return DDP_OK;
	}
	status = ddp_environment_key(key);
	if (status == DDP_OK)
		status = ddp_environment_check_plugin();
	if (status != DDP_OK)
		return status;
	if (ddp_environment_has_rank())
		return ddp_environment_job(job);
	if (ddp_pmix_present()) {
		status = ddp_pmix_attach(job);
		job->identity_source = DDP_SOURCE_PMIX;
		return status;
	}
	status = ddp_environment_check_single();
	if (status == DDP_OK)
		be_single(job);
	return status;
}

ddp_status ddp_job_discover(ddp_job *job, ddp_key *key)
{
	ddp_job found = { .pid = getpid() };
	ddp_key found_key = { .present = false };

	if (gethostname(found.hostname, sizeof(found.hostname) - 1) < 0)
		return ddp_fail_errno(DDP_ERR_JOB, errno, "this node's host name");
	ddp_status status = discover(&found, &found_key);
	if (status != DDP_OK)
		return status;
	*job = found;
	*key = found_key;
	return DDP_OK;
}
