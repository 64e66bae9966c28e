/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/watch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/path.h"
#include "watch/metrics.h"
#include "watch/page.h"
#include "watch/stacks.h"
#include "watch/trace.h"

struct ddp_watch {
	atomic_int users;
	struct ddp_progress *page;
	ddp_recorder recorder;
	ddp_metrics *metrics; /* NULL: none */
	char *metrics_path;   /* of rank 0, from the root; NULL: none */
	ddp_trace *trace;     /* NULL: none */
	ddp_phase phase;
	uint64_t phase_start_ns;
	uint64_t phase_ns[DDP_PHASES];
	int64_t step;
};

const char *ddp_phase_name(ddp_phase phase)
{
	switch (phase) {
	case DDP_PHASE_IDLE: return "idle";
	case DDP_PHASE_DATA: return "data";
	case DDP_PHASE_FORWARD: return "forward";
	case DDP_PHASE_BACKWARD: return "backward";
	case DDP_PHASE_WAIT: return "wait";
	case DDP_PHASE_OPTIMIZER: return "optimizer";
	case DDP_PHASE_CHECKPOINT: return "checkpoint";
	case DDP_PHASE_EVAL: return "eval";
	}
	return "unknown";
}

static ddp_status open_metrics(ddp_watch *watch, const ddp_job *job)
{
	if (watch->metrics_path == NULL || watch->metrics != NULL)
		return DDP_OK;
	return ddp_metrics_open(watch->metrics_path, job->restart_count > 0, &watch->metrics);
}

ddp_status ddp_watch_record(ddp_watch *watch, const ddp_job *job, const char *metrics_path,
                            const char *trace_dir)
{
	/* The folder in which the program runs may change. */
	ddp_status status = metrics_path != NULL ? ddp_path_absolute("metrics file", metrics_path, &watch->metrics_path) : DDP_OK;

	if (status == DDP_OK && job->rank == 0)
		status = open_metrics(watch, job);
	if (status == DDP_OK && trace_dir != NULL)
		status = ddp_trace_open(trace_dir, job, &watch->trace);
	return status;
}

void ddp_watch_lead(ddp_watch *watch, const ddp_job *job)
{
	if (open_metrics(watch, job) != DDP_OK)
		ddp_log(DDP_LOG_WARN, "metrics end with the rank that wrote them: %s", ddp_last_error());
}

ddp_status ddp_watch_open(const ddp_job *job, ddp_watch **watch)
{
	ddp_watch *made = calloc(1, sizeof(*made));

	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to watch the training");
	atomic_store(&made->users, 1);
	made->page = ddp_page_map(job, &made->recorder);
	if (made->page == NULL) {
		ddp_watch_close(made);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the progress page");
	}
	if (made->recorder.head != NULL)
		ddp_stacks_install();
	made->phase_start_ns = ddp_now_ns();
	made->page->updated_ns = made->phase_start_ns;
	*watch = made;
	return DDP_OK;
}

void ddp_watch_close(ddp_watch *watch)
{
	if (watch == NULL)
		return;
	ddp_trace_close(watch->trace);
	ddp_metrics_close(watch->metrics);
	free(watch->metrics_path);
	watch->metrics_path = NULL;
	watch->trace = NULL;
	watch->metrics = NULL;
	ddp_page_close(watch->page);
	ddp_watch_drop(watch);
}

void ddp_watch_keep(ddp_watch *watch)
{
	if (watch != NULL)
		atomic_fetch_add(&watch->users, 1);
}

void ddp_watch_drop(ddp_watch *watch)
{
	if (watch == NULL || atomic_fetch_sub(&watch->users, 1) > 1)
		return;
	ddp_recorder_unmap(&watch->recorder);
	ddp_page_unmap(watch->page);
	free(watch);
}

static ddp_trace_row row_of(ddp_phase phase)
{
	return phase == DDP_PHASE_DATA ? DDP_TRACE_DATA : phase == DDP_PHASE_OPTIMIZER ? DDP_TRACE_OPTIMIZER
	                                                                              : DDP_TRACE_COMPUTE;
}

void ddp_watch_phase(ddp_watch *watch, ddp_phase phase)
{
	if (phase == watch->phase || (int)phase < 0 || (int)phase >= DDP_PHASES)
		return;
	uint64_t now_ns = ddp_now_ns();

	watch->phase_ns[watch->phase] += now_ns - watch->phase_start_ns;
	if (watch->trace != NULL && watch->phase != DDP_PHASE_IDLE)
		ddp_trace_phase(watch->trace, row_of(watch->phase), ddp_phase_name(watch->phase), watch->step,
		                watch->phase_start_ns, now_ns);
	watch->phase = phase;
	watch->phase_start_ns = now_ns;
	watch->page->phase = phase;
	watch->page->updated_ns = now_ns;
}

