/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 8 };

static const double NORMAL = 1.4826, STRAYS = 3;

static int ascending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The values that were measured, in order; the caller frees them. */
static double *ordered(const double *values, int count, int *measured)
{
	double *copy = malloc((size_t)(count > 0 ? count : 1) * sizeof(*copy));

	*measured = 0;
	for (int i = 0; copy != NULL && i < count; i++)
		if (values[i] > 0)
			copy[(*measured)++] = values[i];
	if (*measured > 1)
		qsort(copy, (size_t)*measured, sizeof(*copy), ascending);
	return copy;
}

double preflight_quantile(const double *values, int count, double share)
{
	int measured;
	double *copy = ordered(values, count, &measured);
	double value = measured > 0 ? copy[(int)ceil(share * (measured - 1))] : 0;

	free(copy);
	return value;
}

double preflight_median(const double *values, int count)
{
	return preflight_quantile(values, count, 0.5);
}

double preflight_best(const double *values, int count)
{
	return preflight_quantile(values, count, 1);
}

double preflight_spread(const double *values, int count)
{
	int measured;
	double middle = preflight_median(values, count), *copy = ordered(values, count, &measured), spread = 0;

	for (int i = 0; i < measured; i++)
		copy[i] = fabs(copy[i] - middle);
	if (measured >= FEW) {
		qsort(copy, (size_t)measured, sizeof(*copy), ascending);
		spread = copy[(measured - 1) / 2] * NORMAL;
	}
	free(copy);
	return spread;
}

bool preflight_is_suspect(double value, double usual, double spread, double limit)
{
	return value > 0 && usual > 0 && value < limit * usual &&
	       (value < usual - STRAYS * spread || value < limit * usual / 2);
}

bool preflight_is_odd(const double *suspect, const double *controls, int count, double limit)
{
	double best = preflight_best(suspect, count), usual = preflight_median(controls, count);

	return best > 0 && usual > 0 && best < limit * usual;
}
