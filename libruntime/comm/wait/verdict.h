/* SPDX-License-Identifier: Apache-2.0 */
/* comm/wait/verdict: who has not come. The rank that is waited for may itself wait for
   another one; at the end of such a chain is one that does not wait, or does not
   run, and that one is to be named.

   A rank that waits for long says so, and whom it holds to be the end of the
   chain, as soon as it knows: in its lines of the control segment to the ranks of
   its node, in a message to those of other nodes that inquire. Who is inquired
   after inquires after the one that it waits for, so that all ranks come to name
   the same before the first of them says it. */
#pragma once

#include "comm/core/comm.h"

/* This rank waits, and runs: to be called before each sleep of a wait, and from
   time to time while it is kept awake. */
void ddp_verdict_wait(ddp_comm *comm, uint64_t now);
/* It does not wait any more. */
void ddp_verdict_end(ddp_comm *comm);

/* Has a rank inquired after this one, not long ago? */
bool ddp_verdict_wanted(const ddp_comm *comm, uint64_t now);
/* So long before a deadline it is time to seek; if nobody is found by this time behind it, ranks that all run wait
   for each other. */
uint64_t ddp_verdict_before_ns(const ddp_comm *comm);
uint64_t ddp_verdict_end_ns(uint64_t deadline_ns);
/* When a wait has to look next, because one of these times or a verdict comes. */
uint64_t ddp_verdict_next_ns(const ddp_comm *comm, uint64_t deadline_ns, uint64_t now);
/* Inquires after the rank that is waited for; to be called again and again.
   Returns the rank at the end of the chain, or DDP_NOBODY while it is not known. */
int ddp_verdict_seek(ddp_comm *comm, int missing, uint64_t now);
