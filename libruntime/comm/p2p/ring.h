/* SPDX-License-Identifier: Apache-2.0 */
/* comm/p2p/ring: messages between ranks of a node. Each ordered pair of ranks has a ring of bytes in the
   control segment, through which messages follow one another.

   A receiver keeps messages that come before they are asked for, but not without bound: of a
   large one, and once it keeps much, the sender writes the header alone, and the data follow
   when the receiver asks for them. */
#pragma once

#include "comm/core/comm.h"

/* The ring from one rank to another. Counters only grow. */
typedef struct ddp_ring {
	alignas(128) _Atomic uint64_t written; /* by the sender */
	_Atomic uint64_t announced;            /* by the sender: messages of which the header alone was written */
	alignas(128) _Atomic uint64_t read;    /* by the receiver, as the next ones */
	_Atomic uint64_t kept;                 /* bytes that messages take which nobody has asked for yet */
	_Atomic uint64_t wanted;               /* the number of an announced message; 0: none yet */
	alignas(128) char bytes[];
} ddp_ring;

/* The bytes of all rings of a node. */
size_t ddp_rings_bytes(int ranks);

ddp_status ddp_ring_open(ddp_comm *comm);
/* Frees messages that nobody asked for. */
void ddp_ring_free(ddp_comm *comm);

/* Moves a send to a rank of this node on, or a receive from one or from any: true if it is complete. *moved
   becomes true if something moved. run.lock is held. */
bool ddp_ring_send(ddp_comm *comm, ddp_request *r, bool *moved);
bool ddp_ring_receive(ddp_comm *comm, ddp_request *r, bool *moved);
