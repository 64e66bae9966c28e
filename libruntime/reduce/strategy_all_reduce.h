/* SPDX-License-Identifier: Apache-2.0 */
/* strategy_all_reduce: functions for strategies that leave all reduced gradients on each rank. */
#pragma once

#include "reduce/strategy.h"
#include "reduce/unit.h"

/* These functions do what the functions of the same names in ddp_strategy do. */
void ddp_all_reduce_add_rows(struct ddp_model *model, const ddp_slot *slot, const int32_t *rows,
                             const float *values, int64_t count);
ddp_status ddp_all_reduce_finish(struct ddp_model *model, double *squares);
/* Does the same in `units`, of which each rank of the world owns a slice. */
ddp_status ddp_all_reduce_finish_by(struct ddp_model *model, const ddp_units *units, double *squares);
ddp_status ddp_all_reduce_update(struct ddp_model *model, const ddp_update *update, bool reduced,
                                 double *squares);
