/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/reduction: types and ops as NCCL has them, and what it cannot do. */
#pragma once

#include "comm/nccl/lane.h"

int ddp_nccl_type_of(ddp_type type);

/* DDP_ERR_UNSUPPORTED: NCCL does not reduce so, and the sentence says what does. */
ddp_status ddp_nccl_check_reduction(const ddp_nccl_lane *lane, const ddp_operation *c);

/* Finds the op of a reduction, or makes it; until ddp_nccl_free_op(). A result of NCCL's. */
int ddp_nccl_make_op(ddp_nccl_operation *operation);
void ddp_nccl_free_op(ddp_nccl_operation *operation);