struct ddp_progress *ddp_watch_page(ddp_watch *watch)
{
	return watch != NULL ? watch->page : NULL;
}

const ddp_recorder *ddp_watch_recorder(const ddp_watch *watch)
{
	return watch != NULL && watch->recorder.head != NULL ? &watch->recorder : NULL;
}

ddp_phase ddp_watch_current_phase(const ddp_watch *watch)
{
	return watch->phase;
}

double ddp_watch_phase_seconds(const ddp_watch *watch, ddp_phase phase)
{
	return (double)watch->phase_ns[phase] * 1e-9;
}

void ddp_watch_begin_step(ddp_watch *watch, int64_t step, int buckets)
{
	watch->step = step;
	watch->page->step = step;
	watch->page->bucket = -1;
	watch->page->buckets = buckets;
}

void ddp_watch_last_step(ddp_watch *watch, int64_t steps)
{
	watch->page->steps = steps;
}

void ddp_watch_bucket(ddp_watch *watch, int bucket)
{
	watch->page->bucket = bucket;
}

void ddp_watch_communication(ddp_watch *watch, const char *name, int64_t bytes,
                             uint64_t start_ns, uint64_t end_ns)
{
	if (watch->trace != NULL)
		ddp_trace_communication(watch->trace, name, watch->step, bytes, start_ns, end_ns);
}

void ddp_watch_device(ddp_watch *watch, const char *name, int64_t step, uint64_t start_ns, uint64_t end_ns)
{
	if (watch->trace != NULL)
		ddp_trace_phase(watch->trace, DDP_TRACE_DEVICE, name, step, start_ns, end_ns);
}

/* Returns `exposed` of the page. */
static uint32_t exposed_share(const ddp_step_stats *stats)
{
	double share = stats->seconds > 0 ? stats->exposed_seconds / stats->seconds : 0;

	return share >= 0 && share <= 1 ? 1 + (uint32_t)(share * 1e6) : 0;
}

/* What the rank does itself, for others to compare. A program may give any numbers. */
static void add_compute(struct ddp_progress *page, const ddp_step_stats *stats)
{
	const double seconds = stats->data_seconds + stats->forward_seconds + stats->backward_seconds + stats->optimizer_seconds;

	if (!(seconds > 0 && seconds < 1e6))
		return;
	page->compute_ns += (uint64_t)(seconds * 1e9);
	page->compute_steps++;
}

void ddp_watch_end_step(ddp_watch *watch, const ddp_step_stats *stats)
{
	add_compute(watch->page, stats);
	watch->page->step_seconds = stats->seconds;
	watch->page->step_weight = stats->weight;
	watch->page->exposed = exposed_share(stats);
	ddp_watch_go_on(watch);
	if (watch->metrics != NULL)
		ddp_metrics_step(watch->metrics, stats);
	if (watch->trace != NULL) {
		ddp_trace_begin(watch->trace, stats->step);
		ddp_trace_flush(watch->trace);
	}
}

void ddp_watch_error(ddp_watch *watch, ddp_status status)
{
	ddp_page_error(watch->page, status, DDP_ERROR_OPEN, ddp_error_rank(), NULL, ddp_last_error());
}

void ddp_watch_go_on(ddp_watch *watch)
{
	ddp_page_pass_error(watch->page);
}

/* ---- spans ----------------------------------------------------------------------------- */

static int by_start(const void *a, const void *b)
{
	const ddp_span *x = a, *y = b;

	return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

double ddp_spans_union(ddp_span *spans, size_t count)
{
	uint64_t covered_ns = 0, covered_to_ns = 0;

	if (count > 1)
		qsort(spans, count, sizeof(*spans), by_start);
	for (size_t i = 0; i < count; i++) {
		uint64_t start_ns = spans[i].start_ns > covered_to_ns ? spans[i].start_ns
		                                                      : covered_to_ns;
		if (spans[i].end_ns <= start_ns)
			continue;
		covered_ns += spans[i].end_ns - start_ns;
		covered_to_ns = spans[i].end_ns;
	}
	return (double)covered_ns * 1e-9;
}

double ddp_overlap_ratio(double exposed_seconds, double communication_seconds)
{
	if (communication_seconds <= 0)
		return 1;
	double ratio = 1 - exposed_seconds / communication_seconds;
	return ratio < 0 ? 0 : ratio;
}
