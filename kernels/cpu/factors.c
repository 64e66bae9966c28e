/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices as products of two factors of low rank, whose long sides lie in rows. */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "splitmix.h"

/* ---- orthonormal rows ---- */

static void fill_row(float *values, int64_t columns, uint64_t stream, int64_t row)
{
	const uint64_t from = dk_random_row(stream, row);

	for (int64_t i = 0; i < columns; i++)
		values[i] = dk_random_at(from, i);
}

void dk_cpu_random_rows(float *values, int64_t rows, int64_t columns, uint64_t stream)
{
	for (int64_t r = 0; r < rows; r++)
		fill_row(values + r * columns, columns, stream, r);
}

enum { LANES = DK_FACTOR_LANES };

static void add_products(double *restrict lanes, const float *a, const float *b, int64_t n)
{
	for (int64_t lane = 0; lane < n; lane++)
		lanes[lane] += (double)a[lane] * (double)b[lane]; /* the product is exact */
}

/* Sums in the order in which a block of threads does. */
static double product(const float *a, const float *b, int64_t n)
{
	double lanes[LANES];
	int64_t at = 0;
	int width = LANES;

	/* The other lanes add 0. */
	while (width > 1 && width / 2 >= n)
		width /= 2;
	memset(lanes, 0, (size_t)width * sizeof(*lanes));
	for (; at + LANES <= n; at += LANES)
		add_products(lanes, a + at, b + at, LANES);
	add_products(lanes, a + at, b + at, n - at);
	for (width /= 2; width > 0; width /= 2)
		for (int lane = 0; lane < width; lane++)
			lanes[lane] += lanes[lane + width];
	return lanes[0];
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
	float *own = factor + row * length;
	const double before = sqrt(product(own, own, length));
	double norm = project(factor, row, length);

	/* Twice is enough (Parlett, The Symmetric Eigenvalue Problem, 6.9). */
	if (norm < before / 2)
		norm = project(factor, row, length);
	if (!(norm > DK_FACTOR_ROUNDING * before))
		return false;
	for (int64_t i = 0; i < length; i++)
		own[i] = (float)(own[i] / norm);
	return true;
}

void dk_cpu_orthonormalize(float *factor, int64_t rank, int64_t length, bool refill, uint64_t stream)
{
	for (int64_t row = 0; row < rank; row++) {
		float *own = factor + row * length;
		bool good = orthonormalize_row(factor, row, length);
		if (!good && refill) {
			fill_row(own, length, stream, row);
			good = orthonormalize_row(factor, row, length);
		}
		if (!good)
			memset(own, 0, (size_t)length * sizeof(*own));
	}
}

/* ---- products of two factors ---- */

struct restoration {
	float *values, *rest;
	float share;
	const dk_factors *factors;
};

static void restore_rows(void *argument, int64_t first, int64_t last)
{
	const struct restoration *r = argument;
	const dk_factors *f = r->factors;

	for (int64_t i = first; i < last; i++) {
		float *restrict values = r->values + i * f->columns;
		for (int64_t c = 0; c < f->rank; c++) {
			const float *restrict right = f->right + c * f->columns;
			const float left = f->left[c * f->rows + i];
			for (int64_t j = 0; j < f->columns; j++)
				values[j] = c == 0 ? left * right[j] : values[j] + left * right[j];
		}
		if (r->rest == NULL)
			continue;
		float *restrict rest = r->rest + i * f->columns;
		for (int64_t j = 0; j < f->columns; j++)
			rest[j] -= r->share * values[j];
	}
}

void dk_cpu_restore(float *values, float *rest, float share, const dk_factors *factors)
{
	enum { GRAIN_ELEMENTS = 1 << 14 };
	struct restoration r = {.values = values, .rest = rest, .share = share, .factors = factors};

	dk_parallel(factors->rows, 1 + GRAIN_ELEMENTS / factors->columns, restore_rows, &r);
}
