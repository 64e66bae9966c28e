/*
 * trace: a Chrome trace (JSON array of events) that chrome://tracing and
 * Perfetto open. One file per rank, rank-N.json; the rank is the process, and has
 * rows for compute, data, optimizer, communication and, if there is one, what its device does. Times are of
 * the host's real-time clock, so that ranks' files can be shown together. The
 * file is always a prefix of whole events: after a kill only the closing
 * bracket is missing, which the format allows.
 */
#ifndef DDP_WATCH_TRACE_H
#define DDP_WATCH_TRACE_H

#include <jansson.h>

#include "ddp.h"

typedef struct ddp_trace ddp_trace;

/* Behind these come the rows of communication. */
typedef enum ddp_trace_row {
	DDP_TRACE_COMPUTE, DDP_TRACE_DATA, DDP_TRACE_OPTIMIZER, DDP_TRACE_DEVICE, DDP_TRACE_ROWS
} ddp_trace_row;

/* Makes the directory if need be, and a new DIR/rank-N.json. */
ddp_status ddp_trace_open(const char *dir, const ddp_job *job, ddp_trace **trace);
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

#endif
