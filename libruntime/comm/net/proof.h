/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/proof: the first bytes of a connection to one of UCX's listening sockets. They prove
 * that the rank that connects knows the listener's key. A proof holds for one pair of
 * addresses and ports, and a listener takes it once.
 */
#ifndef DDP_COMM_NET_PROOF_H
#define DDP_COMM_NET_PROOF_H

#include "comm/net/listener.h"
#include "comm/net/secret.h"

enum { DDP_PROOF_NONCE_BYTES = 16 };

typedef struct ddp_proof_key {
	unsigned char bytes[DDP_SECRET_BYTES];
} ddp_proof_key;

typedef struct ddp_proof {
	char magic[8];
	unsigned char nonce[DDP_PROOF_NONCE_BYTES];
	unsigned char digest[DDP_SECRET_BYTES];
} ddp_proof;

/* The key of the listeners of the process that made `share`; `key` is NULL where not
   all processes have it. */
ddp_status ddp_proof_key_make(const ddp_key *key, const ddp_share *share, ddp_proof_key *proof_key);

/* Makes the proof of a connection from `near` to `far`. */
ddp_status ddp_proof_make(const ddp_proof_key *key, const ddp_place *near, const ddp_place *far, ddp_proof *proof);

/* Can a proof begin with these bytes? */
bool ddp_proof_may_begin(const void *begin, size_t bytes);
/* `from` is the other end of the connection, `to` the listener's. */
bool ddp_proof_holds(const ddp_proof_key *key, const ddp_place *from, const ddp_place *to, const ddp_proof *proof);

#endif
