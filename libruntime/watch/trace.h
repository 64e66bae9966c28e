/* SPDX-License-Identifier: Apache-2.0 */
/* trace: a Chrome trace (JSON array of events) that chrome://tracing and
   Perfetto open. One file per rank, rank-N.json; the rank is the process, and has
   rows for compute, data, optimizer, communication and, if there is one, what its device does. Times are of
   the host's real-time clock, so that ranks' files can be shown together. The
   file is always a prefix of whole events: after a kill only the closing
   bracket is missing, which the format allows.

   A run that begins with step 1 begins new files: what an earlier run left is kept as
   rank-N.json.1, .2, ..., also of ranks that this run has not. A resumed run goes on with its
   files. The first step shows whether a run is new or resumed: until then nothing is written. A restarted step
   and a requeued job go on with the files, too, also if they begin with step 1. If a process of the
   earlier start still has its file locked, that file gets such a name, and a new one begins. */
#pragma once

#include <jansson.h>

#include "ddp.h"

typedef struct ddp_trace ddp_trace;

/* Behind these come the rows of communication. */
typedef enum ddp_trace_row {
	DDP_TRACE_COMPUTE, DDP_TRACE_DATA, DDP_TRACE_OPTIMIZER, DDP_TRACE_DEVICE, DDP_TRACE_ROWS
} ddp_trace_row;

/* Makes the directory and DIR/rank-N.json if need be. */
ddp_status ddp_trace_open(const char *dir, const ddp_job *job, ddp_trace **trace);
/* A step has ended; the first one's number counts. */
void ddp_trace_begin(ddp_trace *trace, int64_t step);
/* Writes what is left and closes the array. NULL is allowed. */
void ddp_trace_close(ddp_trace *trace);

/* Adds a range to a row. Times are CLOCK_MONOTONIC. */
void ddp_trace_phase(ddp_trace *trace, ddp_trace_row row, const char *name, int64_t step,
                     uint64_t start_ns, uint64_t end_ns);
/* Adds a range to the first row of communication that is free then. */
void ddp_trace_communication(ddp_trace *trace, const char *name, int64_t step,
                             int64_t bytes, uint64_t start_ns, uint64_t end_ns);
/* Writes the buffered events to the file if there are many, or old ones. */
void ddp_trace_flush(ddp_trace *trace);
