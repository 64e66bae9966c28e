/* SPDX-License-Identifier: Apache-2.0 */
#include "params/layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"

/* Arenas stay below 2^59 elements, so that sizes in bytes fit an int64_t. */
#define ELEMENTS_MAX ((int64_t)1 << 59)

void ddp_shape_text(int ndim, const int64_t *shape, char *text, size_t bytes)
{
	size_t used = 1;

	if (bytes == 0)
		return;
	snprintf(text, bytes, "[");
	for (int d = 0; d < ndim && used < bytes; d++) {
		int n = snprintf(text + used, bytes - used, "%s%lld", d == 0 ? "" : ", ",
		                 (long long)shape[d]);
		used += n > 0 ? (size_t)n : 0;
	}
	if (used < bytes)
		snprintf(text + used, bytes - used, "]");
}

static ddp_status check_name(const char *name, int index)
{
	if (name == NULL || name[0] == '\0')
		return ddp_fail(DDP_ERR_INVALID, "parameter %d has no name", index);
	size_t length = strnlen(name, DDP_PARAM_NAME_MAX + 1);
	if (length > DDP_PARAM_NAME_MAX)
		return ddp_fail(DDP_ERR_INVALID, "parameter %d: its name is longer than %d bytes",
		                index, DDP_PARAM_NAME_MAX);
	for (size_t i = 0; i < length; i++) {
		if (name[i] < ' ' || name[i] > '~')
			return ddp_fail(DDP_ERR_INVALID,
			                "parameter %d: byte %zu of its name is not printable ASCII",
			                index, i);
	}
	/* A checkpoint uses these for itself. */
	if (strncmp(name, "optimizer.", strlen("optimizer.")) == 0 ||
	    strncmp(name, "ddp.", strlen("ddp.")) == 0 ||
	    strcmp(name, "__metadata__") == 0)
		return ddp_fail(DDP_ERR_INVALID,
		                "parameter %d: the name \"%s\" is reserved for the checkpoint; choose another",
		                index, name);
	return DDP_OK;
}

static ddp_status count_elements(const ddp_param *param, int64_t *count)
{
	int64_t product = 1;

	if (param->ndim < 0 || param->ndim > DDP_MAX_DIMS)
		return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\": ndim is %d, not 0 to %d",
		                param->name, param->ndim, DDP_MAX_DIMS);
	if (param->ndim == 0 && param->shape[0] != 0)
		return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\": ndim is 0, of a single number, but its "
		                "shape begins with %lld", param->name, (long long)param->shape[0]);
	for (int d = 0; d < param->ndim; d++) {
		if (param->shape[d] <= 0)
			return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\": dimension %d is %lld",
			                param->name, d, (long long)param->shape[d]);
		if (__builtin_mul_overflow(product, param->shape[d], &product) ||
		    product > ELEMENTS_MAX)
			return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\" has too many elements",
			                param->name);
	}
	*count = product;
	return DDP_OK;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static ddp_status check_unique(const ddp_layout *layout)
{
	ddp_status status = DDP_OK;
	const char **names = malloc((size_t)layout->count * sizeof(*names));

	if (names == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d parameter names", layout->count);
	for (int i = 0; i < layout->count; i++)
		names[i] = layout->slots[i].name;
	qsort(names, (size_t)layout->count, sizeof(*names), compare_names);
	for (int i = 1; i < layout->count && status == DDP_OK; i++) {
		if (strcmp(names[i - 1], names[i]) == 0)
			status = ddp_fail(DDP_ERR_INVALID,
			                  "two parameters have the name \"%s\"; names must be unique",
			                  names[i]);
	}
	free(names);
	return status;
}

static ddp_status check_kind(const ddp_param *param)
{
	const ddp_param_group *group = param->group;

	if (param->kind < DDP_PARAM_TRAINED || param->kind > DDP_BUFFER_LOCAL)
		return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\": %d is no ddp_tensor_kind", param->name,
		                (int)param->kind);
	if (param->kind != DDP_PARAM_TRAINED && (param->sparse_rows != 0 || param->rows_only))
		return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\" is not trained, so no rows are added to "
		                "its gradient: leave sparse_rows and rows_only out", param->name);
	if (group == NULL)
		return DDP_OK;
	if (!isfinite(group->learning_rate_factor) || group->learning_rate_factor < 0)
		return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\": its group's learning_rate_factor is %g; "
		                "it must be 0 or more", param->name, group->learning_rate_factor);
	if (!isfinite(group->weight_decay) || group->weight_decay < 0)
		return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\": its group's weight_decay is %g; it must "
		                "be 0 or more", param->name, group->weight_decay);
	return DDP_OK;
}

