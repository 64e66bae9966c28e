/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/powersgd.h"

#include <stdlib.h>

#include "base/error.h"

static int64_t aligned(int64_t elements)
{
	return (elements + DDP_ALIGN_ELEMENTS - 1) / DDP_ALIGN_ELEMENTS * DDP_ALIGN_ELEMENTS;
}

/* Describes the parameter as a matrix of its first dimension and the others. False: that would save too little. */
static bool describe(const ddp_slot *slot, const ddp_powersgd_options *settings, ddp_matrix *matrix)
{
	if (slot->ndim < 2)
		return false;
	*matrix = (ddp_matrix){ .slot = slot, .rows = slot->shape[0],
	                        .columns = slot->count / slot->shape[0], .rank = settings->rank };
	if (matrix->rank > matrix->rows)
		matrix->rank = matrix->rows;
	if (matrix->rank > matrix->columns)
		matrix->rank = matrix->columns;
	const double factors = (double)(matrix->rows + matrix->columns) * (double)matrix->rank;
	return factors * settings->min_rate < (double)slot->count;
}

static int64_t slot_end(const ddp_layout *layout, int i)
{
	return i + 1 < layout->count ? layout->slots[i + 1].offset : layout->elements;
}

static void add_range(ddp_powersgd_plan *plan, ddp_powersgd_bucket *bucket, int64_t begin, int64_t end)
{
	ddp_plain_range *before = bucket->end_range > bucket->first_range
	                              ? &plan->ranges[plan->range_count - 1] : NULL;

	/* Ranges come from the end of the bucket to its beginning. */
	if (before != NULL && before->begin == end) {
		before->begin = begin;
		return;
	}
	plan->ranges[plan->range_count++] = (ddp_plain_range){ begin, end };
	bucket->end_range = plan->range_count;
}

static void add_matrix(ddp_powersgd_plan *plan, ddp_powersgd_bucket *bucket, const ddp_matrix *matrix)
{
	ddp_matrix *added = &plan->matrices[plan->matrix_count++];

	*added = *matrix;
	added->kept_shape[0] = matrix->rows;
	added->right_shape[0] = matrix->rank;
	added->kept_shape[1] = added->right_shape[1] = matrix->columns;
	added->kept = plan->kept;
	plan->kept += aligned(matrix->rows * matrix->columns);
	added->start = plan->starts;
	plan->starts += aligned(matrix->rank * matrix->columns);
	bucket->end_matrix = plan->matrix_count;
}

static void add_bucket(const ddp_layout *layout, const ddp_bucket *from,
                       const ddp_powersgd_options *settings, ddp_powersgd_plan *plan)
{
	ddp_powersgd_bucket *bucket = &plan->buckets[plan->bucket_count++];
	ddp_matrix matrix;

	*bucket = (ddp_powersgd_bucket){
		.first_matrix = plan->matrix_count, .end_matrix = plan->matrix_count,
		.first_range = plan->range_count, .end_range = plan->range_count, .first = plan->travels,
	};
	for (int i = from->last_param; i >= from->first_param; i--) {
		const ddp_slot *slot = &layout->slots[i];
		int64_t begin = slot->offset > from->begin ? slot->offset : from->begin;
		int64_t end = slot_end(layout, i) < from->end ? slot_end(layout, i) : from->end;
		const bool ends_here = slot->offset + slot->count <= from->end;
		if (!describe(slot, settings, &matrix))
			add_range(plan, bucket, begin, end);
		else if (ends_here && slot->offset + slot->count > from->begin)
			add_matrix(plan, bucket, &matrix);
	}
}

/* The places of what a bucket sends, once it is known what that is. */
static void place(ddp_powersgd_plan *plan, ddp_powersgd_bucket *bucket)
{
	int64_t at = plan->travels;

	bucket->first = at;
	for (int i = bucket->first_range; i < bucket->end_range; i++)
		at += plan->ranges[i].end - plan->ranges[i].begin;
	for (int i = bucket->first_matrix; i < bucket->end_matrix; i++) {
		plan->matrices[i].left = at;
		at += aligned(plan->matrices[i].rank * plan->matrices[i].rows);
	}
	bucket->first_count = at - bucket->first;
	bucket->second = at;
	for (int i = bucket->first_matrix; i < bucket->end_matrix; i++) {
		plan->matrices[i].right = at;
		at += aligned(plan->matrices[i].rank * plan->matrices[i].columns);
	}
	bucket->second_count = at - bucket->second;
	plan->travels = at;
}

ddp_status ddp_powersgd_plan_make(const ddp_layout *layout, const ddp_bucket_plan *buckets,
                                  const ddp_powersgd_options *settings, ddp_powersgd_plan *plan)
{
	/* A parameter is of each bucket that it is cut by. */
	const size_t most = (size_t)layout->count + (size_t)buckets->count;
	ddp_powersgd_plan made = { 0 };

	made.matrices = calloc((size_t)layout->count, sizeof(*made.matrices));
	made.ranges = calloc(most, sizeof(*made.ranges));
	made.buckets = calloc((size_t)buckets->count + 1, sizeof(*made.buckets));
	if (made.matrices == NULL || made.ranges == NULL || made.buckets == NULL) {
		ddp_powersgd_plan_free(&made);
		return ddp_fail(DDP_ERR_NOMEM, "no memory to compress %d parameters", layout->count);
	}
	for (int k = 0; k < buckets->count; k++) {
		add_bucket(layout, &buckets->buckets[k], settings, &made);
		place(&made, &made.buckets[k]);
	}
	*plan = made;
	return DDP_OK;
}

void ddp_powersgd_plan_free(ddp_powersgd_plan *plan)
{
	free(plan->matrices);
	free(plan->ranges);
	free(plan->buckets);
	*plan = (ddp_powersgd_plan){ 0 };
}
