/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/ops/names.h"

#include <stdio.h>

size_t ddp_type_bytes(ddp_type type)
{
	switch (type) {
	case DDP_U8:
	case DDP_I8:
	case DDP_BOOL: return 1;
	case DDP_F16:
	case DDP_BF16: return 2;
	case DDP_F32:
	case DDP_I32: return 4;
	case DDP_F64:
	case DDP_I64: return 8;
	}
	return 0;
}

const char *ddp_type_name(ddp_type type)
{
	switch (type) {
	case DDP_F32: return "f32";
	case DDP_F64: return "f64";
	case DDP_F16: return "f16";
	case DDP_BF16: return "bf16";
	case DDP_I32: return "i32";
	case DDP_I64: return "i64";
	case DDP_U8: return "u8";
	case DDP_I8: return "i8";
	case DDP_BOOL: return "bool";
	}
	return "unknown type";
}

const char *ddp_op_name(ddp_op op)
{
	switch (op) {
	case DDP_SUM: return "sum";
	case DDP_AVG: return "avg";
	case DDP_PROD: return "prod";
	case DDP_MIN: return "min";
	case DDP_MAX: return "max";
	case DDP_BAND: return "band";
	case DDP_BOR: return "bor";
	case DDP_BXOR: return "bxor";
	}
	return "unknown op";
}

const char *ddp_kind_name(ddp_operation_kind kind)
{
	switch (kind) {
	case DDP_ALL_REDUCE: return "all_reduce";
	case DDP_REDUCE: return "reduce";
	case DDP_BROADCAST: return "broadcast";
	case DDP_REDUCE_SCATTER: return "reduce_scatter";
	case DDP_ALL_GATHER: return "all_gather";
	case DDP_GATHER: return "gather";
	case DDP_SCATTER: return "scatter";
	case DDP_ALL_TO_ALL: return "all_to_all";
	case DDP_SEND: return "send";
	case DDP_RECV: return "recv";
	case DDP_BARRIER: return "barrier";
	}
	return "unknown collective";
}

/* In failure lines users of PyTorch read it, too, and look for what they called. */
static const char *barrier_name(int tag)
{
	return tag == DDP_TAG_FINALIZE ? "ddp_finalize() or destroy_process_group()"
	     : tag == DDP_TAG_FREE     ? "ddp_comm_free() or destroy_process_group()"
	                               : "barrier";
}

void ddp_collective_describe(const ddp_operation *c, char *text, size_t bytes)
{
	char root[32] = "", count[32];

	if (c->kind == DDP_BARRIER) {
		snprintf(text, bytes, "%s", barrier_name(c->tag));
		return;
	}
	if (c->counts != NULL)
		snprintf(count, sizeof(count), "by counts");
	else
		snprintf(count, sizeof(count), "%zu", c->count);
	if (c->kind == DDP_RECV && c->root == DDP_ANY_SOURCE)
		snprintf(root, sizeof(root), " from any rank");
	else if (ddp_kind_is_message(c->kind))
		snprintf(root, sizeof(root), c->kind == DDP_SEND ? " to rank %d" : " from rank %d", c->root);
	else if (ddp_kind_has_root(c->kind))
		snprintf(root, sizeof(root), " root %d", c->root);
	snprintf(text, bytes, "%s %s[%s]%s%s%s", ddp_kind_name(c->kind), ddp_type_name(c->type),
	         count, ddp_kind_reduces(c->kind) ? " " : "",
	         ddp_kind_reduces(c->kind) ? ddp_op_name(c->op) : "", root);
}
