/* SPDX-License-Identifier: Apache-2.0 */
/* The star's ranks meet at MASTER_ADDR:MASTER_PORT, or at the socket that ddp_spawn() left open. */
#include <errno.h>
#include <openssl/crypto.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "job/environment.h"
#include "job/spawn.h"
#include "wireup/open.h"
#include "wireup/resolve.h"
#include "wireup/star.h"
#include "wireup/torchrun.h"

/* torchrun makes no key. On a single node none is needed: the kernel knows whose a process is. */
static bool is_torchruns_only_node(const ddp_job *job)
{
	return ddp_environment("TORCHELASTIC_RUN_ID") != NULL && job->master_addr[0] != '\0' &&
	       job->local_world_size == job->world_size;
}

/* A local socket whose name only this user's ranks of this torchrun derive. */
static void name_socket(const ddp_job *job, ddp_rendezvous *rendezvous)
{
	struct sockaddr_un *address = (struct sockaddr_un *)&rendezvous->addresses[0];
	char text[512];

	snprintf(text, sizeof(text), "%s %d %s", job->master_addr, job->master_port,
	         ddp_environment("TORCHELASTIC_RUN_ID"));
	*rendezvous = (ddp_rendezvous){ .count = 1, .ports.count = 1, .same_user = true };
	address->sun_family = AF_UNIX;
	int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "ddp-%u-%016llx",
	                      (unsigned)geteuid(), (unsigned long long)ddp_hash(text, strlen(text)));
	rendezvous->bytes[0] = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
	snprintf(rendezvous->where, sizeof(rendezvous->where), "the local socket @%s",
	         address->sun_path + 1);
}

static ddp_status open_same_user(const ddp_job *job, uint64_t deadline_ns, ddp_wireup **wireup)
{
	/* Each end asks the kernel for the other's user; the handshake then only tells ranks. */
	static const ddp_key no_secret = { .present = true };
	ddp_rendezvous rendezvous;
	int listener;

	name_socket(job, &rendezvous);
	if (job->rank != 0)
		return ddp_star_leaf_open(true, job, &no_secret, &rendezvous, deadline_ns, wireup);
	ddp_status status = ddp_rendezvous_listen(job, &rendezvous, &listener);
	return status == DDP_OK ? ddp_star_centre_open(true, job, &no_secret, listener, &rendezvous,
	                                               deadline_ns, wireup) : status;
}

ddp_status ddp_tcp_open(const ddp_job *job, const ddp_key *key, uint64_t deadline_ns, ddp_wireup **wireup)
{
	ddp_rendezvous rendezvous;
	ddp_key used;
	int listener;

	if (!key->present && is_torchruns_only_node(job))
		return open_same_user(job, deadline_ns, wireup);
	if (job->master_addr[0] == '\0' && job->identity_source == DDP_SOURCE_GIVEN)
		return ddp_fail(DDP_ERR_JOB, "rank %d on %s: ddp_init() is given a job, but no place where its ranks meet: give a "
		                "store, or wireup \"file:///PATH\"", job->rank, job->hostname);
	if (job->master_addr[0] == '\0')
		return ddp_fail(DDP_ERR_JOB, "rank %d on %s: wire-up by TCP needs MASTER_ADDR and MASTER_PORT; "
		                "srun --ddp sets them", job->rank, job->hostname);
	if (!key->present)
		return ddp_fail(DDP_ERR_AUTH, "rank %d on %s: wire-up by TCP needs the step's key; srun --ddp "
		                "sets DDP_KEY; without it, give all ranks the same DDP_KEY=$(openssl rand "
		                "-hex 32)", job->rank, job->hostname);
	ddp_status status = ddp_rendezvous_resolve(job, deadline_ns, &rendezvous);
	if (status == DDP_OK)
		status = ddp_torchrun_key(job, key, &used);
	if (status == DDP_OK && job->rank != 0)
		status = ddp_star_leaf_open(false, job, &used, &rendezvous, deadline_ns, wireup);
	else if (status == DDP_OK && (status = ddp_rendezvous_listen(job, &rendezvous, &listener)) == DDP_OK)
		status = ddp_star_centre_open(false, job, &used, listener, &rendezvous, deadline_ns, wireup);
	OPENSSL_cleanse(&used, sizeof(used));
	return status;
}

ddp_status ddp_local_open(const ddp_job *job, const ddp_key *key, uint64_t deadline_ns, ddp_wireup **wireup)
{
	const ddp_spawned *spawned = ddp_spawned_get();
	ddp_rendezvous rendezvous = { .count = 1, .ports.count = 1, .where = "the socket of ddp_spawn()" };

	if (spawned == NULL)
		return ddp_fail(DDP_ERR_INTERNAL, "this process is no rank of ddp_spawn()");
	if (job->rank == 0) {
		int listener = ddp_spawned_listener();
		if (listener < 0)
			return ddp_fail_errno(DDP_ERR_NOMEM, errno, "rank 0 cannot listen at %s", rendezvous.where);
		return ddp_star_centre_open(true, job, key, listener, &rendezvous, deadline_ns, wireup);
	}
	memcpy(&rendezvous.addresses[0], &spawned->rendezvous, spawned->rendezvous_bytes);
	rendezvous.bytes[0] = spawned->rendezvous_bytes;
	return ddp_star_leaf_open(true, job, key, &rendezvous, deadline_ns, wireup);
}
