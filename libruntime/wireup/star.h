/* SPDX-License-Identifier: Apache-2.0 */
/* star: wire-up over connections to rank 0. Rank 0 is the centre, all others are leaves. The centre waits until every
   rank has connected and has proven the step's key (auth.h). A connection without a proof is refused and logged, and
   does not delay the job. Then each leaf sends its blob, and the centre sends all blobs back: to each leaf, or, if they
   are many, to one leaf of each node, which shares them with the others (node_table.h). Each of the two functions is in
   the file of its side. */
#pragma once

#include "wireup/auth.h"
#include "wireup/socket.h"
#include "wireup/wireup.h"

/* `local`: the ranks are those of ddp_spawn(). Takes over `listener`, also on failure. */
ddp_status ddp_star_centre_open(bool local, const ddp_job *job, const ddp_key *key,
                                int listener, const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                                ddp_wireup **wireup);

ddp_status ddp_star_leaf_open(bool local, const ddp_job *job, const ddp_key *key,
                              const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                              ddp_wireup **wireup);
