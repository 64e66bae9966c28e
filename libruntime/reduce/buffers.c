#include "reduce/buffers.h"

#include "base/error.h"
#include "reduce/model_state.h"

/* 64 MiB at a time, each with a deadline of its own. */
enum { AT_ONCE = 1 << 24 };

/* Runs `operation` on elements [begin, end) of the parameters' arena. */
static ddp_status run(ddp_model *model, ddp_collective operation, int64_t begin, int64_t end)
{
	ddp_status status = DDP_OK;

	for (int64_t at = begin; at < end && status == DDP_OK; at += AT_ONCE) {
		operation.recv = model->params + at;
		operation.count = (size_t)(end - at < AT_ONCE ? end - at : AT_ONCE);
		status = ddp_reducer_run(&model->reducer, "buffers", &operation);
	}
	return status;
}

/* Their sum: what has joined adds nothing. */
static ddp_status average(ddp_model *model, int active)
{
	const ddp_layout *layout = &model->layout;
	const bool some_joined = active < model->units.ranks;
	const ddp_collective sum = {
		.kind = DDP_ALL_REDUCE, .type = DDP_F32, .op = DDP_SUM, .scaled = some_joined,
		.scale = some_joined && !model->joined ? 1 : 0,
	};

	ddp_status status = run(model, sum, layout->mean, layout->broadcast);
	for (int64_t i = layout->mean; i < layout->broadcast && status == DDP_OK; i++)
		model->params[i] /= (float)active;
	return status;
}

/* From rank 0, or the first rank that has not joined. */
static ddp_status broadcast(ddp_model *model, int active)
{
	const ddp_layout *layout = &model->layout;
	int32_t root = model->joined ? INT32_MAX : model->units.rank;
	const ddp_collective first = {
		.kind = DDP_ALL_REDUCE, .recv = &root, .count = 1, .type = DDP_I32, .op = DDP_MIN,
	};
	ddp_status status = DDP_OK;

	if (layout->broadcast == layout->all)
		return DDP_OK;
	if (active < model->units.ranks)
		status = ddp_reducer_run(&model->reducer, "first active rank", &first);
	else
		root = 0;
	const ddp_collective operation = { .kind = DDP_BROADCAST, .type = DDP_F32, .root = root };
	return status == DDP_OK ? run(model, operation, layout->broadcast, layout->all) : status;
}

ddp_status ddp_buffers_sync(ddp_model *model, int active)
{
	const bool before = model->partly_updated;

	if (model->layout.mean == model->layout.all)
		return DDP_OK;
	/* Half of a sum is no state to save. */
	model->partly_updated = true;
	ddp_status status = average(model, active);
	if (status == DDP_OK)
		status = broadcast(model, active);
	if (status == DDP_OK)
		model->partly_updated = before;
	return status;
}
