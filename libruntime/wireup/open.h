/* SPDX-License-Identifier: Apache-2.0 */
/* open: the kinds of wire-up, from which ddp_wireup_open() chooses. */
#pragma once

#include "wireup/wireup.h"

/* A world of one. */
ddp_status ddp_self_open(const ddp_job *job, ddp_wireup **wireup);

/* The ranks meet at MASTER_ADDR:MASTER_PORT. */
ddp_status ddp_tcp_open(const ddp_job *job, const ddp_key *key, uint64_t deadline_ns, ddp_wireup **wireup);

/* The ranks of ddp_spawn() meet. */
ddp_status ddp_local_open(const ddp_job *job, const ddp_key *key, uint64_t deadline_ns, ddp_wireup **wireup);

/* `job` may count ranks in another order than PMIx does. */
ddp_status ddp_pmix_open(const ddp_job *job, ddp_wireup **wireup);
