/* SPDX-License-Identifier: Apache-2.0 */
#include "optim/optim.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/pages.h"
#include "kernels.h"
#include "optim/rule.h"

/* The squares are summed just before the update reads the same gradients, and what the update changes is kept just
   before that, too: a piece is still in a core's own cache then. */
enum { PIECE_ELEMENTS = DDP_OPTIM_PIECE_ELEMENTS };

static int64_t piece_count(int64_t elements)
{
	return (elements + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
}

const ddp_optim_rule *ddp_optim_rule_of(ddp_optimizer kind)
{
	switch (kind) {
#define RULE(NAME, name) case DDP_##NAME: return &ddp_##name##_rule;
	DDP_OPTIMIZERS(RULE)
#undef RULE
	}
	return NULL;
}

const char *ddp_optimizer_enumerators(void)
{
#define ENUMERATOR(NAME, name) ", DDP_" #NAME
	static const char list[] = DDP_OPTIMIZERS(ENUMERATOR);
#undef ENUMERATOR

	return list + sizeof(", ") - 1;
}

const char *ddp_optimizer_name(ddp_optimizer kind)
{
	const ddp_optim_rule *rule = ddp_optim_rule_of(kind);

	return rule != NULL ? rule->name : NULL;
}

bool ddp_optimizer_is_whole(ddp_optimizer kind)
{
	const ddp_optim_rule *rule = ddp_optim_rule_of(kind);

	return rule != NULL && rule->whole;
}

static ddp_kept *kept_of(const ddp_optim *optim, int state, const ddp_slot *slot)
{
	return &optim->kept[(int64_t)state * optim->layout->trained + (slot - optim->layout->slots)];
}

const ddp_kept *ddp_optim_kept(const ddp_optim *optim, int state, const ddp_slot *slot)
{
	return kept_of(optim, state, slot);
}

/* Where state i of each tensor is; *elements of them in all. */
static void place_state(const ddp_optim *optim, int i, int64_t *elements)
{
	const ddp_optim_rule *rule = optim->rule;
	const ddp_layout *layout = optim->layout;

	*elements = 0;
	for (int t = 0; t < layout->trained; t++) {
		const ddp_slot *slot = &layout->slots[t];
		ddp_kept *kept = kept_of(optim, i, slot);

		memcpy(kept->shape, slot->shape, sizeof(kept->shape));
		kept->ndim = rule->shape != NULL ? rule->shape(&optim->options, i, slot, kept->shape) : slot->ndim;
		if (kept->ndim < 0)
			continue;
		kept->count = 1;
		for (int d = 0; d < kept->ndim; d++)
			kept->count *= kept->shape[d];
		kept->offset = rule->whole ? *elements : slot->offset;
		*elements = kept->offset + (kept->count + DDP_ALIGN_ELEMENTS - 1) / DDP_ALIGN_ELEMENTS * DDP_ALIGN_ELEMENTS;
	}
	if (*elements > 0 && !rule->whole)
		*elements = layout->elements;
}

/* Never nothing, which the system does not map. */
static size_t state_bytes(const ddp_optim *optim, int state)
{
	return ((size_t)optim->state_elements[state] + 1) * sizeof(float);
}

static ddp_status make_states(ddp_optim *optim)
{
	const ddp_optim_rule *rule = optim->rule;

	/* Never nothing, so that calloc's NULL means what it seems to. */
	optim->kept = calloc((size_t)(rule->states * optim->layout->trained) + 1, sizeof(*optim->kept));
	if (optim->kept == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the list of the optimizer's state");
	for (int i = 0; i < rule->states; i++) {
		int64_t *elements = &optim->state_elements[i];

		optim->state_name[i] = rule->state_names[i];
		place_state(optim, i, elements);
		if (*elements > 0)
			optim->state_count = i + 1;
	}
	for (int i = 0; i < optim->state_count && !optim->borrowed; i++) {
		optim->state[i] = ddp_pages_alloc(state_bytes(optim, i));
		if (optim->state[i] == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for the optimizer's state \"%s\" (%lld bytes)",
			                optim->state_name[i],
			                (long long)optim->state_elements[i] * (long long)sizeof(float));
	}
	return DDP_OK;
}

static ddp_status make_work(ddp_optim *optim)
{
	optim->squares = calloc((size_t)piece_count(optim->layout->elements) + 1, sizeof(*optim->squares));
	if (optim->squares == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the optimizer's sums");
	for (int t = 0; t < optim->layout->trained && optim->rule->work != NULL; t++) {
		int64_t work = optim->rule->work(&optim->layout->slots[t]);
		optim->work_elements = work > optim->work_elements ? work : optim->work_elements;
	}
	if (optim->borrowed)
		return DDP_OK;
	optim->work = calloc((size_t)optim->work_elements + 1, sizeof(*optim->work));
	return optim->work != NULL ? DDP_OK
	                           : ddp_fail(DDP_ERR_NOMEM, "no memory for %s to work in (%lld bytes)",
	                                      optim->rule->name,
	                                      (long long)optim->work_elements * (long long)sizeof(float));
}

ddp_status ddp_optim_make(const ddp_model_options *options, const ddp_layout *layout,
                          bool borrows, ddp_optim *optim)
{
	ddp_optim made = { .options = *options, .rule = ddp_optim_rule_of(options->optimizer),
	                   .layout = layout, .borrowed = borrows };

	ddp_status status = make_states(&made);
	if (status == DDP_OK)
		status = make_work(&made);
	if (status != DDP_OK) {
		ddp_optim_free(&made);
		return status;
	}
	*optim = made;
	return DDP_OK;
}

/* The rank that has least to do so far. */
static int least_of(const double *costs, int ranks)
{
	int least = 0;

	for (int r = 1; r < ranks; r++)
		least = costs[r] < costs[least] ? r : least;
	return least;
}

ddp_status ddp_optim_share(ddp_optim *optim, int ranks, int rank)
{
	const ddp_layout *layout = optim->layout;

	if (optim->rule->cost == NULL)
		return DDP_OK;
	double *costs = calloc((size_t)ranks, sizeof(*costs));
	int *owners = calloc((size_t)layout->trained, sizeof(*owners));
	if (costs == NULL || owners == NULL) {
		free(costs);
		free(owners);
		return ddp_fail(DDP_ERR_NOMEM, "no memory to share the optimizer's work among %d ranks", ranks);
	}
	for (int t = 0; t < layout->trained; t++) {
		const double cost = optim->rule->cost(&layout->slots[t]);
		owners[t] = cost > 0 ? least_of(costs, ranks) : -1;
		if (cost > 0)
			costs[owners[t]] += cost;
	}
	free(costs);
	optim->owners = owners;
	optim->rank = rank;
	return DDP_OK;
}

int ddp_optim_owner(const ddp_optim *optim, const ddp_slot *slot)
{
	return optim->owners != NULL ? optim->owners[slot - optim->layout->slots] : -1;
}

const char *ddp_optim_failure(const ddp_optim *optim)
{
	/* Only products of matrices can, and only an optimizer with such products has a cost. */
	return optim->rule->cost != NULL ? dk_failure() : NULL;
}

void ddp_optim_round(const ddp_optim *optim, const ddp_slot *slot, const float *params)
{
	if (optim->rounded != NULL)
		dk_to_bf16(optim->rounded + slot->offset, params, slot->count);
}

void ddp_optim_lend(ddp_optim *optim, int i, float *memory)
{
	optim->state[i] = memory;
}

void ddp_optim_lend_work(ddp_optim *optim, float *memory)
{
	optim->work = memory;
}

double ddp_clip_factor(double clip_norm, double norm)
{
	double factor = clip_norm / (norm + 1e-6);

	return factor < 1 ? factor : 1;
}

void ddp_optim_free(ddp_optim *optim)
{
	for (int i = 0; i < optim->state_count && !optim->borrowed; i++)
		ddp_pages_free(optim->state[i], state_bytes(optim, i));
	free(optim->squares);
	free(optim->kept);
	free(optim->owners);
	if (!optim->borrowed)
		free(optim->work);
	*optim = (ddp_optim){ 0 };
}

/* The range that one call updates: where the layout's element `begin` has its parameter,
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
	return slot->grouped ? slot->group.weight_decay : optim->options.weight_decay;
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
static ddp_optim_span span_of(const range *r, int64_t begin, int64_t count, const ddp_slot *slot)
{
	const ddp_optim *optim = r->optim;
	const int64_t offset = begin - r->begin;

	return (ddp_optim_span){
		.options = &optim->options, .slot = slot,
		.params = r->params + offset, .grads = r->grads + offset, .count = count,
		.learning_rate = r->update->learning_rate * slot->group.learning_rate_factor,
		.weight_decay = decay_of(optim, slot),
		.grad_scale = r->update->grad_scale,
		.step = step_of(r->update, slot),
		.work = optim->work,
	};
}

static void update_run(const range *r, int64_t begin, int64_t count, const ddp_slot *slot)
{
	const ddp_optim *optim = r->optim;
	ddp_optim_span span = span_of(r, begin, count, slot);

	if (is_unused(r->update, slot)) {
		dk_zero(span.grads, count);
		return;
	}
	for (int i = 0; i < optim->state_count; i++)
		span.state[i] = optim->state[i] + r->at + (begin - r->begin);
	span.rounded = optim->rounded != NULL ? optim->rounded + begin : NULL;
	optim->rule->update(&span);
}

static void update_tensor(const range *r, const ddp_slot *slot)
{
	const ddp_optim *optim = r->optim;
	const int owner = r->update->alone ? -1 : ddp_optim_owner(optim, slot);
	ddp_optim_span span = span_of(r, slot->offset, slot->count, slot);

	if (is_unused(r->update, slot)) {
		dk_zero(span.grads, span.count);
		return;
	}
	for (int i = 0; i < optim->state_count; i++) {
		const ddp_kept *kept = ddp_optim_kept(optim, i, slot);
		span.state[i] = kept->count > 0 ? optim->state[i] + kept->offset : NULL;
	}
	span.elsewhere = owner >= 0 && owner != optim->rank;
	optim->rule->update(&span);
	if (!span.elsewhere)
		ddp_optim_round(optim, slot, span.params);
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

		update_run(r, begin, stop - begin, slot);
		begin = stop;
	}
}

/* Those that begin there. */
static void apply_tensors(const range *r, int64_t begin, int64_t end)
{
	const ddp_layout *layout = r->optim->layout;

	for (int t = param_at(layout, begin); t < layout->trained && layout->slots[t].offset < end; t++) {
		if (layout->slots[t].offset >= begin)
			update_tensor(r, &layout->slots[t]);
	}
}

static void keep(const range *r, int64_t begin, int64_t end)
{
	if (r->update->keep != NULL && !r->optim->rule->whole)
		r->update->keep(r->update->keeper, begin, end, r->at + (begin - r->begin));
}

/* Elements [begin, end), of which all are in a core's cache at once. */
static double apply_piece(const range *r, int64_t begin, int64_t end)
{
	double squares = r->update->knows_norm ? 0 : dk_sum_squares(r->grads + (begin - r->begin), end - begin);

	keep(r, begin, end);
	if (!r->optim->rule->whole)
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

static double apply_all(range *all)
{
	const int64_t pieces = piece_count(all->end - all->begin);
	double squares = 0;

	/* From a thread of several, too: they do not share the sums then. */
	if (pieces <= 1)
		return all->begin < all->end ? apply_piece(all, all->begin, all->end) : 0;
	dk_parallel(pieces, 1, apply_pieces, all);
	for (int64_t i = 0; i < pieces; i++)
		squares += all->optim->squares[i];
	return squares;
}

double ddp_optim_apply(ddp_optim *optim, const ddp_update *update, float *params,
                       float *grads, int64_t begin, int64_t end, int64_t at)
{
	range all = { optim, update, params, grads, begin, end, at };
	const double squares = apply_all(&all);

	if (optim->rule->whole && begin < end)
		apply_tensors(&all, begin, end);
	return squares;
}

void ddp_optim_enqueue(ddp_optim *optim, const ddp_update *update, float *params, float *grads,
                       int64_t begin, int64_t end, int64_t at)
{
	const range all = { optim, update, params, grads, begin, end, at };

	keep(&all, begin, end);
	if (optim->rule->whole)
		apply_tensors(&all, begin, end);
	else
		apply_runs(&all, begin, end);
}
