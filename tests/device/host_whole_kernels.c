/* SPDX-License-Identifier: Apache-2.0 */
/* Of the host's kernels on a device's queues, those of optimizers for whole tensors, and of factors. */
#include "tests/device/host_kernels.h"
#include "tests/device/host_task.h"

static void run_mix(task *t, void **at)
{
	t->mix.ratio.over = at[2];
	t->mix.ratio.under = at[3];
	dk_mix(at[0], at[1], t->mix.a, t->mix.b, t->mix.has_ratio ? &t->mix.ratio : NULL, t->n[0]);
}

static void mix(dk_queue *queue, float *x, const float *y, float a, double b, const dk_ratio *ratio,
                int64_t n)
{
	const dk_ratio none = { 0 }, *r = ratio != NULL ? ratio : &none;

	ddp_host_enqueue(queue, &(task){ .run = run_mix, .n = { n }, .mix = { a, b, *r, ratio != NULL },
		.operands = { writes(x, n), reads(y, n), reads_double(r->over, 1), reads_double(r->under, 1) } });
}

HOST_KERNEL(adamw_direction, (dk_queue *queue, const float *param, float *grad, float *m, float *v, int64_t n,
	    const dk_update_args *args),
	FIELDS(.n = { n }, .update = *args),
	dk_adamw_direction(at[3], at[0], at[1], at[2], t->n[0], &t->update),
	writes(grad, n), writes(m, n), writes(v, n), reads(param, n))

HOST_KERNEL(sum_squares_at, (dk_queue *queue, double *sum, const float *x, int64_t n),
	FIELDS(.n = { n }), dk_sum_squares_at(at[0], at[1], t->n[0]),
	writes_double(sum, 1), reads(x, n))

HOST_KERNEL(mix_squares, (dk_queue *queue, float *x, const float *y, float a, float b, int64_t n),
	FIELDS(.n = { n }, .mix = { .a = a, .b = b }),
	dk_mix_squares(at[0], at[1], t->mix.a, (float)t->mix.b, t->n[0]),
	writes(x, n), reads(y, n))

HOST_KERNEL(column_squares, (dk_queue *queue, double *sums, const float *x, int64_t matrices, int64_t rows,
	    int64_t columns),
	FIELDS(.n = { matrices, rows, columns }), dk_column_squares(at[0], at[1], t->n[0], t->n[1], t->n[2]),
	writes_double(sums, matrices * columns), reads(x, matrices * rows * columns))

HOST_KERNEL(move_means, (dk_queue *queue, float *means, double *mean, const double *sums, int64_t matrices,
	    int64_t n, int64_t each, double weight),
	FIELDS(.n = { matrices, n, each }, .weight = weight),
	dk_move_means(at[0], at[1], at[2], t->n[0], t->n[1], t->n[2], t->weight),
	writes(means, matrices * n), writes_double(mean, matrices), reads_double(sums, matrices * n))

HOST_KERNEL(divide_by_roots, (dk_queue *queue, float *x, const dk_estimate *e),
	FIELDS(.estimate = *e),
	t->estimate.rows = at[1]; t->estimate.columns = at[2]; t->estimate.mean = at[3];
	dk_divide_by_roots(at[0], &t->estimate),
	writes(x, e->matrices * e->height * e->width), reads(e->rows, e->matrices * e->height),
	reads(e->columns, e->matrices * e->width), reads_double(e->mean, e->matrices))

const dk_whole_table ddp_host_whole_kernels = {
	.mix = mix, .adamw_direction = adamw_direction, .sum_squares_at = sum_squares_at,
	.mix_squares = mix_squares, .column_squares = column_squares, .move_means = move_means,
	.divide_by_roots = divide_by_roots,
};

/* ---- factors ---- */

HOST_KERNEL(random_rows, (dk_queue *queue, float *values, int64_t rows, int64_t columns, uint64_t stream),
	FIELDS(.n = { rows, columns }, .rows = { .stream = stream }),
	dk_random_rows(at[0], t->n[0], t->n[1], t->rows.stream),
	writes(values, rows * columns))

HOST_KERNEL(orthonormalize, (dk_queue *queue, float *factor, int64_t rank, int64_t length, bool refill,
	    uint64_t stream),
	FIELDS(.n = { rank, length }, .rows = { stream, refill }),
	dk_orthonormalize(at[0], t->n[0], t->n[1], t->rows.refill, t->rows.stream),
	writes(factor, rank * length))

static void run_restore(task *t, void **at)
{
	const dk_factors factors = { at[2], at[3], .rank = t->n[0], .rows = t->n[1], .columns = t->n[2] };

	dk_restore(at[0], at[1], t->factor, &factors);
}

static void restore(dk_queue *queue, float *values, float *rest, float share, const dk_factors *f)
{
	ddp_host_enqueue(queue, &(task){ .run = run_restore, .n = { f->rank, f->rows, f->columns }, .factor = share,
		.operands = { writes(values, f->rows * f->columns), writes(rest, f->rows * f->columns),
		              reads(f->left, f->rank * f->rows), reads(f->right, f->rank * f->columns) } });
}

const dk_factor_table ddp_host_factor_kernels = {
	.random_rows = random_rows, .orthonormalize = orthonormalize, .restore = restore,
};
