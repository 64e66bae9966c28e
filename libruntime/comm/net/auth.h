/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/auth: by what a rank knows that a message, or a connection, comes from another rank of the communicator.

   Messages: all ranks make a secret from random shares that they gave each other in the wire-up, and from the step's
   key; each ordered pair of ranks has a token made from it, which precedes all messages.

   Connections to one of UCX's listening sockets, and beats: the first bytes prove that the rank that connects knows
   the listener's key. A proof holds for one pair of addresses and ports, and a listener takes it once. */
#pragma once

#include "comm/net/listener.h"
#include "ddp.h"
#include "job/job.h"

enum { DDP_SECRET_BYTES = 32, DDP_TOKEN_BYTES = 16, DDP_PROOF_NONCE_BYTES = 16 };

typedef struct ddp_share {
	unsigned char bytes[DDP_SECRET_BYTES];
} ddp_share;

typedef struct ddp_secret {
	unsigned char bytes[DDP_SECRET_BYTES];
} ddp_secret;

typedef struct ddp_token {
	unsigned char bytes[DDP_TOKEN_BYTES];
} ddp_token;

ddp_status ddp_share_make(ddp_share *share);

/* Makes the secret from all ranks' shares, in the order of ranks. `key` is NULL if not all ranks have the key. */
ddp_status ddp_secret_make(const ddp_key *key, const ddp_share *shares, int count, ddp_secret *secret);

/* Makes the token that precedes a message of the rank `from` to the rank `to`. */
ddp_status ddp_token_make(const ddp_secret *secret, int from, int to, ddp_token *token);

/* Takes as long wherever they differ. */
bool ddp_token_same(const ddp_token *a, const ddp_token *b);

typedef struct ddp_proof_key {
	unsigned char bytes[DDP_SECRET_BYTES];
} ddp_proof_key;

typedef struct ddp_proof {
	char magic[8];
	unsigned char nonce[DDP_PROOF_NONCE_BYTES];
	unsigned char digest[DDP_SECRET_BYTES];
} ddp_proof;

/* The key of the listeners of the process that made `share`; `key` is NULL where not all processes have it. */
ddp_status ddp_proof_key_make(const ddp_key *key, const ddp_share *share, ddp_proof_key *proof_key);

/* Makes the proof of a connection from `near` to `far`. */
ddp_status ddp_proof_make(const ddp_proof_key *key, const ddp_place *near, const ddp_place *far, ddp_proof *proof);

/* Can a proof begin with these bytes? */
bool ddp_proof_may_begin(const void *begin, size_t bytes);
/* `from` is the other end of the connection, `to` the listener's. */
bool ddp_proof_holds(const ddp_proof_key *key, const ddp_place *from, const ddp_place *to, const ddp_proof *proof);
