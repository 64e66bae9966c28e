/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/options.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/c_locale.h"
#include "base/options.h"
#include "optim/rule.h"
#include "optim/scaler.h"

static const double FIRST_BUCKET_MB = 1;
static const double BUCKET_MB_MAX = 1 << 20;
static const double ELEMENTS_PER_MB = 1024.0 * 1024.0 / sizeof(float);

int64_t ddp_default_bucket_elements(int64_t elements)
{
	const int64_t least = 1 << 18, most = 25 << 18;
	int64_t share = elements / 32;

	return share < least ? least : share > most ? most : share;
}

static double or_default(double value, double otherwise)
{
	return value != 0 ? value : otherwise;
}

/* Of an option of which 0 itself is a value, too. */
static double or_zero(double value, double otherwise)
{
	return value == DDP_ZERO ? 0 : or_default(value, otherwise);
}

static ddp_status environment_bucket_mb(double *bucket_mb)
{
	const char *text = getenv("DDP_BUCKET_MB");
	double value;

	*bucket_mb = 0;
	if (text == NULL || text[0] == '\0')
		return DDP_OK;
	if (!ddp_parse_number(text, &value) || !(value > 0 && value <= BUCKET_MB_MAX))
		return ddp_fail(DDP_ERR_INVALID,
		                "DDP_BUCKET_MB is \"%.32s\"; it must be a number of MiB above 0", text);
	*bucket_mb = value;
	return DDP_OK;
}

static ddp_status environment_measure(ddp_model_settings *settings)
{
	const char *text = getenv("DDP_MEASURE");

	if (text == NULL || text[0] == '\0')
		return DDP_OK;
	settings->no_overlap = strcmp(text, "no-overlap") == 0;
	settings->no_communication = strcmp(text, "no-communication") == 0;
	if (settings->no_overlap || settings->no_communication)
		return DDP_OK;
	return ddp_fail(DDP_ERR_INVALID, "DDP_MEASURE is \"%.32s\"; it must be no-overlap or no-communication, "
	                "and unset where nothing is measured", text);
}

static ddp_status check(const char *name, double value, bool good, const char *range)
{
	if (good)
		return DDP_OK;
	return ddp_fail(DDP_ERR_INVALID, "model option %s is %g; it must be %s", name, value, range);
}

