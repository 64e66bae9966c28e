/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/step.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels.h"
#include "reduce/buddy.h"
#include "reduce/compare.h"
#include "reduce/model_state.h"
#include "reduce/survival.h"

/* Marks what the program's queue on a device does from here on. */
static void mark(ddp_model *model, ddp_phase phase)
{
	ddp_timeline_mark(model->timeline, phase, model->steps + 1);
}

/* Enters the phase on the host, which enqueues, and on the queue. */
static void enter(ddp_model *model, ddp_phase phase)
{
	const ddp_phase before = ddp_watch_current_phase(model->context->watch);

	ddp_watch_phase(model->context->watch, phase);
	if (ddp_watch_current_phase(model->context->watch) != before)
		mark(model, phase);
}

void ddp_model_set_phase(ddp_model *model, ddp_phase phase)
{
	if (model == NULL)
		return;
	ddp_model_start_clock(model);
	enter(model, phase);
}

ddp_status ddp_model_set_sync(ddp_model *model, bool sync)
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

/* Adds the rows of all ranks to dense parts that are reduced. */
static ddp_status complete_rows(ddp_model *model)
{
	ddp_rows *rows = &model->rows;
	int64_t total;

	if (rows->count == 0)
		return DDP_OK;
	/* Dense parts lie at the end of what travels in buckets, in the first ones. */
	int64_t first = rows->sets[0].slot->offset;
	int buckets = first < model->layout.dense ? ddp_bucket_of(&model->plan, first) + 1 : 0;
	ddp_status status = ddp_model_wait(model, 0, buckets);
	for (int i = 0; i < rows->count && status == DDP_OK; i++) {
		const ddp_row_set *set = &rows->sets[i];
		status = ddp_rows_gather(rows, i, &model->reducer, &total);
		if (status == DDP_OK)
			model->strategy->add_rows(model, set->slot, set->all_rows, set->all_values, total);
	}
	return status;
}

void ddp_step_reset(ddp_model *model)
{
	ddp_uses_reset(&model->uses);
	model->reducer.ready.absent = model->uses.learned ? model->uses.absent : NULL;
	ddp_reducer_reset(&model->reducer);
	ddp_replan_forget(model);
	model->joined = false;
	model->magnitude = (ddp_magnitude){ 0 };
	model->sync = true;
	model->reduced = false;
}

/* Ends what is left of the step under way, whose buckets all ranks have started, and
   forgets its gradients. */
static ddp_status discard(ddp_model *model)
{
	ddp_status status = ddp_model_arrive(model);

	if (status == DDP_OK)
		status = ddp_model_wait(model, 0, model->plan.count);
	if (status == DDP_OK)
		status = ddp_arena_clear(&model->grads_memory, 0, model->layout.elements);
	if (status == DDP_OK)
		status = ddp_on_device_forget(model);
	if (status == DDP_OK)
		status = ddp_model_end_buckets(model);
	if (status != DDP_OK)
		return status;
	if (model->strategy->discard != NULL)
		model->strategy->discard(model);
	ddp_rows_discard(&model->rows);
	ddp_step_reset(model);
	return DDP_OK;
}

ddp_status ddp_model_drop_step(ddp_model *model)
{
	if (model->failed)
		return ddp_model_check(model);
	ddp_status status = ddp_reducer_catch_up(&model->reducer);
	if (status == DDP_OK)
		status = discard(model);
	if (status == DDP_OK)
		status = ddp_buddy_rest(model);
	return status == DDP_OK ? DDP_OK : ddp_model_fail(model, status);
}

/* Refuses the step for the reason that the last error says, which all ranks saw alike. The model stays as it was. */
static ddp_status refuse(ddp_model *model, ddp_status refused)
{
	ddp_kept_error reason;

	if (ddp_comm_broken(model->comm))
		return refused;
	ddp_error_keep(&reason, refused);
	ddp_status status = discard(model);
	if (status != DDP_OK)
		return status;
	model->refused = true;
	/* Ranks that do not communicate have each an error of its own. */
	reason.told = model->reducer.communicates && ddp_comm_rank(model->comm) != 0;
	return ddp_error_return(&reason);
}

/* Ranks have other parameters than others. A program that ends by that may have a loop of its own, and srun's line is
   to tell why. */
static ddp_status refuse_parameters(ddp_model *model, const ddp_consensus *own)
{
	ddp_status status = refuse(model, ddp_compare_name(model, ddp_consensus_checksum(own)));

	ddp_watch_error(model->context->watch, status);
	return status;
}

/* The weight of the gradients that this rank has in the end: all ranks', or its own, of
   which there may be none. */
