/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/mismatch: the sentence about an operation that is not the same on all ranks. */
#pragma once

#include "comm/core/fingerprint.h"

/* A rank, and the operation that it has issued under a number of the communicator. */
typedef struct ddp_issued {
	int rank;
	ddp_fingerprint operation;
} ddp_issued;

/* Breaks the communicator with DDP_ERR_MISMATCH, or with DDP_ERR_PEER if the operation of one rank is
   ddp_finalize() or ddp_comm_free(). The sentence names the first rank whose operation is
   not that of most ranks. The same list gives the same sentence. `issued` holds at least two
   operations that differ, in the order of ranks. `sequence` is the operation's number, or 0 for none. */
ddp_status ddp_mismatch_break(ddp_comm *comm, uint64_t sequence, const ddp_issued *issued, int count);
