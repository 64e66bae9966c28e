/*
 * Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory
 * Cost", ICML 2018), with relative steps and clipped updates, in PyTorch's form: epsilon is
 * not added to squares, but bounds their estimates from below. Of a tensor of two and more
 * dimensions, the last two are a matrix, of whose squares the means of rows and columns
 * are kept.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "optim/rule.h"

enum { ROWS, COLUMNS, ALL };

static int shape(const ddp_optim_settings *settings, int i, const ddp_slot *slot, int64_t *dims)
{
	(void)settings;
	memcpy(dims, slot->shape, (size_t)slot->ndim * sizeof(*dims));
	if (slot->ndim < 2)
		return i == ALL ? slot->ndim : -1;
	if (i == COLUMNS)
		dims[slot->ndim - 2] = slot->shape[slot->ndim - 1];
	return i == ALL ? -1 : slot->ndim - 1;
}

static int64_t rows_of(const ddp_slot *slot)
{
	return slot->shape[slot->ndim - 2];
}

static int64_t columns_of(const ddp_slot *slot)
{
	return slot->shape[slot->ndim - 1];
}

/* The sums of squares of rows, then of columns, in double precision. */
static int64_t work(const ddp_slot *slot)
{
	return slot->ndim < 2 ? 0 : 2 * (rows_of(slot) + columns_of(slot));
}

/* Of each row. */
static void row_squares(double *sums, const float *x, int64_t rows, int64_t columns)
{
	if (columns <= DK_PIECE_MAX) {
		dk_squares_at(sums, x, rows * columns, columns);
		return;
	}
	for (int64_t i = 0; i < rows; i++)
		sums[i] = dk_sum_squares(x + i * columns, columns);
}

/* Moves what is kept of means towards the new ones by `weight`; returns the mean of it. */
static double move(float *kept, const double *sums, int64_t n, int64_t each, double weight)
{
	double total = 0;

	for (int64_t i = 0; i < n; i++) {
		kept[i] = (float)((1 - weight) * kept[i] + weight * (sums[i] / (double)each));
		total += kept[i];
	}
	return total / (double)n;
}

typedef struct matrix {
	float *grads;
	const float *rows, *columns; /* means of squares */
	int64_t width;
	double mean;                 /* of the rows' */
	float least;
} matrix;

static void divide_rows(void *argument, int64_t first, int64_t last)
{
	const matrix *m = argument;

	for (int64_t i = first; i < last; i++)
		dk_divide_by_roots(m->grads + i * m->width, m->columns, (float)(m->rows[i] / m->mean),
		                   m->least, m->width);
}

static void divide_matrix(const ddp_optim_span *s, int64_t number, double weight, float least)
{
	enum { GRAIN = 16 };
	const int64_t rows = rows_of(s->slot), columns = columns_of(s->slot);
	double *row_sums = (double *)(void *)s->work, *column_sums = row_sums + rows;
	float *grads = s->grads + number * rows * columns;
	float *row_means = s->state[ROWS] + number * rows;
	float *column_means = s->state[COLUMNS] + number * columns;

	row_squares(row_sums, grads, rows, columns);
	dk_column_squares(column_sums, grads, rows, columns);
	move(column_means, column_sums, columns, rows, weight);
	matrix m = {
		.grads = grads, .rows = row_means, .columns = column_means, .width = columns, .least = least,
		.mean = fmax(move(row_means, row_sums, rows, columns, weight), s->settings->epsilon),
	};
	dk_parallel(rows, GRAIN, divide_rows, &m);
}

/* The gradient over the root of what its square is estimated to be. */
static void divide(const ddp_optim_span *s)
{
	const double weight = pow((double)s->step, -s->settings->adafactor_decay);
	const float least = (float)fmax(s->settings->epsilon * s->settings->epsilon, FLT_MIN);

	dk_scale(s->grads, s->count, (float)s->grad_scale);
	if (s->slot->ndim < 2) {
		dk_mix_squares(s->state[ALL], s->grads, (float)(1 - weight), (float)weight, s->count);
		dk_divide_by_roots(s->grads, s->state[ALL], 1, least, s->count);
		return;
	}
	const int64_t each = rows_of(s->slot) * columns_of(s->slot);
	for (int64_t i = 0; i < s->count / each; i++)
		divide_matrix(s, i, weight, least);
}

static double root_mean_square(const float *x, int64_t n)
{
	return sqrt(dk_sum_squares(x, n) / (double)n);
}

static void update(const ddp_optim_span *s)
{
	const ddp_optim_settings *settings = s->settings;
	const double relative = fmin(s->learning_rate, 1 / sqrt((double)s->step));
	const double scale = fmax(settings->adafactor_least_scale, root_mean_square(s->params, s->count));

	divide(s);
	const double excess = root_mean_square(s->grads, s->count) / settings->adafactor_clip;
	dk_mix(s->params, s->grads, (float)(1 - s->learning_rate * s->weight_decay),
	       (float)(-relative * scale / fmax(1, excess)), s->count);
	dk_zero(s->grads, s->count);
}

const ddp_optim_rule ddp_adafactor_rule = {
	.name = "Adafactor", .whole = true, .states = 3,
	.state_names = { "row_var", "col_var", "variance" },
	.shape = shape, .work = work, .update = update,
};
