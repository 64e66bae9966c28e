/* SPDX-License-Identifier: Apache-2.0 */
/* scaler: what the program multiplies its loss by before backward, so that gradients in
   fp16 do not vanish, and what becomes of that after a step: PyTorch's GradScaler. A scale
   is a power of two, so that it changes no bit of what neither vanishes nor overflows. */
#pragma once

#include "ddp.h"

typedef struct ddp_scaler {
	ddp_scaling kind;
	double scale;     /* 1 where the loss is not scaled */
	int64_t interval; /* steps without an overflow after which it grows */
	int64_t good;     /* steps since it changed last */
	int64_t skipped;  /* in all */
} ddp_scaler;

/* A power of two from 1 to 2^64, so that its inverse, over a weight and times what clipping makes
   of it, is still a normal number of f32. */
bool ddp_scale_is_good(double scale);

/* A step has updated the parameters. */
void ddp_scaler_good(ddp_scaler *scaler);
/* A step's gradients are not finite. Whether a lower scale may be the cure: then it is
   lowered, and the step is to be skipped. */
bool ddp_scaler_overflow(ddp_scaler *scaler);
/* Goes on from a checkpoint, which holds what another one had; 0 or NaN: it did not hold that. */
void ddp_scaler_resume(ddp_scaler *scaler, double scale, double good);
