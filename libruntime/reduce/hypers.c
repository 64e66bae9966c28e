/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/hypers.h"

#include <string.h>

#include "reduce/agree.h"
#include "reduce/model_state.h"

const char *ddp_hyper_name(ddp_hyper hyper)
{
	static const char *const names[DDP_HYPERS] = {
		"optimizer", "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "momentum",
		"clip_norm", "nesterov", "adafactor_decay", "adafactor_least_scale", "adafactor_clip",
		"muon_iterations", "muon_match_rms", "loss", "unused", "local_steps", "local_start",
		"compress", "hook", "powersgd_rank", "powersgd_seed", "powersgd_start", "powersgd_rate",
		"powersgd_no_feedback", "powersgd_no_warm_start", "bf16_params", "loss_scaling",
		"fixed_loss_scale", "loss_scale_interval", "treatment_of_parameters",
		"current_learning_rate", "loss_scale", "loss_scale_good_steps",
	};

	return names[hyper];
}

void ddp_model_get_hypers(const ddp_model *model, double *hypers)
{
	const ddp_model_settings *settings = &model->settings;
	const ddp_optim_settings *optim = &settings->optim;
	const double values[DDP_HYPERS] = {
		[DDP_HYPER_OPTIMIZER] = optim->kind,
		[DDP_HYPER_LEARNING_RATE] = settings->learning_rate,
		[DDP_HYPER_BETA1] = optim->beta1,
		[DDP_HYPER_BETA2] = optim->beta2,
		[DDP_HYPER_EPSILON] = optim->epsilon,
		[DDP_HYPER_WEIGHT_DECAY] = optim->weight_decay,
		[DDP_HYPER_MOMENTUM] = optim->momentum,
		[DDP_HYPER_CLIP_NORM] = settings->clip_norm,
		[DDP_HYPER_NESTEROV] = optim->nesterov,
		[DDP_HYPER_ADAFACTOR_DECAY] = optim->adafactor_decay,
		[DDP_HYPER_ADAFACTOR_LEAST_SCALE] = optim->adafactor_least_scale,
		[DDP_HYPER_ADAFACTOR_CLIP] = optim->adafactor_clip,
		[DDP_HYPER_MUON_ITERATIONS] = optim->muon_iterations,
		[DDP_HYPER_MUON_MATCH_RMS] = optim->muon_match_rms,
		[DDP_HYPER_LOSS] = settings->loss,
		[DDP_HYPER_UNUSED] = settings->unused,
		[DDP_HYPER_LOCAL_STEPS] = (double)settings->local_steps,
		[DDP_HYPER_LOCAL_START] = (double)settings->local_start,
		[DDP_HYPER_COMPRESS] = settings->compress,
		[DDP_HYPER_HOOK] = settings->hook.start != NULL,
		[DDP_HYPER_POWERSGD_RANK] = settings->powersgd.rank,
		[DDP_HYPER_POWERSGD_SEED] = settings->powersgd.seed,
		[DDP_HYPER_POWERSGD_START] = (double)settings->powersgd.start_step,
		[DDP_HYPER_POWERSGD_RATE] = settings->powersgd.least_rate,
		[DDP_HYPER_POWERSGD_NO_FEEDBACK] = settings->powersgd.no_feedback,
		[DDP_HYPER_POWERSGD_NO_WARM_START] = settings->powersgd.no_warm_start,
		[DDP_HYPER_BF16_PARAMS] = settings->bf16_params,
		[DDP_HYPER_LOSS_SCALING] = settings->loss_scaling,
		[DDP_HYPER_FIXED_LOSS_SCALE] = settings->loss_scaling == DDP_SCALING_FIXED ? settings->loss_scale : 0,
		[DDP_HYPER_LOSS_SCALE_INTERVAL] = (double)settings->loss_scale_interval,
		[DDP_HYPER_TREATMENT] = ddp_layout_treatment(&model->layout),
		[DDP_HYPER_CURRENT_RATE] = model->learning_rate,
		/* None, for a model that scales and goes on from there. */
		[DDP_HYPER_LOSS_SCALE] = model->scaler.kind != DDP_SCALING_NONE ? model->scaler.scale : 0,
		[DDP_HYPER_GOOD_STEPS] = (double)model->scaler.good,
	};

	memcpy(hypers, values, sizeof(values));
}

void ddp_model_resume_scale(ddp_model *model, const double *hypers)
{
	ddp_scaler_resume(&model->scaler, hypers[DDP_HYPER_LOSS_SCALE], hypers[DDP_HYPER_GOOD_STEPS]);
}
