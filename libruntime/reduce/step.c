/* step: one training step, from the first gradient to the update. */
#include "reduce/model_state.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels.h"

/* What all ranks tell each other at the end of a step; sums travel. */
enum total {
	TOTAL_WEIGHT,
	TOTAL_LOSS,
	TOTAL_RATE,         /* the learning rate and its square: do ranks agree? */
	TOTAL_RATE_SQUARED,
	TOTAL_BAD,          /* ranks that gave a wrong weight or learning rate */
	TOTAL_BAD_RANK,     /* their ranks; one if there is one */
	TOTAL_STOP,         /* ranks that were asked to stop */
	TOTALS
};
_Static_assert((int)TOTALS <= (int)DDP_TOTALS_MAX, "the reducer carries them");

ddp_status ddp_model_check(const ddp_model *model)
{
	if (model == NULL)
		return ddp_fail(DDP_ERR_INVALID, "the model is NULL");
	if (model->failed)
		return ddp_fail(DDP_ERR_STATE,
		                "step %lld of this model has failed; it can train no more",
		                (long long)model->steps + 1);
	if (model->torn)
		return ddp_fail(DDP_ERR_STATE, "a checkpoint was loaded only in part: load one, whole, "
		                "before the next step");
	return DDP_OK;
}

ddp_status ddp_model_fail(ddp_model *model, ddp_status status)
{
	char reason[1024];

	snprintf(reason, sizeof(reason), "%s", ddp_last_error());
	ddp_watch_error(model->context->watch, status);
	model->failed = true;
	/* Peers may be about to wait for this rank, so tell them in any case. */
	ddp_comm_abort(model->context->world, reason);
	ddp_reducer_abandon(&model->reducer, reason);
	return ddp_fail(status, "%s", reason);
}

void ddp_model_start_clock(ddp_model *model)
{
	if (model->step_start_ns == 0)
		model->step_start_ns = ddp_now_ns();
}

void ddp_set_phase(ddp_model *model, ddp_phase phase)
{
	if (model == NULL)
		return;
	ddp_model_start_clock(model);
	ddp_watch_phase(model->context->watch, phase);
}

ddp_status ddp_set_sync(ddp_model *model, bool sync)
{
	ddp_status status = ddp_model_check(model);
	if (status != DDP_OK)
		return status;
	/* Buckets under way must not get more gradients. */
	if (!sync && model->reducer.ready.announced_count > 0)
		return ddp_fail(DDP_ERR_STATE,
		                "sync cannot be turned off in step %lld: gradients were announced "
		                "already; turn it off before the step's first micro-batch",
		                (long long)model->steps + 1);
	model->sync = sync;
	return DDP_OK;
}

static ddp_status no_such_parameter(const ddp_model *model, int param)
{
	return ddp_fail(DDP_ERR_INVALID, "no parameter has index %d; there are %d", param,
	                model->layout.count);
}

ddp_status ddp_grad_ready(ddp_model *model, int param)
{
	ddp_status status = ddp_model_check(model);
	if (status != DDP_OK)
		return status;
	if (param < 0 || param >= model->layout.count)
		return no_such_parameter(model, param);
	if (!model->sync)
		return DDP_OK;
	int slot = model->layout.slot_of[param];
	if (model->reducer.ready.announced[slot])
		return ddp_reducer_announce(&model->reducer, slot); /* says what is wrong */
	ddp_model_start_clock(model);
	status = ddp_reducer_announce(&model->reducer, slot);
	return status == DDP_OK ? DDP_OK : ddp_model_fail(model, status);
}

static ddp_status check_rows(const ddp_slot *slot, const int32_t *index, int64_t count)
{
	if (slot->sparse_rows == 0)
		return ddp_fail(DDP_ERR_INVALID,
		                "parameter \"%s\" was made without sparse_rows, so no rows can be added to "
		                "its gradient", slot->name);
	if (count < 0)
		return ddp_fail(DDP_ERR_INVALID, "%lld rows for the gradient of \"%s\"",
		                (long long)count, slot->name);
	for (int64_t i = 0; i < count; i++) {
		if (index[i] < 0 || index[i] >= slot->shape[0])
			return ddp_fail(DDP_ERR_INVALID, "index %lld of rows for the gradient of \"%s\" is %d; "
			                "it has %lld rows", (long long)i, slot->name, (int)index[i],
			                (long long)slot->shape[0]);
	}
	return DDP_OK;
}

