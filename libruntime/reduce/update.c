/* update: the end of a step, from reduced gradients to new parameters. */
#include "reduce/model_state.h"

#include <math.h>

/* The same bits on all ranks: each sums the squares of its own part, and the
   parts are summed by all_reduce. */
static ddp_status global_squares(ddp_model *model, double *squares)
{
	int64_t begin = 0, end = model->layout.elements;
	ddp_comm *comm = model->context->world;

	if (model->reducer.communicates)
		ddp_layout_part(&model->layout, ddp_comm_size(comm), ddp_comm_rank(comm), &begin, &end);
	*squares = ddp_sum_squares(model->grads, begin, end);
	return ddp_reducer_meet(&model->reducer, "norm", squares, 1);
}

/* torch.nn.utils.clip_grad_norm_. */
static double clip_factor(double clip_norm, double norm)
{
	double factor = clip_norm / (norm + 1e-6);

	return factor < 1 ? factor : 1;
}

static ddp_status update_clipped(ddp_model *model, ddp_update *update, double weight,
                                 double *norm)
{
	double squares;

	ddp_status status = ddp_reducer_wait(&model->reducer, 0, model->plan.count);
	if (status == DDP_OK) {
		ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
		status = global_squares(model, &squares);
	}
	if (status != DDP_OK)
		return status;
	*norm = sqrt(squares) / weight;
	update->grad_scale *= clip_factor(model->settings.clip_norm, *norm);
	ddp_optim_apply(&model->optim, update, model->params, model->grads, 0,
	                model->layout.elements);
	return DDP_OK;
}

/* Updates each bucket while those behind it are still under way. */
static ddp_status update_by_bucket(ddp_model *model, const ddp_update *update, double weight,
                                   double *norm)
{
	ddp_watch *watch = model->context->watch;
	double squares = 0;

	for (int k = 0; k < model->plan.count; k++) {
		const ddp_bucket *bucket = &model->plan.buckets[k];

		if (model->reducer.communicates && k >= model->reducer.hold)
			ddp_watch_phase(watch, DDP_PHASE_WAIT);
		ddp_status status = ddp_reducer_wait(&model->reducer, k, k + 1);
		if (status != DDP_OK)
			return status;
		ddp_watch_phase(watch, DDP_PHASE_OPTIMIZER);
		model->torn = true;
		squares += ddp_optim_apply(&model->optim, update, model->params, model->grads,
		                           bucket->begin, bucket->end);
	}
	/* What travels by rows alone is complete. */
	squares += ddp_optim_apply(&model->optim, update, model->params, model->grads,
	                           model->layout.dense, model->layout.elements);
	model->torn = false;
	*norm = sqrt(squares) / weight;
	return DDP_OK;
}

/* Clipping needs the norm first, so the gradients are passed over twice. The
   parameters are torn until all ranks have stored their parts. */
static ddp_status update_sharded(ddp_model *model, ddp_update *update, double weight,
                                 double *norm)
{
	const bool clips = model->settings.clip_norm > 0;
	ddp_watch *watch = model->context->watch;
	ddp_reducer *reducer = &model->reducer;
	ddp_status status = DDP_OK;
	double squares = 0, updated;

	ddp_watch_phase(watch, DDP_PHASE_OPTIMIZER);
	if (clips) {
		squares = ddp_sharded_sum(&model->sharded);
		ddp_watch_phase(watch, DDP_PHASE_WAIT);
		status = ddp_reducer_meet(reducer, "norm", &squares, 1);
		if (status != DDP_OK)
			return status;
		update->grad_scale *= clip_factor(model->settings.clip_norm, sqrt(squares) / weight);
		ddp_watch_phase(watch, DDP_PHASE_OPTIMIZER);
	}
	status = ddp_sharded_begin(&model->sharded, model->context->world, update->step);
	if (status != DDP_OK)
		return status;
	model->torn = true;
	updated = ddp_sharded_update(&model->sharded, &model->optim, update, clips);
	ddp_watch_phase(watch, DDP_PHASE_WAIT);
	status = ddp_reducer_meet(reducer, "updated", &updated, 1);
	if (status != DDP_OK)
		return status;
	model->torn = false;
	*norm = sqrt(clips ? squares : updated) / weight;
	return DDP_OK;
}

ddp_status ddp_model_update(ddp_model *model, ddp_update *update, double weight, double *norm)
{
	if (model->sharded.ranks > 0)
		return update_sharded(model, update, weight, norm);
	if (model->settings.clip_norm > 0)
		return update_clipped(model, update, weight, norm);
	return update_by_bucket(model, update, weight, norm);
}
