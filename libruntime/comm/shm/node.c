/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/shm/node.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/signals.h"
#include "comm/core/comm.h"
#include "comm/p2p/ring.h"
#include "comm/shm/borrow.h"
#include "comm/shm/memory.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

/* ---- headers ------------------------------------------------------------------ */

static char *payload_slot(const ddp_comm *comm, int i, uint64_t sequence)
{
	return comm->node.small + ((size_t)i * 2 + (sequence & 1)) * DDP_SMALL_BYTES;
}

static ddp_header *header_slot(const ddp_comm *comm, int i)
{
	return &comm->node.shared->ranks[i].header[comm->run.sequence & 1];
}

const ddp_header *ddp_node_header(const ddp_comm *comm, int i)
{
	return header_slot(comm, i);
}

const void *ddp_node_payload(const ddp_comm *comm, int i, size_t bytes)
{
	if (bytes <= DDP_INLINE_BYTES)
		return header_slot(comm, i)->inlined;
	return payload_slot(comm, i, comm->run.sequence);
}

bool ddp_node_all_have(const ddp_comm *comm, uint8_t flag)
{
	for (int i = 0; i < comm->node.size; i++) {
		if ((header_slot(comm, i)->flags & flag) == 0)
			return false;
	}
	return true;
}

/* Makes a word visible that the others wait for. Who sleeps for it is woken by
   the last of them to come: see ddp_node_wake_late(). */
static void publish(ddp_comm *comm, _Atomic uint64_t *word, uint64_t value, uint32_t event)
{
	if (comm->net == NULL) {
		atomic_store_explicit(word, value, memory_order_release);
		return;
	}
	/* Between nodes a rank may have much to do before it waits itself. */
	atomic_store(word, value);
	ddp_node_wake(comm, event);
}

static void set_memory(ddp_header *h, const ddp_entry *entry)
{
	if (entry->send.allocation != 0) {
		h->flags |= DDP_HEADER_SEND_SHARED;
		h->send = entry->send;
	}
	if (entry->recv.allocation != 0) {
		h->flags |= DDP_HEADER_RECV_SHARED;
		h->recv = entry->recv;
	}
}

static void post_header(ddp_comm *comm, const ddp_operation *c, const ddp_entry *entry)
{
	ddp_header *h = header_slot(comm, comm->node.self);
	ddp_fingerprint *past = &comm->run.past[comm->run.sequence % DDP_PAST];

	*past = ddp_fingerprint_of(c, comm->size);
	h->operation = *past;
	h->flags = 0;
	if (entry->payload_bytes > DDP_INLINE_BYTES)
		memcpy(payload_slot(comm, comm->node.self, comm->run.sequence), entry->payload, entry->payload_bytes);
	else if (entry->payload_bytes > 0)
		memcpy(h->inlined, entry->payload, entry->payload_bytes);
	else
		set_memory(h, entry);
	if (entry->largest_block != 0) {
		h->flags |= DDP_HEADER_BLOCK;
		h->largest_block = entry->largest_block;
	}
	if (ddp_kind_reduces(c->kind) && c->scale != 1) {
		h->flags |= DDP_HEADER_SCALED;
		h->scale = c->scale;
	}
	publish(comm, &h->sequence, comm->run.sequence, DDP_SLEEPS_FOR_HEADERS);
}

static int missing_headers(ddp_comm *comm, const void *argument)
{
	(void)argument;
	return ddp_node_lagging(comm, DDP_SLEEPS_FOR_HEADERS, comm->run.sequence);
}

/* This rank knows what all ranks of its node have issued; over several nodes it asks the other ranks. */
static ddp_status differ(ddp_comm *comm, int other)
{
	const ddp_node *node = &comm->node;

	if (comm->net != NULL)
		return ddp_message_survey(comm, comm->run.sequence,
		                          &(ddp_issued){ node->ranks[other], header_slot(comm, other)->operation });
	ddp_issued *issued = calloc((size_t)node->size, sizeof(*issued));
	if (issued == NULL)
		return ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "no memory to say whose operation differs");
	for (int i = 0; i < node->size; i++)
		issued[i] = (ddp_issued){ node->ranks[i], header_slot(comm, i)->operation };
	const ddp_status status = ddp_mismatch_break(comm, comm->run.sequence, issued, node->size);
	free(issued);
	return status;
}

static ddp_status compare_headers(ddp_comm *comm)
{
	const ddp_header *mine = header_slot(comm, comm->node.self);

	for (int i = 0; i < comm->node.size; i++) {
		if (!ddp_fingerprint_same(&mine->operation, &header_slot(comm, i)->operation))
			return differ(comm, i);
	}
	return DDP_OK;
}

