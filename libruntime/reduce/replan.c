/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/replan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "reduce/merge.h"
#include "reduce/model_state.h"

enum { STEPS = 2 * DDP_REPLAN_STEPS };

/* A new cut is made for this share of the time from a step's first gradient to its end: what is
   measured is not that exact. */
static const double GAIN_LEAST = 0.02;

/* Finds where the buckets of the second cut end. */
static int group(const ddp_replan *r, int *ends)
{
	int count = 0;

	for (int k = DDP_REPLAN_GROUP - 1; k < r->first_count - 1; k += DDP_REPLAN_GROUP)
		ends[count++] = r->first_ends[k];
	ends[count++] = r->first_ends[r->first_count - 1];
	return count;
}

/* The times of all-reduces in this measured step, as many as it has had buckets; after the
   last step's come those of totals, one a step. */
static double *took_in(const ddp_replan *r, int step)
{
	const int second = step - DDP_REPLAN_STEPS;

	return second < 0 ? r->took + step * r->first_count
	                  : r->took + DDP_REPLAN_STEPS * r->first_count + second * r->second_count;
}

/* Counts the times of all-reduces in all measured steps. */
static int took_count(const ddp_replan *r)
{
	return (r->first_count + r->second_count) * DDP_REPLAN_STEPS + STEPS;
}

ddp_status ddp_replan_open(ddp_model *model)
{
	const size_t grains = (size_t)model->plan.grain_count;
	ddp_replan *r = &model->replan;
	int ends[DDP_GRAINS_MAX];

	r->first_count = model->plan.count;
	r->first_ends = calloc(grains, sizeof(*r->first_ends));
	r->ready_ns = calloc((size_t)model->layout.count, sizeof(*r->ready_ns));
	r->ready = calloc(grains * STEPS, sizeof(*r->ready));
	if (r->first_ends != NULL) {
		ddp_bucket_plan_ends(&model->plan, r->first_ends);
		r->second_count = group(r, ends);
	}
	r->took = calloc((size_t)took_count(r) + grains + 1, sizeof(*r->took));
	if (r->first_ends != NULL && r->ready_ns != NULL && r->ready != NULL && r->took != NULL)
		return DDP_OK;
	ddp_replan_close(model);
	return ddp_fail(DDP_ERR_NOMEM, "no memory to measure %zu parts of the gradients", grains);
}

void ddp_replan_close(ddp_model *model)
{
	ddp_replan *r = &model->replan;

	free(r->first_ends);
	free(r->ready_ns);
	free(r->ready);
	free(r->took);
	*r = (ddp_replan){ 0 };
}

static bool is_open(const ddp_model *model)
{
	return model->replan.took != NULL;
}

void ddp_replan_ready(ddp_model *model, int slot)
{
	if (is_open(model))
		model->replan.ready_ns[slot] = ddp_now_ns();
}

void ddp_replan_end(ddp_model *model)
{
	if (is_open(model))
		model->replan.end_ns = ddp_now_ns();
}

void ddp_replan_forget(ddp_model *model)
{
	if (is_open(model))
		memset(model->replan.ready_ns, 0, (size_t)model->layout.count * sizeof(*model->replan.ready_ns));
}

/* ---- what a step shows ------------------------------------------------------------------ */

/* Seconds since the step began. What is not announced goes when backward has ended, and so does
   the first parameter, which waits for the totals. */
static double ready_since(const ddp_model *model, int slot)
{
	const ddp_replan *r = &model->replan;
	const ddp_slot *of = &model->layout.slots[slot];

	if (slot > 0 && ddp_uses_lacks(&model->uses, of->param))
		return 0;
	const uint64_t ready_ns = slot > 0 && r->ready_ns[slot] != 0 ? r->ready_ns[slot] : r->end_ns;
	return (double)(ready_ns - model->step_start_ns) * 1e-9;
}

