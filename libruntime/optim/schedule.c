/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/error.h"
#include "base/options.h"
#include "ddp.h"

static const double PI = 3.14159265358979323846;

static double cosine(int64_t step, int64_t warmup, int64_t total, double peak, double floor)
{
	if (step >= total)
		return floor;
	if (step < warmup)
		return peak * (double)(step > 0 ? step : 0) / (double)warmup;
	double done = (double)(step - (warmup > 0 ? warmup : 0)) /
	              (double)(total - (warmup > 0 ? warmup : 0));
	return floor + 0.5 * (peak - floor) * (1.0 + cos(PI * done));
}

/* Linearly from `peak` at step `first` to `floor` at step `last`, which is the later one. */
static double fall(const ddp_schedule *s, int64_t step, int64_t first, int64_t last)
{
	return s->peak + (s->floor - s->peak) * (double)(step - first) / (double)(last - first);
}

static bool ends(ddp_schedule_kind kind)
{
	return kind == DDP_SCHEDULE_LINEAR || kind == DDP_SCHEDULE_COSINE || kind == DDP_SCHEDULE_WSD;
}

static int64_t decay_of(const ddp_schedule *s)
{
	return s->decay != DDP_AUTO ? s->decay : s->total / 10;
}

/* A copy of what may be an older program's. */
static ddp_status take(const ddp_schedule *given, ddp_schedule *s)
{
	if (given == NULL)
		return ddp_fail(DDP_ERR_INVALID, "the schedule is NULL");
	*s = (ddp_schedule)DDP_SCHEDULE;
	ddp_status status = ddp_options_copy("ddp_schedule", given, s, sizeof(*s));
	if (status != DDP_OK)
		return status;
	if (s->kind < DDP_SCHEDULE_CONSTANT || s->kind > DDP_SCHEDULE_INVERSE_ROOT)
		return ddp_fail(DDP_ERR_INVALID, "schedule: %d is no ddp_schedule_kind", (int)s->kind);
	if (!isfinite(s->peak) || s->peak < 0 || !isfinite(s->floor) || s->floor < 0 || s->floor > s->peak)
		return ddp_fail(DDP_ERR_INVALID, "schedule: peak is %g and floor %g; they must be 0 or more, and floor "
		                "at most peak", s->peak, s->floor);
	if (s->warmup < 0 || (s->decay < 0 && s->decay != DDP_AUTO) || s->total < 0 || (ends(s->kind) && s->total == 0))
		return ddp_fail(DDP_ERR_INVALID, "schedule: warmup is %lld, decay %lld and total %lld steps; none may be "
		                "negative, and total must be above 0 where the rate falls to its end",
		                (long long)s->warmup, (long long)s->decay, (long long)s->total);
	if (s->kind == DDP_SCHEDULE_WSD && (s->warmup > s->total || decay_of(s) > s->total - s->warmup))
		return ddp_fail(DDP_ERR_INVALID, "schedule: a warmup of %lld and a decay of %lld steps are more than the "
		                "total of %lld", (long long)s->warmup, (long long)decay_of(s), (long long)s->total);
	if (ends(s->kind) && s->warmup >= s->total)
		return ddp_fail(DDP_ERR_INVALID, "schedule: a warmup of %lld steps is not below the total of %lld, where the "
		                "rate is at its floor, so it would not reach its peak", (long long)s->warmup,
		                (long long)s->total);
	return DDP_OK;
}

const char *ddp_schedule_kind_name(ddp_schedule_kind kind)
{
	switch (kind) {
	case DDP_SCHEDULE_CONSTANT: return "constant";
	case DDP_SCHEDULE_LINEAR: return "linear";
	case DDP_SCHEDULE_COSINE: return "cosine";
	case DDP_SCHEDULE_WSD: return "wsd";
	case DDP_SCHEDULE_INVERSE_ROOT: return "inverse-root";
	}
	return NULL;
}

ddp_status ddp_schedule_check(const ddp_schedule *schedule)
{
	ddp_schedule copy;

	return take(schedule, &copy);
}

double ddp_schedule_rate(const ddp_schedule *schedule, int64_t step)
{
	ddp_schedule s;

	if (take(schedule, &s) != DDP_OK)
		return NAN;
	if (ends(s.kind) && step >= s.total)
		return s.floor;
	if (step < s.warmup)
		return s.peak * (double)(step > 0 ? step : 0) / (double)s.warmup;
	switch (s.kind) {
	case DDP_SCHEDULE_CONSTANT: break;
	case DDP_SCHEDULE_LINEAR: return fall(&s, step, s.warmup, s.total);
	case DDP_SCHEDULE_COSINE: return cosine(step, s.warmup, s.total, s.peak, s.floor);
	case DDP_SCHEDULE_WSD:
		return step <= s.total - decay_of(&s) ? s.peak : fall(&s, step, s.total - decay_of(&s), s.total);
	case DDP_SCHEDULE_INVERSE_ROOT:
		return step > 0 ? fmax(s.floor, s.peak * sqrt((double)(s.warmup > 0 ? s.warmup : 1) / (double)step)) : 0;
	}
	return s.peak;
}

double ddp_linear_scaling(double learning_rate, double batch, double base_batch)
{
	return learning_rate * batch / base_batch;
}

ddp_status ddp_accumulation(int64_t per_update, int64_t per_batch, int world_size, int *accumulate)
{
	int64_t each;

	if (accumulate == NULL)
		return ddp_fail(DDP_ERR_INVALID, "accumulate is NULL");
	if (per_update <= 0 || per_batch <= 0 || world_size <= 0)
		return ddp_fail(DDP_ERR_INVALID, "the tokens or samples of an update (%lld) and of a micro-batch of a rank "
		                "(%lld), and the ranks (%d), must be above 0", (long long)per_update, (long long)per_batch, world_size);
	if (__builtin_mul_overflow(per_batch, (int64_t)world_size, &each))
		return ddp_fail(DDP_ERR_INVALID, "%lld of a micro-batch on each of %d ranks are too many",
		                (long long)per_batch, world_size);
	const int64_t count = per_update / each;
	if (count > INT32_MAX)
		return ddp_fail(DDP_ERR_INVALID, "an update of %lld is %lld micro-batches of %lld: too many",
		                (long long)per_update, (long long)count, (long long)each);
	if (count * each != per_update)
		return ddp_fail(DDP_ERR_INVALID, "an update of %lld is no multiple of %lld, which is %lld of a "
		                "micro-batch on each of %d ranks; give %lld, say, or another micro-batch",
		                (long long)per_update, (long long)each, (long long)per_batch, world_size,
		                (long long)((count > 0 ? count : 1) * each));
	*accumulate = (int)count;
	return DDP_OK;
}
