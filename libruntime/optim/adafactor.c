/* SPDX-License-Identifier: Apache-2.0 */
/* Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory
   Cost", ICML 2018), with relative steps and clipped updates, in PyTorch's form: epsilon is
   not added to squares, but bounds their estimates from below. Of a tensor of two and more
   dimensions, the last two are a matrix, of whose squares the means of rows and columns
   are kept. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "optim/rule.h"

enum { ROWS, COLUMNS, ALL };

static int shape(const ddp_model_options *options, int i, const ddp_slot *slot, int64_t *dims)
{
	(void)options;
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

static int64_t matrices_of(const ddp_slot *slot)
{
	return slot->count / (rows_of(slot) * columns_of(slot));
}

/* In double precision: the sums of squares of the parameters and of the step; of each matrix
   its rows' mean; and the sums of rows and columns. */
static int64_t work(const ddp_slot *slot)
{
	if (slot->ndim < 2)
		return 2 * DDP_OPTIM_DOUBLE;
	return (2 + matrices_of(slot) * (1 + rows_of(slot) + columns_of(slot))) * DDP_OPTIM_DOUBLE;
}

/* Their means move by `weight`; the rows' own means are left in `mean`. */
static void move_matrices(const ddp_optim_span *s, double *mean, double weight)
{
	const int64_t matrices = matrices_of(s->slot), rows = rows_of(s->slot), columns = columns_of(s->slot);
	double *row_sums = mean + matrices, *column_sums = row_sums + matrices * rows;

	dk_squares_at(row_sums, &(dk_array){ s->grads, s->count }, 1, columns);
	dk_column_squares(column_sums, s->grads, matrices, rows, columns);
	dk_move_means(s->state[COLUMNS], NULL, column_sums, matrices, columns, rows, weight);
	dk_move_means(s->state[ROWS], mean, row_sums, matrices, rows, columns, weight);
}

/* The gradient over the root of what its square is estimated to be. */
static void divide(const ddp_optim_span *s, double *mean)
{
	const double weight = pow((double)s->step, -s->options->adafactor.decay);
	dk_estimate estimate = {
		.columns = s->state[ALL], .matrices = 1, .height = 1, .width = s->count,
		.least = (float)fmax(s->options->epsilon * s->options->epsilon, FLT_MIN),
	};

	dk_scale(s->grads, s->count, (float)s->grad_scale);
	if (s->slot->ndim < 2) {
		dk_mix_squares(s->state[ALL], s->grads, (float)(1 - weight), (float)weight, s->count);
	} else {
		move_matrices(s, mean, weight);
		estimate.rows = s->state[ROWS];
		estimate.columns = s->state[COLUMNS];
		estimate.mean = mean;
		estimate.least_mean = s->options->epsilon;
		estimate.matrices = matrices_of(s->slot);
		estimate.height = rows_of(s->slot);
		estimate.width = columns_of(s->slot);
	}
	dk_divide_by_roots(s->grads, &estimate);
}

static void update(const ddp_optim_span *s)
{
	const ddp_model_options *options = s->options;
	const double relative = fmin(s->learning_rate, 1 / sqrt((double)s->step));
	double *squares = ddp_optim_doubles(s);
	/* A step whose root mean square is above `clip` is as long as if it were that. */
	const dk_ratio scale = {
		.over = squares, .over_least = options->adafactor.least_scale, .count = s->count,
		.under = squares + 1, .under_least = options->adafactor.clip,
	};

	dk_sum_squares_at(squares, s->params, s->count);
	divide(s, squares + 2);
	dk_sum_squares_at(squares + 1, s->grads, s->count);
	dk_mix(s->params, s->grads, (float)(1 - s->learning_rate * s->weight_decay),
	       -relative * options->adafactor.clip, &scale, s->count);
	dk_zero(s->grads, s->count);
}

const ddp_optim_rule ddp_adafactor_rule = {
	.name = "Adafactor", .whole = true, .states = 3,
	.state_names = { "row_var", "col_var", "variance" },
	.shape = shape, .work = work, .update = update,
	.beta1 = 0.9, .beta2 = 0.999, .epsilon = FLT_EPSILON,
};
