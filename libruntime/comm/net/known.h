/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/known: the keys of listening sockets of peers, by place.
 */
#ifndef DDP_COMM_NET_KNOWN_H
#define DDP_COMM_NET_KNOWN_H

#include "comm/net/proof.h"

/* A hash table, in which a place has its slot or one of the next. It begins as zeros. */
typedef struct ddp_known {
	struct ddp_known_slot *slots;
	size_t count, room; /* room is a power of two, or 0 */
} ddp_known;

/* Keeps a copy of the key, in the place of one that is there; a place without a family is nowhere, and is not
   kept. False: there is no memory. */
bool ddp_known_add(ddp_known *known, const ddp_place *place, const ddp_proof_key *key);
/* NULL: the place is not known. The key stays where it is until the next call of another function. */
const ddp_proof_key *ddp_known_find(const ddp_known *known, const ddp_place *place);
void ddp_known_free(ddp_known *known);

#endif
