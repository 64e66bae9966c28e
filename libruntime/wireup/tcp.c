/* Where the star's ranks meet: at MASTER_ADDR:MASTER_PORT, or at the socket
   that ddp_spawn() left open. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "job/spawn.h"
#include "wireup/open.h"
#include "wireup/star.h"

ddp_status ddp_tcp_open(const ddp_job *job, const ddp_key *key, uint64_t deadline_ns,
                        ddp_wireup **wireup)
{
	ddp_rendezvous rendezvous;
	int listener;

	if (job->master_addr[0] == '\0')
		return ddp_fail(DDP_ERR_JOB, "rank %d on %s: wire-up by TCP needs MASTER_ADDR and MASTER_PORT; "
		                "srun --ddp sets them", job->rank, job->hostname);
	if (!key->present)
		return ddp_fail(DDP_ERR_AUTH, "rank %d on %s: wire-up by TCP needs the step's key; srun --ddp "
		                "sets DDP_KEY; without it, give all ranks the same DDP_KEY=$(openssl rand "
		                "-hex 32)", job->rank, job->hostname);
	ddp_status status = ddp_rendezvous_resolve(job, deadline_ns, &rendezvous);
	if (status != DDP_OK)
		return status;
	if (job->rank != 0)
		return ddp_star_leaf_open(false, job, key, &rendezvous, deadline_ns, wireup);
	status = ddp_rendezvous_listen(job, &rendezvous, &listener);
	if (status != DDP_OK)
		return status;
	return ddp_star_centre_open(false, job, key, listener, rendezvous.where, deadline_ns, wireup);
}

ddp_status ddp_local_open(const ddp_job *job, const ddp_key *key, uint64_t deadline_ns,
                          ddp_wireup **wireup)
{
	const ddp_spawned *spawned = ddp_spawned_get();
	ddp_rendezvous rendezvous = { .count = 1, .where = "the socket of ddp_spawn()" };

	if (spawned == NULL)
		return ddp_fail(DDP_ERR_INTERNAL, "this process is no rank of ddp_spawn()");
	if (job->rank == 0) {
		int listener = ddp_spawned_listener();
		if (listener < 0)
			return ddp_fail_errno(DDP_ERR_NOMEM, errno, "rank 0 cannot listen at %s", rendezvous.where);
		return ddp_star_centre_open(true, job, key, listener, rendezvous.where, deadline_ns, wireup);
	}
	memcpy(&rendezvous.addresses[0], &spawned->rendezvous, spawned->rendezvous_bytes);
	rendezvous.bytes[0] = spawned->rendezvous_bytes;
	return ddp_star_leaf_open(true, job, key, &rendezvous, deadline_ns, wireup);
}
