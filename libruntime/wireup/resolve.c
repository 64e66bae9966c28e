/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/resolve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/wait.h"
#include "job/environment.h"
#include "splitmix.h"

/* ---- ports --------------------------------------------------------------------------- */

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
		const uint16_t port = own_port(dk_splitmix_next(&state));
		if (port != master_port && !holds(ports, port))
			ports->port[ports->count++] = port;
	}
}

/* ---- addresses ----------------------------------------------------------------------- */

/* Shared by the caller and the thread; the last to let go frees it. */
struct lookup {
	ddp_pending pending;
	char host[DDP_HOST_MAX];
	char port[8];
	int rc, error;
	struct addrinfo *found;
};

static void lookup_free(struct lookup *lookup)
{
	if (lookup->found != NULL)
		freeaddrinfo(lookup->found);
	ddp_pending_destroy(&lookup->pending);
	free(lookup);
}

static void *look_up(void *argument)
{
	const struct addrinfo hints = {
		.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV,
	};
	struct lookup *lookup = argument;
	struct addrinfo *found = NULL;

	lookup->rc = getaddrinfo(lookup->host, lookup->port, &hints, &found);
	lookup->error = errno;
	lookup->found = lookup->rc == 0 ? found : NULL;
	if (!ddp_pending_finish(&lookup->pending))
		lookup_free(lookup);
	return NULL;
}

static struct lookup *lookup_new(const ddp_job *job)
{
	struct lookup *lookup = calloc(1, sizeof(*lookup));

	if (lookup == NULL)
		return NULL;
	ddp_pending_init(&lookup->pending);
	snprintf(lookup->host, sizeof(lookup->host), "%s", job->master_addr);
	snprintf(lookup->port, sizeof(lookup->port), "%d", job->master_port & 0xffff);
	return lookup;
}

/* Returns 0, or the error's number. */
static int start(struct lookup *lookup)
{
	pthread_attr_t detached;
	pthread_t thread;

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	int rc = pthread_create(&thread, &detached, look_up, lookup);
	pthread_attr_destroy(&detached);
	return rc;
}

static bool is_loopback(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
	return address->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* Whether MASTER_ADDR is this node's own name, with its domain or without. */
static bool names_this_node(const ddp_job *job)
{
	const char *const names[] = { job->hostname, ddp_environment("DDP_NODE_NAME") };
	size_t length = strcspn(job->master_addr, ".");

	for (int i = 0; i < 2; i++)
		if (names[i] != NULL && length > 0 && strcspn(names[i], ".") == length &&
		    strncasecmp(job->master_addr, names[i], length) == 0)
			return true;
	return false;
}

/* torchrun counts its agents as nodes, and they may all run on this machine. It has met the others by a loopback
   address, so it means this machine by that. */
static bool agents_share_machine(const ddp_job *job)
{
	unsigned char number[sizeof(struct in6_addr)];

	return ddp_environment("TORCHELASTIC_RUN_ID") != NULL &&
	       (strcmp(job->master_addr, "localhost") == 0 || inet_pton(AF_INET, job->master_addr, number) == 1 ||
	        inet_pton(AF_INET6, job->master_addr, number) == 1);
}

/* Every address of this node. */
static void use_all_addresses(int port, ddp_rendezvous *rendezvous)
{
	const struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any,
		                           .sin6_port = htons((uint16_t)port) };
	const struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	memcpy(&rendezvous->addresses[0], &any6, sizeof(any6));
	rendezvous->bytes[0] = sizeof(any6);
	memcpy(&rendezvous->addresses[1], &any4, sizeof(any4));
	rendezvous->bytes[1] = sizeof(any4);
	rendezvous->count = 2;
}

static ddp_status use_addresses(const ddp_job *job, const struct addrinfo *found, ddp_rendezvous *rendezvous)
{
	bool own_name = names_this_node(job) || agents_share_machine(job), loopback = false;

	for (; found != NULL && rendezvous->count < DDP_RENDEZVOUS_ADDRESSES; found = found->ai_next) {
		/* If the name is another node's, the loopback address would be one of this node. */
		if (job->nnodes > 1 && is_loopback(found->ai_addr) && !own_name)
			continue;
		loopback |= is_loopback(found->ai_addr);
		memcpy(&rendezvous->addresses[rendezvous->count], found->ai_addr, found->ai_addrlen);
		rendezvous->bytes[rendezvous->count++] = found->ai_addrlen;
	}
	if (rendezvous->count == 0)
		return ddp_fail(DDP_ERR_JOB, "rank %d on %s: MASTER_ADDR %s is a loopback address there, "
		                "where rank 0's node is not: take the name out of that line of %s's "
		                "/etc/hosts, or use srun --ddp=addr=ip, which asks Slurm for the address",
		                job->rank, job->hostname, job->master_addr, job->hostname);
	/* Debian's installer calls a host's own name 127.0.1.1. Others know it better:
	   each connection has to prove the step's key, whatever address it comes to. */
	if (job->rank == 0 && job->nnodes > 1 && loopback)
		use_all_addresses(job->master_port, rendezvous);
	return DDP_OK;
}

static ddp_status lookup_error(const ddp_job *job, const struct lookup *lookup)
{
	const char *reason = lookup->rc == EAI_SYSTEM ? ddp_reason(lookup->error)
	                                              : ddp_lookup_reason(lookup->rc);

	return ddp_fail(DDP_ERR_JOB, "rank %d on %s: MASTER_ADDR %s does not resolve: %s (srun "
	                "--ddp=addr=ip needs no name)", job->rank, job->hostname, job->master_addr,
	                reason);
}

/* Puts *again where the name server had no answer yet. */
static ddp_status resolve_once(const ddp_job *job, uint64_t deadline_ns, ddp_rendezvous *rendezvous, bool *again)
{
	struct lookup *lookup = lookup_new(job);
	ddp_status status;

	*again = false;
	if (lookup == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to resolve MASTER_ADDR");
	const int error = start(lookup);
	if (error != 0) {
		lookup_free(lookup);
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "rank %d on %s: cannot start the thread that resolves MASTER_ADDR "
		                      "(see ulimit -u)", job->rank, job->hostname);
	}
	if (!ddp_pending_wait(&lookup->pending, deadline_ns))
		return ddp_fail(DDP_ERR_TIMEOUT, "rank %d on %s: MASTER_ADDR %s did not resolve in time: "
		                "is the name server there? (srun --ddp=addr=ip needs no name)", job->rank, job->hostname, job->master_addr);
	if (lookup->rc == 0) {
		status = use_addresses(job, lookup->found, rendezvous);
	} else {
		status = lookup_error(job, lookup);
		*again = lookup->rc == EAI_AGAIN;
	}
	lookup_free(lookup);
	return status;
}

ddp_status ddp_rendezvous_resolve(const ddp_job *job, uint64_t deadline_ns, ddp_rendezvous *rendezvous)
{
	const struct timespec pause = { .tv_nsec = 200000000 };
	bool again;

	*rendezvous = (ddp_rendezvous){ .count = 0 };
	ddp_ports_choose(job->master_port, &rendezvous->ports);
	snprintf(rendezvous->where, sizeof(rendezvous->where), "%s:%d", job->master_addr, job->master_port);
	for (;;) {
		ddp_status status = resolve_once(job, deadline_ns, rendezvous, &again);
		if (!again || ddp_now_ns() >= deadline_ns)
			return status;
		nanosleep(&pause, NULL);
	}
}
