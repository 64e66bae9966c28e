/* comm/hier/segments: the segments of a reduction on their way between nodes. */
#ifndef DDP_COMM_HIER_SEGMENTS_H
#define DDP_COMM_HIER_SEGMENTS_H

#include "comm/hier/reduction.h"

/* Buffers of the segments; they stay with the communicator. */
ddp_status ddp_segments_prepare(ddp_reduction *x);
/* All segments of the present window. */
ddp_status ddp_segments_run(ddp_reduction *x);
/* Instead, for a small all_reduce: recursive doubling of the only piece. */
ddp_status ddp_segments_double(ddp_reduction *x);

#endif
