/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/options.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/c_locale.h"
#include "base/options.h"
#include "optim/rule.h"
#include "optim/scaler.h"

static const double FIRST_BUCKET_MB = 1;
static const double ELEMENTS_PER_MB = 1024.0 * 1024.0 / sizeof(float);

/* ---- the table ---------------------------------------------------------------------------- */

#define TYPE_OF(field) _Generic(((ddp_model_options *)NULL)->field, \
	bool: DDP_OPTION_FLAG, int: DDP_OPTION_INT, int64_t: DDP_OPTION_INT64, unsigned: DDP_OPTION_UNSIGNED, \
	double: DDP_OPTION_NUMBER, default: DDP_OPTION_ADDRESS)
#define OPTION(field, ...) \
	{ .name = #field, .offset = offsetof(ddp_model_options, field), .type = TYPE_OF(field), __VA_ARGS__ }
#define RANGE(from, to, text) .least = (from), .most = (to), .range = (text)
#define FROM_0 RANGE(0, DBL_MAX, "0 or more")
#define ABOVE_0 RANGE(DBL_TRUE_MIN, DBL_MAX, "above 0")
#define BELOW_1 RANGE(0, 1 - DBL_EPSILON / 2, "0 or more, and below 1")
#define MEBIBYTES RANGE(DBL_TRUE_MIN, 1 << 20, "above 0, 2^20 at most, or DDP_AUTO"), .may_be_auto = true
/* `last` is the last enumerator of those whose first is 0. */
#define CHOICE(last, text) RANGE(0, last, text)
#define KEY(text) .key = (text)
#define OPPOSITE_KEY(text) .key = (text), .key_is_opposite = true
#define LOCAL .is_local = true

/* A key stays as it is, so that older checkpoints can be read. An option without one changes only how long
   steps take, or where what they come to is kept. */
const ddp_option ddp_model_option_table[] = {
	OPTION(optimizer, RANGE(0, INT_MAX, "a ddp_optimizer"), KEY("optimizer")), /* see find_rule() */
	OPTION(learning_rate, FROM_0, KEY("learning_rate")),
	OPTION(beta1, BELOW_1, KEY("beta1")),
	OPTION(beta2, BELOW_1, KEY("beta2")),
	/* Less is 0 in f32: then an element whose gradients are all 0 would become NaN. */
	OPTION(epsilon, RANGE(FLT_MIN, FLT_MAX, "from 1.2e-38 to 3.4e38, or DDP_AUTO"), KEY("epsilon")),
	OPTION(momentum, FROM_0, KEY("momentum")),
	OPTION(weight_decay, FROM_0, KEY("weight_decay")),
	OPTION(clip_norm, FROM_0, KEY("clip_norm")),
	OPTION(nesterov, KEY("nesterov")),
	OPTION(muon.match_rms, KEY("muon_match_rms")),
	OPTION(muon.iterations, RANGE(1, 99, "from 1 to 99"), KEY("muon_iterations")),
	OPTION(adafactor.decay, RANGE(DBL_TRUE_MIN, 10, "above 0, and 10 at most"), KEY("adafactor_decay")),
	OPTION(adafactor.least_scale, ABOVE_0, KEY("adafactor_least_scale")),
	OPTION(adafactor.clip, ABOVE_0, KEY("adafactor_clip")),
	OPTION(loss_scaling.kind, CHOICE(DDP_SCALING_FIXED, "DDP_SCALING_NONE, DDP_SCALING_DYNAMIC or DDP_SCALING_FIXED"),
	       KEY("loss_scaling")),
	OPTION(loss_scaling.initial), /* see check_scaling(), and DDP_HYPER_FIXED_LOSS_SCALE */
	OPTION(loss_scaling.interval, RANGE(1, (double)INT64_MAX, "above 0"), KEY("loss_scale_interval")),
	OPTION(loss, CHOICE(DDP_LOSS_MEAN_OF_ACTIVE, "DDP_LOSS_SUM, DDP_LOSS_MEAN or DDP_LOSS_MEAN_OF_ACTIVE"), KEY("loss")),
	OPTION(unused, CHOICE(DDP_UNUSED_STATIC, "DDP_UNUSED_ZERO, DDP_UNUSED_SKIP or DDP_UNUSED_STATIC"), KEY("unused")),
	OPTION(shard, CHOICE(DDP_SHARD_GRADIENTS, "DDP_SHARD_AUTO, DDP_SHARD_NONE, DDP_SHARD_STATE or DDP_SHARD_GRADIENTS")),
	OPTION(compress, CHOICE(DDP_COMPRESS_POWERSGD,
	       "DDP_COMPRESS_NONE, DDP_COMPRESS_BF16, DDP_COMPRESS_F16 or DDP_COMPRESS_POWERSGD"), KEY("compress")),
	OPTION(powersgd.rank, RANGE(1, INT_MAX, "1 or more"), KEY("powersgd_rank")),
	OPTION(powersgd.seed, RANGE(0, UINT32_MAX, "0 or more"), KEY("powersgd_seed")),
	OPTION(powersgd.start, FROM_0, KEY("powersgd_start")),
	OPTION(powersgd.min_rate, ABOVE_0, KEY("powersgd_rate")),
	OPTION(powersgd.feedback, OPPOSITE_KEY("powersgd_no_feedback")),
	OPTION(powersgd.warm_start, OPPOSITE_KEY("powersgd_no_warm_start")),
	OPTION(local_sgd.steps, FROM_0, KEY("local_steps")),
	OPTION(local_sgd.start, FROM_0, KEY("local_start")),
	OPTION(hook.start, KEY("hook"), .told = "hook"),
	OPTION(hook.finish, LOCAL),
	OPTION(hook.user, LOCAL),
	OPTION(bucket_mb, MEBIBYTES, .told = "bucket_mb (or DDP_BUCKET_MB)"),
	OPTION(first_bucket_mb, MEBIBYTES),
	OPTION(late_gather),
	OPTION(bf16_params, KEY("bf16_params")),
	OPTION(memory, CHOICE(DDP_MEMORY_DEVICE, "DDP_MEMORY_HOST or DDP_MEMORY_DEVICE")),
	OPTION(stream, LOCAL),
	OPTION(params_memory),
	OPTION(grads_memory),
	OPTION(comm, LOCAL),
	OPTION(compare_every, RANGE(0, 1e15, "0 or more"), .told = "compare_every (or DDP_COMPARE_EVERY)"),
	OPTION(buddy, .told = "buddy (or DDP_BUDDY)"),
};

enum { OPTIONS = sizeof(ddp_model_option_table) / sizeof(ddp_model_option_table[0]) };
_Static_assert((int)OPTIONS <= (int)DDP_MODEL_OPTIONS_MAX, "DDP_MODEL_OPTIONS_MAX has to grow");
const int ddp_model_option_count = OPTIONS;

double ddp_option_value(const ddp_option *option, const ddp_model_options *options)
{
	const void *at = (const char *)options + option->offset;

	switch (option->type) {
	case DDP_OPTION_FLAG: return *(const bool *)at;
	case DDP_OPTION_INT: return *(const int *)at;
	case DDP_OPTION_INT64: return (double)*(const int64_t *)at;
	case DDP_OPTION_UNSIGNED: return *(const unsigned *)at;
	case DDP_OPTION_NUMBER: return *(const double *)at;
	case DDP_OPTION_ADDRESS: return memcmp(at, &(void *){ NULL }, sizeof(void *)) != 0;
	}
	return NAN;
}

/* ---- checks -------------------------------------------------------------------------------- */

static ddp_status refuse(const char *name, double value, const char *range)
{
	return ddp_fail(DDP_ERR_INVALID, "model option %s is %g; it must be %s%s", name, value, range,
	                value == 0 ? ". Options begin as DDP_MODEL_OPTIONS" : "");
}

static ddp_status check_ranges(const ddp_model_options *options)
{
	for (int i = 0; i < OPTIONS; i++) {
		const ddp_option *option = &ddp_model_option_table[i];
		const double value = ddp_option_value(option, options);
		if (option->range == NULL || (option->may_be_auto && value == DDP_AUTO))
			continue;
		if (!isgreaterequal(value, option->least) || !islessequal(value, option->most))
			return refuse(option->name, value, option->range);
	}
	return DDP_OK;
}

static ddp_status check_optimizer(const ddp_model_options *options, const ddp_optim_rule *rule)
{
	if (rule->momentum_is_mean && !(options->momentum < 1))
		return refuse("momentum", options->momentum, "0 or more, and below 1");
	if (options->nesterov && !rule->has_nesterov)
		return ddp_fail(DDP_ERR_INVALID, "model option nesterov is of DDP_SGD, not of %s", rule->name);
	if (options->nesterov && options->momentum == 0)
		return ddp_fail(DDP_ERR_INVALID, "model option nesterov needs a momentum above 0");
	if (rule->whole && options->shard > DDP_SHARD_NONE)
		return ddp_fail(DDP_ERR_INVALID, "model option shard leaves each rank slices of tensors, and %s "
		                "updates whole tensors; leave shard at DDP_SHARD_AUTO or DDP_SHARD_NONE", rule->name);
	return DDP_OK;
}

/* A way of reducing that is not the default one has all gradients on each rank. */
static ddp_status check_reduction(const ddp_model_options *options)
{
	const ddp_bucket_hook *hook = &options->hook;
	const bool hooked = hook->start != NULL || hook->finish != NULL;
	const bool compressed = options->compress != DDP_COMPRESS_NONE;
	const bool local = options->local_sgd.steps > 0;

	if (hooked && (hook->start == NULL || hook->finish == NULL))
		return ddp_fail(DDP_ERR_INVALID, "model option hook needs both start and finish");
	if (hooked && compressed)
		return ddp_fail(DDP_ERR_INVALID, "model options hook and compress are two ways of reducing; "
		                "give one of them");
	if (local && (hooked || compressed || options->shard > DDP_SHARD_NONE))
		return ddp_fail(DDP_ERR_INVALID, "model option local_sgd.steps leaves ranks to themselves; give it "
		                "without %s", hooked ? "hook" : compressed ? "compress" : "shard");
	if (!local && options->local_sgd.start > 0)
		return ddp_fail(DDP_ERR_INVALID, "model option local_sgd.start needs local_sgd.steps");
	if ((hooked || compressed) && options->shard > DDP_SHARD_NONE)
		return ddp_fail(DDP_ERR_INVALID, "model option %s needs all gradients on each rank; leave "
		                "shard at DDP_SHARD_AUTO or DDP_SHARD_NONE", hooked ? "hook" : "compress");
	return DDP_OK;
}

static ddp_status check_scaling(const ddp_model_options *options)
{
	static const ddp_model_options defaults = DDP_MODEL_OPTIONS;
	const ddp_loss_scaling *scaling = &options->loss_scaling, *unset = &defaults.loss_scaling;

	if (!ddp_scale_is_good(scaling->initial))
		return refuse("loss_scaling.initial", scaling->initial, "a power of two from 1 to 2^64");
	if (scaling->kind == DDP_SCALING_NONE && scaling->initial != unset->initial)
		return ddp_fail(DDP_ERR_INVALID, "model option loss_scaling.initial needs loss_scaling.kind");
	if (scaling->kind == DDP_SCALING_NONE && scaling->interval != unset->interval)
		return ddp_fail(DDP_ERR_INVALID, "model option loss_scaling.interval needs loss_scaling.kind");
	if (scaling->kind != DDP_SCALING_NONE && options->compress == DDP_COMPRESS_POWERSGD)
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

static ddp_status check(const ddp_model_options *options, const ddp_optim_rule *rule)
{
	ddp_status status = check_ranges(options);

	if (status == DDP_OK)
		status = check_optimizer(options, rule);
	if (status == DDP_OK)
		status = check_reduction(options);
	if (status == DDP_OK)
		status = check_scaling(options);
	if (status == DDP_OK)
		status = check_memory("params_memory", options->params_memory);
	return status == DDP_OK ? check_memory("grads_memory", options->grads_memory) : status;
}

/* ---- defaults ------------------------------------------------------------------------------ */

int64_t ddp_default_bucket_elements(int64_t elements)
{
	const int64_t least = 1 << 18, most = 25 << 18;
	int64_t share = elements / 32;

	return share < least ? least : share > most ? most : share;
}

static ddp_status environment_bucket_mb(double *bucket_mb)
{
	const char *text = getenv("DDP_BUCKET_MB");
	double value;

	if (*bucket_mb != DDP_AUTO || text == NULL || text[0] == '\0')
		return DDP_OK;
	if (!ddp_parse_number(text, &value) || !(value > 0 && value <= 1 << 20))
		return ddp_fail(DDP_ERR_INVALID,
		                "DDP_BUCKET_MB is \"%.32s\"; it must be a number of MiB above 0", text);
	*bucket_mb = value;
	return DDP_OK;
}

static ddp_status environment_compare_every(int64_t *every)
{
	const char *text = getenv("DDP_COMPARE_EVERY");
	double value;

	if (*every != 0 || text == NULL || text[0] == '\0')
		return DDP_OK;
	if (!ddp_parse_number(text, &value) || !(value >= 0 && value <= 1e15) || value != floor(value))
		return ddp_fail(DDP_ERR_INVALID, "DDP_COMPARE_EVERY is \"%.32s\"; it must be a whole number of steps, or 0 "
		                "for no comparisons", text);
	*every = (int64_t)value;
	return DDP_OK;
}

static ddp_status environment_buddy(bool *buddy)
{
	const char *text = getenv("DDP_BUDDY");

	if (text == NULL || text[0] == '\0')
		return DDP_OK;
	if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
		return ddp_fail(DDP_ERR_INVALID, "DDP_BUDDY is \"%.32s\"; it must be 1, or 0 for no copies of other ranks' "
		                "optimizer state", text);
	*buddy = text[0] == '1';
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

static ddp_status find_rule(ddp_optimizer kind, const ddp_optim_rule **rule)
{
	*rule = ddp_optim_rule_of(kind);
	return *rule != NULL ? DDP_OK : refuse("optimizer", kind, ddp_optimizer_enumerators());
}

static void choose(double *value, double automatic)
{
	if (*value == DDP_AUTO)
		*value = automatic;
}

static void set_defaults(ddp_model_options *options, const ddp_optim_rule *rule)
{
	choose(&options->beta1, rule->beta1);
	choose(&options->beta2, rule->beta2);
	choose(&options->epsilon, rule->epsilon);
	choose(&options->momentum, rule->momentum);
	if (options->shard == DDP_SHARD_AUTO && rule->whole)
		options->shard = DDP_SHARD_NONE;
}

static void set_buckets(ddp_model_settings *settings)
{
	const double bucket_mb = settings->options.bucket_mb;
	double first_mb = settings->options.first_bucket_mb;

	settings->caps_given = bucket_mb != DDP_AUTO || first_mb != DDP_AUTO;
	settings->bucket_elements = bucket_mb != DDP_AUTO ? (int64_t)fmax(bucket_mb * ELEMENTS_PER_MB, 1) : 0;
	choose(&first_mb, bucket_mb != DDP_AUTO ? fmin(bucket_mb, FIRST_BUCKET_MB) : FIRST_BUCKET_MB);
	settings->first_bucket_elements = (int64_t)(first_mb * ELEMENTS_PER_MB);
}

ddp_status ddp_model_settings_make(const ddp_model_options *given, ddp_model_settings *settings)
{
	ddp_model_settings made = { .options = DDP_MODEL_OPTIONS };
	const ddp_optim_rule *rule = NULL;

	ddp_status status = ddp_options_copy("ddp_model_options", given, &made.options, sizeof(made.options));
	if (status == DDP_OK)
		status = find_rule(made.options.optimizer, &rule);
	if (status == DDP_OK)
		status = environment_bucket_mb(&made.options.bucket_mb);
	if (status == DDP_OK)
		status = environment_compare_every(&made.options.compare_every);
	if (status == DDP_OK)
		status = environment_buddy(&made.options.buddy);
	if (status == DDP_OK)
		status = environment_measure(&made);
	if (status != DDP_OK)
		return status;
	set_defaults(&made.options, rule);
	status = check(&made.options, rule);
	if (status != DDP_OK)
		return status;
	set_buckets(&made);
	*settings = made;
	return DDP_OK;
}