static ddp_status check_rows(const ddp_param *param)
{
	if (param->sparse_rows == 0 && param->rows_only)
		return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\": rows_only needs sparse_rows, the most "
		                "rows of a step", param->name);
	if (param->sparse_rows == 0)
		return DDP_OK;
	if (param->ndim != 2 || param->shape[0] > INT32_MAX)
		return ddp_fail(DDP_ERR_INVALID,
		                "parameter \"%s\": sparse_rows is for matrices of less than 2^31 rows",
		                param->name);
	/* More than this would be a mistake, and sizes must not overflow. */
	if (param->sparse_rows < 0 || param->sparse_rows > INT32_MAX)
		return ddp_fail(DDP_ERR_INVALID, "parameter \"%s\": sparse_rows is %lld", param->name,
		                (long long)param->sparse_rows);
	return DDP_OK;
}

static ddp_status check_reserved(const ddp_param *param)
{
	char what[320];

	snprintf(what, sizeof(what), "parameter \"%s\"", param->name);
	ddp_status status = ddp_reserved_check(what, param);
	if (status != DDP_OK || param->group == NULL)
		return status;
	snprintf(what, sizeof(what), "the group of parameter \"%s\"", param->name);
	return ddp_reserved_check(what, param->group);
}

/* At the end of the parameters' arena, as far as it goes. */
static void place(ddp_layout *layout, ddp_slot *slot)
{
	slot->offset = layout->all;
	layout->all += (slot->count + DDP_ALIGN_ELEMENTS - 1) / DDP_ALIGN_ELEMENTS *
	               DDP_ALIGN_ELEMENTS;
}

