/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/secret: by what a rank knows that a message comes from another
 * rank of the communicator. All ranks make a secret from random shares that
 * they gave each other in the wire-up, and from the step's key; each ordered
 * pair of ranks has a token made from it, which precedes all messages.
 */
#ifndef DDP_COMM_NET_SECRET_H
#define DDP_COMM_NET_SECRET_H

#include "ddp.h"
#include "job/job.h"

enum { DDP_SECRET_BYTES = 32, DDP_TOKEN_BYTES = 16 };

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
ddp_status ddp_secret_make(const ddp_key *key, const ddp_share *shares, int count,
                           ddp_secret *secret);

/* Makes the token that precedes a message of the rank `from` to the rank `to`. */
ddp_status ddp_token_make(const ddp_secret *secret, int from, int to, ddp_token *token);

/* Takes as long wherever they differ. */
bool ddp_token_same(const ddp_token *a, const ddp_token *b);

#endif
