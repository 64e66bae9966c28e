/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/carry: how the ranks of a node carry to those of others what they tell in a round of comm/group/agreement.
   The communicator has a network, except where it says otherwise. */
#pragma once

#include "comm/group/proposal.h"

/* Has the rank ended, or is it lost? */
bool ddp_carry_is_gone(const ddp_comm *comm, int r);

/* A round begins: nothing of the last one is under way any more. */
void ddp_carry_begin(ddp_agreement *m);
/* Those that were given up in the last round are told so, by ranks that are connected with them and by a carrier. */
void ddp_carry_given_up(ddp_agreement *m);
/* Takes what was told to this rank, and shows it on this node. */
void ddp_carry_take(ddp_agreement *m);
/* A rank has come: if it is of this node, this rank may carry its proposal. Also without a network. */
void ddp_carry_add(ddp_agreement *m, const ddp_proposal *n);
/* Passes on what has come from this node's ranks; and after a failure what may have been lost of the last round. */
void ddp_carry_on(ddp_agreement *m, int64_t waited_ms);
/* Has rank r got all that this rank has sent? Or it is lost. */
bool ddp_carry_is_told(const ddp_agreement *m, int r);
/* A round ends: nothing is received any more. Also without a network. */
void ddp_carry_end(ddp_agreement *m);
