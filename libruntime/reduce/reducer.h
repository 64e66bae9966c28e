/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reducer: sums gradient buckets over all ranks while backward still runs.
 *
 * All ranks issue the same collectives in the same order: first the buckets with an index below
 * `hold`, when they are complete, then the totals (weights, losses), then the other buckets. These
 * last buckets hold the first parameter, which backward finishes last, so waiting for the totals
 * costs them no time. While they are reduced, the parameters of the earlier buckets are updated.
 *
 * The strategy decides what happens when a bucket starts. If it reduces no buckets, only the totals
 * are sent.
 */
#ifndef DDP_REDUCE_REDUCER_H
#define DDP_REDUCE_REDUCER_H

#include "comm/api.h"
#include "reduce/bucket.h"
#include "reduce/place.h"
#include "watch/spans.h"
#include "watch/watch.h"

struct ddp_model;

/* Issues what sums bucket `k`. */
typedef ddp_status ddp_start_fn(struct ddp_model *model, int k);

/* A request for whose end a device's queue waits, and the host not yet. */
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
	struct ddp_model *model;  /* for `start` */
	ddp_start_fn *start;      /* NULL: gradients take another way */
	ddp_ready ready;
	int hold;
	bool communicates; /* false: only the announcements are checked */
	bool overlaps;     /* false: nothing is issued before the end of the step */
	ddp_request **requests;   /* [request_count], numbered by the strategy; NULL: none
	                             under way */
	int request_count;
	double *took;             /* [request_count]: seconds of the last all-reduce of each that the host
	                             has waited for; below 0: not yet */
	ddp_passed *passed;       /* with room for a step's */
	int passed_count;
	ddp_request *totals_request;
	double totals_took;       /* seconds, in this step or the last */
	double *totals;           /* [totals_max] */
	size_t totals_count, totals_max;
	ddp_span *spans;          /* of the step's completed collectives */
	size_t span_count, spans_max;
} ddp_reducer;

/* `reducer` has comm, watch, plan, place, model, start, communicates, overlaps and totals_max, of which the
   pointers must outlive it, as the layout must; the rest is filled in. `requests`: how
   many operations are under way at most, besides the totals. */
ddp_status ddp_reducer_make(const ddp_layout *layout, int requests, ddp_reducer *reducer);
/* Nothing may be under way. */
void ddp_reducer_free(ddp_reducer *reducer);

/* A gradient is complete: starts what this completes. */
ddp_status ddp_reducer_announce(ddp_reducer *reducer, int param);
/* Starts all that is left, and the sum of `totals` (at most totals_max). */
ddp_status ddp_reducer_finish(ddp_reducer *reducer, const double *totals, size_t count);
/* Starts what other ranks may have started of this step's buckets. */
ddp_status ddp_reducer_catch_up(ddp_reducer *reducer);
/* Waits for the totals, and writes their sums. */
ddp_status ddp_reducer_wait_totals(ddp_reducer *reducer, double *totals);
/* Runs an operation at once; `name` is for the trace. */
ddp_status ddp_reducer_run(ddp_reducer *reducer, const char *name,
                           const ddp_operation *operation);
/* Sums `values` over all ranks at once; none: ranks only meet. */
ddp_status ddp_reducer_meet(ddp_reducer *reducer, const char *name, double *values,
                            size_t count);
/* Issues operation number `request` of the step. */
ddp_status ddp_reducer_issue(ddp_reducer *reducer, int request, const ddp_operation *operation);
/* Waits for it, if it is under way; `name` and `bytes` are for the trace. Where the place is a
   device, its queue waits, and the host goes on. */
ddp_status ddp_reducer_end(ddp_reducer *reducer, int request, const char *name, int64_t bytes);
/* The host waits for those, too, for which a queue waits. */
ddp_status ddp_reducer_end_passed(ddp_reducer *reducer);
/* Ready for the next step. */
void ddp_reducer_reset(ddp_reducer *reducer);
/* The plan's buckets are others now; no step is under way. */
void ddp_reducer_cut(ddp_reducer *reducer);

/* Whether requests are under way. */
bool ddp_reducer_busy(const ddp_reducer *reducer);
/* Aborts the communicator if requests are under way, and ends them all. */
void ddp_reducer_abandon(ddp_reducer *reducer, const char *reason);

#endif
