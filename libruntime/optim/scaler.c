/* SPDX-License-Identifier: Apache-2.0 */
#include "optim/scaler.h"

#include <math.h>

static const double SCALE_MAX = 0x1p64;

bool ddp_scale_is_good(double scale)
{
	int exponent;

	/* A checkpoint without a scale gives a NaN, of which >= may raise a trap. */
	return isgreaterequal(scale, 1) && scale <= SCALE_MAX && frexp(scale, &exponent) == 0.5;
}

void ddp_scaler_good(ddp_scaler *scaler)
{
	if (scaler->kind != DDP_SCALING_DYNAMIC || ++scaler->good < scaler->interval)
		return;
	scaler->good = 0;
	if (scaler->scale < SCALE_MAX)
		scaler->scale *= 2;
}

bool ddp_scaler_overflow(ddp_scaler *scaler)
{
	if (scaler->kind != DDP_SCALING_DYNAMIC || scaler->scale <= 1)
		return false;
	scaler->scale /= 2;
	scaler->good = 0;
	scaler->skipped++;
	return true;
}

void ddp_scaler_resume(ddp_scaler *scaler, double scale, double good)
{
	if (scaler->kind != DDP_SCALING_DYNAMIC || !ddp_scale_is_good(scale))
		return;
	scaler->scale = scale;
	scaler->good = isgreaterequal(good, 0) && good < (double)scaler->interval ? (int64_t)good : 0;
}
