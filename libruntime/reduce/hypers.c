/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/hypers.h"

#include <stddef.h>
#include <string.h>

#include "reduce/agree.h"
#include "reduce/model_state.h"

static const char *const own_keys[DDP_HYPER_OPTIONS] = {
	[DDP_HYPER_CURRENT_RATE] = "current_learning_rate",
	[DDP_HYPER_LOSS_SCALE] = "loss_scale",
	[DDP_HYPER_GOOD_STEPS] = "loss_scale_good_steps",
	[DDP_HYPER_FIXED_LOSS_SCALE] = "fixed_loss_scale",
	[DDP_HYPER_TREATMENT] = "treatment_of_parameters",
};

/* NULL: the hyper is no option's. */
static const ddp_option *option_of(int hyper)
{
	const int i = hyper - DDP_HYPER_OPTIONS;

	return i >= 0 && i < ddp_model_option_count ? &ddp_model_option_table[i] : NULL;
}

const char *ddp_hyper_key(int hyper)
{
	const ddp_option *option = option_of(hyper);

	return hyper < DDP_HYPER_OPTIONS ? own_keys[hyper] : option != NULL ? option->key : NULL;
}

const char *ddp_hyper_name(int hyper)
{
	const ddp_option *option = option_of(hyper);

	if (option == NULL)
		return ddp_hyper_key(hyper);
	return option->told != NULL ? option->told : option->name;
}

double ddp_hyper_saved(int hyper, double value)
{
	const ddp_option *option = option_of(hyper);

	return option != NULL && option->key_is_opposite ? 1 - value : value;
}

int ddp_hypers_list(const double *hypers, ddp_saved_hyper list[DDP_HYPERS])
{
	int count = 0;

	for (int h = 0; h < DDP_HYPERS; h++) {
		const char *key = ddp_hyper_key(h);
		if (key != NULL)
			list[count++] = (ddp_saved_hyper){ key, ddp_hyper_saved(h, hypers[h]) };
	}
	return count;
}

int ddp_hyper_of(const char *option)
{
	int i = 0;

	while (strcmp(ddp_model_option_table[i].name, option) != 0)
		i++;
	return DDP_HYPER_OPTIONS + i;
}

void ddp_model_get_hypers(const ddp_model *model, double *hypers)
{
	const ddp_model_options *options = &model->settings.options;
	const bool is_fixed = options->loss_scaling.kind == DDP_SCALING_FIXED;

	memset(hypers, 0, DDP_HYPERS * sizeof(*hypers));
	hypers[DDP_HYPER_CURRENT_RATE] = model->learning_rate;
	/* None, for a model that scales and goes on from there. */
	hypers[DDP_HYPER_LOSS_SCALE] = model->scaler.kind != DDP_SCALING_NONE ? model->scaler.scale : 0;
	hypers[DDP_HYPER_GOOD_STEPS] = (double)model->scaler.good;
	hypers[DDP_HYPER_FIXED_LOSS_SCALE] = is_fixed ? options->loss_scaling.initial : 0;
	hypers[DDP_HYPER_TREATMENT] = ddp_layout_treatment(&model->layout);
	for (int i = 0; i < ddp_model_option_count; i++)
		hypers[DDP_HYPER_OPTIONS + i] = ddp_option_value(&ddp_model_option_table[i], options);
}

void ddp_model_resume_scale(ddp_model *model, const double *hypers)
{
	ddp_scaler_resume(&model->scaler, hypers[DDP_HYPER_LOSS_SCALE], hypers[DDP_HYPER_GOOD_STEPS]);
}
