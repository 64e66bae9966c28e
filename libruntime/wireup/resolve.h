/* SPDX-License-Identifier: Apache-2.0 */
/* resolve: finds where ranks meet: the addresses of a host name, and the ports there. getaddrinfo() takes no deadline,
   so it runs in a thread of its own. If the deadline passes, the caller goes on, and the thread ends by itself. */
#pragma once

#include "wireup/socket.h"

/* Resolves MASTER_ADDR:MASTER_PORT. If the job has several nodes, loopback addresses count only on the node whose name
   they stand for, or where torchrun's agents have met by one; if its name has no others there, rank 0 is given every
   address of the node to listen at. */
ddp_status ddp_rendezvous_resolve(const ddp_job *job, uint64_t deadline_ns, ddp_rendezvous *rendezvous);

/* Reads TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RUN_ID. */
void ddp_ports_choose(int master_port, ddp_ports *ports);
