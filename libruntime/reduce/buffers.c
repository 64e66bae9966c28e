/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <math.h>

#include "base/error.h"
#include "kernels.h"

/* 64 MiB at a time, each with a deadline of its own. */
enum { AT_ONCE = 1 << 24 };

/* Runs `operation` on elements [begin, end) of the parameters' arena. */
static ddp_status run(ddp_model *model, ddp_operation operation, int64_t begin, int64_t end)
{
	ddp_status status = DDP_OK;

	for (int64_t at = begin; at < end && status == DDP_OK; at += AT_ONCE) {
		operation.recv = model->params + at;
		operation.count = (size_t)(end - at < AT_ONCE ? end - at : AT_ONCE);
		operation.memory = ddp_place_memory(&model->place);
		operation.stream = model->place.stream;
		status = ddp_reducer_run(&model->reducer, "buffers", &operation);
	}
	return status;
}

/* A rank that does not count adds nothing to the sum. A division, as by a mean over all ranks, keeps equal what
   is the same on all ranks. */
static ddp_status average(ddp_model *model, bool counts, int counted)
{
	const ddp_layout *layout = &model->layout;
	const bool of_all = counted == ddp_comm_size(model->comm);
	const ddp_operation reduction = {
		.kind = DDP_ALL_REDUCE, .type = DDP_F32, .op = of_all ? DDP_AVG : DDP_SUM,
	};
	ddp_status status = DDP_OK;

	if (layout->mean == layout->broadcast)
		return DDP_OK;
	if (!counts)
		status = ddp_arena_clear(&model->params_memory, layout->mean, layout->broadcast);
	if (status == DDP_OK)
		status = run(model, reduction, layout->mean, layout->broadcast);
	if (status != DDP_OK || of_all)
		return status;
	dk_queue *before = dk_use(model->place.kernels);
	dk_scale(model->params + layout->mean, layout->broadcast - layout->mean, 1 / (float)counted);
	dk_use(before);
	return DDP_OK;
}

/* Broadcasts from rank 0, or from the first rank that counts. */
static ddp_status broadcast(ddp_model *model, bool counts, int counted)
{
	const ddp_layout *layout = &model->layout;
	const ddp_comm *comm = model->comm;
	int32_t root = counts ? ddp_comm_rank(comm) : INT32_MAX;
	const ddp_operation first = {
		.kind = DDP_ALL_REDUCE, .recv = &root, .count = 1, .type = DDP_I32, .op = DDP_MIN,
	};
	ddp_status status = DDP_OK;

	if (layout->broadcast == layout->all)
		return DDP_OK;
	if (counted < ddp_comm_size(comm))
		status = ddp_reducer_run(&model->reducer, "first rank that counts", &first);
	else
		root = 0;
	const ddp_operation operation = { .kind = DDP_BROADCAST, .type = DDP_F32, .root = root };
	return status == DDP_OK ? run(model, operation, layout->broadcast, layout->all) : status;
}

bool ddp_buffers_finite(const ddp_model *model)
{
	const int64_t count = model->layout.all - model->layout.mean;
	dk_queue *before = dk_use(model->place.kernels);
	const bool finite = count == 0 || isfinite(dk_largest(model->params + model->layout.mean, count));

	dk_use(before);
	return finite;
}

ddp_status ddp_buffers_sync(ddp_model *model, const ddp_consensus *own, const ddp_consensus *all)
{
	const bool before = model->partly_updated;
	const int active = ddp_consensus_active(model, all), finite = active - (int)all->bad_buffers;
	const bool counts = !model->joined && (own->bad_buffers == 0 || finite == 0);
	const int counted = finite > 0 ? finite : active;

	if (model->layout.mean == model->layout.all)
		return DDP_OK;
	/* Half of a sum is no state to save. */
	model->partly_updated = true;
	ddp_status status = average(model, counts, counted);
	if (status == DDP_OK)
		status = broadcast(model, counts, counted);
	if (status == DDP_OK)
		model->partly_updated = before;
	return status;
}
