#include "optim/optim.h"

#include <stdlib.h>
#include <string.h>

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

void ddp_optim_lend(ddp_optim *optim, int i, float *memory)
{
	optim->state[i] = memory;
}

double ddp_clip_factor(double clip_norm, double norm)
{
	double factor = clip_norm / (norm + 1e-6);

	return factor < 1 ? factor : 1;
}

void ddp_optim_free(ddp_optim *optim)
{
	for (int i = 0; i < optim->state_count && !optim->borrowed; i++)
		free(optim->state[i]);
	free(optim->squares);
	*optim = (ddp_optim){ 0 };
}

/* Of what one call updates: where the layout's element `begin` has its parameter,
   gradient and state. */
typedef struct range {
	ddp_optim *optim;
	const ddp_update *update;
	float *params, *grads;
	int64_t begin, end, at;
} range;

static double decay_of(const ddp_optim *optim, const ddp_slot *slot)
{
	if (slot->no_decay)
		return 0;
	return slot->grouped ? slot->group.weight_decay : optim->settings.weight_decay;
}

static bool is_unused(const ddp_update *update, const ddp_slot *slot)
{
	return update->unused != NULL && update->unused[slot->param];
}

/* The parameter's own count of steps, by which AdamW corrects its bias. */
static int64_t step_of(const ddp_update *update, const ddp_slot *slot)
{
	return update->step - (update->missed != NULL ? (int64_t)update->missed[slot->param] : 0);
}

/* Elements [begin, begin + count), which are updated as `slot` is. */
static void apply_kernel(const range *r, int64_t begin, int64_t count, const ddp_slot *slot)
{
	const ddp_optim *optim = r->optim;
	const ddp_optim_settings *settings = &optim->settings;
	const double learning_rate = r->update->learning_rate * slot->group.learning_rate_factor;
	const double weight_decay = decay_of(optim, slot);
	const int64_t offset = begin - r->begin, at = r->at + offset;
	const int64_t step = step_of(r->update, slot);
	float *params = r->params + offset, *grads = r->grads + offset;

	if (is_unused(r->update, slot)) {
		memset(grads, 0, (size_t)count * sizeof(*grads));
		return;
	}
	if (settings->kind == DDP_ADAMW) {
		const dk_adamw_args args = {
			.learning_rate = learning_rate,
			.beta1 = settings->beta1, .beta2 = settings->beta2,
			.epsilon = settings->epsilon, .weight_decay = weight_decay,
			.step = step, .grad_scale = r->update->grad_scale,
		};
		dk_adamw(params, grads, optim->state[0] + at, optim->state[1] + at, count, &args);
		return;
	}
	const dk_sgd_args args = {
		.learning_rate = learning_rate,
		.momentum = settings->momentum, .weight_decay = weight_decay,
		.step = step, .grad_scale = r->update->grad_scale,
	};
	dk_sgd(params, grads, optim->state_count > 0 ? optim->state[0] + at : NULL, count, &args);
}

static bool updated_alike(const ddp_optim *optim, const ddp_update *update, const ddp_slot *a,
                          const ddp_slot *b)
{
	return is_unused(update, a) == is_unused(update, b) && step_of(update, a) == step_of(update, b) &&
	       decay_of(optim, a) == decay_of(optim, b) &&
	       a->group.learning_rate_factor == b->group.learning_rate_factor;
}

/* The first element behind those of slot *param that is updated in another way, at most
   `end`; *param is moved on to the slot that it is of. */
static int64_t run_end(const range *r, int *param, int64_t end)
{
	const ddp_layout *layout = r->optim->layout;
	const ddp_slot *first = &layout->slots[*param];

	while (++*param < layout->trained) {
		const ddp_slot *slot = &layout->slots[*param];
		if (slot->offset >= end)
			return end;
		if (!updated_alike(r->optim, r->update, first, slot))
			return slot->offset;
	}
	return end;
}

static int param_at(const ddp_layout *layout, int64_t offset)
{
	int low = 0, high = layout->trained - 1;

	while (low < high) {
		int middle = low + (high - low + 1) / 2;
		if (layout->slots[middle].offset <= offset)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

static void apply_runs(const range *r, int64_t begin, int64_t end)
{
	const ddp_layout *layout = r->optim->layout;
	int param = param_at(layout, begin);

	while (begin < end) {
		const ddp_slot *slot = &layout->slots[param];
		int64_t stop = run_end(r, &param, end);

		apply_kernel(r, begin, stop - begin, slot);
		begin = stop;
	}
}

/* Elements [begin, end), of which all are in a core's cache at once. */
static double apply_piece(const range *r, int64_t begin, int64_t end)
{
	double squares = dk_sum_squares(r->grads + (begin - r->begin), end - begin);

	apply_runs(r, begin, end);
	return squares;
}

static void apply_pieces(void *argument, int64_t first, int64_t last)
{
	const range *r = argument;

	for (int64_t i = first; i < last; i++) {
		int64_t begin = r->begin + i * PIECE_ELEMENTS;
		int64_t end = r->end - begin < PIECE_ELEMENTS ? r->end : begin + PIECE_ELEMENTS;
		r->optim->squares[i] = apply_piece(r, begin, end);
	}
}

double ddp_optim_apply(ddp_optim *optim, const ddp_update *update, float *params,
                       float *grads, int64_t begin, int64_t end, int64_t at)
{
	range all = { optim, update, params, grads, begin, end, at };
	int64_t pieces = piece_count(end - begin);
	double squares = 0;

	/* From a thread of several, too: they do not share the sums then. */
	if (pieces <= 1)
		return begin < end ? apply_piece(&all, begin, end) : 0;
	dk_parallel(pieces, 1, apply_pieces, &all);
	for (int64_t i = 0; i < pieces; i++)
		squares += optim->squares[i];
	return squares;
}

void ddp_optim_enqueue(ddp_optim *optim, const ddp_update *update, float *params, float *grads,
                       int64_t begin, int64_t end, int64_t at)
{
	const range all = { optim, update, params, grads, begin, end, at };

	apply_runs(&all, begin, end);
}
