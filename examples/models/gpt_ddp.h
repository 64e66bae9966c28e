/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_ddp: a GPT whose parameters and gradients are those of a ddp_model. */
#pragma once

#include <stdlib.h>

#include "models/gpt.h"

/* False: out of memory. */
static inline bool gpt_bind_model(gpt *net, ddp_model *model)
{
	int count;
	gpt_params(net, &count);
	float **data = calloc(2 * (size_t)count, sizeof(*data));

	if (data == NULL)
		return false;
	for (int i = 0; i < count; i++) {
		data[i] = ddp_model_param_data(model, i);
		data[count + i] = ddp_model_param_grad(model, i);
	}
	gpt_bind(net, data, data + count);
	free(data);
	return true;
}

/* For gpt_backward(), with the ddp_model. */
static inline ddp_status gpt_grad_ready(void *model, int param)
{
	return ddp_model_grad_ready(model, param);
}

static inline ddp_status gpt_grad_rows(void *model, int param, const int32_t *index, const float *values,
                                       int64_t count)
{
	return ddp_model_grad_rows(model, param, index, values, count);
}
