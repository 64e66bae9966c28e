/* comm/memory: buffers that the ranks of a node share. */
#ifndef DDP_COMM_MEMORY_H
#define DDP_COMM_MEMORY_H

#include "comm/internal.h"

/* Where [memory, memory + bytes) lies; .allocation 0 if it is not shared by
   all ranks that `comm` has on this node. This and ddp_memory_at(): run_lock is
   held. */
ddp_memory_ref ddp_memory_find(ddp_comm *comm, const void *memory, size_t bytes);

/* This process's address of what `ref` is to the node's i-th rank; NULL if it
   has freed its part. */
void *ddp_memory_at(ddp_comm *comm, int i, const ddp_memory_ref *ref);

/* Has this process all the shared memory that the headers of the running
   operation name? Breaks the communicator if not. */
ddp_status ddp_memory_check(ddp_comm *comm);

/* Unmaps everything. */
void ddp_memory_free_all(ddp_roster *roster);

#endif
