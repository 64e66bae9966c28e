/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/borrow: own memory of other ranks of the node (ddp_mem_alloc_local()), mapped when an operation
   first names it. A communicator has its own mappings: no other thread looks at them than the one that
   holds its run.lock. */
#pragma once

#include "comm/core/lines.h"

/* Call this before an operation asks for addresses. It releases what owners have freed since the last new
   mapping. In the midst of an operation nothing is released, because an owner that fails may free what this rank
   still reads. */
void ddp_borrow_begin(ddp_comm *comm);
/* This process's address of what `ref` is to the node's i-th rank, which is another one. NULL: it cannot be
   mapped, and ddp_last_error() says why. */
void *ddp_borrow(ddp_comm *comm, int i, const ddp_memory_ref *ref);
/* Ends all mappings. */
void ddp_borrow_end(ddp_comm *comm);
