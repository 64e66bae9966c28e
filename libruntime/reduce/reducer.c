/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

void ddp_reducer_cut(ddp_reducer *reducer)
{
	const ddp_layout *layout = reducer->ready.layout;

	reducer->hold = ddp_bucket_of(reducer->plan, layout->count > 1 ? layout->slots[1].offset - 1
	                                                               : layout->dense - 1);
	ddp_ready_reset(&reducer->ready);
}

ddp_status ddp_reducer_make(const ddp_layout *layout, int requests, ddp_reducer *reducer)
{
	ddp_reducer made = *reducer;

	ddp_status status = ddp_ready_make(layout, made.plan, &made.ready);
	if (status != DDP_OK)
		return status;
	ddp_reducer_cut(&made);
	made.request_count = requests;
	made.requests = calloc((size_t)requests, sizeof(*made.requests));
	made.took = calloc((size_t)requests, sizeof(*made.took));
	/* Each step waits for all requests on the host. Until then, a number is issued twice at most (left and
	   right factors; or parameters that arrive late, and then gradients). Each tensor that one rank updates
	   for all is issued once. */
	made.passed = calloc(2 * (size_t)requests + (size_t)layout->count, sizeof(*made.passed));
	/* Gradients and parameters; totals, norm, update, buffers (3); counts, indices and values of
	   rows. */
	made.spans_max = 2 * (size_t)requests + 6 + 3 * (size_t)layout->count;
	made.spans = calloc(made.spans_max, sizeof(*made.spans));
	made.totals = calloc(made.totals_max, sizeof(*made.totals));
	if (made.requests == NULL || made.took == NULL || made.passed == NULL || made.spans == NULL ||
	    made.totals == NULL) {
		ddp_reducer_free(&made);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d requests", requests);
	}
	*reducer = made;
	return DDP_OK;
}

void ddp_reducer_free(ddp_reducer *reducer)
{
	ddp_ready_free(&reducer->ready);
	free(reducer->requests);
	free(reducer->took);
	free(reducer->passed);
	free(reducer->spans);
	free(reducer->totals);
	*reducer = (ddp_reducer){ 0 };
}

ddp_status ddp_reducer_issue(ddp_reducer *reducer, int request, const ddp_operation *operation)
{
	if (operation->kind == DDP_ALL_REDUCE)
		reducer->took[request] = -1;
	return ddp_issue(reducer->comm, operation, &reducer->requests[request]);
}

/* A parameter that this rank does not use counts as 0 in the bucket, whatever its memory holds. */
static ddp_status clear_lacking(const ddp_model *model, const ddp_bucket *bucket)
{
	ddp_status status = DDP_OK;

	for (int i = bucket->first_param; i <= bucket->last_param && status == DDP_OK; i++) {
		const ddp_slot *slot = &model->layout.slots[i];
		const int64_t end = slot->offset + slot->count;
		if (ddp_uses_lacks(&model->uses, slot->param))
			status = ddp_arena_clear(&model->grads_memory,
			                         slot->offset > bucket->begin ? slot->offset : bucket->begin,
			                         end < bucket->end ? end : bucket->end);
	}
	return status;
}

static ddp_status start_bucket(ddp_reducer *reducer, int k)
{
	ddp_model *model = reducer->model;

	ddp_watch_bucket(reducer->watch, k);
	ddp_on_device_look(model);
	ddp_status status = clear_lacking(model, &reducer->plan->buckets[k]);
	if (status == DDP_OK) {
		dk_queue *before = dk_use(reducer->place->kernels);
		status = model->strategy->start(model, k);
		dk_use(before);
	}
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "gradient bucket %d of %d", k, reducer->plan->count);
}

/* Whether buckets are reduced before backward has ended. */
static bool starts_early(const ddp_reducer *reducer)
{
	return reducer->communicates && reducer->model->strategy->start != NULL && reducer->overlaps;
}

ddp_status ddp_reducer_announce(ddp_reducer *reducer, int param)
{
	ddp_status status = ddp_ready_announce(&reducer->ready, param);
	int k;

	if (!starts_early(reducer))
		return status;
	while (status == DDP_OK && (k = ddp_ready_take(&reducer->ready, reducer->hold)) >= 0)
		status = start_bucket(reducer, k);
	return status;
}

static ddp_status issue_totals(ddp_reducer *reducer)
{
	const ddp_operation operation = {
		.kind = DDP_ALL_REDUCE, .recv = reducer->totals,
		.count = reducer->totals_count, .type = DDP_F64, .op = DDP_SUM,
	};

	return ddp_issue(reducer->comm, &operation, &reducer->totals_request);
}

static void note_span(ddp_reducer *reducer, const char *name, int64_t bytes, ddp_span span)
{
	if (reducer->span_count < reducer->spans_max)
		reducer->spans[reducer->span_count++] = span;
	ddp_watch_communication(reducer->watch, name, bytes, span.start_ns, span.end_ns);
}

ddp_status ddp_reducer_run(ddp_reducer *reducer, const char *name,
                           const ddp_operation *operation)
{
	ddp_span span = { .start_ns = ddp_now_ns() };

	if (!reducer->communicates)
		return DDP_OK;
	ddp_status status = ddp_run(reducer->comm, operation);
	if (status != DDP_OK)
		return ddp_fail_context(status, "%s", name);
	span.end_ns = ddp_now_ns();
	size_t count = operation->counts != NULL ? operation->counts[ddp_comm_rank(reducer->comm)]
	                                         : operation->count;
	note_span(reducer, name, (int64_t)(count * ddp_type_bytes(operation->type)), span);
	return DDP_OK;
}

