/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/consensus.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "reduce/compare.h"
#include "reduce/model_state.h"

/* Halves, so that sums of their squares are exact over as many ranks as there are. */
static void state_checksum(uint32_t sum, ddp_consensus *own)
{
	for (int half = 0; half < 2; half++) {
		own->checksum[half] = sum >> 16 * half & 0xffff;
		own->checksum_squared[half] = own->checksum[half] * own->checksum[half];
	}
}

uint32_t ddp_consensus_checksum(const ddp_consensus *own)
{
	return (uint32_t)own->checksum[0] | (uint32_t)own->checksum[1] << 16;
}

/* Only equal numbers have a mean whose square is the mean of their squares: so
   either all ranks find their own to be the mean of both, or none does. */
bool ddp_consensus_same(const ddp_model *model, const ddp_consensus *own, const ddp_consensus *all)
{
	int ranks = model->reducer.communicates ? ddp_comm_size(model->comm) : 1;
	bool same = true;

	for (int half = 0; half < 2; half++)
		same = same && all->checksum[half] == ranks * own->checksum[half] &&
		       all->checksum_squared[half] == ranks * own->checksum_squared[half];
	return same;
}

/* Hashes the loss and the largest gradient; a rank that tells neither has a hash of its own. */
static uint32_t samples_checksum(const ddp_model *model, double loss_sum)
{
	const double given[] = { loss_sum, model->magnitude.largest };
	const uint32_t rank = (uint32_t)ddp_comm_rank(model->comm);

	return given[0] == 0 && given[1] == 0 ? rank : ddp_crc32c(0, given, sizeof(given));
}

void ddp_consensus_watch_samples(ddp_model *model, const ddp_consensus *own, const ddp_consensus *all)
{
	enum { STEPS = 10 };
	const int ranks = model->reducer.communicates ? ddp_comm_size(model->comm) : 1;

	if (ranks < 2 || all->joined > 0 || !ddp_consensus_same(model, own, all)) {
		model->steps_alike = 0;
		return;
	}
	model->steps_alike++;
	if (model->steps_alike == STEPS && ddp_comm_rank(model->comm) == 0)
		ddp_log(DDP_LOG_WARN, "step %lld: %d ranks had the same loss and gradients as each other in each of "
		        "%d steps: they seem to train on the same samples; ddp_loader or ddp_sampler gives each "
		        "rank its own", (long long)model->steps + 1, ranks, STEPS);
}

ddp_status ddp_consensus_state(const ddp_model *model, double weight, double loss_sum,
                               ddp_consensus *own)
{
	double rate = model->learning_rate;
	bool good = isfinite(weight) && weight >= 0 && isfinite(rate) && rate >= 0;
	bool finite = isfinite(loss_sum) && model->magnitude.bad == NULL;

	*own = (ddp_consensus){
		.weight = good ? weight : 0,
		.loss_sum = good && isfinite(loss_sum) ? loss_sum : 0,
		.rate = good ? rate : 0,
		.rate_squared = good ? rate * rate : 0,
		.wrong = good ? 0 : 1,
		.joined = model->joined ? 1 : 0,
		.stop = atomic_load(&model->stop_requested) ? 1 : 0,
		.not_finite = finite ? 0 : 1,
		.largest = model->magnitude.largest,
	};
	uint32_t sum = samples_checksum(model, loss_sum);
	ddp_status status = ddp_compare_is_due(model) ? ddp_compare_checksum(model, &sum) : DDP_OK;
	state_checksum(sum, own);
	return status;
}

static bool is_good(double weight_or_rate)
{
	return isfinite(weight_or_rate) && weight_or_rate >= 0;
}

/* The first rank with a wrong number, and what it gave. All ranks come here together. */
static ddp_status name_wrong(const ddp_model *model, double weight, int ranks)
{
	ddp_comm *comm = model->comm;
	const bool good = is_good(weight) && is_good(model->learning_rate);
	double first = good ? INFINITY : ddp_comm_rank(comm), given[2] = { weight, model->learning_rate };
	char others[48] = "";

	ddp_status status = ddp_all_reduce(comm, NULL, &first, 1, DDP_F64, DDP_MIN);
	if (status == DDP_OK)
		status = ddp_broadcast(comm, given, 2, DDP_F64, (int)first);
	if (status != DDP_OK)
		return status;
	if (ranks > 1)
		snprintf(others, sizeof(others), ", which is the first of %d ranks", ranks);
	return ddp_fail(DDP_ERR_INVALID, "step %lld: rank %d gave a weight or a learning rate that is negative or "
	                "not finite (weight %g, learning rate %g)%s", (long long)model->steps + 1,
	                ddp_comm_world_rank(comm, (int)first), given[0], given[1], others);
}

static ddp_status name_other_rate(const ddp_model *model)
{
	char odd_ranks[DDP_OUTLIER_TEXT], usual_ranks[DDP_OUTLIER_TEXT];
	ddp_outlier outlier;
	double odd, usual;

	ddp_status status = ddp_comm_outlier(model->comm, model->learning_rate, &outlier, &odd, &usual);
	if (status != DDP_OK)
		return status;
	ddp_comm_outlier_names(model->comm, &outlier, odd_ranks, usual_ranks);
	return ddp_fail(DDP_ERR_MISMATCH, "step %lld: ranks have different learning rates (%.9g on %s, %.9g on %s); "
	                "give all ranks the same", (long long)model->steps + 1, odd, odd_ranks, usual, usual_ranks);
}

