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

static void run_adamw_direction(task *t, void **at)
{
	dk_adamw_direction(at[3], at[0], at[1], at[2], t->n[0], &t->update);
}

static void adamw_direction(dk_queue *queue, const float *param, float *grad, float *m, float *v,
                            int64_t n, const dk_update_args *args)
{
	ddp_host_enqueue(queue, &(task){ .run = run_adamw_direction, .n = { n }, .update = *args, .operands = {
		writes(grad, n), writes(m, n), writes(v, n), reads(param, n) } });
}

static void run_sum_squares_at(task *t, void **at)
{
	dk_sum_squares_at(at[0], at[1], t->n[0]);
}

static void sum_squares_at(dk_queue *queue, double *sum, const float *x, int64_t n)
{
	ddp_host_enqueue(queue, &(task){ .run = run_sum_squares_at, .n = { n }, .operands = {
		writes_double(sum, 1), reads(x, n) } });
}

static void run_mix_squares(task *t, void **at)
{
	dk_mix_squares(at[0], at[1], t->mix.a, (float)t->mix.b, t->n[0]);
}

static void mix_squares(dk_queue *queue, float *x, const float *y, float a, float b, int64_t n)
{
	ddp_host_enqueue(queue, &(task){ .run = run_mix_squares, .n = { n }, .mix = { .a = a, .b = b },
		.operands = { writes(x, n), reads(y, n) } });
}

static void run_column_squares(task *t, void **at)
{
	dk_column_squares(at[0], at[1], t->n[0], t->n[1], t->n[2]);
}

static void column_squares(dk_queue *queue, double *sums, const float *x, int64_t matrices, int64_t rows,
                           int64_t columns)
{
	ddp_host_enqueue(queue, &(task){ .run = run_column_squares, .n = { matrices, rows, columns }, .operands = {
		writes_double(sums, matrices * columns), reads(x, matrices * rows * columns) } });
}

static void run_move_means(task *t, void **at)
{
	dk_move_means(at[0], at[1], at[2], t->n[0], t->n[1], t->n[2], t->weight);
}

static void move_means(dk_queue *queue, float *means, double *mean, const double *sums, int64_t matrices,
                       int64_t n, int64_t each, double weight)
{
	ddp_host_enqueue(queue, &(task){ .run = run_move_means, .n = { matrices, n, each }, .weight = weight,
		.operands = { writes(means, matrices * n), writes_double(mean, matrices),
		              reads_double(sums, matrices * n) } });
}

static void run_divide_by_roots(task *t, void **at)
{
	t->estimate.rows = at[1];
	t->estimate.columns = at[2];
	t->estimate.mean = at[3];
	dk_divide_by_roots(at[0], &t->estimate);
}

static void divide_by_roots(dk_queue *queue, float *x, const dk_estimate *e)
{
	ddp_host_enqueue(queue, &(task){ .run = run_divide_by_roots, .estimate = *e, .operands = {
		writes(x, e->matrices * e->height * e->width), reads(e->rows, e->matrices * e->height),
		reads(e->columns, e->matrices * e->width), reads_double(e->mean, e->matrices) } });
}

const dk_whole_table ddp_host_whole_kernels = {
	.mix = mix, .adamw_direction = adamw_direction, .sum_squares_at = sum_squares_at,
	.mix_squares = mix_squares, .column_squares = column_squares, .move_means = move_means,
	.divide_by_roots = divide_by_roots,
};

/* ---- factors ---- */

static void run_random_rows(task *t, void **at)
{
	dk_random_rows(at[0], t->n[0], t->n[1], t->rows.stream);
}

static void random_rows(dk_queue *queue, float *values, int64_t rows, int64_t columns, uint64_t stream)
{
	ddp_host_enqueue(queue, &(task){ .run = run_random_rows, .n = { rows, columns },
		.rows = { .stream = stream }, .operands = { writes(values, rows * columns) } });
}

static void run_orthonormalize(task *t, void **at)
{
	dk_orthonormalize(at[0], t->n[0], t->n[1], t->rows.refill, t->rows.stream);
}

static void orthonormalize(dk_queue *queue, float *factor, int64_t rank, int64_t length, bool refill,
                           uint64_t stream)
{
	ddp_host_enqueue(queue, &(task){ .run = run_orthonormalize, .n = { rank, length },
		.rows = { stream, refill }, .operands = { writes(factor, rank * length) } });
}

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
