/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/offsets: where the ranks' blocks begin in the buffers of the running operation, in elements.
   For an operation with counts, the offsets are prefix sums of the counts. They are computed once for each
   operation, because code that visits all blocks would otherwise sum counts again for each block. */
#pragma once

#include "comm/core/comm.h"

/* Makes the offsets of comm->run.operation; the arrays stay with the communicator. */
ddp_status ddp_offsets_make(ddp_comm *comm);
void ddp_offsets_free(ddp_comm *comm);

/* The offset of rank r's block in the buffer that holds a block for each rank. The offset of rank `size` is the
   end of the last block. */
static inline size_t ddp_block_offset(const ddp_comm *comm, int r)
{
	const ddp_operation *c = comm->run.operation;

	return c->counts != NULL ? comm->run.offsets[r] : c->count * (size_t)r;
}

/* Returns the same for the buffer that all_to_all receives. */
static inline size_t ddp_recv_offset(const ddp_comm *comm, int r)
{
	const ddp_operation *c = comm->run.operation;

	return c->recv_counts != NULL ? comm->run.recv_offsets[r] : c->count * (size_t)r;
}

/* The address for the block from rank r. */
static inline char *ddp_recv_block(const ddp_comm *comm, const ddp_operation *c, int r)
{
	const size_t offset = c->kind == DDP_ALL_TO_ALL ? ddp_recv_offset(comm, r) : ddp_block_offset(comm, r);

	return c->recv_list != NULL ? (char *)c->recv_list[r] : (char *)c->recv + offset * ddp_type_bytes(c->type);
}