static void take_ready(ddp_model *model, int step)
{
	const ddp_bucket_plan *plan = &model->plan;
	int slot = model->layout.count - 1;

	for (int g = 0; g < plan->grain_count; g++) {
		double *ready = &model->replan.ready[g * STEPS + step];
		while (model->layout.slots[slot].offset >= plan->grains[g])
			slot--;
		*ready = ready_since(model, slot);
		while (model->layout.slots[slot].offset > plan->grains[g + 1]) {
			const double since = ready_since(model, --slot);
			*ready = since > *ready ? since : *ready;
		}
	}
}

/* The optimizer's seconds in the current step. */
static double update_seconds(const ddp_model *model)
{
	return ddp_watch_phase_seconds(model->context->watch, DDP_PHASE_OPTIMIZER) -
	       model->phase_seconds[DDP_PHASE_OPTIMIZER];
}

/* Nothing can be seen of a rank that has finished, so such a step counts on no rank. */
static bool counts(const ddp_model *model)
{
	return is_open(model) && model->stats.active_ranks == ddp_comm_size(model->comm);
}

void ddp_replan_take(ddp_model *model)
{
	ddp_replan *r = &model->replan;
	const int step = r->steps - 1;

	if (!counts(model) || r->steps++ == 0)
		return;
	take_ready(model, step);
	memcpy(took_in(r, step), model->reducer.took, (size_t)model->plan.count * sizeof(*r->took));
	took_in(r, STEPS)[step] = model->reducer.totals_took;
	r->update[step] = update_seconds(model);
}

/* ---- what ranks make of it --------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts the values. */
static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof(*values), compare);
	return values[count / 2];
}

/* The least of all ranks' numbers; the greatest of what goes as its negative. */
static ddp_status gather(ddp_model *model)
{
	ddp_replan *r = &model->replan;
	const int grains = model->plan.grain_count, took = took_count(r);

	for (int g = 0; g < grains; g++)
		r->took[took + g] = -median(r->ready + g * STEPS, STEPS);
	r->took[took + grains] = -median(r->update, STEPS);
	return ddp_all_reduce(model->comm, NULL, r->took, (size_t)(took + grains + 1), DDP_F64, DDP_MIN);
}

/* The median of buckets' elements. */
static double median_elements(const ddp_bucket_plan *plan, const int *ends, int count)
{
	double elements[DDP_GRAINS_MAX];

	for (int k = 0; k < count; k++)
		elements[k] = (double)(plan->grains[k > 0 ? ends[k - 1] : 0] - plan->grains[ends[k]]);
	return median(elements, count);
}

/* Computes the costs from what the two cuts' all-reduces took; medians keep outliers out. False: the times do not
   show the costs. The totals are few numbers, so the time that they take is at least a latency. */
static bool fit_cost(ddp_model *model, ddp_merge_case *c)
{
	ddp_replan *r = &model->replan;
	int second_ends[DDP_GRAINS_MAX];

	group(r, second_ends);
	const double first = median_elements(&model->plan, r->first_ends, r->first_count);
	const double second = median_elements(&model->plan, second_ends, r->second_count);
	const double first_seconds = median(took_in(r, 0), DDP_REPLAN_STEPS * r->first_count);
	const double second_seconds = median(took_in(r, DDP_REPLAN_STEPS), DDP_REPLAN_STEPS * r->second_count);

	if (second <= first || second_seconds <= first_seconds)
		return false;
	c->per_element = (second_seconds - first_seconds) / (second - first);
	c->latency = fmax(first_seconds - c->per_element * first, median(took_in(r, STEPS), STEPS));
	return true;
}