ddp_status ddp_grad_rows(ddp_model *model, int param, const int32_t *index, const float *values,
                         int64_t count)
{
	ddp_status status = ddp_model_check(model);
	if (status != DDP_OK)
		return status;
	const ddp_slot *slot = ddp_model_slot(model, param);
	if (slot == NULL)
		return no_such_parameter(model, param);
	if (count > 0 && (index == NULL || values == NULL))
		return ddp_fail(DDP_ERR_INVALID, "ddp_grad_rows(): a NULL argument");
	status = check_rows(slot, index, count);
	if (status != DDP_OK || count == 0)
		return status;
	if (slot->rows_travel)
		return ddp_rows_keep(&model->rows, slot, index, values, count);
	dk_add_rows(model->grads + slot->offset, index, values, count, slot->count / slot->shape[0]);
	return DDP_OK;
}

/* A rank with a wrong argument goes through the step with the others, so that
   all of them end it with an error. */
static void state_totals(ddp_model *model, double weight, double loss_sum,
                         double *totals)
{
	double rate = model->learning_rate;
	bool good = isfinite(weight) && weight >= 0 && isfinite(rate) && rate >= 0;

	totals[TOTAL_WEIGHT] = good ? weight : 0;
	totals[TOTAL_LOSS] = good ? loss_sum : 0;
	totals[TOTAL_RATE] = good ? rate : 0;
	totals[TOTAL_RATE_SQUARED] = good ? rate * rate : 0;
	totals[TOTAL_BAD] = good ? 0 : 1;
	totals[TOTAL_BAD_RANK] = good ? 0 : ddp_comm_rank(model->context->world);
	totals[TOTAL_STOP] = atomic_load(&model->stop_requested) ? 1 : 0;
}

static ddp_status check_totals(const ddp_model *model, double weight, const double *totals)
{
	long long step = (long long)model->steps + 1;
	int ranks = model->reducer.communicates ? ddp_comm_size(model->context->world) : 1;

	if (totals[TOTAL_BAD] == 1)
		return ddp_fail(DDP_ERR_INVALID,
		                "step %lld: rank %d gave a weight or a learning rate that is negative or "
		                "not finite (weight %g and learning rate %g on rank %d)",
		                step, (int)totals[TOTAL_BAD_RANK], weight, model->learning_rate,
		                ddp_comm_rank(model->context->world));
	if (totals[TOTAL_BAD] != 0)
		return ddp_fail(DDP_ERR_INVALID,
		                "step %lld: %d ranks gave a weight or a learning rate that is negative or "
		                "not finite", step, (int)totals[TOTAL_BAD]);
	if (totals[TOTAL_WEIGHT] == 0)
		return ddp_fail(DDP_ERR_INVALID,
		                "step %lld: no rank had a sample (the sum of all weights is 0)", step);
	double mean = totals[TOTAL_RATE] / ranks;
	double variance = totals[TOTAL_RATE_SQUARED] / ranks - mean * mean;
	if (variance > 1e-12 * mean * mean)
		return ddp_fail(DDP_ERR_MISMATCH,
		                "step %lld: ranks have different learning rates (%g on rank %d, %g on "
		                "average); give all ranks the same", step, model->learning_rate,
		                ddp_comm_rank(model->context->world), mean);
	return DDP_OK;
}

/* Adds the rows of all ranks to dense parts that are reduced. */
static ddp_status complete_rows(ddp_model *model)
{
	if (model->rows.count == 0)
		return DDP_OK;
	/* They lie at the end of the arena, in its first buckets. */
	int last = ddp_bucket_of(&model->plan, model->rows.sets[0].slot->offset);
	ddp_status status = ddp_reducer_wait(&model->reducer, 0, last + 1);
	return status == DDP_OK ? ddp_rows_exchange(&model->rows, &model->reducer, model->grads)
	                        : status;
}

