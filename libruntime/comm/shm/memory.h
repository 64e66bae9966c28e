/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/memory: buffers that the ranks of a node share. */
#pragma once

#include "comm/core/comm.h"

/* Returns where [memory, memory + bytes) lies. `.allocation` is 0 if not all ranks that `comm` has on this node
   share the memory. run.lock is held, also for ddp_memory_at(). */
ddp_memory_ref ddp_memory_find(ddp_comm *comm, const void *memory, size_t bytes);

/* This process's address of what `ref` is to the node's i-th rank; NULL if it
   has freed its part, or, of memory of that rank's own, if it cannot be mapped, as ddp_last_error() says. */
void *ddp_memory_at(ddp_comm *comm, int i, const ddp_memory_ref *ref);

/* Writes where the copies of `memory` that this node's ranks have lie in this process: copies[node.size]. `memory`
   is of ddp_mem_alloc(). DDP_ERR_INVALID: the ranks do not share it. No lock is needed. */
ddp_status ddp_memory_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies);

/* These functions tell what passes through the control segment, and where. */

/* The node's i-th rank's slots of the staged path, for window k. */
static inline char *ddp_stage_slot(const ddp_comm *comm, int i, size_t k)
{
	return comm->node.stage + ((size_t)i * 2 + (k & 1)) * comm->node.slot_bytes;
}

static inline char *ddp_result_slot(const ddp_comm *comm, int i, size_t k)
{
	return comm->node.result + ((size_t)i * 2 + (k & 1)) * comm->node.slot_bytes;
}

/* Bytes up to which a rank's whole payload goes with its header: one round
   instead of two, but every rank reads everything. A round costs a turn of the
   scheduler where ranks outnumber cores, and half a microsecond elsewhere. */
static inline size_t ddp_small_bytes(const ddp_comm *comm)
{
	size_t total = (size_t)DDP_SMALL_BYTES * (comm->node.oversubscribed ? 16 : 1) / 4;
	size_t share = total / (size_t)comm->node.size;

	return share < DDP_INLINE_BYTES ? DDP_INLINE_BYTES
	       : share < DDP_SMALL_BYTES ? share : DDP_SMALL_BYTES;
}