ddp_status ddp_reducer_meet(ddp_reducer *reducer, const char *name, double *values,
                            size_t count)
{
	const ddp_operation operation = {
		.kind = count > 0 ? DDP_ALL_REDUCE : DDP_BARRIER, .recv = values, .count = count,
		.type = DDP_F64, .op = DDP_SUM,
	};

	return ddp_reducer_run(reducer, name, &operation);
}

ddp_status ddp_reducer_finish(ddp_reducer *reducer, const double *totals, size_t count)
{
	ddp_status status = DDP_OK;
	int k;

	memcpy(reducer->totals, totals, count * sizeof(*totals));
	reducer->totals_count = count;
	if (!reducer->communicates)
		return DDP_OK;
	if (reducer->model->strategy->start == NULL)
		return ddp_reducer_meet(reducer, "totals", reducer->totals, count);
	while (status == DDP_OK && (k = ddp_ready_force(&reducer->ready, reducer->hold)) >= 0)
		status = start_bucket(reducer, k);
	if (status == DDP_OK)
		status = issue_totals(reducer);
	while (status == DDP_OK &&
	       (k = ddp_ready_force(&reducer->ready, reducer->plan->count)) >= 0)
		status = start_bucket(reducer, k);
	return status;
}

ddp_status ddp_reducer_catch_up(ddp_reducer *reducer)
{
	ddp_status status = DDP_OK;
	int k;

	if (!starts_early(reducer))
		return DDP_OK;
	while (status == DDP_OK && (k = ddp_ready_force(&reducer->ready, reducer->hold)) >= 0)
		status = start_bucket(reducer, k);
	return status;
}

/* Ends *request, and notes when it ran; if `took` is not NULL, how long. */
static ddp_status wait_request(ddp_reducer *reducer, ddp_request **request, const char *name,
                               int64_t bytes, double *took)
{
	ddp_span span;

	if (*request == NULL)
		return DDP_OK;
	ddp_request *ending = *request;
	*request = NULL;
	ddp_status status = ddp_wait_timed(ending, &span.start_ns, &span.end_ns);
	if (status != DDP_OK)
		return ddp_fail_context(status, "%s", name);
	note_span(reducer, name, bytes, span);
	if (took != NULL)
		*took = (double)(span.end_ns - span.start_ns) * 1e-9;
	return DDP_OK;
}

ddp_status ddp_reducer_wait_totals(ddp_reducer *reducer, double *totals)
{
	ddp_status status = wait_request(reducer, &reducer->totals_request, "totals",
	                                 (int64_t)(reducer->totals_count * sizeof(double)), &reducer->totals_took);

	if (status == DDP_OK)
		memcpy(totals, reducer->totals, reducer->totals_count * sizeof(*totals));
	return status;
}

/* The queue waits for it. */
static ddp_status pass(ddp_reducer *reducer, ddp_request **request, const char *name, int64_t bytes)
{
	ddp_status status = ddp_wait_on(*request, reducer->place->stream);

	if (status != DDP_OK)
		return ddp_fail_context(status, "%s", name);
	ddp_passed *passed = &reducer->passed[reducer->passed_count++];
	*passed = (ddp_passed){ .request = *request, .bytes = bytes };
	snprintf(passed->name, sizeof(passed->name), "%s", name);
	*request = NULL;
	return DDP_OK;
}

ddp_status ddp_reducer_end(ddp_reducer *reducer, int request, const char *name, int64_t bytes)
{
	ddp_request **ending = &reducer->requests[request];
	double *took = &reducer->took[request];

	if (*ending == NULL || reducer->place->device == NULL)
		return wait_request(reducer, ending, name, bytes, *took < 0 ? took : NULL);
	return pass(reducer, ending, name, bytes);
}

ddp_status ddp_reducer_end_passed(ddp_reducer *reducer)
{
	ddp_status status = DDP_OK;
	int i = 0;

	for (; i < reducer->passed_count && status == DDP_OK; i++) {
		ddp_passed *passed = &reducer->passed[i];
		status = wait_request(reducer, &passed->request, passed->name, passed->bytes, NULL);
	}
	/* Those behind an error are for ddp_reducer_abandon(). */
	if (i == reducer->passed_count)
		reducer->passed_count = 0;
	return status;
}

void ddp_reducer_reset(ddp_reducer *reducer)
{
	ddp_ready_reset(&reducer->ready);
	reducer->span_count = 0;
}

bool ddp_reducer_busy(const ddp_reducer *reducer)
{
	if (reducer->totals_request != NULL)
		return true;
	for (int k = 0; k < reducer->request_count; k++) {
		if (reducer->requests[k] != NULL)
			return true;
	}
	return reducer->passed_count > 0;
}

static void abandon(ddp_request **request)
{
	if (*request != NULL)
		ddp_wait(*request);
	*request = NULL;
}

void ddp_reducer_abandon(ddp_reducer *reducer, const char *reason)
{
	if (!ddp_reducer_busy(reducer))
		return;
	ddp_comm_abort(reducer->comm, reason);
	for (int k = 0; k < reducer->request_count; k++)
		abandon(&reducer->requests[k]);
	for (int i = 0; i < reducer->passed_count; i++)
		abandon(&reducer->passed[i].request);
	reducer->passed_count = 0;
	abandon(&reducer->totals_request);
}
