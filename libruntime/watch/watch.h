/* SPDX-License-Identifier: Apache-2.0 */
/* watch: what this rank does and how long it takes. It keeps the progress
   page that outlives the process, times the phases, and feeds the trace and
   the metrics. One thread at a time. Nothing here fails a training: after a
   write error the file in question ends, and the log says so once. */
#pragma once

#include "ddp.h"

enum { DDP_PHASES = DDP_PHASE_EVAL + 1 };

typedef struct ddp_watch ddp_watch;

ddp_status ddp_watch_open(const ddp_job *job, ddp_watch **watch);
/* Begins to record. metrics_path is used on rank 0 only; both may be NULL. */
ddp_status ddp_watch_record(ddp_watch *watch, const ddp_job *job, const char *metrics_path,
                            const char *trace_dir);
/* This rank has become rank 0 of those that are left: from now on it writes the metrics. */
void ddp_watch_lead(ddp_watch *watch, const ddp_job *job);
/* Ends the page, the trace and the metrics, and gives back the opener's reference. NULL is allowed. */
void ddp_watch_close(ddp_watch *watch);

/* Any thread. The page and the ring stay mapped until the last reference is given back. NULL is allowed. */
void ddp_watch_keep(ddp_watch *watch);
void ddp_watch_drop(ddp_watch *watch);

/* NULL for NULL. */
struct ddp_progress *ddp_watch_page(ddp_watch *watch);
/* NULL: nothing is recorded. */
const struct ddp_recorder *ddp_watch_recorder(const ddp_watch *watch);

/* Ends the phase under way and begins another; the same again does nothing. */
void ddp_watch_phase(ddp_watch *watch, ddp_phase phase);
ddp_phase ddp_watch_current_phase(const ddp_watch *watch);
/* Seconds spent in a phase since opening, without the one under way. */
double ddp_watch_phase_seconds(const ddp_watch *watch, ddp_phase phase);

/* Step `step` (from 1) is under way. */
void ddp_watch_begin_step(ddp_watch *watch, int64_t step, int buckets);
/* The training ends with step `steps`; 0: that is not known. */
void ddp_watch_last_step(ddp_watch *watch, int64_t steps);
/* Bucket `bucket` of the step was issued. */
void ddp_watch_bucket(ddp_watch *watch, int bucket);
/* A collective of the step is complete; a row in the trace. */
void ddp_watch_communication(ddp_watch *watch, const char *name, int64_t bytes,
                             uint64_t start_ns, uint64_t end_ns);
/* Adds a row to the trace: a part of a step that a device's queue did. */
void ddp_watch_device(ddp_watch *watch, const char *name, int64_t step, uint64_t start_ns, uint64_t end_ns);
void ddp_watch_end_step(ddp_watch *watch, const ddp_step_stats *stats);

/* Keeps ddp_last_error() and its status in the progress page, for the failure
   report, until ddp_watch_go_on() or the end of a step. */
void ddp_watch_error(ddp_watch *watch, ddp_status status);
/* Something of the training has succeeded: an error before it has not ended the rank. */
void ddp_watch_go_on(ddp_watch *watch);

const char *ddp_phase_name(ddp_phase phase); /* "backward"; never NULL */

/* A time range of communication. Such ranges may overlap. */
typedef struct ddp_span {
	uint64_t start_ns, end_ns;
} ddp_span;

/* The time covered by at least one span, in seconds. Sorts them by start. */
double ddp_spans_union(ddp_span *spans, size_t count);
/* 1 - exposed / communication, within 0 .. 1; 1 if there was none. */
double ddp_overlap_ratio(double exposed_seconds, double communication_seconds);