/* Waits until all ranks have come. */
static ddp_status await_all(ddp_comm *comm, const ddp_condition *all)
{
	ddp_status status = ddp_comm_await(comm, all);

	if (status == DDP_OK && comm->net == NULL)
		ddp_node_wake_late(comm, all->sleeps_for);
	return status;
}

static inline void prefetch_to_write(char *line)
{
#ifdef __x86_64__ /* whose compilers give an ordinary prefetch unless told otherwise */
	__asm__ volatile("prefetchw %0" : : "m"(*line));
#else
	__builtin_prefetch(line, 1);
#endif
}

/* Programs repeat operations. The lines that the next payload of this size
   would be written to come over while this one is worked on, instead of holding
   up the next header, which is stored after them. Nobody reads them any more. */
static void fetch_next_slot(const ddp_comm *comm, size_t bytes)
{
	char *slot = payload_slot(comm, comm->node.self, comm->run.sequence + 1);

	if (bytes <= DDP_INLINE_BYTES || comm->node.oversubscribed)
		return;
	for (size_t i = 0; i < bytes; i += 64)
		prefetch_to_write(slot + i);
}

/* Has this process all the shared memory that the headers of the running
   operation name? */
static ddp_status check_memory(ddp_comm *comm)
{
	ddp_borrow_begin(comm);
	for (int i = 0; i < comm->node.size; i++) {
		const ddp_header *h = ddp_node_header(comm, i);
		const bool sends = (h->flags & DDP_HEADER_SEND_SHARED) == 0 || ddp_memory_at(comm, i, &h->send) != NULL;
		if (sends && ((h->flags & DDP_HEADER_RECV_SHARED) == 0 || ddp_memory_at(comm, i, &h->recv) != NULL))
			continue;
		if (((sends ? h->recv : h->send).allocation & DDP_LOCAL_MEMORY) != 0)
			return ddp_comm_break(comm, DDP_ERR_STATE, comm->rank, "%s: %s", ddp_rank_text(comm, comm->rank),
			                      ddp_last_error());
		char text[128];
		ddp_collective_describe(comm->run.operation, text, sizeof(text));
		return ddp_comm_break(comm, DDP_ERR_STATE, comm->rank,
		                      "%s has freed memory of ddp_mem_alloc() that %s still uses, in %s #%llu: "
		                      "free it on all ranks after the last operation on it",
		                      ddp_rank_text(comm, comm->rank), ddp_rank_text(comm, comm->node.ranks[i]),
		                      text, (unsigned long long)comm->run.sequence);
	}
	return DDP_OK;
}

ddp_status ddp_node_enter(ddp_comm *comm, const ddp_operation *c, const ddp_entry *entry)
{
	const ddp_condition all = { .missing = missing_headers, .until = comm->run.sequence,
	                            .sleeps_for = DDP_SLEEPS_FOR_HEADERS };
	ddp_status status;

	post_header(comm, c, entry);
	if ((status = await_all(comm, &all)) != DDP_OK ||
	    (status = compare_headers(comm)) != DDP_OK)
		return status;
	/* Small operations carry their data with them. */
	if (entry->payload == NULL)
		return check_memory(comm);
	fetch_next_slot(comm, entry->payload_bytes);
	return DDP_OK;
}

/* ---- steps --------------------------------------------------------------------- */

void ddp_node_post_step(ddp_comm *comm)
{
	ddp_node *node = &comm->node;

	node->step++;
	publish(comm, &node->shared->ranks[node->self].step, node->step, DDP_SLEEPS_FOR_STEPS);
}

static int missing_steps(ddp_comm *comm, const void *argument)
{
	(void)argument;
	return ddp_node_lagging(comm, DDP_SLEEPS_FOR_STEPS, comm->node.step);
}

ddp_status ddp_node_wait_steps(ddp_comm *comm)
{
	const ddp_condition all = { .missing = missing_steps, .until = comm->node.step,
	                            .sleeps_for = DDP_SLEEPS_FOR_STEPS };

	return await_all(comm, &all);
}

ddp_status ddp_node_step(ddp_comm *comm)
{
	ddp_node_post_step(comm);
	return ddp_node_wait_steps(comm);
}

/* ---- the control segment ---------------------------------------------------- */

ddp_status ddp_segment_not_opened(const ddp_comm *comm, int rank, int error)
{
	const bool closed = error == ENOENT || error == ESTALE;

	return ddp_fail_errno(closed ? DDP_ERR_PEER : DDP_ERR_IO, error,
	                      "cannot open the shared memory of %s%s", ddp_rank_text(comm, rank),
	                      closed ? ", which has failed or is in another container" : "");
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
