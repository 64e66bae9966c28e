/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/memory: buffers that the ranks of a node share. */
#pragma once

#include "comm/core/lines.h"

/* Returns where [memory, memory + bytes) lies. `.allocation` is 0 if not all ranks that `comm` has on this node
   share the memory. run.lock is held, also for ddp_memory_at(). */
ddp_memory_ref ddp_memory_find(ddp_comm *comm, const void *memory, size_t bytes);

/* This process's address of what `ref` is to the node's i-th rank; NULL if it
   has freed its part, or, of memory of that rank's own, if it cannot be mapped, as ddp_last_error() says. */
void *ddp_memory_at(ddp_comm *comm, int i, const ddp_memory_ref *ref);

/* Writes where the copies of `memory` that this node's ranks have lie in this process: copies[node.size]. `memory`
   is of ddp_mem_alloc(). DDP_ERR_INVALID: the ranks do not share it. No lock is needed. */
ddp_status ddp_memory_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies);