static double divisor(const ddp_model *model, double own, double all)
{
	if (model->strategy->is_local == NULL || !model->strategy->is_local(model))
		return all;
	return own > 0 && model->settings.options.loss == DDP_LOSS_SUM ? own : 1;
}

/* Says what the rank waits for at the end of a step. */
static void begin_waiting(ddp_model *model)
{
	ddp_watch_phase(model->context->watch,
	                model->reducer.communicates ? DDP_PHASE_WAIT : DDP_PHASE_OPTIMIZER);
}

/* Fetches what a device found out in the backward pass. The device may still run it: that is no
   communication. Buckets that need not wait go ahead. */
static ddp_status fetch(ddp_model *model, double *loss_sum)
{
	double loss;

	if (model->place.device == NULL)
		return DDP_OK;
	ddp_status status = ddp_reducer_catch_up(&model->reducer);
	ddp_watch_phase(model->context->watch, DDP_PHASE_BACKWARD);
	ddp_on_device_look(model);
	mark(model, DDP_PHASE_OPTIMIZER);
	if (status == DDP_OK)
		status = ddp_on_device_fetch(model, &loss);
	if (status == DDP_OK)
		ddp_timeline_tell(model->timeline);
	begin_waiting(model);
	if (status == DDP_OK)
		*loss_sum += loss;
	return status;
}

/* Exchanges what ranks say. `halves`: this is ddp_model_reduce_grads(). */
static ddp_status confer(ddp_model *model, ddp_consensus *own, bool halves, ddp_consensus *all)
{
	double *words = model->consensus + DDP_CONSENSUS_COUNT;
	const int count = ddp_uses_state(&model->uses, model->joined, words);

	own->halves = halves ? 1 : 0;
	own->changed = model->uses.changed >= 0 ? 1 : 0;
	own->bad_buffers = model->joined || ddp_buffers_finite(model) ? 0 : 1;
	memcpy(model->consensus, own, sizeof(*own));
	ddp_status status = ddp_reducer_finish(&model->reducer, model->consensus,
	                                         DDP_CONSENSUS_COUNT + (size_t)count);
	if (status == DDP_OK)
		status = ddp_reducer_wait_totals(&model->reducer, model->consensus);
	memcpy(all, model->consensus, sizeof(*all));
	return status;
}

/* Judges what the ranks said, which all of them see alike. Numbers that are not finite are judged elsewhere. */
static ddp_status judge(ddp_model *model, double weight, const ddp_consensus *own, const ddp_consensus *all)
{
	ddp_status status = ddp_consensus_check(model, weight, all);

	if (status != DDP_OK)
		return refuse(model, status);
	if (all->changed > 0)
		return refuse(model, ddp_consensus_name_changed(model));
	if (!ddp_compare_is_due(model))
		ddp_consensus_watch_samples(model, own, all);
	else if (!ddp_consensus_same(model, own, all))
		return refuse_parameters(model, own);
	return DDP_OK;
}

static void take_stats(ddp_model *model, double weight, const ddp_consensus *all,
                       ddp_step_stats *stats)
{
	const int active = ddp_consensus_active(model, all);

	model->divisor = divisor(model, weight, ddp_consensus_divisor(model, all)) * model->scaler.scale;
	stats->weight = all->weight;
	stats->loss = active > 0 ? all->loss_sum / (model->settings.options.loss == DDP_LOSS_SUM ? all->weight : active) : NAN;
	stats->learning_rate = model->learning_rate;
	stats->stop = all->stop > 0;
	stats->active_ranks = active;
}

static double communication_seconds(ddp_model *model)
{
	return ddp_spans_union(model->reducer.spans, model->reducer.span_count);
}

/* A lower scale of the loss may help: the step leaves all but that as it was. */
static ddp_status skip(ddp_model *model, double scale, const ddp_consensus *all, ddp_step_stats *stats)
{
	if (ddp_comm_rank(model->comm) == 0)
		ddp_log(DDP_LOG_INFO, "step %lld is skipped: with a loss scale of %g the loss, gradients or their sums "
		        "are not finite (on %.0f ranks before they are summed); the scale is now %g",
		        (long long)model->steps + 1, scale, all->not_finite, model->scaler.scale);
	stats->step = model->steps;
	stats->loss = stats->grad_norm = NAN;
	stats->skipped = true;
	ddp_status status = ddp_model_wait(model, 0, model->plan.count);
	if (status == DDP_OK)
		status = ddp_model_end_buckets(model);
	stats->communication_seconds = communication_seconds(model); /* before they are forgotten */
	return status == DDP_OK ? discard(model) : status;
}