static ddp_status check_settings(const ddp_model_settings *settings)
{
	const ddp_optim_settings *optim = &settings->optim;
	const ddp_optim_rule *rule = ddp_optim_rule_of(optim->kind);
	const struct {
		const char *name;
		double value;
		bool good;
		const char *range;
	} checks[] = {
		{ "learning_rate", settings->learning_rate,
		  isfinite(settings->learning_rate) && settings->learning_rate >= 0, "0 (DDP_ZERO) or more" },
		{ "beta1", optim->beta1, optim->beta1 >= 0 && optim->beta1 < 1, "0 (DDP_ZERO) or more, and below 1" },
		{ "beta2", optim->beta2, optim->beta2 >= 0 && optim->beta2 < 1, "0 (DDP_ZERO) or more, and below 1" },
		/* Less is 0 in f32: then an element whose gradients are all 0 would become NaN. */
		{ "epsilon", optim->epsilon, optim->epsilon >= FLT_MIN && optim->epsilon <= FLT_MAX,
		  "from 1.2e-38 to 3.4e38" },
		{ "weight_decay", optim->weight_decay,
		  isfinite(optim->weight_decay) && optim->weight_decay >= 0, "0 or more" },
		{ "momentum", optim->momentum, isfinite(optim->momentum) && optim->momentum >= 0 &&
		  (!rule->momentum_is_mean || optim->momentum < 1),
		  rule->momentum_is_mean ? "0 (DDP_ZERO) or more, and below 1" : "0 or more" },
		{ "muon_iterations", optim->muon_iterations,
		  optim->muon_iterations > 0 && optim->muon_iterations < 100, "from 1 to 99" },
		{ "adafactor_decay", optim->adafactor_decay,
		  optim->adafactor_decay > 0 && optim->adafactor_decay <= 10, "above 0, and 10 at most" },
		{ "adafactor_least_scale", optim->adafactor_least_scale,
		  isfinite(optim->adafactor_least_scale) && optim->adafactor_least_scale > 0, "above 0" },
		{ "adafactor_clip", optim->adafactor_clip,
		  isfinite(optim->adafactor_clip) && optim->adafactor_clip > 0, "above 0" },
		{ "shard", settings->shard,
		  settings->shard >= DDP_SHARD_AUTO && settings->shard <= DDP_SHARD_GRADIENTS,
		  "DDP_SHARD_AUTO, DDP_SHARD_NONE, DDP_SHARD_STATE or DDP_SHARD_GRADIENTS" },
		{ "compress", settings->compress,
		  settings->compress >= DDP_COMPRESS_NONE && settings->compress <= DDP_COMPRESS_POWERSGD,
		  "DDP_COMPRESS_NONE, DDP_COMPRESS_BF16, DDP_COMPRESS_F16 or DDP_COMPRESS_POWERSGD" },
		{ "powersgd_rank", settings->powersgd.rank, settings->powersgd.rank > 0, "1 or more" },
		{ "local_steps", (double)settings->local_steps, settings->local_steps >= 0, "0 or more" },
		{ "local_start", (double)settings->local_start, settings->local_start >= 0, "0 or more" },
		{ "powersgd_start", (double)settings->powersgd.start_step, settings->powersgd.start_step >= 0,
		  "0 or more" },
		{ "powersgd_rate", settings->powersgd.least_rate,
		  isfinite(settings->powersgd.least_rate) && settings->powersgd.least_rate > 0, "above 0" },
		{ "memory", settings->memory,
		  settings->memory == DDP_MEMORY_HOST || settings->memory == DDP_MEMORY_DEVICE,
		  "DDP_MEMORY_HOST or DDP_MEMORY_DEVICE" },
		{ "loss", settings->loss,
		  settings->loss >= DDP_LOSS_SUM && settings->loss <= DDP_LOSS_MEAN_OF_ACTIVE,
		  "DDP_LOSS_SUM, DDP_LOSS_MEAN or DDP_LOSS_MEAN_OF_ACTIVE" },
		{ "unused", settings->unused,
		  settings->unused >= DDP_UNUSED_ZERO && settings->unused <= DDP_UNUSED_STATIC,
		  "DDP_UNUSED_ZERO, DDP_UNUSED_SKIP or DDP_UNUSED_STATIC" },
		{ "loss_scaling", settings->loss_scaling,
		  settings->loss_scaling >= DDP_SCALING_NONE && settings->loss_scaling <= DDP_SCALING_FIXED,
		  "DDP_SCALING_NONE, DDP_SCALING_DYNAMIC or DDP_SCALING_FIXED" },
		{ "loss_scale", settings->loss_scale, ddp_scale_is_good(settings->loss_scale),
		  "a power of two from 1 to 2^64" },
		{ "loss_scale_interval", (double)settings->loss_scale_interval,
		  settings->loss_scale_interval > 0, "above 0" },
		{ "clip_norm", settings->clip_norm,
		  isfinite(settings->clip_norm) && settings->clip_norm >= 0, "0 or more" },
	};
	ddp_status status = DDP_OK;

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]) && status == DDP_OK; i++)
		status = check(checks[i].name, checks[i].value, checks[i].good, checks[i].range);
	return status;
}