static ddp_status fill_slot(const ddp_param *param, int index, ddp_layout *layout)
{
	ddp_slot *slot = &layout->slots[index];

	ddp_status status = check_name(param->name, index);
	if (status == DDP_OK)
		status = check_reserved(param);
	if (status == DDP_OK)
		status = count_elements(param, &slot->count);
	if (status == DDP_OK)
		status = check_kind(param);
	if (status == DDP_OK)
		status = check_rows(param);
	if (status != DDP_OK)
		return status;
	slot->name = strdup(param->name);
	if (slot->name == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a parameter's name");
	slot->param = index;
	slot->ndim = param->ndim;
	memcpy(slot->shape, param->shape, (size_t)param->ndim * sizeof(*slot->shape));
	slot->kind = param->kind;
	slot->no_decay = param->no_decay;
	slot->grouped = param->group != NULL;
	slot->group = slot->grouped ? *param->group : (ddp_param_group){ .learning_rate_factor = 1 };
	slot->sparse_rows = param->sparse_rows;
	slot->rows_only = param->rows_only;
	layout->slot_of[index] = index;
	place(layout, slot);
	if (layout->all > ELEMENTS_MAX)
		return ddp_fail(DDP_ERR_INVALID, "the parameters have too many elements together");
	layout->trained += slot->kind == DDP_PARAM_TRAINED;
	return DDP_OK;
}

ddp_status ddp_layout_make(const ddp_param *params, int count, ddp_layout *layout)
{
	ddp_layout made = { 0 };

	if (params == NULL)
		return ddp_fail(DDP_ERR_INVALID, "a model's list of parameters is NULL");
	if (count < 1)
		return ddp_fail(DDP_ERR_INVALID, "a model needs at least one parameter, not %d", count);
	made.slots = calloc((size_t)count, sizeof(*made.slots));
	made.slot_of = calloc((size_t)count, sizeof(*made.slot_of));
	if (made.slots == NULL || made.slot_of == NULL) {
		ddp_layout_free(&made);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d parameters", count);
	}
	made.count = count;

	ddp_status status = DDP_OK;
	for (int i = 0; i < count && status == DDP_OK; i++)
		status = fill_slot(&params[i], i, &made);
	if (status == DDP_OK)
		status = check_unique(&made);
	if (status == DDP_OK && made.trained == 0)
		status = ddp_fail(DDP_ERR_INVALID, "none of the model's %d tensors is trained; a model needs "
		                  "at least one that is", count);
	if (status == DDP_OK)
		status = ddp_layout_arrange(&made, 1);
	if (status != DDP_OK) {
		ddp_layout_free(&made);
		return status;
	}
	*layout = made;
	return DDP_OK;
}

/* In this order tensors lie in the parameters' arena. */
typedef enum part { DENSE, DENSE_AND_ROWS, ROWS, FROZEN, LOCAL, MEAN, BROADCAST, PARTS } part;

static part part_of(const ddp_slot *slot)
{
	switch (slot->kind) {
	case DDP_PARAM_FROZEN: return FROZEN;
	case DDP_BUFFER_LOCAL: return LOCAL;
	case DDP_BUFFER_MEAN: return MEAN;
	case DDP_BUFFER_BROADCAST: return BROADCAST;
	case DDP_PARAM_TRAINED: break;
	}
	return !slot->rows_travel ? DENSE : slot->rows_only ? ROWS : DENSE_AND_ROWS;
}

/* Appends the slots of `wanted`, in the program's order, to `moved`. */
static void take_slots(ddp_layout *layout, part wanted, ddp_slot *moved, int *slot_of, int *taken)
{
	for (int i = 0; i < layout->count; i++) {
		const ddp_slot *slot = &layout->slots[layout->slot_of[i]];
		if (part_of(slot) != wanted)
			continue;
		moved[*taken] = *slot;
		place(layout, &moved[*taken]);
		slot_of[i] = (*taken)++;
	}
}

ddp_status ddp_layout_arrange(ddp_layout *layout, int ranks)
{
	ddp_slot *moved = malloc((size_t)layout->count * sizeof(*moved));
	int *slot_of = malloc((size_t)layout->count * sizeof(*slot_of));
	int64_t begin[PARTS];
	int taken = 0;

	if (moved == NULL || slot_of == NULL) {
		free(moved);
		free(slot_of);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d parameters", layout->count);
	}
	for (int i = 0; i < layout->count; i++) {
		ddp_slot *slot = &layout->slots[i];
		slot->rows_travel = ranks > 1 && slot->sparse_rows > 0 &&
		                    slot->sparse_rows < (slot->shape[0] + ranks - 1) / ranks;
	}
	layout->all = 0;
	for (int p = 0; p < PARTS; p++) {
		begin[p] = layout->all;
		take_slots(layout, (part)p, moved, slot_of, &taken);
	}
	layout->dense = begin[ROWS];
	layout->elements = begin[FROZEN];
	layout->buffers = begin[LOCAL];
	layout->mean = begin[MEAN];
	layout->broadcast = begin[BROADCAST];
	free(layout->slots);
	free(layout->slot_of);
	layout->slots = moved;
	layout->slot_of = slot_of;
	return DDP_OK;
}

void ddp_layout_free(ddp_layout *layout)
{
	for (int i = 0; i < layout->count && layout->slots != NULL; i++)
		free(layout->slots[i].name);
	free(layout->slots);
	free(layout->slot_of);
	*layout = (ddp_layout){ 0 };
}

ddp_status ddp_model_bytes(const ddp_param *params, int count, size_t *params_bytes, size_t *grads_bytes)
{
	ddp_layout layout;

	if (params_bytes == NULL || grads_bytes == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_model_bytes(): a place for a number of bytes is NULL");
	ddp_status status = ddp_layout_make(params, count, &layout);
	if (status != DDP_OK)
		return status;
	*params_bytes = (size_t)layout.all * sizeof(float);
	*grads_bytes = (size_t)layout.elements * sizeof(float);
	ddp_layout_free(&layout);
	return DDP_OK;
}
