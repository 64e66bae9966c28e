/* SPDX-License-Identifier: Apache-2.0 */
/* model_side: a model in the memory of the host, or in that of the fake GPU, so
   that what is done to both can be compared. */
#pragma once

#include "device/device.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "tests/support/context_ranks.h"

enum { SIDE_ELEMENTS = 60 * 700 };

typedef struct model_side {
	ddp_context *context;
	ddp_model *model;
	ddp_device_queue *stream;  /* NULL: the host */
	dk_queue *kernels;         /* on it */
	void *own;                 /* the test's */
	float host[SIDE_ELEMENTS]; /* what is copied; no parameter has more */
} model_side;

/* With a queue, or of the host; and with a model, whose parameters begin `apart` from those of
   another number. */
void side_open(model_side *s, ddp_context *context, bool there);
void side_make(model_side *s, const ddp_param *params, int count, const ddp_model_options *given, float apart);
void side_close(model_side *s);

/* Nothing of the device is in use any more but what is the communicator's. */
void side_all_freed(ddp_context *context);

int side_rank(const model_side *s);

/* From or to the model's memory; it waits. */
void side_copy(const model_side *s, void *to, const void *from, size_t bytes);

/* A parameter's gradient, `factor` times what step and rank tell, in `host`: to be changed, and
   copied. */
void side_draw(model_side *s, int step, int param, float factor);
void side_copy_gradient(model_side *s, int param);

/* Parameters, those in bf16, and gradients have the same bits. */
void sides_same(model_side *here, model_side *there);