static ddp_status check_optimizer(const ddp_model_settings *settings)
{
	const ddp_optim_settings *optim = &settings->optim;
	const ddp_optim_rule *rule = ddp_optim_rule_of(optim->kind);

	if (optim->nesterov && !rule->has_nesterov)
		return ddp_fail(DDP_ERR_INVALID, "model option nesterov is of DDP_SGD, not of %s", rule->name);
	if (optim->nesterov && optim->momentum == 0)
		return ddp_fail(DDP_ERR_INVALID, "model option nesterov needs a momentum above 0");
	if (rule->whole && settings->shard > DDP_SHARD_NONE)
		return ddp_fail(DDP_ERR_INVALID, "model option shard leaves each rank slices of tensors, and %s "
		                "updates whole tensors; leave shard at DDP_SHARD_AUTO or DDP_SHARD_NONE", rule->name);
	return DDP_OK;
}

/* What sums gradients in a way of its own has all of them on each rank. */
static ddp_status check_reduction(const ddp_model_settings *settings)
{
	const ddp_bucket_hook *hook = &settings->hook;
	const bool hooked = hook->start != NULL || hook->finish != NULL;
	const bool compressed = settings->compress != DDP_COMPRESS_NONE;
	const bool local = settings->local_steps > 0;

	if (hooked && (hook->start == NULL || hook->finish == NULL))
		return ddp_fail(DDP_ERR_INVALID, "model option hook needs both start and finish");
	if (hooked && compressed)
		return ddp_fail(DDP_ERR_INVALID, "model options hook and compress are two ways of reducing; "
		                "give one of them");
	if (local && (hooked || compressed || settings->shard > DDP_SHARD_NONE))
		return ddp_fail(DDP_ERR_INVALID, "model option local_steps leaves ranks to themselves; give it "
		                "without %s", hooked ? "hook" : compressed ? "compress" : "shard");
	if (!local && settings->local_start > 0)
		return ddp_fail(DDP_ERR_INVALID, "model option local_start needs local_steps");
	if ((hooked || compressed) && settings->shard > DDP_SHARD_NONE)
		return ddp_fail(DDP_ERR_INVALID, "model option %s needs all gradients on each rank; leave "
		                "shard at DDP_SHARD_AUTO or DDP_SHARD_NONE", hooked ? "hook" : "compress");
	return DDP_OK;
}

static ddp_status check_scaling(const ddp_model_options *given)
{
	if (given->loss_scaling == DDP_SCALING_NONE && (given->loss_scale != 0 || given->loss_scale_interval != 0))
		return ddp_fail(DDP_ERR_INVALID, "model option %s needs loss_scaling",
		                given->loss_scale != 0 ? "loss_scale" : "loss_scale_interval");
	if (given->loss_scaling != DDP_SCALING_NONE && given->compress == DDP_COMPRESS_POWERSGD)
		return ddp_fail(DDP_ERR_INVALID, "model option loss_scaling: DDP_COMPRESS_POWERSGD adds gradients of one "
		                "step to those of the next, whose scale may be another; give one of them");
	return DDP_OK;
}

static ddp_status check_memory(const char *name, const float *memory)
{
	if ((uintptr_t)memory % (DDP_ALIGN_ELEMENTS * sizeof(float)) != 0)
		return ddp_fail(DDP_ERR_INVALID, "model option %s is %p; it must be a multiple of %zu bytes", name,
		                (const void *)memory, DDP_ALIGN_ELEMENTS * sizeof(float));
	return DDP_OK;
}

ddp_comm *ddp_model_options_comm(const ddp_model_options *given)
{
	const bool has_it = given != NULL && given->size >= offsetof(ddp_model_options, comm) + sizeof(given->comm);

	return has_it ? given->comm : NULL;
}