/* Agrees with all ranks on the step: its weight, loss and end. */
static ddp_status agree(ddp_model *model, double weight, double loss_sum, bool halves,
                        ddp_step_stats *stats)
{
	ddp_consensus own, all;

	model->refused = false;
	/* A step without buckets has not waited for them yet. */
	ddp_status status = ddp_model_arrive_in(model, 0, model->layout.elements);
	if (status == DDP_OK)
		status = ddp_buddy_settle(model);
	if (status == DDP_OK)
		status = ddp_grads_look_at_rest(model);
	if (status == DDP_OK)
		status = fetch(model, &loss_sum);
	if (status == DDP_OK)
		status = ddp_consensus_state(model, weight, loss_sum, &own);
	if (status == DDP_OK)
		status = confer(model, &own, halves, &all);
	if (status == DDP_OK)
		status = judge(model, weight, &own, &all);
	if (status != DDP_OK)
		return status;
	take_stats(model, weight, &all, stats);
	if (stats->active_ranks > 0 && !ddp_consensus_finite(model, &all)) {
		const double scale = model->scaler.scale;
		return ddp_scaler_overflow(&model->scaler) ? skip(model, scale, &all, stats)
		                                           : refuse(model, ddp_consensus_name(model, loss_sum, &all));
	}
	if (ddp_compare_is_due(model))
		model->compared = model->steps;
	model->largest = all.largest;
	if (stats->active_ranks == 0)
		return DDP_OK;
	ddp_uses_agree(&model->uses, model->consensus + DDP_CONSENSUS_COUNT, all.joined == 0);
	status = ddp_buffers_sync(model, &own, &all);
	if (status != DDP_OK)
		return status;
	/* They were issued before the totals, so they are complete, or nearly. */
	status = ddp_model_wait(model, 0, model->reducer.hold);
	return status == DDP_OK ? complete_rows(model) : status;
}

/* Waits for all gradients, and tells the norm of their mean. */
static ddp_status reduce(ddp_model *model, ddp_step_stats *stats)
{
	double squares;

	dk_queue *before = dk_use(model->place.kernels);
	ddp_status status = model->strategy->reduce(model, &squares);
	dk_use(before);
	if (status == DDP_OK)
		stats->grad_norm = sqrt(squares) / model->divisor;
	return status;
}

/* `reduced`: with reduce(), which clipping needs. */
static ddp_status update(ddp_model *model, bool reduced, ddp_step_stats *stats)
{
	const double clip_norm = model->settings.options.clip_norm;
	const double clip = clip_norm > 0 ? ddp_clip_factor(clip_norm, stats->grad_norm) : 1;
	const ddp_update update = {
		.learning_rate = stats->learning_rate,
		.grad_scale = 1 / model->divisor * clip,
		.step = model->steps + 1,
		.unused = ddp_uses_counts(&model->uses) ? model->uses.unused : NULL,
		.missed = model->uses.missed,
		.alone = model->strategy->is_local != NULL && model->strategy->is_local(model),
		.knows_norm = reduced,
		.keep = model->buddy != NULL ? ddp_buddy_keep : NULL, .keeper = model,
	};
	double squares;

	ddp_status status = ddp_survival_begin_update(model);
	if (status != DDP_OK)
		return status;
	dk_queue *before = dk_use(model->place.kernels);
	status = model->strategy->update(model, &update, reduced, &squares);
	dk_use(before);
	if (status == DDP_OK)
		ddp_survival_end_update(model);
	if (status == DDP_OK && !reduced)
		stats->grad_norm = sqrt(squares) / model->divisor;
	return status;
}

static double phase_since(ddp_model *model, ddp_phase phase)
{
	double now = ddp_watch_phase_seconds(model->context->watch, phase);
	double before = model->phase_seconds[phase];

	model->phase_seconds[phase] = now;
	return now - before;
}

/* The seconds of forward or backward. */
static double compute_since(ddp_model *model, ddp_phase phase)
{
	const double host = phase_since(model, phase);

	return model->timeline == NULL ? host : ddp_timeline_take(model->timeline, phase);
}

