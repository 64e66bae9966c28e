/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ports: where rank 0 may listen. MASTER_PORT comes first. Another program may hold it: torchrun's
 * agent keeps it for its store, and PyTorch's init_process_group() listens there on rank 0. All
 * ranks therefore derive the same further ports, which are libddp's own. Each connection proves
 * the step's key, so a port that a third program holds is noticed and passed over.
 */
#ifndef DDP_WIREUP_PORTS_H
#define DDP_WIREUP_PORTS_H

#include <stdbool.h>
#include <stdint.h>

enum { DDP_RENDEZVOUS_PORTS = 6 };

typedef struct ddp_ports {
	int count;
	uint16_t port[DDP_RENDEZVOUS_PORTS];
	bool master_first; /* port[0] is MASTER_PORT; all others are libddp's own */
} ddp_ports;

/* Reads TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RUN_ID. */
void ddp_ports_choose(int master_port, ddp_ports *ports);

#endif
