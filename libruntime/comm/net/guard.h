/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/guard: who may connect to UCX's listening TCP sockets. UCX trusts whoever connects
   there, and ends the process if the first bytes are wrong. A guard accepts the connections in UCX's place,
   in UCX's own thread, and UCX gets only those that began with a proof (comm/net/auth). It also
   sends this proof on the connections that UCX begins to listeners that the guard knows.

   The guard does this in functions that UCX's transports call (comm/net/calls). Listeners of other users of
   UCX in the process are not touched. */
#pragma once

#include "comm/net/auth.h"

typedef struct ddp_guard ddp_guard;

/* At most so many connections wait for their proofs. Each of them takes a descriptor. */
enum { DDP_GUARD_HELD = 64 };

/* A guard for the listeners of one worker of UCX. It holds connections back, without reading from them, until
   one of the two functions below. */
ddp_status ddp_guard_make(ddp_guard **guard);

/* UCX makes the guard's worker between these two, in the calling thread. */
void ddp_guard_begin(ddp_guard *guard);
void ddp_guard_end(void);

/* Why the guard does not keep attackers from some of these listeners. NULL: it keeps them from all. */
const char *ddp_guard_lacks(const ddp_guard *guard, const ddp_listeners *listeners);

/* From now on, UCX gets the connections that began with a proof by this key. */
void ddp_guard_require_proof(ddp_guard *guard, const ddp_proof_key *key);
/* From now on, UCX gets all connections: some peer cannot send proofs. */
void ddp_guard_let_all_in(ddp_guard *guard);

/* Listeners of a peer, to which this process may connect. A place that is known gets the new key. */
ddp_status ddp_guard_add_peer(ddp_guard *guard, const ddp_place *places, int count, const ddp_proof_key *key);

/* How many connections were closed because they did not begin with a proof. */
int ddp_guard_refused(const ddp_guard *guard);

/* Call this before UCX's worker is destroyed. From then on nobody is let in. */
void ddp_guard_close(ddp_guard *guard);
/* Call this after UCX's worker was destroyed. */
void ddp_guard_free(ddp_guard *guard);