static void take_times(ddp_model *model, ddp_step_stats *stats)
{
	uint64_t now_ns = ddp_now_ns();

	stats->step = model->steps;
	stats->seconds = (double)(now_ns - model->step_start_ns) * 1e-9;
	stats->data_seconds = phase_since(model, DDP_PHASE_DATA);
	stats->forward_seconds = compute_since(model, DDP_PHASE_FORWARD);
	stats->backward_seconds = compute_since(model, DDP_PHASE_BACKWARD);
	stats->exposed_seconds = phase_since(model, DDP_PHASE_WAIT);
	stats->optimizer_seconds = phase_since(model, DDP_PHASE_OPTIMIZER);
	stats->checkpoint_seconds = phase_since(model, DDP_PHASE_CHECKPOINT);
	stats->evaluation_seconds = phase_since(model, DDP_PHASE_EVAL);
	/* A device's times are not the host's, and may be more than all. */
	stats->other_seconds = fmax(0, stats->seconds - stats->data_seconds - stats->forward_seconds -
	                               stats->backward_seconds - stats->exposed_seconds - stats->optimizer_seconds -
	                               stats->checkpoint_seconds - stats->evaluation_seconds);
	if (!stats->skipped)
		stats->communication_seconds = communication_seconds(model);
	model->step_start_ns = now_ns;
}

static void add_to_summary(ddp_model *model, const ddp_step_stats *stats)
{
	ddp_summary *summary = &model->summary;

	if (summary->steps == 0) {
		summary->first_loss = stats->loss;
		summary->first_step = stats->step;
	}
	summary->last_step = stats->step;
	summary->steps++;
	summary->last_loss = stats->loss;
	summary->seconds += stats->seconds;
	summary->data_seconds += stats->data_seconds;
	summary->forward_seconds += stats->forward_seconds;
	summary->backward_seconds += stats->backward_seconds;
	summary->exposed_seconds += stats->exposed_seconds;
	summary->communication_seconds += stats->communication_seconds;
	summary->optimizer_seconds += stats->optimizer_seconds;
	summary->checkpoint_seconds += stats->checkpoint_seconds;
	summary->evaluation_seconds += stats->evaluation_seconds;
	summary->other_seconds += stats->other_seconds;
	model->weight_sum += stats->weight;
}

static ddp_status begin_end(ddp_model *model)
{
	ddp_status status = ddp_model_check(model);

	if (status != DDP_OK)
		return status;
	if (model->reduced)
		return ddp_model_not_updated(model);
	if (model->context->renewal.joins)
		return ddp_fail(DDP_ERR_STATE, "srun has started this rank to join others that have kept their "
		                "processes, but it trains before ddp_survive(), or without the training option survive");
	if (model->rounded != NULL && !model->was_rounded)
		return ddp_fail(DDP_ERR_STATE, "the parameters in bf16 are still 0: call ddp_model_broadcast_params() "
		                "or load a checkpoint before the first step");
	ddp_model_start_clock(model);
	ddp_replan_end(model);
	begin_waiting(model);
	model->stats = (ddp_step_stats){ .step = model->steps + 1 };
	return DDP_OK;
}

/* An error of the step, unless all ranks saw it alike, is the model's last. */
static ddp_status fail_step(ddp_model *model, ddp_status status)
{
	ddp_fail_context(status, "step %lld", (long long)model->steps + 1);
	if (!model->refused)
		return ddp_model_fail(model, status);
	enter(model, DDP_PHASE_IDLE);
	return status;
}

void ddp_step_count(ddp_model *model)
{
	/* If each rank updates its own part only, an update does not round. What arrives is rounded then. */
	if (model->strategy->spreads && model->strategy->arrive == NULL)
		ddp_model_round(model, 0, model->layout.elements);
	enter(model, DDP_PHASE_IDLE);
	ddp_replan_take(model);
	model->steps++;
	ddp_scaler_good(&model->scaler);
	ddp_uses_end_step(&model->uses);
	take_times(model, &model->stats);
	add_to_summary(model, &model->stats);
	ddp_step_reset(model);
	ddp_survival_end_step(model);
	ddp_watch_end_step(model->context->watch, &model->stats);
}

void ddp_step_take(ddp_model *model, const ddp_step_stats *stats)
{
	model->steps = model->averaged = model->settled = stats->step;
	model->stats = *stats;
	add_to_summary(model, stats);
	ddp_survival_end_step(model);
}

static ddp_status end_step(ddp_model *model, ddp_step_stats *stats)
{
	ddp_status status = DDP_OK;

	if (model->stats.skipped) {
		enter(model, DDP_PHASE_IDLE);
		take_times(model, &model->stats);
		ddp_survival_end_step(model);
	} else {
		ddp_step_count(model);
		status = ddp_replan_step(model);
	}
	ddp_watch_begin_step(model->context->watch, model->steps + 1, model->plan.count);
	if (stats != NULL)
		*stats = model->stats;
	return status == DDP_OK ? DDP_OK : fail_step(model, status);
}

