/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/shm/memory.h"

#include <string.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/shm/borrow.h"

static bool holds(const ddp_allocation *a, const char *memory, size_t bytes)
{
	return memory >= a->own && memory < a->own + a->stride &&
	       bytes <= (size_t)(a->own + a->stride - memory);
}

static bool covers(const ddp_allocation *a, const ddp_comm *comm)
{
	/* Others map it. */
	if (a->part_of == NULL)
		return true;
	for (int i = 0; i < comm->node.size; i++) {
		if (a->part_of[comm->topology.world_ranks[comm->node.ranks[i]]] == DDP_NOBODY)
			return false;
	}
	return true;
}

/* *changes: what the roster's counter says; until it changes, the allocation
   stays. */
static const ddp_allocation *find_by_address(const ddp_comm *comm, const char *memory, size_t bytes,
                                             uint64_t *changes)
{
	ddp_roster *roster = comm->roster;

	pthread_mutex_lock(&roster->memory.lock);
	const ddp_allocation *a = roster->memory.list;
	while (a != NULL && !holds(a, memory, bytes))
		a = a->next;
	if (a != NULL && !covers(a, comm))
		a = NULL;
	*changes = atomic_load(&roster->memory.changes);
	pthread_mutex_unlock(&roster->memory.lock);
	return a;
}

static char *part_at(const ddp_comm *comm, const ddp_allocation *a, int i, uint64_t offset)
{
	if (a->part_of == NULL)
		return i == comm->node.self ? a->own + offset : NULL;
	int part = a->part_of[comm->topology.world_ranks[comm->node.ranks[i]]];

	return part == DDP_NOBODY ? NULL : a->base + (size_t)part * a->stride + offset;
}

/* The allocation looked up last, if it is still there: operations on one
   buffer after another need no lock. */
static const ddp_allocation *recent(const ddp_comm *comm)
{
	uint64_t changes = atomic_load_explicit(&comm->roster->memory.changes, memory_order_acquire);

	return changes == comm->memory.changes && comm->memory.recent.own != NULL ? &comm->memory.recent : NULL;
}

ddp_memory_ref ddp_memory_find(ddp_comm *comm, const void *memory, size_t bytes)
{
	const ddp_allocation *a = recent(comm);

	if (memory == NULL)
		return (ddp_memory_ref){ 0, 0 };
	if (a == NULL || !holds(a, memory, bytes)) {
		a = find_by_address(comm, memory, bytes, &comm->memory.changes);
		comm->memory.recent = a != NULL ? *a : (ddp_allocation){ .own = NULL };
	}
	if (a == NULL)
		return (ddp_memory_ref){ 0, 0 };
	return (ddp_memory_ref){ a->id, (uint64_t)((const char *)memory - a->own) };
}

void *ddp_memory_at(ddp_comm *comm, int i, const ddp_memory_ref *ref)
{
	ddp_roster *roster = comm->roster;
	const ddp_allocation *a = recent(comm);
	char *address = NULL;

	if ((ref->allocation & DDP_LOCAL_MEMORY) != 0 && i != comm->node.self)
		return ddp_borrow(comm, i, ref);
	if (a != NULL && a->id == ref->allocation)
		return part_at(comm, a, i, ref->offset);
	pthread_mutex_lock(&roster->memory.lock);
	for (a = roster->memory.list; a != NULL && a->id != ref->allocation; a = a->next)
		continue;
	if (a != NULL)
		address = part_at(comm, a, i, ref->offset);
	pthread_mutex_unlock(&roster->memory.lock);
	return address;
}

ddp_status ddp_memory_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies)
{
	uint64_t changes;
	const ddp_allocation *a = find_by_address(comm, memory, bytes, &changes);
	if (a == NULL || a->part_of == NULL)
		return ddp_fail(DDP_ERR_INVALID, "%p is not in memory that the node's ranks share", memory);
	for (int i = 0; i < comm->node.size; i++)
		copies[i] = part_at(comm, a, i, (uint64_t)((const char *)memory - a->own));
	return DDP_OK;
}
