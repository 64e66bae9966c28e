/*
 * star: wire-up over connections to rank 0. Rank 0 is the centre, all others
 * are leaves. The centre waits until every rank has come and has proven the
 * step's key (auth.h); what cannot prove it is refused, logged and forgotten,
 * and never holds up the job. Then blobs go in, and all blobs come back.
 */
#ifndef DDP_WIREUP_STAR_H
#define DDP_WIREUP_STAR_H

#include "wireup/auth.h"
#include "wireup/socket.h"
#include "wireup/wireup.h"

/* `local`: the ranks are those of ddp_spawn(). Takes over `listener`, also on failure. */
ddp_status ddp_star_centre_open(bool local, const ddp_job *job, const ddp_key *key,
                                int listener, const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                                ddp_wireup **wireup);

ddp_status ddp_star_leaf_open(bool local, const ddp_job *job, const ddp_key *key,
                              const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                              ddp_wireup **wireup);

/* Rank 0, as a leaf knows it. */
typedef struct ddp_centre_found {
	int fd;
	char host[DDP_AUTH_HOST_BYTES];
} ddp_centre_found;

/* Until rank 0 is found and both ends have proven the key; writes *found on success only. */
ddp_status ddp_star_search(const ddp_job *job, const ddp_key *key, const ddp_rendezvous *rendezvous,
                           uint64_t deadline_ns, ddp_centre_found *found);

#endif
