/*
 * device: what all_reduce is where the arenas are a device's. Nothing here waits while
 * backward is enqueued: a bucket's all-reduce begins when the program's queue has come to
 * where the bucket was complete, and the update of a bucket, on that queue, waits for the
 * bucket's all-reduce. When all is enqueued, the host ends the requests, which is what of
 * communication is exposed, and then waits for what it has to know, the sums of squares.
 */
#include <stdio.h>

#include "device/device.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "reduce/on_device.h"
#include "reduce/strategy_device.h"

static ddp_status prepare(ddp_model *model)
{
	return ddp_on_device_open(model);
}

static void close_memory(ddp_model *model)
{
	ddp_on_device_close(model);
}

static ddp_status start(ddp_model *model, int k)
{
	const ddp_bucket *bucket = &model->plan.buckets[k];
	const ddp_collective operation = {
		.kind = DDP_ALL_REDUCE, .recv = model->grads + bucket->begin,
		.count = (size_t)(bucket->end - bucket->begin), .type = DDP_F32, .op = DDP_SUM,
		.memory = DDP_MEMORY_DEVICE, .stream = model->place.stream,
	};

	return ddp_reducer_issue(&model->reducer, k, &operation);
}

/* The queue waits, the host does not. */
static ddp_status wait(ddp_model *model, int k)
{
	ddp_request *request = model->reducer.requests[k];

	return request != NULL ? ddp_wait_on(request, model->place.stream) : DDP_OK;
}

static ddp_status end_all(ddp_model *model)
{
	ddp_status status = DDP_OK;
	char name[32];

	for (int k = 0; k < model->plan.count && status == DDP_OK; k++) {
		const ddp_bucket *bucket = &model->plan.buckets[k];
		snprintf(name, sizeof(name), "bucket %d", k);
		status = ddp_reducer_end(&model->reducer, k, name,
		                         (bucket->end - bucket->begin) * (int64_t)sizeof(float));
	}
	return status;
}

/* In the pieces, and in the order, in which the host sums squares. */
static void enqueue_squares(ddp_model *model)
{
	double *squares = model->results->squares;
	dk_queue *before = dk_use(model->place.kernels);
	int64_t begin, end;

	for (int u = 0; u < model->units.count; u++) {
		const ddp_unit *unit = &model->units.list[u];
		ddp_unit_slice(&model->units, unit, model->units.rank, &begin, &end);
		dk_squares_at(squares + unit->first_piece, model->grads + begin, end - begin,
		              DDP_PIECE_ELEMENTS);
	}
	dk_use(before);
}

/* The buckets' requests; then so many sums of squares, behind which is the rest of the queue. */
static ddp_status end_and_fetch(ddp_model *model, int64_t squares)
{
	ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
	ddp_status status = ddp_model_end_buckets(model);
	ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
	return status == DDP_OK ? ddp_on_device_fetch_squares(model, squares) : status;
}

ddp_status ddp_device_finish(ddp_model *model, double *squares)
{
	ddp_status status = ddp_model_wait(model, 0, model->plan.count);

	if (status != DDP_OK)
		return status;
	enqueue_squares(model);
	status = end_and_fetch(model, model->units.piece_count);
	if (status != DDP_OK)
		return status;
	ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
	*squares = 0;
	for (int i = 0; i < model->units.piece_count; i++)
		*squares += model->results->squares_here[i];
	return ddp_reducer_meet(&model->reducer, "norm", squares, 1);
}

/* Elements [begin, end); the squares of their pieces from *piece on, which moves on. */
static void apply(ddp_model *model, const ddp_update *update, int64_t begin, int64_t end, int64_t *piece)
{
	dk_queue *before = dk_use(model->place.kernels);

	if (piece != NULL) {
		dk_squares_at(model->results->squares + *piece, model->grads + begin, end - begin,
		              DDP_PIECE_ELEMENTS);
		*piece += ddp_pieces_in(end - begin);
	}
	ddp_optim_enqueue(&model->optim, update, model->params + begin, model->grads + begin, begin, end,
	                  begin);
	dk_use(before);
}

static ddp_status enqueue_updates(ddp_model *model, const ddp_update *update, int64_t *pieces)
{
	ddp_status status = DDP_OK;

	for (int k = 0; k < model->plan.count && status == DDP_OK; k++) {
		const ddp_bucket *bucket = &model->plan.buckets[k];
		status = ddp_model_wait(model, k, k + 1);
		if (status == DDP_OK)
			apply(model, update, bucket->begin, bucket->end, pieces);
	}
	return status;
}

/* The buckets' squares, one after the other, as the host would sum them. */
static double sum_by_bucket(const ddp_model *model)
{
	const double *next = model->results->squares_here;
	double squares = 0;

	for (int k = 0; k < model->plan.count; k++) {
		const ddp_bucket *bucket = &model->plan.buckets[k];
		double sum = 0;
		for (int64_t i = ddp_pieces_in(bucket->end - bucket->begin); i > 0; i--)
			sum += *next++;
		squares += sum;
	}
	return squares;
}

ddp_status ddp_device_update(ddp_model *model, const ddp_update *update, bool reduced,
                             double *squares)
{
	int64_t pieces = 0;

	ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
	if (reduced) {
		apply(model, update, 0, model->layout.elements, NULL);
		return DDP_OK;
	}
	model->partly_updated = true;
	ddp_status status = enqueue_updates(model, update, &pieces);
	if (status == DDP_OK)
		status = end_and_fetch(model, pieces);
	if (status != DDP_OK)
		return status;
	model->partly_updated = false;
	*squares = sum_by_bucket(model);
	return DDP_OK;
}

const ddp_strategy ddp_device_strategy = {
	.name = "all_reduce", .shard = DDP_SHARD_NONE,
	.prepare = prepare, .close = close_memory,
	.start = start, .wait = wait, .end_all = end_all,
	.reduce = ddp_device_finish, .update = ddp_device_update,
};
