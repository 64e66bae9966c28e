/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <string.h>

#include "base/error.h"
#include "ddp.h"

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
