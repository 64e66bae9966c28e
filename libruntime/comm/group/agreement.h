/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/agreement: rounds in which the ranks that are left of a broken
   communicator tell each other something, over what still works of it: its
   shared memory and its connections.

   On a node, ranks read in its shared memory what the others tell (comm/group/proposal). Between two nodes, two
   ranks of each carry what their node's ranks have told to two ranks of the other node, which show it to all there
   (comm/group/carry). So a round takes 4 messages between two nodes, and 2 connections, however many ranks the nodes
   have. The second path makes up for the first if a rank of that dies. If a rank of a path is lost, another one
   takes its place, and gets or carries the last round's records again: the lost one may have been through with that
   round before it had passed them on. Nobody does so for the last round of all, which has the second path alone. If
   ranks of a path live, but do not come for long, each rank tells all ranks of the other node itself.

   A rank of a node that is gone and has told nothing is told of like the others, as one that is gone (`stage` 0): only
   few ranks of other nodes have a connection that shows it.

   By a tree each rank would need fewer messages, but would hear later, and not at all from beyond an inner node that
   dies in a round.

   Each round has a deadline of its own, longer than the last one's: ranks that
   waited in vain for the same silent rank may be as far apart as they waited. */
#pragma once

#include "comm/group/proposal.h"

ddp_status ddp_agreement_open(ddp_agreement *m, ddp_comm *comm);
void ddp_agreement_close(ddp_agreement *m);

/* One round: tells `data` to all that are present, and waits for what they
   tell. Who is gone, or silent until the deadline, is not present any more.
   DDP_ERR_PEER if the others have gone on without this rank, or its network has
   ended. */
ddp_status ddp_agreement_round(ddp_agreement *m, uint32_t stage, int verdict, bool decided, const void *data,
                               size_t bytes);
