/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/ports.h"

#include <string.h>

#include "base/hash.h"
#include "base/random.h"
#include "job/environment.h"

/* 20000 to 20999 and 29000 to 31999: below the ports that kernels give to outgoing connections
   (32768 and up), and none of those that srun --ddp chooses MASTER_PORT from. */
enum { FIRST_OWN_PORT = 20000, OWN_PORTS = 4000, FIRST_OF_PLUGIN = 21000, PORTS_OF_PLUGIN = 8000 };

static uint16_t own_port(uint64_t number)
{
	const uint64_t port = FIRST_OWN_PORT + number % OWN_PORTS;

	return (uint16_t)(port < FIRST_OF_PLUGIN ? port : port + PORTS_OF_PLUGIN);
}

static bool holds(const ddp_ports *ports, uint16_t port)
{
	for (int i = 0; i < ports->count; i++)
		if (ports->port[i] == port)
			return true;
	return false;
}

void ddp_ports_choose(int master_port, ddp_ports *ports)
{
	const char *store = ddp_environment("TORCHELASTIC_USE_AGENT_STORE");
	const char *run = ddp_environment("TORCHELASTIC_RUN_ID");
	/* The count of restarts is left out, because each of torchrun's agents counts its own. */
	uint64_t state = (uint64_t)master_port ^ (run != NULL ? ddp_hash(run, strlen(run)) : 0);

	ports->count = 0;
	ports->master_first = store == NULL || strcmp(store, "True") != 0;
	if (ports->master_first)
		ports->port[ports->count++] = (uint16_t)master_port;
	while (ports->count < DDP_RENDEZVOUS_PORTS) {
		const uint16_t port = own_port(ddp_random_next(&state));
		if (port != master_port && !holds(ports, port))
			ports->port[ports->count++] = port;
	}
}
