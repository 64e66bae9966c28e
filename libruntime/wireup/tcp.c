/* Where the star's ranks meet: at MASTER_ADDR:MASTER_PORT, or at the socket
   that ddp_spawn() left open. */
#include <string.h>

#include "base/error.h"
#include "job/spawn.h"
#include "wireup/open.h"
#include "wireup/star.h"

ddp_status ddp_tcp_open(const ddp_job *job, const ddp_key *key, uint64_t deadline_ns,
                        ddp_wireup **wireup)
{
	ddp_meeting meeting;
	int listener;

	if (job->master_addr[0] == '\0')
		return ddp_fail(DDP_ERR_JOB, "rank %d on %s: wire-up by TCP needs MASTER_ADDR and MASTER_PORT; "
		                "srun --ddp sets them", job->rank, job->hostname);
	if (!key->present)
		return ddp_fail(DDP_ERR_AUTH, "rank %d on %s: wire-up by TCP needs the step's key; srun --ddp "
		                "sets DDP_KEY; without it, give all ranks the same DDP_KEY=$(openssl rand "
		                "-hex 32)", job->rank, job->hostname);
	ddp_status status = ddp_meeting_resolve(job, deadline_ns, &meeting);
	if (status != DDP_OK)
		return status;
	if (job->rank != 0)
		return ddp_star_leaf_open(false, job, key, &meeting, deadline_ns, wireup);
	status = ddp_meeting_listen(job, &meeting, &listener);
	if (status != DDP_OK)
		return status;
	return ddp_star_centre_open(false, job, key, listener, meeting.where, deadline_ns, wireup);
}

ddp_status ddp_local_open(const ddp_job *job, const ddp_key *key, uint64_t deadline_ns,
                          ddp_wireup **wireup)
{
	const ddp_spawned *spawned = ddp_spawned_get();
	ddp_meeting meeting = { .count = 1, .where = "the socket of ddp_spawn()" };

	if (spawned == NULL)
		return ddp_fail(DDP_ERR_INTERNAL, "this process is no rank of ddp_spawn()");
	if (job->rank == 0) {
		int listener = ddp_spawned_take_listener();
		if (listener < 0)
			return ddp_fail(DDP_ERR_STATE, "ddp_init() was called before in this rank of ddp_spawn()");
		return ddp_star_centre_open(true, job, key, listener, meeting.where, deadline_ns, wireup);
	}
	memcpy(&meeting.addresses[0], &spawned->meeting, spawned->meeting_bytes);
	meeting.bytes[0] = spawned->meeting_bytes;
	return ddp_star_leaf_open(true, job, key, &meeting, deadline_ns, wireup);
}
