/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/shm/segment.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/signals.h"
#include "comm/core/comm.h"
#include "comm/p2p/ring.h"

ddp_status ddp_segment_not_opened(const ddp_comm *comm, int rank, int error)
{
	return ddp_fail_errno(error == ENOENT ? DDP_ERR_PEER : DDP_ERR_IO, error,
	                      "cannot open the shared memory of %s%s", ddp_rank_text(comm, rank),
	                      error == ENOENT ? ", which has failed or is in another container" : "");
}

static size_t page_up(size_t bytes)
{
	return (bytes + 4095) & ~(size_t)4095;
}

static size_t lines_bytes(int ranks)
{
	return page_up(sizeof(ddp_node_shared) + (size_t)ranks * sizeof(ddp_node_rank));
}

/* Results between nodes have slots of their own. */
static size_t results_bytes(const ddp_comm *comm)
{
	return comm->topology.nodes > 1 ? (size_t)comm->node.size * 2 * comm->node.slot_bytes : 0;
}

/* Pages that are never touched take no memory. */
static size_t segment_bytes(const ddp_comm *comm)
{
	const ddp_node *node = &comm->node;
	size_t ranks = (size_t)node->size;

	return lines_bytes(node->size) + ranks * 2 * (DDP_SMALL_BYTES + node->slot_bytes) + results_bytes(comm) +
	       ranks * DDP_PROPOSAL_BOARDS * node->proposals_bytes + ddp_rings_bytes(node->size);
}

/* The cores that the node's ranks, taken together, may run on; at least 1. */
static uint32_t cores_of_ranks(const ddp_comm *comm)
{
	enum { SETS = 8 }; /* of 1024 cores */
	cpu_set_t all[SETS], own[SETS];

	CPU_ZERO_S(sizeof(all), all);
	for (int i = 0; i < comm->node.size; i++) {
		const ddp_peer *peer = &comm->roster->peers[comm->topology.world_ranks[comm->node.ranks[i]]];
		CPU_ZERO_S(sizeof(own), own);
		if (sched_getaffinity((pid_t)peer->pid, sizeof(own), own) == 0)
			CPU_OR_S(sizeof(all), all, all, own);
	}
	const int count = CPU_COUNT_S(sizeof(all), all);
	return count > 0 ? (uint32_t)count : 1;
}

/* Whichever rank comes first counts them for all: ranks that took the node for
   larger or smaller than the others would exchange small payloads in other ways. */
static uint32_t agreed_cores(const ddp_comm *comm)
{
	ddp_node_shared *shared = comm->node.shared;
	uint32_t none = 0;

	atomic_compare_exchange_strong(&shared->cores, &none, cores_of_ranks(comm));
	return atomic_load(&shared->cores);
}

ddp_status ddp_node_map(ddp_comm *comm, int fd)
{
	ddp_node *node = &comm->node;

	node->stage_bytes = comm->topology.nodes > 1 ? DDP_NET_STAGE_BYTES : DDP_STAGE_BYTES;
	node->slot_bytes = comm->topology.nodes > 1 ? DDP_NET_STAGE_BYTES : DDP_CROWDED_STAGE_BYTES;
	/* A rank may show what all others tell. */
	node->proposals_bytes = page_up(((size_t)comm->size + 1) * (DDP_PROPOSAL_BYTES + (size_t)comm->size / 8));
	size_t bytes = segment_bytes(comm);
	/* Whichever rank comes first makes it large enough. */
	const int error = ddp_set_file_size(fd, (off_t)bytes);
	if (error != 0)
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "cannot make a shared segment of %zu bytes%s", bytes,
		                      ddp_segment_remedy(error));
	char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot map %zu bytes of shared memory", bytes);
	node->shared = (ddp_node_shared *)(void *)base;
	node->shared_bytes = bytes;
	comm->node.oversubscribed = (uint32_t)node->size > agreed_cores(comm);
	node->small = base + lines_bytes(node->size);
	node->stage = node->small + (size_t)node->size * 2 * DDP_SMALL_BYTES;
	node->result = node->stage + (size_t)node->size * 2 * node->slot_bytes;
	node->proposals = node->result + results_bytes(comm);
	node->rings = node->proposals + (size_t)node->size * DDP_PROPOSAL_BOARDS * node->proposals_bytes;
	return ddp_ring_open(comm);
}

void ddp_node_unmap(ddp_comm *comm)
{
	if (comm->node.shared != NULL)
		munmap(comm->node.shared, comm->node.shared_bytes);
	comm->node.shared = NULL;
}
