/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers update whole tensors by these: steps as long as norms say, means of squares. */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"

/* Below this many elements, waking threads costs more than it saves. */
enum { GRAIN = 32768 };

struct direction {
	const float *param;
	float *grad, *m, *v;
	dk_update_consts consts;
};

static void direction_span(void *arg, int64_t first, int64_t last)
{
	const struct direction *d = arg;

	dk_inner()->adamw_direction(d->param + first, d->grad + first, d->m + first, d->v + first,
	                            last - first, &d->consts);
}

void dk_cpu_adamw_direction(const float *param, float *grad, float *m, float *v, int64_t n,
                            const dk_update_args *args)
{
	struct direction d = {
		.param = param, .grad = grad, .m = m, .v = v, .consts = dk_update_consts_of(args),
	};

	d.consts.coupled = (float)args->weight_decay;
	dk_parallel(n, GRAIN, direction_span, &d);
}

static double value_of(const dk_ratio *r)
{
	const double count = (double)r->count;
	const double over = r->over != NULL ? fmax(r->over_least, sqrt(*r->over / count)) : 1;
	const double under = fmax(r->under_least, sqrt(*r->under / count));

	return over > 0 && under > 0 ? over / under : 1;
}

struct mix {
	float *x;
	const float *y;
	float a, b;
};

static void mix_span(void *arg, int64_t first, int64_t last)
{
	const struct mix *m = arg;

	dk_inner()->mix(m->x + first, m->y + first, m->a, m->b, last - first);
}

void dk_cpu_mix(float *x, const float *y, float a, double b, const dk_ratio *ratio, int64_t n)
{
	struct mix m = {.x = x, .y = y, .a = a, .b = (float)(ratio != NULL ? b * value_of(ratio) : b)};

	dk_parallel(n, GRAIN, mix_span, &m);
}

void dk_cpu_sum_squares_at(double *sum, const float *x, int64_t n)
{
	*sum = dk_cpu_sum_squares(x, n);
}

static void mix_squares_span(void *arg, int64_t first, int64_t last)
{
	const struct mix *m = arg;

	dk_inner()->mix_squares(m->x + first, m->y + first, m->a, m->b, last - first);
}

void dk_cpu_mix_squares(float *x, const float *y, float a, float b, int64_t n)
{
	dk_parallel(n, GRAIN, mix_squares_span, &(struct mix){.x = x, .y = y, .a = a, .b = b});
}

struct columns {
	double *sums;
	const float *x;
	int64_t rows, columns;
};

enum { COLUMNS_AT_ONCE = 64 };

/* Adds to sums [count] the squares of so many rows, from their column `first` on. */
static void add_rows_squares(double *sums, const float *x, int64_t rows, int64_t columns, int64_t count)
{
	double of_these[COLUMNS_AT_ONCE] = {0};

	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < count; j++)
			of_these[j] += (double)x[i * columns + j] * (double)x[i * columns + j];
	for (int64_t j = 0; j < count; j++)
		sums[j] += of_these[j];
}

/* Columns first .. last - 1 of all matrices, as if they lay side by side. */
static void columns_span(void *arg, int64_t first, int64_t last)
{
	const struct columns *c = arg;

	memset(c->sums + first, 0, (size_t)(last - first) * sizeof(*c->sums));
	for (int64_t at = first, count; at < last; at += count) {
		const int64_t column = at % c->columns;
		const float *x = c->x + at / c->columns * c->rows * c->columns + column;
		count = last - at < COLUMNS_AT_ONCE ? last - at : COLUMNS_AT_ONCE;
		count = c->columns - column < count ? c->columns - column : count;
		for (int64_t i = 0; i < c->rows; i += DK_ROWS_AT_ONCE) {
			const int64_t rows = c->rows - i < DK_ROWS_AT_ONCE ? c->rows - i : DK_ROWS_AT_ONCE;
			add_rows_squares(c->sums + at, x + i * c->columns, rows, c->columns, count);
		}
	}
}

void dk_cpu_column_squares(double *sums, const float *x, int64_t matrices, int64_t rows, int64_t columns)
{
	struct columns c = {.sums = sums, .x = x, .rows = rows, .columns = columns};
	const int64_t all = matrices * columns, grain = (GRAIN + rows - 1) / (rows > 0 ? rows : 1);

	dk_parallel(all, grain < COLUMNS_AT_ONCE ? COLUMNS_AT_ONCE : grain, columns_span, &c);
}

/* Sums in the order in which a block of threads does. */
static double sum_of(const float *x, int64_t n)
{
	enum { LANES = 256 };
	double lanes[LANES] = {0};

	for (int64_t i = 0; i < n; i++)
		lanes[i % LANES] += x[i];
	for (int width = LANES / 2; width > 0; width /= 2)
		for (int lane = 0; lane < width; lane++)
			lanes[lane] += lanes[lane + width];
	return lanes[0];
}

void dk_cpu_move_means(float *means, double *mean, const double *sums, int64_t matrices, int64_t n,
                       int64_t each, double weight)
{
	for (int64_t i = 0; i < matrices * n; i++)
		means[i] = (float)((1 - weight) * means[i] + weight * (sums[i] / (double)each));
	for (int64_t i = 0; i < matrices && mean != NULL; i++)
		mean[i] = sum_of(means + i * n, n) / (double)n;
}

struct roots {
	float *x;
	const dk_estimate *estimate;
};

/* Row by row, of which the first and the last may be in part. */
static void roots_span(void *arg, int64_t first, int64_t last)
{
	const struct roots *r = arg;
	const dk_estimate *e = r->estimate;

	for (int64_t at = first, end; at < last; at = end) {
		const int64_t row = at / e->width, matrix = row / e->height, column = at - row * e->width;
		const float factor =
			e->rows != NULL ? (float)(e->rows[row] / fmax(e->mean[matrix], e->least_mean)) : 1;
		end = (row + 1) * e->width < last ? (row + 1) * e->width : last;
		dk_inner()->divide_by_roots(r->x + at, e->columns + matrix * e->width + column, factor, e->least,
		                            end - at);
	}
}

void dk_cpu_divide_by_roots(float *x, const dk_estimate *estimate)
{
	dk_parallel(estimate->matrices * estimate->height * estimate->width, GRAIN, roots_span,
	            &(struct roots){.x = x, .estimate = estimate});
}
