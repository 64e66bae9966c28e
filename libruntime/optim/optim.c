#include "optim/optim.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels.h"

/* The squares are summed just before the update reads the same gradients: a piece of
   this many elements is still in a core's own cache then. */
enum { PIECE_ELEMENTS = 32 * 1024 };

static int64_t piece_count(int64_t elements)
{
	return (elements + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
}

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

	made.squares = calloc((size_t)piece_count(layout->elements) + 1, sizeof(*made.squares));
	if (made.squares == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the optimizer's sums");
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
	free(optim->squares);
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

/* Elements [begin, end), of which all are in a core's cache at once. */
static double apply_piece(ddp_optim *optim, const ddp_update *update, float *params,
                          float *grads, int64_t begin, int64_t end)
{
	const ddp_layout *layout = optim->layout;
	int param = param_at(layout, begin);
	double squares = dk_sum_squares(grads + begin, end - begin);

	while (begin < end) {
		bool decay = !layout->slots[param].no_decay;
		int64_t stop = run_end(layout, &param, end);

		apply_kernel(optim, update, params, grads, begin, stop - begin,
		             decay ? optim->settings.weight_decay : 0);
		begin = stop;
	}
	return squares;
}

/* What the threads of one call share. */
typedef struct span {
	ddp_optim *optim;
	const ddp_update *update;
	float *params, *grads;
	int64_t begin, end;
} span;

static void apply_pieces(void *argument, int64_t first, int64_t last)
{
	const span *s = argument;

	for (int64_t i = first; i < last; i++) {
		int64_t begin = s->begin + i * PIECE_ELEMENTS;
		int64_t end = s->end - begin < PIECE_ELEMENTS ? s->end : begin + PIECE_ELEMENTS;
		s->optim->squares[i] = apply_piece(s->optim, s->update, s->params, s->grads, begin, end);
	}
}

double ddp_optim_apply(ddp_optim *optim, const ddp_update *update, float *params,
                       float *grads, int64_t begin, int64_t end)
{
	span all = { optim, update, params, grads, begin, end };
	int64_t pieces = piece_count(end - begin);
	double squares = 0;

	/* From a thread of several, too: they do not share the sums then. */
	if (pieces <= 1)
		return begin < end ? apply_piece(optim, update, params, grads, begin, end) : 0;
	dk_parallel(pieces, 1, apply_pieces, &all);
	for (int64_t i = 0; i < pieces; i++)
		squares += optim->squares[i];
	return squares;
}
