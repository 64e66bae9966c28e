/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timeline: when the program's queue on a device reached forward, backward and update of each step.
 * Events of the device measure it, because the host's phases only say when the host enqueued them.
 */
#ifndef DDP_REDUCE_TIMELINE_H
#define DDP_REDUCE_TIMELINE_H

#include "reduce/place.h"
#include "watch/watch.h"

typedef struct ddp_timeline ddp_timeline;

/* NULL, which is allowed below: the place is the host, or there is no memory for it. */
ddp_timeline *ddp_timeline_open(const ddp_place *place, ddp_watch *watch);
void ddp_timeline_close(ddp_timeline *timeline);

/* From here on, the queue does a step's forward or backward, or, from DDP_PHASE_OPTIMIZER on, its update. Nothing
   is told of other phases. */
void ddp_timeline_mark(ddp_timeline *timeline, ddp_phase phase, int64_t step);
/* The queue has just come to the last mark: tells the trace of what was before it. */
void ddp_timeline_tell(ddp_timeline *timeline);
/* The device's seconds of a phase, of those marked, that were told since the last take. */
double ddp_timeline_take(ddp_timeline *timeline, ddp_phase phase);

#endif
