/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/silence: the nodes of the job that are silent: their power or their network is lost. A node is silent for
   the whole process, and for ever. Each communicator with a rank there breaks (comm/core/failure), with a sentence that
   is the same on all its ranks. comm/net finds silent nodes (comm/net/beats), and tells the ranks of other nodes; the
   ranks of a node tell each other in the control segments of their communicators. */
#pragma once

#include "ddp.h"
#include "comm/core/roster.h"

/* Notes that the node of this process of the job has been silent for so long. False: that was known. Any thread. */
bool ddp_silence_note(ddp_roster *roster, int world_rank, int silent_ms);
/* How many nodes are known to be silent. */
static inline int ddp_silence_count(const ddp_roster *roster)
{
	return atomic_load_explicit(&roster->silences, memory_order_acquire);
}
/* Is the node of this process of the job silent? */
static inline bool ddp_silence_of(const ddp_roster *roster, int world_rank)
{
	return atomic_load(&roster->peers[world_rank].silent_ms) != 0;
}

enum { DDP_SILENCE_TEXT = 512 };

/* Returns the first rank of the communicator that is on a silent node, and sets what the error says; or DDP_NOBODY. */
int ddp_silence_find(const ddp_comm *comm, char text[DDP_SILENCE_TEXT]);

/* Shows the ranks of this node, in the communicator's control segment, the silent nodes that this process knows;
   and notes those that other ranks have shown there. Any thread. */
void ddp_silence_show(const ddp_comm *comm);
void ddp_silence_hear(const ddp_comm *comm);
