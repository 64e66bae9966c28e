/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static bool make_set(const ddp_slot *slot, int ranks, int times, ddp_row_set *set)
{
	size_t own = (size_t)slot->sparse_rows * (size_t)times, all = own * (size_t)ranks;
	size_t width = (size_t)(slot->count / slot->shape[0]);

	set->slot = slot;
	set->most = (int64_t)own;
	set->width = (int64_t)width;
	set->rows = calloc(own, sizeof(*set->rows));
	set->values = calloc(own * width, sizeof(*set->values));
	set->all_rows = calloc(all, sizeof(*set->all_rows));
	set->all_values = calloc(all * width, sizeof(*set->all_values));
	return set->rows != NULL && set->values != NULL && set->all_rows != NULL &&
	       set->all_values != NULL;
}

ddp_status ddp_rows_make(const ddp_layout *layout, int ranks, int times, ddp_rows *rows)
{
	ddp_rows made = { .ranks = ranks };
	bool enough = true;

	made.sets = calloc((size_t)layout->count, sizeof(*made.sets));
	made.counts = calloc(2 * (size_t)ranks, sizeof(*made.counts));
	made.used = calloc((size_t)ranks, sizeof(*made.used));
	enough = made.sets != NULL && made.counts != NULL && made.used != NULL;
	for (int s = 0; s < layout->count && enough; s++) {
		if (layout->slots[s].rows_travel)
			enough = make_set(&layout->slots[s], ranks, times, &made.sets[made.count++]);
	}
	if (!enough) {
		ddp_rows_free(&made);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the rows that %d ranks add to gradients",
		                ranks);
	}
	*rows = made;
	return DDP_OK;
}

void ddp_rows_free(ddp_rows *rows)
{
	for (int i = 0; i < rows->count; i++) {
		free(rows->sets[i].rows);
		free(rows->sets[i].values);
		free(rows->sets[i].all_rows);
		free(rows->sets[i].all_values);
	}
	free(rows->sets);
	free(rows->counts);
	free(rows->used);
	*rows = (ddp_rows){ 0 };
}

ddp_status ddp_rows_keep(ddp_rows *rows, const ddp_slot *slot, const int32_t *index,
                         const float *values, int64_t count)
{
	ddp_row_set *set = rows->sets;

	while (set->slot != slot)
		set++;
	if (count > set->most - set->used)
		return ddp_fail(DDP_ERR_INVALID,
		                "%lld rows for the gradient of \"%s\" after %lld in this step: it was made "
		                "for %lld (sparse_rows)", (long long)count, slot->name,
		                (long long)set->used, (long long)set->most);
	memcpy(set->rows + set->used, index, (size_t)count * sizeof(*index));
	memcpy(set->values + set->used * set->width, values,
	       (size_t)(count * set->width) * sizeof(*values));
	set->used += count;
	return DDP_OK;
}

void ddp_rows_discard(ddp_rows *rows)
{
	for (int i = 0; i < rows->count; i++)
		rows->sets[i].used = 0;
}

static ddp_status gather(ddp_rows *rows, ddp_row_set *set, ddp_reducer *reducer, int64_t *total)
{
	size_t *row_counts = rows->counts, *value_counts = rows->counts + rows->ranks;
	const ddp_operation counts = {
		.kind = DDP_ALL_GATHER, .send = &set->used, .recv = rows->used, .count = 1,
		.type = DDP_I64,
	};
	const ddp_operation indices = {
		.kind = DDP_ALL_GATHER, .send = set->rows, .recv = set->all_rows,
		.counts = row_counts, .type = DDP_I32,
	};
	const ddp_operation values = {
		.kind = DDP_ALL_GATHER, .send = set->values, .recv = set->all_values,
		.counts = value_counts, .type = DDP_F32,
	};

	/* Other ranks have died. */
	if (!reducer->communicates) {
		memcpy(set->all_rows, set->rows, (size_t)set->used * sizeof(*set->rows));
		memcpy(set->all_values, set->values, (size_t)(set->used * set->width) * sizeof(*set->values));
		*total = set->used;
		return DDP_OK;
	}
	ddp_status status = ddp_reducer_run(reducer, "row counts", &counts);
	*total = 0;
	for (int r = 0; r < rows->ranks && status == DDP_OK; r++) {
		row_counts[r] = (size_t)rows->used[r];
		value_counts[r] = (size_t)(rows->used[r] * set->width);
		*total += rows->used[r];
	}
	if (status == DDP_OK && *total > 0)
		status = ddp_reducer_run(reducer, "row indices", &indices);
	if (status == DDP_OK && *total > 0)
		status = ddp_reducer_run(reducer, "rows", &values);
	return status;
}

ddp_status ddp_rows_gather(ddp_rows *rows, int i, ddp_reducer *reducer, int64_t *total)
{
	ddp_row_set *set = &rows->sets[i];

	ddp_status status = gather(rows, set, reducer, total);
	if (status != DDP_OK)
		return ddp_fail_context(status, "rows of the gradient of \"%s\"", set->slot->name);
	set->used = 0;
	return DDP_OK;
}
