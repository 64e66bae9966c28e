/* SPDX-License-Identifier: Apache-2.0 */
/* comm/allocate: memory that the ranks of a node share. */
#pragma once

#include "ddp.h"

/* ddp_mem_alloc() and ddp_mem_free() of the host's memory. */
ddp_status ddp_host_alloc(ddp_comm *comm, size_t bytes, void **memory);
ddp_status ddp_host_free(ddp_comm *comm, void *memory);

/* Memory of ddp_host_alloc() becomes this rank's own, at the same address and with the same content: the caller unmaps
   it, in whole pages. The communicator knows it no more. */
ddp_status ddp_host_detach(ddp_comm *comm, void *memory);
