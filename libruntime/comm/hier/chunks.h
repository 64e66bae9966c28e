/* comm/hier/chunks: the chunks of a reduction on their way between nodes. */
#ifndef DDP_COMM_HIER_CHUNKS_H
#define DDP_COMM_HIER_CHUNKS_H

#include "comm/hier/reduction.h"

/* Buffers of the chunks; they stay with the communicator. */
ddp_status ddp_chunks_prepare(ddp_reduction *x);
/* All chunks of the present window. */
ddp_status ddp_chunks_run(ddp_reduction *x);
/* Instead, for a small all_reduce: recursive doubling of the only share. */
ddp_status ddp_chunks_double(ddp_reduction *x);

#endif
