/* SPDX-License-Identifier: Apache-2.0 */
/* comm/ops/names: kinds of operations, types and ops: their names and properties. */
#pragma once

#include "ddp.h"

size_t ddp_type_bytes(ddp_type type);
const char *ddp_type_name(ddp_type type); /* "f32" */
const char *ddp_op_name(ddp_op op);       /* "sum" */
const char *ddp_kind_name(ddp_operation_kind kind); /* "all_reduce" */
/* The tag of a barrier in which a call of the program waits for all ranks: the barrier has that
   call's name. */
enum { DDP_TAG_FINALIZE = -1, DDP_TAG_FREE = -2 };
/* "all_reduce f32[100] sum" */
void ddp_collective_describe(const ddp_operation *c, char *text, size_t bytes);

/* Small operations ask these often: they are inline. */

/* The type in which `type` is combined: itself, or f32, or i32. */
static inline ddp_type ddp_accumulator(ddp_type type)
{
	switch (type) {
	case DDP_F16:
	case DDP_BF16: return DDP_F32;
	case DDP_U8:
	case DDP_I8: return DDP_I32;
	default: return type;
	}
}

/* Op and scale matter. */
static inline bool ddp_kind_reduces(ddp_operation_kind kind)
{
	return kind == DDP_ALL_REDUCE || kind == DDP_REDUCE || kind == DDP_REDUCE_SCATTER;
}

static inline bool ddp_op_is_bitwise(ddp_op op)
{
	return op == DDP_BAND || op == DDP_BOR || op == DDP_BXOR;
}

static inline bool ddp_type_is_integer(ddp_type type)
{
	return type == DDP_I32 || type == DDP_I64 || type == DDP_U8 || type == DDP_I8;
}

static inline bool ddp_kind_is_message(ddp_operation_kind kind)
{
	return kind == DDP_SEND || kind == DDP_RECV;
}

static inline bool ddp_kind_has_root(ddp_operation_kind kind)
{
	return kind == DDP_REDUCE || kind == DDP_BROADCAST || kind == DDP_GATHER || kind == DDP_SCATTER;
}
