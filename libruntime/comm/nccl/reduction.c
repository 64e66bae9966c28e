/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl/lane.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/nccl/handle.h"

int ddp_nccl_type_of(ddp_type type)
{
	static const int types[] = {
		[DDP_F32] = DDP_NCCL_FLOAT32, [DDP_F64] = DDP_NCCL_FLOAT64, [DDP_F16] = DDP_NCCL_FLOAT16,
		[DDP_BF16] = DDP_NCCL_BFLOAT16, [DDP_I32] = DDP_NCCL_INT32, [DDP_I64] = DDP_NCCL_INT64,
		[DDP_U8] = DDP_NCCL_UINT8, [DDP_I8] = DDP_NCCL_INT8, [DDP_BOOL] = DDP_NCCL_UINT8,
	};

	return types[type];
}

/* ---- a factor, as NCCL wants it: in the type of what it multiplies ------------------------------- */

typedef union scalar {
	float f32;
	double f64;
	uint16_t bits;
	int32_t i32;
	int64_t i64;
	uint8_t u8;
	int8_t i8;
} scalar;

/* Into `bits` a number that a 16-bit type holds; false if it does not hold it. */
static bool to_16_bits(double x, int fraction_bits, int bias, uint16_t *bits)
{
	const uint16_t sign = signbit(x) ? 0x8000 : 0;
	int exponent;

	*bits = sign;
	if (x == 0)
		return true;
	if (!isfinite(x))
		return false;
	const double fraction = frexp(fabs(x), &exponent) * 2 - 1; /* |x| = (1 + fraction) 2^(exponent - 1) */
	const double scaled = ldexp(fraction, fraction_bits);
	const int biased = exponent - 1 + bias;
	if (biased < 1 || biased > 2 * bias || scaled != floor(scaled))
		return false;
	*bits = (uint16_t)(sign | biased << fraction_bits | (int)scaled);
	return true;
}

static bool to_integer(double x, double least, double most)
{
	return x == floor(x) && x >= least && x <= most;
}

/* False if the type does not hold the factor. */
static bool to_scalar(ddp_type type, double factor, scalar *s)
{
	memset(s, 0, sizeof(*s));
	switch (type) {
	case DDP_F32: s->f32 = (float)factor; return true;
	case DDP_F64: s->f64 = factor; return true;
	case DDP_F16: return to_16_bits(factor, 10, 15, &s->bits);
	case DDP_BF16: return to_16_bits(factor, 7, 127, &s->bits);
	case DDP_I32: s->i32 = to_integer(factor, INT32_MIN, INT32_MAX) ? (int32_t)factor : 0; return s->i32 == factor;
	case DDP_I64: s->i64 = to_integer(factor, -0x1p53, 0x1p53) ? (int64_t)factor : 0; return (double)s->i64 == factor;
	case DDP_U8: s->u8 = to_integer(factor, 0, UINT8_MAX) ? (uint8_t)factor : 0; return s->u8 == factor;
	case DDP_I8: s->i8 = to_integer(factor, INT8_MIN, INT8_MAX) ? (int8_t)factor : 0; return s->i8 == factor;
	case DDP_BOOL: break;
	}
	return false;
}

static double factor_of(const ddp_nccl_lane *lane, const ddp_operation *c)
{
	return c->op == DDP_AVG ? c->scale / lane->comm->size : c->scale;
}

/* ---- what it does not do ------------------------------------------------------------------------- */

static ddp_status check_average(const ddp_operation *c)
{
	if (c->type == DDP_U8 || c->type == DDP_I8)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "%s: NCCL's sums of %s wrap around before they could be divided: average "
		                "another type", ddp_kind_name(c->kind), ddp_type_name(c->type));
	if (ddp_type_is_integer(c->type) && c->scaled)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "%s: NCCL has no scaled averages of integers: sum them, and divide",
		                ddp_kind_name(c->kind));
	return DDP_OK;
}

ddp_status ddp_nccl_check_reduction(const ddp_nccl_lane *lane, const ddp_operation *c)
{
	scalar s;

	if (ddp_op_is_bitwise(c->op) && (c->type != DDP_BOOL || c->op == DDP_BXOR))
		return ddp_fail(DDP_ERR_UNSUPPORTED, "%s: NCCL has no %s of %s: reduce in the host's memory",
		                ddp_kind_name(c->kind), ddp_op_name(c->op), ddp_type_name(c->type));
	if (c->op == DDP_AVG) {
		const ddp_status status = check_average(c);
		if (status != DDP_OK)
			return status;
	}
	if (!c->scaled)
		return DDP_OK;
	if (c->op != DDP_SUM && c->op != DDP_AVG)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "%s: NCCL scales what it sums, not what it combines by %s: scale it before",
		                ddp_kind_name(c->kind), ddp_op_name(c->op));
	/* It would be rounded: by up to 0.4% in bf16, and each rank's by something else. */
	if (!to_scalar(c->type, factor_of(lane, c), &s))
		return ddp_fail(DDP_ERR_UNSUPPORTED, "%s: NCCL scales %s by numbers of that type only, and %g is none: scale it "
		                "before, or reduce in f32", ddp_kind_name(c->kind), ddp_type_name(c->type), factor_of(lane, c));
	return DDP_OK;
}

/* ---- ops ------------------------------------------------------------------------------------------ */

int ddp_nccl_make_op(ddp_nccl_operation *o)
{
	static const int ops[] = {
		[DDP_SUM] = DDP_NCCL_SUM, [DDP_AVG] = DDP_NCCL_AVG, [DDP_PROD] = DDP_NCCL_PROD,
		[DDP_MIN] = DDP_NCCL_MIN, [DDP_MAX] = DDP_NCCL_MAX,
		[DDP_BAND] = DDP_NCCL_MIN, [DDP_BOR] = DDP_NCCL_MAX, /* of bool */
	};
	scalar s;

	o->op = ops[o->c.op];
	/* A sum of truths is one, and a product of some is the least. */
	if (o->c.type == DDP_BOOL && (o->c.op == DDP_SUM || o->c.op == DDP_PROD))
		o->op = o->c.op == DDP_SUM ? DDP_NCCL_MAX : DDP_NCCL_MIN;
	/* A scale of 1, too: all ranks must give NCCL the same op. */
	if (!o->c.scaled || !to_scalar(o->c.type, factor_of(o->lane, &o->c), &s))
		return DDP_NCCL_SUCCESS;
	const int result = o->lane->nccl->make_scaled_sum(&o->op, &s, ddp_nccl_type_of(o->c.type),
	                                                  DDP_NCCL_SCALAR_ON_HOST, o->lane->handle);
	o->op_made = result == DDP_NCCL_SUCCESS;
	return result;
}

void ddp_nccl_free_op(ddp_nccl_operation *o)
{
	if (!o->op_made || o->lane->handle == NULL)
		return;
	o->op_made = false;
	if (ddp_nccl_status(o->lane->nccl, o->lane->handle, o->lane->nccl->free_op(o->op, o->lane->handle),
	                    "ncclRedOpDestroy()") != DDP_OK)
		ddp_log(DDP_LOG_DEBUG, "%s", ddp_last_error());
}
