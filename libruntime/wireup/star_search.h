/* SPDX-License-Identifier: Apache-2.0 */
/*
 * star_search: a leaf's search for rank 0, which may start later than the leaf, at several ports
 * at once. In each round the leaf connects to the ports that it is not connected to. If a challenge
 * comes, the leaf goes on with the handshake. Other programs that listen at such a port may send
 * nothing, send other bytes, close the connection, or drop packets.
 */
#ifndef DDP_WIREUP_STAR_SEARCH_H
#define DDP_WIREUP_STAR_SEARCH_H

#include "wireup/auth.h"
#include "wireup/socket.h"

/* Rank 0, as a leaf knows it. */
typedef struct ddp_centre_found {
	int fd;
	char host[DDP_AUTH_HOST_BYTES];
} ddp_centre_found;

/* Searches until rank 0 is found and both ends have proven the key. *found is written on success only. */
ddp_status ddp_star_search(const ddp_job *job, const ddp_key *key, const ddp_rendezvous *rendezvous,
                           uint64_t deadline_ns, ddp_centre_found *found);

#endif