/* Logs the decision. `gain`: what `best` buckets promise. */
static void tell(const ddp_model *model, const ddp_merge_case *c, int count, int best, double gain)
{
	static const double ELEMENTS_PER_MIB = (1 << 20) / sizeof(float);

	ddp_log(DDP_LOG_INFO, "step %lld: gradients travel in %d buckets from now on, after %d: an all-reduce "
	        "takes %.3g ms, and %.3g ms for each MiB, so that, from its first gradient on, a step would "
	        "take %.1f%% less with %d",
	        (long long)model->steps + 1, count, model->replan.first_count, c->latency * 1e3,
	        c->per_element * ELEMENTS_PER_MIB * 1e3, gain * 100, best);
}

/* Rank 0 calls this. Writes the buckets' ends, and how many there are. The first cut stays, unless another one
   promises a gain. */
static void decide(ddp_model *model, int *ends, int *count)
{
	ddp_replan *r = &model->replan;
	double ready[DDP_GRAINS_MAX];
	int64_t elements[DDP_GRAINS_MAX];
	const int grains = model->plan.grain_count;
	const double *least = r->took + took_count(r);
	ddp_merge_case c = { .count = grains, .ready = ready, .elements = elements };

	double first = INFINITY;
	for (int g = 0; g < grains; g++)
		first = fmin(first, -least[g]);
	for (int g = 0; g < grains; g++) {
		ready[g] = -least[g] - first;
		elements[g] = model->plan.grains[g] - model->plan.grains[g + 1];
	}
	/* If gradients are clipped, no update begins before all are summed. */
	if (model->settings.options.clip_norm == 0)
		c.update = -least[grains] / (double)model->layout.elements;
	*count = r->first_count;
	memcpy(ends, r->first_ends, (size_t)*count * sizeof(*ends));
	if (!fit_cost(model, &c)) {
		ddp_log(DDP_LOG_INFO, "step %lld: gradients go on to travel in %d buckets: larger ones took no longer",
		        (long long)model->steps + 1, *count);
		return;
	}
	int merged[DDP_GRAINS_MAX];
	const int merged_count = ddp_merge(&c, merged);
	const double gain = 1 - ddp_merge_end(&c, merged, merged_count) / ddp_merge_end(&c, ends, *count);
	if (gain >= GAIN_LEAST) {
		*count = merged_count;
		memcpy(ends, merged, (size_t)merged_count * sizeof(*ends));
	}
	tell(model, &c, *count, merged_count, gain);
}

/* ---- cutting -------------------------------------------------------------------------------- */

static void cut(ddp_model *model, const int *ends, int count)
{
	ddp_bucket_plan_cut(&model->layout, ends, count, &model->plan);
	ddp_reducer_cut(&model->reducer);
}

/* Cuts as rank 0 decides. */
static ddp_status cut_at_last(ddp_model *model)
{
	int32_t decision[DDP_GRAINS_MAX + 1] = { 0 }; /* the count, and the ends */
	const uint64_t start_ns = ddp_now_ns();
	const size_t most = (size_t)model->plan.grain_count + 1;
	char name[64];

	ddp_status status = gather(model);
	if (status == DDP_OK && ddp_comm_rank(model->comm) == 0)
		decide(model, decision + 1, decision);
	if (status == DDP_OK)
		status = ddp_broadcast(model->comm, decision, most, DDP_I32, 0);
	if (status != DDP_OK)
		return ddp_fail_context(status, "while buckets are cut anew");
	snprintf(name, sizeof(name), "cut anew: %d buckets, %d before", decision[0], model->replan.first_count);
	ddp_watch_communication(model->context->watch, name, (int64_t)(most * sizeof(*decision)), start_ns,
	                        ddp_now_ns());
	cut(model, decision + 1, decision[0]);
	ddp_replan_close(model);
	return DDP_OK;
}

ddp_status ddp_replan_step(ddp_model *model)
{
	ddp_replan *r = &model->replan;
	int ends[DDP_GRAINS_MAX];

	if (!counts(model))
		return DDP_OK;
	if (r->steps == 1 + DDP_REPLAN_STEPS)
		cut(model, ends, group(r, ends));
	return r->steps == 1 + STEPS ? cut_at_last(model) : DDP_OK;
}
