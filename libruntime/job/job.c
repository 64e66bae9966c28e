/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "job/environment.h"
#include "job/job.h"
#include "job/pmix_client.h"
#include "job/spawn.h"

/* `index` of `count`, which is 0 where neither is given. */
static ddp_status take_place(const char *index_name, const char *count_name, int most, int *index, int *count)
{
	if (*count == 0 && *index == 0) {
		*index = *count = DDP_UNKNOWN;
		return DDP_OK;
	}
	if (*count < 1 || *count > most || *index < 0 || *index >= *count)
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: the job given says %s %d and %s %d of %d ranks; give both, or leave "
		                "both 0", index_name, *index, count_name, *count, most);
	return DDP_OK;
}

static ddp_status check(const ddp_job *given)
{
	if (given->world_size < 1 || given->rank < 0 || given->rank >= given->world_size)
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: the job given says rank %d of %d", given->rank, given->world_size);
	if (memchr(given->master_addr, '\0', sizeof(given->master_addr)) == NULL || given->master_port < 0 ||
	    given->master_port > 65535 || (given->master_addr[0] != '\0') != (given->master_port != 0))
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: the job given says master_addr \"%.*s\" and master_port %d",
		                DDP_HOST_MAX - 1, given->master_addr, given->master_port);
	for (size_t i = 0; i < sizeof(given->reserved) / sizeof(given->reserved[0]); i++)
		if (given->reserved[i] != 0)
			return ddp_fail(DDP_ERR_INVALID, "ddp_init: a reserved word of the job given is not 0: was it made by "
			                "{ .field = value }?");
	return DDP_OK;
}

ddp_status ddp_job_take(const ddp_job *given, ddp_job *job)
{
	ddp_status status = check(given);

	if (status != DDP_OK)
		return status;
	ddp_job taken = *given;
	taken.pid = getpid();
	taken.identity_source = DDP_SOURCE_GIVEN;
	taken.address_source = given->master_addr[0] != '\0' ? DDP_SOURCE_GIVEN : DDP_SOURCE_NONE;
	taken.plugin = false;
	memset(taken.hostname, 0, sizeof(taken.hostname));
	if (gethostname(taken.hostname, sizeof(taken.hostname) - 1) < 0)
		return ddp_fail_errno(DDP_ERR_JOB, errno, "this node's host name");
	status = take_place("local_rank", "local_world_size", given->world_size, &taken.local_rank, &taken.local_world_size);
	if (status == DDP_OK)
		status = take_place("node_rank", "nnodes", given->world_size, &taken.node_rank, &taken.nnodes);
	if (status == DDP_OK)
		*job = taken;
	return status;
}

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

/* ---- as JSON ---- */

static const char *source_name(ddp_source source)
{
	switch (source) {
	case DDP_SOURCE_NONE: return "none";
	case DDP_SOURCE_ENVIRONMENT: return "environment";
	case DDP_SOURCE_PMIX: return "pmix";
	case DDP_SOURCE_SPAWN: return "spawn";
	case DDP_SOURCE_SINGLE: return "single";
	case DDP_SOURCE_GIVEN: return "given";
	}
	return "unknown";
}

ddp_status ddp_job_json(const ddp_job *job, char *text, size_t bytes)
{
	if (job == NULL)
		return ddp_fail_null("ddp_job_json", "job");
	if (text == NULL)
		return ddp_fail_null("ddp_job_json", "text");
	if (bytes == 0)
		return ddp_fail(DDP_ERR_INVALID, "ddp_job_json: no room for the text");
	text[0] = '\0';
	/* Host names come from outside: what is not UTF-8 makes s* fail. */
	json_t *record = json_pack("{si si si si si si ss si sI sI sI ss sI ss ss sb}",
		"rank", job->rank, "world_size", job->world_size,
		"local_rank", job->local_rank, "local_world_size", job->local_world_size,
		"node_rank", job->node_rank, "nnodes", job->nnodes,
		"master_addr", job->master_addr, "master_port", job->master_port,
		"job_id", (json_int_t)job->job_id, "step_id", (json_int_t)job->step_id,
		"restart_count", (json_int_t)job->restart_count,
		"hostname", job->hostname, "pid", (json_int_t)job->pid,
		"identity_source", source_name(job->identity_source),
		"address_source", source_name(job->address_source),
		"plugin", (int)job->plugin);
	if (record == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_job_json: master_addr or hostname is not UTF-8");

	size_t needed = json_dumpb(record, text, bytes - 1, JSON_COMPACT);
	json_decref(record);
	if (needed == 0 || needed > bytes - 1) {
		text[0] = '\0';
		return ddp_fail(DDP_ERR_INVALID, "ddp_job_json: the record takes %zu bytes, "
		                "there is room for %zu", needed + 1, bytes);
	}
	text[needed] = '\0';
	return DDP_OK;
}
