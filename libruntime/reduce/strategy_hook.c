/* SPDX-License-Identifier: Apache-2.0 */
/* hook: the program itself sums a bucket's gradients over all ranks, in its own way. */
#include <stdlib.h>

#include "base/error.h"
#include "reduce/model_state.h"
#include "reduce/strategy_all_reduce.h"

typedef struct hook {
	int started, ended; /* buckets before them are, in this step */
} hook;

static ddp_status prepare(ddp_model *model)
{
	model->own = calloc(1, sizeof(hook));
	return model->own != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for the program's hook");
}

static ddp_grad_bucket view(const ddp_model *model, int k)
{
	const ddp_bucket *bucket = &model->plan.buckets[k];

	return (ddp_grad_bucket){
		.index = k, .buckets = model->plan.count, .grads = model->grads + bucket->begin,
		.count = bucket->end - bucket->begin, .comm = model->comm,
		.memory = ddp_place_memory(&model->place),
		.stream = model->place.stream,
	};
}

/* This reason stays until a hook's function says why it fails. */
static void give_no_reason(void)
{
	ddp_fail(DDP_OK, "the hook gave no reason");
}

static ddp_status start(ddp_model *model, int k)
{
	const ddp_grad_bucket bucket = view(model, k);

	hook *h = model->own;

	*h = (hook){ .started = k + 1, .ended = k > 0 ? h->ended : 0 };
	give_no_reason();
	return model->settings.options.hook.start(model->settings.options.hook.user, &bucket);
}

static ddp_status wait(ddp_model *model, int k)
{
	const ddp_grad_bucket bucket = view(model, k);

	hook *h = model->own;

	if (k < h->ended || k >= h->started)
		return DDP_OK;
	h->ended = k + 1;
	give_no_reason();
	ddp_status status = model->settings.options.hook.finish(model->settings.options.hook.user, &bucket);
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "the program's hook, bucket %d", k);
}

/* The hook's sums must end before its buckets' memory goes. After an error of the
   model, the program has seen to that. */
static void close_hook(ddp_model *model)
{
	ddp_watch *watch = model->context->watch;
	const ddp_phase before = ddp_watch_current_phase(watch);
	const hook *h = model->own;

	if (h != NULL && h->ended < h->started && !model->failed) {
		ddp_comm_abort(model->comm, "a model was freed in the middle of a step");
		ddp_watch_phase(watch, DDP_PHASE_WAIT);
		for (int k = h->ended; k < h->started; k++)
			model->strategy->wait(model, k);
		ddp_watch_phase(watch, before);
	}
	(void)ddp_place_sync(&model->place); /* behind what the program has enqueued in that */
	free(model->own);
}

const ddp_strategy ddp_hook_strategy = {
	.name = "hook", .shard = DDP_SHARD_NONE, .moves_rows = true,
	.prepare = prepare, .close = close_hook,
	.start = start, .wait = wait, .add_rows = ddp_all_reduce_add_rows,
	.reduce = ddp_all_reduce_finish, .update = ddp_all_reduce_update,
};
