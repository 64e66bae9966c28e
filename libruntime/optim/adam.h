/* SPDX-License-Identifier: Apache-2.0 */
/* adam: for rules that update some tensors by AdamW. */
#pragma once

#include "optim/rule.h"

/* m, v: states of the span. */
void ddp_adamw_span(const ddp_optim_span *span, float *m, float *v);
