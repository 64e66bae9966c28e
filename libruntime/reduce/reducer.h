/* SPDX-License-Identifier: Apache-2.0 */
/* reducer: sums gradient buckets over all ranks while backward still runs.

   All ranks issue the same collectives in the same order: first the buckets with an index below
   `hold`, when they are complete, then the totals (weights, losses), then the other buckets. These
   last buckets hold the first parameter, which backward finishes last, so waiting for the totals
   costs them no time. While they are reduced, the parameters of the earlier buckets are updated.

   The strategy decides what happens when a bucket starts. If it reduces no buckets, only the totals
   are sent. */
#pragma once

#include "comm/api.h"
#include "reduce/bucket.h"
#include "reduce/place.h"
#include "watch/watch.h"

struct ddp_model;

/* A request for whose end a device's queue waits, and for which the host has not waited yet. */
typedef struct ddp_passed {
	ddp_request *request;
	char name[32];
	int64_t bytes;
} ddp_passed;

typedef struct ddp_reducer {
	ddp_comm *comm;
	ddp_watch *watch;
	const ddp_bucket_plan *plan;
	const ddp_place *place;
	struct ddp_model *model;  /* its strategy starts buckets */
	ddp_ready ready;
	int hold;
	bool communicates; /* false: only the announcements are checked */
	bool overlaps;     /* false: nothing is issued before the end of the step */
	ddp_request **requests;   /* [request_count], numbered by the strategy; NULL: none
	                             under way */
	int request_count;
	double *took;             /* [request_count]: seconds of the last all-reduce of each request for which
	                             the host has waited; below 0: none yet */
	ddp_passed *passed;       /* with room for all requests of a step */
	int passed_count;
	ddp_request *totals_request;
	double totals_took;       /* seconds, in this step or the last */
	double *totals;           /* [totals_max] */
	size_t totals_count, totals_max;
	ddp_span *spans;          /* of the step's completed collectives */
	size_t span_count, spans_max;
} ddp_reducer;

/* The caller has set comm, watch, plan, place, model, communicates, overlaps and totals_max; the function
   fills in the other fields. The pointers and the layout must outlive the reducer. `requests`: the largest
   number of operations under way, besides the totals. */
ddp_status ddp_reducer_make(const ddp_layout *layout, int requests, ddp_reducer *reducer);
/* No request may be under way. */
void ddp_reducer_free(ddp_reducer *reducer);

/* Notes that a gradient is complete, and starts the buckets that this completes. */
ddp_status ddp_reducer_announce(ddp_reducer *reducer, int param);
/* Starts all remaining buckets, and the sum of `totals` (at most totals_max). */
ddp_status ddp_reducer_finish(ddp_reducer *reducer, const double *totals, size_t count);
/* Starts those of this step's buckets that other ranks may have started. */
ddp_status ddp_reducer_catch_up(ddp_reducer *reducer);
/* Waits for the totals, and writes their sums. */
ddp_status ddp_reducer_wait_totals(ddp_reducer *reducer, double *totals);
/* Runs an operation at once; `name` is for the trace. */
ddp_status ddp_reducer_run(ddp_reducer *reducer, const char *name,
                           const ddp_operation *operation);
/* Sums `values` over all ranks at once. Without values, ranks only wait for each other. */
ddp_status ddp_reducer_meet(ddp_reducer *reducer, const char *name, double *values,
                            size_t count);
/* Issues operation number `request` of the step. */
ddp_status ddp_reducer_issue(ddp_reducer *reducer, int request, const ddp_operation *operation);
/* Waits for this operation, if it is under way; `name` and `bytes` are for the trace. If the place is a device,
   its queue waits, and the host goes on. */
ddp_status ddp_reducer_end(ddp_reducer *reducer, int request, const char *name, int64_t bytes);
/* Makes the host wait for the operations for which only a queue has waited so far. */
ddp_status ddp_reducer_end_passed(ddp_reducer *reducer);
/* Prepares the next step. */
void ddp_reducer_reset(ddp_reducer *reducer);
/* Called after the plan's buckets were cut anew, while no step is under way. */
void ddp_reducer_cut(ddp_reducer *reducer);

/* Whether requests are under way. */
bool ddp_reducer_busy(const ddp_reducer *reducer);
/* Aborts the communicator if requests are under way, and ends them all. */
void ddp_reducer_abandon(ddp_reducer *reducer, const char *reason);
