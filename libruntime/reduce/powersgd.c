#include "reduce/powersgd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels.h"

/* ---- what is compressed, and where it lies ------------------------------------------ */

static int64_t aligned(int64_t elements)
{
	return (elements + DDP_ALIGN_ELEMENTS - 1) / DDP_ALIGN_ELEMENTS * DDP_ALIGN_ELEMENTS;
}

/* As a matrix of its first dimension and the others; false if that would save too little. */
static bool describe(const ddp_slot *slot, const ddp_powersgd_settings *settings, ddp_matrix *matrix)
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
	return factors * settings->least_rate < (double)slot->count;
}

static int64_t slot_end(const ddp_layout *layout, int i)
{
	return i + 1 < layout->count ? layout->slots[i + 1].offset : layout->elements;
}

static void add_range(ddp_powersgd_plan *plan, ddp_powersgd_bucket *bucket, int64_t begin, int64_t end)
{
	ddp_plain_range *before = bucket->end_range > bucket->first_range
	                              ? &plan->ranges[plan->range_count - 1] : NULL;

	/* From the end of the bucket to its beginning. */
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
                       const ddp_powersgd_settings *settings, ddp_powersgd_plan *plan)
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
                                  const ddp_powersgd_settings *settings, ddp_powersgd_plan *plan)
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

/* ---- arithmetic ----------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	return ddp_random_of(x + DDP_RANDOM_STEP);
}

/* Sums of four uniform numbers: no function of libm, whose bits may be another's. */
void ddp_powersgd_fill(float *values, int64_t count, uint64_t stream, int64_t row)
{
	const uint64_t from = mix(mix(stream) + (uint64_t)row);

	for (int64_t i = 0; i < count; i++) {
		const uint64_t x = mix(from + (uint64_t)i);
		const int64_t sum = (int64_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
		values[i] = (float)(sum - 2 * 0xffff) / 0x10000;
	}
}

static double product(const float *a, const float *b, int64_t count)
{
	double sum = 0;

	for (int64_t i = 0; i < count; i++)
		sum += (double)a[i] * b[i];
	return sum;
}

/* Takes from row `row` what lies in the direction of those before; what is left of its norm. */
static double project(float *factor, int64_t row, int64_t length)
{
	float *own = factor + row * length;

	for (int64_t r = 0; r < row; r++) {
		const float *other = factor + r * length;
		const float share = (float)product(own, other, length);
		for (int64_t i = 0; i < length; i++)
			own[i] -= share * other[i];
	}
	return sqrt(product(own, own, length));
}

/* False if the row is nothing but what others are. */
static bool orthonormalize_row(float *factor, int64_t row, int64_t length)
{
	static const double rounding = 1e-6; /* of f32, and what sums of it add */
	float *own = factor + row * length;
	const double before = sqrt(product(own, own, length));
	double norm = project(factor, row, length);

	/* Twice is enough (Parlett, The Symmetric Eigenvalue Problem, 6.9). */
	if (norm < before / 2)
		norm = project(factor, row, length);
	if (!(norm > rounding * before))
		return false;
	for (int64_t i = 0; i < length; i++)
		own[i] = (float)(own[i] / norm);
	return true;
}

void ddp_powersgd_orthonormalize(float *factor, int64_t rank, int64_t length, bool refill,
                                 uint64_t stream)
{
	for (int64_t row = 0; row < rank; row++) {
		float *own = factor + row * length;
		bool good = orthonormalize_row(factor, row, length);
		if (!good && refill) {
			ddp_powersgd_fill(own, length, stream, row);
			good = orthonormalize_row(factor, row, length);
		}
		if (!good)
			memset(own, 0, (size_t)length * sizeof(*own));
	}
}

void ddp_powersgd_left(const ddp_matrix *matrix, const float *values, const float *right, float *left)
{
	const dk_gemm_args args = {
		.transpose_b = true, .m = matrix->rank, .n = matrix->rows, .k = matrix->columns,
		.a = right, .lda = matrix->columns, .b = values, .ldb = matrix->columns,
		.c = left, .ldc = matrix->rows,
	};

	dk_gemm(&args);
}

void ddp_powersgd_right(const ddp_matrix *matrix, const float *values, const float *left, float *right)
{
	const dk_gemm_args args = {
		.m = matrix->rank, .n = matrix->columns, .k = matrix->rows,
		.a = left, .lda = matrix->rows, .b = values, .ldb = matrix->columns,
		.c = right, .ldc = matrix->columns,
	};

	dk_gemm(&args);
}

struct restoration {
	const ddp_matrix *matrix;
	const float *left, *right;
	float share, *values, *rest;
};

static void restore_rows(void *argument, int64_t first, int64_t last)
{
	const struct restoration *r = argument;
	const int64_t columns = r->matrix->columns, rows = r->matrix->rows;

	for (int64_t i = first; i < last; i++) {
		float *restrict values = r->values + i * columns;
		for (int64_t c = 0; c < r->matrix->rank; c++) {
			const float *restrict right = r->right + c * columns;
			const float left = r->left[c * rows + i];
			for (int64_t j = 0; j < columns; j++)
				values[j] = c == 0 ? left * right[j] : values[j] + left * right[j];
		}
		if (r->rest == NULL)
			continue;
		float *restrict rest = r->rest + i * columns;
		for (int64_t j = 0; j < columns; j++)
			rest[j] -= r->share * values[j];
	}
}

void ddp_powersgd_restore(const ddp_matrix *matrix, const float *left, const float *right, int ranks,
                          float *values, float *rest)
{
	enum { GRAIN_ELEMENTS = 1 << 14 };
	struct restoration restoration = { matrix, left, right, 1 / (float)ranks, values, rest };

	dk_parallel(matrix->rows, 1 + GRAIN_ELEMENTS / matrix->columns, restore_rows, &restoration);
}