static ddp_status reduce_and_update(ddp_model *model, double weight, double loss_sum,
                                    ddp_step_stats *stats)
{
	double totals[TOTALS];

	state_totals(model, weight, loss_sum, totals);
	ddp_status status = ddp_reducer_finish(&model->reducer, totals, TOTALS);
	if (status == DDP_OK)
		status = ddp_reducer_wait_totals(&model->reducer, totals);
	if (status == DDP_OK)
		status = check_totals(model, weight, totals);
	/* They were issued before the totals, so they are complete, or nearly. */
	if (status == DDP_OK)
		status = ddp_reducer_wait(&model->reducer, 0, model->reducer.hold);
	if (status == DDP_OK)
		status = complete_rows(model);
	if (status != DDP_OK)
		return status;

	ddp_update update = {
		.learning_rate = model->learning_rate,
		.grad_scale = 1 / totals[TOTAL_WEIGHT],
		.step = model->steps + 1,
	};
	stats->weight = totals[TOTAL_WEIGHT];
	stats->loss = totals[TOTAL_LOSS] / totals[TOTAL_WEIGHT];
	stats->learning_rate = update.learning_rate;
	stats->stop = totals[TOTAL_STOP] > 0;
	return ddp_model_update(model, &update, stats->weight, &stats->grad_norm);
}

static double phase_since(ddp_model *model, ddp_phase phase)
{
	double now = ddp_watch_phase_seconds(model->context->watch, phase);
	double before = model->phase_seconds[phase];

	model->phase_seconds[phase] = now;
	return now - before;
}

static void take_times(ddp_model *model, ddp_step_stats *stats)
{
	uint64_t now_ns = ddp_now_ns();

	stats->step = model->steps;
	stats->seconds = (double)(now_ns - model->step_start_ns) * 1e-9;
	stats->data_seconds = phase_since(model, DDP_PHASE_DATA);
	stats->forward_seconds = phase_since(model, DDP_PHASE_FORWARD);
	stats->backward_seconds = phase_since(model, DDP_PHASE_BACKWARD);
	stats->exposed_seconds = phase_since(model, DDP_PHASE_WAIT);
	stats->optimizer_seconds = phase_since(model, DDP_PHASE_OPTIMIZER);
	stats->communication_seconds =
		ddp_spans_union(model->reducer.spans, model->reducer.span_count);
	model->step_start_ns = now_ns;
}

static void add_to_summary(ddp_model *model, const ddp_step_stats *stats)
{
	ddp_summary *summary = &model->summary;

	if (summary->steps == 0)
		summary->first_loss = stats->loss;
	summary->steps++;
	summary->last_loss = stats->loss;
	summary->seconds += stats->seconds;
	summary->data_seconds += stats->data_seconds;
	summary->forward_seconds += stats->forward_seconds;
	summary->backward_seconds += stats->backward_seconds;
	summary->exposed_seconds += stats->exposed_seconds;
	summary->communication_seconds += stats->communication_seconds;
	summary->optimizer_seconds += stats->optimizer_seconds;
	model->weight_sum += stats->weight;
}

ddp_status ddp_step(ddp_model *model, double weight, double loss_sum, ddp_step_stats *stats)
{
	ddp_step_stats taken = { 0 };

	ddp_status status = ddp_model_check(model);
	if (status != DDP_OK)
		return status;
	ddp_model_start_clock(model);
	ddp_watch_phase(model->context->watch,
	                model->reducer.communicates ? DDP_PHASE_WAIT : DDP_PHASE_OPTIMIZER);
	status = reduce_and_update(model, weight, loss_sum, &taken);
	if (status != DDP_OK) {
		ddp_fail_context(status, "step %lld", (long long)model->steps + 1);
		return ddp_model_fail(model, status);
	}
	ddp_watch_phase(model->context->watch, DDP_PHASE_IDLE);
	model->steps++;
	take_times(model, &taken);
	add_to_summary(model, &taken);
	ddp_reducer_reset(&model->reducer);
	model->sync = true;
	ddp_watch_end_step(model->context->watch, &taken);
	ddp_watch_begin_step(model->context->watch, model->steps + 1, model->plan.count);
	if (stats != NULL)
		*stats = taken;
	return DDP_OK;
}

void ddp_request_stop(ddp_model *model)
{
	if (model != NULL)
		atomic_store(&model->stop_requested, true);
}

void ddp_get_summary(const ddp_model *model, ddp_summary *summary)
{
	*summary = model->summary;
	summary->update = model->sharded.ranks > 0 ? DDP_SHARDED : DDP_REPLICATED;
	summary->units_per_second =
		summary->seconds > 0 ? model->weight_sum / summary->seconds : 0;
	summary->overlap_ratio =
		ddp_overlap_ratio(summary->exposed_seconds, summary->communication_seconds);
}