ddp_status ddp_model_settings_make(const ddp_model_options *given, ddp_model_settings *settings)
{
	ddp_model_options options;
	double bucket_mb;

	ddp_status status = ddp_options_copy("ddp_model_options", given, &options, sizeof(options));
	if (status == DDP_OK)
		status = environment_bucket_mb(&bucket_mb);
	if (status != DDP_OK)
		return status;
	const ddp_optim_rule *rule = ddp_optim_rule_of(options.optimizer);
	if (rule == NULL)
		return ddp_fail(DDP_ERR_INVALID, "model option optimizer is %d; it must be one of %s", (int)options.optimizer,
		                ddp_optimizer_enumerators());
	bucket_mb = or_default(options.bucket_mb, bucket_mb);
	double first_mb = or_default(options.first_bucket_mb,
	                             fmin(or_default(bucket_mb, FIRST_BUCKET_MB), FIRST_BUCKET_MB));
	status = check("bucket_mb", bucket_mb, bucket_mb >= 0 && bucket_mb <= BUCKET_MB_MAX,
	               "above 0");
	if (status == DDP_OK)
		status = check("first_bucket_mb", first_mb, first_mb > 0 && first_mb <= BUCKET_MB_MAX,
		               "above 0");
	if (status != DDP_OK)
		return status;

	ddp_model_settings made = {
		.bucket_elements = bucket_mb > 0 ? (int64_t)fmax(bucket_mb * ELEMENTS_PER_MB, 1) : 0,
		.first_bucket_elements = (int64_t)(first_mb * ELEMENTS_PER_MB),
		.caps_given = bucket_mb > 0 || options.first_bucket_mb > 0,
		.optim = {
			.kind = options.optimizer,
			.beta1 = or_zero(options.beta1, rule->beta1),
			.beta2 = or_zero(options.beta2, rule->beta2),
			.epsilon = or_default(options.epsilon, rule->epsilon),
			.weight_decay = options.weight_decay,
			.momentum = or_zero(options.momentum, rule->momentum),
			.nesterov = options.nesterov,
			.adafactor_decay = or_default(options.adafactor_decay, 0.8),
			.adafactor_least_scale = or_default(options.adafactor_least_scale, 1e-3),
			.adafactor_clip = or_default(options.adafactor_clip, 1),
			.muon_iterations = options.muon_iterations != 0 ? options.muon_iterations : 5,
			.muon_match_rms = options.muon_match_rms,
		},
		.learning_rate = or_zero(options.learning_rate, 1e-3),
		.clip_norm = options.clip_norm,
		.shard = options.shard == DDP_SHARD_AUTO && rule->whole ? DDP_SHARD_NONE : options.shard,
		.late_gather = options.late_gather,
		.params_memory = options.params_memory,
		.grads_memory = options.grads_memory,
		.compress = options.compress,
		.hook = options.hook,
		.powersgd = {
			.rank = options.powersgd_rank != 0 ? options.powersgd_rank : 1,
			.seed = options.powersgd_seed,
			.start_step = options.powersgd_start,
			.least_rate = or_default(options.powersgd_rate, 2),
			.no_feedback = options.powersgd_no_feedback,
			.no_warm_start = options.powersgd_no_warm_start,
		},
		.local_steps = options.local_steps,
		.local_start = options.local_start,
		.loss = options.loss,
		.unused = options.unused,
		.memory = options.memory,
		.stream = options.stream,
		.bf16_params = options.bf16_params,
		.loss_scaling = options.loss_scaling,
		.loss_scale = or_default(options.loss_scale, options.loss_scaling != DDP_SCALING_NONE ? 65536 : 1),
		.loss_scale_interval = options.loss_scale_interval != 0 ? options.loss_scale_interval : 2000,
	};
	status = environment_measure(&made);
	if (status == DDP_OK)
		status = check_settings(&made);
	if (status == DDP_OK)
		status = check_optimizer(&made);
	if (status == DDP_OK)
		status = check_reduction(&made);
	if (status == DDP_OK)
		status = check_scaling(&options);
	if (status == DDP_OK)
		status = check_memory("params_memory", made.params_memory);
	if (status == DDP_OK)
		status = check_memory("grads_memory", made.grads_memory);
	if (status == DDP_OK)
		*settings = made;
	return status;
}
