/* SPDX-License-Identifier: Apache-2.0 */
/* comm/allocate: memory that the ranks of a node share. */
#pragma once

#include "ddp.h"

/* ddp_mem_alloc() and ddp_mem_free() of the host's memory. */
ddp_status ddp_host_alloc(ddp_comm *comm, size_t bytes, void **memory);
ddp_status ddp_host_free(ddp_comm *comm, void *memory);
/* ddp_host_share() allocates as ddp_host_alloc() does, with all ranks, and writes where this process has the memory of
   each rank of the node: copies[ranks of the node]. After an error no memory is allocated. */
ddp_status ddp_host_share(ddp_comm *comm, size_t bytes, void **copies);
/* The same, but each page comes when it is first used, and the process ends by a signal if there is none then. */
ddp_status ddp_host_alloc_late(ddp_comm *comm, size_t bytes, void **memory);

/* In the place of memory of ddp_host_alloc(), which is freed, there is zeroed memory of this rank alone: the caller
   unmaps it, in whole pages. */
ddp_status ddp_host_detach(ddp_comm *comm, void *memory);