static ddp_status run_step(ddp_model *model, double weight, double loss_sum)
{
	/* If nothing is to be clipped, updates need not wait for the last gradients. */
	const bool clips = model->settings.options.clip_norm > 0;

	ddp_status status = agree(model, weight, loss_sum, false, &model->stats);
	if (status == DDP_OK && model->stats.active_ranks == 0)
		return discard(model);
	if (status == DDP_OK && model->stats.skipped)
		return DDP_OK;
	if (status == DDP_OK && clips)
		status = reduce(model, &model->stats);
	return status == DDP_OK ? update(model, clips, &model->stats) : status;
}

ddp_status ddp_model_step(ddp_model *model, double weight, double loss_sum, ddp_step_stats *stats)
{
	ddp_status status = begin_end(model);
	if (status != DDP_OK)
		return status;
	status = run_step(model, weight, loss_sum);
	if (status != DDP_OK)
		return fail_step(model, status);
	return end_step(model, stats);
}

/* Gradients that this rank has added belong to a step that it does not end. */
static ddp_status contribute_nothing(ddp_model *model)
{
	ddp_rows_discard(&model->rows);
	ddp_uses_reset(&model->uses);
	model->magnitude = (ddp_magnitude){ 0 };
	model->joined = true;
	ddp_status status = ddp_on_device_forget(model);
	return status == DDP_OK ? ddp_arena_clear(&model->grads_memory, 0, model->layout.elements) : status;
}

/* A mistake of this rank alone changes nothing: the rank can still call ddp_model_step(). */
static ddp_status check_join(const ddp_model *model)
{
	ddp_status status = ddp_model_check(model);

	if (status != DDP_OK)
		return status;
	if (model->reducer.ready.announced_count > 0 && !model->reduced)
		return ddp_fail(DDP_ERR_STATE, "gradients of step %lld are announced: end it with ddp_model_step() "
		                "before ddp_model_join()", (long long)model->steps + 1);
	if (model->settings.options.local_sgd.steps > 0)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "ddp_model_join() is not for a model with local_sgd.steps: a rank without "
		                "samples calls ddp_model_step() with a weight of 0");
	return DDP_OK;
}

ddp_status ddp_model_join(ddp_model *model, ddp_step_stats *stats)
{
	ddp_status status = check_join(model);
	if (status == DDP_OK)
		status = begin_end(model);
	if (status != DDP_OK)
		return status;
	status = contribute_nothing(model);
	if (status == DDP_OK)
		status = run_step(model, 0, 0);
	if (status != DDP_OK)
		return fail_step(model, status);
	if (model->stats.active_ranks > 0)
		return end_step(model, stats);
	enter(model, DDP_PHASE_IDLE);
	model->stats.step = model->steps;
	model->stats.loss = 0;
	if (stats != NULL)
		*stats = model->stats;
	return DDP_OK;
}

ddp_status ddp_model_reduce_grads(ddp_model *model, double weight, double loss_sum,
                            ddp_step_stats *stats)
{
	ddp_status status = begin_end(model);
	if (status != DDP_OK)
		return status;
	status = agree(model, weight, loss_sum, true, &model->stats);
	if (status == DDP_OK && !model->stats.skipped)
		status = reduce(model, &model->stats);
	if (status != DDP_OK)
		return fail_step(model, status);
	enter(model, DDP_PHASE_IDLE);
	model->reduced = true;
	if (stats != NULL)
		*stats = model->stats;
	return DDP_OK;
}

ddp_status ddp_model_update_params(ddp_model *model, ddp_step_stats *stats)
{
	ddp_status status = ddp_model_check(model);
	if (status != DDP_OK)
		return status;
	if (!model->reduced)
		return ddp_fail(DDP_ERR_STATE, "ddp_model_update_params(): step %lld has no reduced gradients; call "
		                "ddp_model_reduce_grads() first, or ddp_model_step() for both",
		                (long long)model->steps + 1);
	enter(model, DDP_PHASE_OPTIMIZER);
	/* If the step is skipped, the program's changes to the gradients are no part of the next step. */
	status = model->stats.skipped ? discard(model) : update(model, true, &model->stats);
	if (status != DDP_OK)
		return fail_step(model, status);
	return end_step(model, stats);
}

ddp_status ddp_model_zero_grads(ddp_model *model)
{
	ddp_status status = ddp_model_check(model);
	if (status != DDP_OK)
		return status;
	if (!model->reduced && model->reducer.ready.announced_count > 0)
		return ddp_fail(DDP_ERR_STATE, "gradients of step %lld are announced, and may be under way to "
		                "other ranks; forget them after ddp_model_reduce_grads()",
		                (long long)model->steps + 1);
	return discard(model);
}
