/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/statistics: what is far from the others, and whether it stays so. Pure.

   All values are rates: more is better. A disturbance only slows, so the best of several measurements counts. A
   value that is not above 0 was not measured. */
#pragma once

#include <stdbool.h>

/* The value at a share of the way from the lowest (0) to the highest (1), rounded up, so that the median of two is
   the higher one; 0 without a value. */
double preflight_quantile(const double *values, int count, double share);
double preflight_median(const double *values, int count);
double preflight_best(const double *values, int count);

/* The median distance from the median, scaled to the standard deviation of a normal distribution; 0 for fewer than
   8 values, which are too few for it. */
double preflight_spread(const double *values, int count);

/* Whether a value is worth a second look: below `limit` of the usual one, and farther from it than others stray, or
   below half of `limit`. */
bool preflight_is_suspect(double value, double usual, double spread, double limit);

/* Whether a suspect is odd. Suspect and controls were measured in turns, `count` times. The suspect's best
   measurement has to be below `limit` of the controls' median, as a disturbance only slows. */
bool preflight_is_odd(const double *suspect, const double *controls, int count, double limit);
