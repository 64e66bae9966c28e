/* SPDX-License-Identifier: Apache-2.0 */
#include "job/given.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

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
