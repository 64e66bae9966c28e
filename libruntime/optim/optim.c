#include "optim/optim.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels.h"

/* The squares are summed just before the update reads the same gradients:
   a piece of this many elements is still in the cache then. */
enum { PIECE_ELEMENTS = 128 * 1024 };

static ddp_status add_state(ddp_optim *optim, const char *name)
{
	float *state = NULL;

	if (!optim->borrowed) {
		/* Never empty, so that calloc's NULL means what it seems to. */
		state = calloc((size_t)optim->layout->elements, sizeof(*state));
		if (state == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for the optimizer's state \"%s\" (%lld bytes)",
			                name, (long long)optim->layout->elements * (long long)sizeof(*state));
	}
	optim->state[optim->state_count] = state;
	optim->state_name[optim->state_count] = name;
	optim->state_count++;
	return DDP_OK;
}

ddp_status ddp_optim_make(const ddp_optim_settings *settings, const ddp_layout *layout,
                          bool borrows, ddp_optim *optim)
{
	ddp_optim made = { .settings = *settings, .layout = layout, .borrowed = borrows };
	ddp_status status = DDP_OK;

	if (settings->kind == DDP_ADAMW) {
		status = add_state(&made, "m");
		if (status == DDP_OK)
			status = add_state(&made, "v");
	} else if (settings->momentum != 0) {
		status = add_state(&made, "momentum");
	}
	if (status != DDP_OK) {
		ddp_optim_free(&made);
		return status;
	}
	*optim = made;
	return DDP_OK;
}

void ddp_optim_lend(ddp_optim *optim, int i, float *memory, int64_t first)
{
	optim->state[i] = memory;
	optim->first = first;
}

void ddp_optim_free(ddp_optim *optim)
{
	for (int i = 0; i < optim->state_count && !optim->borrowed; i++)
		free(optim->state[i]);
	*optim = (ddp_optim){ 0 };
}

static void apply_kernel(ddp_optim *optim, const ddp_update *update, float *params,
                         float *grads, int64_t begin, int64_t count, double weight_decay)
{
	const ddp_optim_settings *settings = &optim->settings;
	int64_t at = begin - optim->first;

	if (settings->kind == DDP_ADAMW) {
		const dk_adamw_args args = {
			.learning_rate = update->learning_rate,
			.beta1 = settings->beta1, .beta2 = settings->beta2,
			.epsilon = settings->epsilon, .weight_decay = weight_decay,
			.step = update->step, .grad_scale = update->grad_scale,
		};
		dk_adamw(params + begin, grads + begin, optim->state[0] + at,
		         optim->state[1] + at, count, &args);
		return;
	}
	const dk_sgd_args args = {
		.learning_rate = update->learning_rate,
		.momentum = settings->momentum, .weight_decay = weight_decay,
		.step = update->step, .grad_scale = update->grad_scale,
	};
	dk_sgd(params + begin, grads + begin,
	       optim->state_count > 0 ? optim->state[0] + at : NULL, count, &args);
}

/* The first element behind `begin` at which the decay changes, at most `end`.
   *param is the tensor that `begin` lies in, and is moved on. */
static int64_t run_end(const ddp_layout *layout, int *param, int64_t end)
{
	bool no_decay = layout->slots[*param].no_decay;

	while (++*param < layout->count) {
		const ddp_slot *slot = &layout->slots[*param];
		if (slot->offset >= end)
			return end;
		if (slot->no_decay != no_decay)
			return slot->offset;
	}
	return end;
}

static int param_at(const ddp_layout *layout, int64_t offset)
{
	int low = 0, high = layout->count - 1;

	while (low < high) {
		int middle = low + (high - low + 1) / 2;
		if (layout->slots[middle].offset <= offset)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

double ddp_optim_apply(ddp_optim *optim, const ddp_update *update, float *params,
                       float *grads, int64_t begin, int64_t end)
{
	const ddp_layout *layout = optim->layout;
	int param = param_at(layout, begin);
	double squares = 0;

	while (begin < end) {
		bool decay = !layout->slots[param].no_decay;
		int64_t stop = run_end(layout, &param, end);

		while (begin < stop) {
			int64_t count = stop - begin < PIECE_ELEMENTS ? stop - begin : PIECE_ELEMENTS;
			squares += dk_sum_squares(grads + begin, count);
			apply_kernel(optim, update, params, grads, begin, count,
			             decay ? optim->settings.weight_decay : 0);
			begin += count;
		}
	}
	return squares;
}