ddp_status ddp_consensus_check(const ddp_model *model, double weight, const ddp_consensus *all)
{
	long long step = (long long)model->steps + 1;
	int ranks = model->reducer.communicates ? ddp_comm_size(model->comm) : 1;

	if (all->wrong != 0 && model->reducer.communicates)
		return name_wrong(model, weight, (int)all->wrong);
	if (all->wrong != 0)
		return ddp_fail(DDP_ERR_INVALID, "step %lld: weight %g or learning rate %g is negative or not finite",
		                step, weight, model->learning_rate);
	if (all->weight == 0 && model->settings.options.loss == DDP_LOSS_SUM && all->joined < ranks)
		return ddp_fail(DDP_ERR_INVALID,
		                "step %lld: no rank had a sample (the sum of all weights is 0)", step);
	double mean = all->rate / ranks;
	double variance = all->rate_squared / ranks - mean * mean;
	if (variance > 1e-12 * mean * mean)
		return name_other_rate(model);
	if (all->halves > 0 && all->joined > 0)
		return ddp_fail(DDP_ERR_STATE, "%.0f ranks are in ddp_model_reduce_grads(), while others have finished: "
		                "ddp_model_join() takes part in ddp_model_step() only", all->halves);
	return DDP_OK;
}

int ddp_consensus_active(const ddp_model *model, const ddp_consensus *all)
{
	int ranks = model->reducer.communicates ? ddp_comm_size(model->comm) : 1;

	return ranks - (int)all->joined;
}

double ddp_consensus_divisor(const ddp_model *model, const ddp_consensus *all)
{
	switch (model->settings.options.loss) {
	case DDP_LOSS_MEAN: return ddp_consensus_active(model, all) + all->joined;
	case DDP_LOSS_MEAN_OF_ACTIVE: return ddp_consensus_active(model, all);
	case DDP_LOSS_SUM: break;
	}
	return all->weight;
}

/* Sums, and their mean, are rounded to f32 at each addition; a thousandth is more
   than that comes to. */
static bool sums_overflow(const ddp_model *model, const ddp_consensus *all)
{
	const double divisor = ddp_consensus_divisor(model, all) * model->scaler.scale;

	return all->largest * fmax(1, 1 / divisor) > 0.999 * FLT_MAX;
}

bool ddp_consensus_finite(const ddp_model *model, const ddp_consensus *all)
{
	return all->not_finite == 0 && isfinite(all->loss_sum) && !sums_overflow(model, all);
}

/* A rank and what it found in a number that a double holds exactly: the least of
   all ranks' is the first rank's. */
static const double RANK_FACTOR = (double)(1 << 30) * 2;

static ddp_status first_of_all(ddp_model *model, const char *name, double *first)
{
	const ddp_operation operation = {
		.kind = DDP_ALL_REDUCE, .recv = first, .count = 1, .type = DDP_F64, .op = DDP_MIN,
	};

	return ddp_reducer_run(&model->reducer, name, &operation);
}

static ddp_status name_first(const ddp_model *model, double first, const ddp_consensus *all)
{
	int rank = (int)(first / RANK_FACTOR);
	int slot = (int)(first - rank * RANK_FACTOR);
	char what[DDP_PARAM_NAME_MAX + 32], others[48] = "";

	if (slot < model->layout.count)
		snprintf(what, sizeof(what), "the gradient of \"%s\"", model->layout.slots[slot].name);
	else
		snprintf(what, sizeof(what), "the loss");
	if (all->not_finite > 1)
		snprintf(others, sizeof(others), ", which is the first of %.0f ranks", all->not_finite);
	return ddp_fail(DDP_ERR_NOT_FINITE, "%s is not finite on rank %d%s; no rank has updated its "
	                "parameters: go on with other samples, or from a checkpoint with a lower "
	                "learning rate", what, ddp_comm_world_rank(model->comm, rank), others);
}

ddp_status ddp_consensus_name(ddp_model *model, double loss_sum, const ddp_consensus *all)
{
	const ddp_slot *bad = model->magnitude.bad;
	double first = INFINITY;

	if (all->not_finite == 0)
		return ddp_fail(DDP_ERR_NOT_FINITE, "the gradients of all ranks, up to %g together, or the "
		                "loss overflow; no rank has updated its parameters: go on with other "
		                "samples, or from a checkpoint with a lower learning rate", all->largest);
	if (bad != NULL || !isfinite(loss_sum)) {
		long slot = bad != NULL ? bad - model->layout.slots : model->layout.count;
		int rank = model->reducer.communicates ? ddp_comm_rank(model->comm) : 0;
		first = rank * RANK_FACTOR + (double)slot;
	}
	ddp_status status = first_of_all(model, "not finite", &first);
	return status == DDP_OK ? name_first(model, first, all) : status;
}

ddp_status ddp_consensus_name_changed(ddp_model *model)
{
	const ddp_uses *uses = &model->uses;
	double first = INFINITY;

	if (uses->changed >= 0) {
		int rank = model->reducer.communicates ? ddp_comm_rank(model->comm) : 0;
		first = rank * RANK_FACTOR + 2 * (double)uses->changed + uses->used[uses->changed];
	}
	ddp_status status = first_of_all(model, "changed", &first);
	if (status != DDP_OK)
		return status;
	int rank = (int)(first / RANK_FACTOR);
	int64_t rest = (int64_t)(first - rank * RANK_FACTOR);
	const char *name = ddp_model_slot(model, (int)(rest / 2))->name;
	return ddp_fail(DDP_ERR_STATE, "the static graph has changed: rank %d %s \"%s\", which it %s in the "
	                "first step; no rank has updated its parameters: use the same ones in each step, or "
	                "make the model with DDP_UNUSED_SKIP", ddp_comm_world_rank(model->comm, rank),
	                rest % 2 != 0 ? "has a gradient of" : "has no gradient of", name,
	                rest % 2 != 0 ? "had not used" : "had used");
}
