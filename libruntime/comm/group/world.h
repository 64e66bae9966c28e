/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/world: the communicator of all ranks of the job. */
#pragma once

#include "wireup/wireup.h"

/* Finds out which ranks can share memory, and builds it. Collective. timeout_ms is
   each operation's deadline and that of opening. `job` must outlive it. `former`: see ddp_comm_open(). */
ddp_status ddp_world_open(const ddp_job *job, ddp_wireup *wireup, int timeout_ms, const ddp_comm *former,
                          ddp_comm **comm);
