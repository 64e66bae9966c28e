/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/nccl_standin_move.h"

#include <math.h>
#include <string.h>

#include "comm/nccl/abi.h"
#include "tests/support/halves.h"

size_t nccl_bytes_of(int type)
{
	switch (type) {
	case DDP_NCCL_INT8:
	case DDP_NCCL_UINT8: return 1;
	case DDP_NCCL_FLOAT16:
	case DDP_NCCL_BFLOAT16: return 2;
	case DDP_NCCL_INT32:
	case DDP_NCCL_FLOAT32: return 4;
	default: return 8;
	}
}

static uint16_t to_f16(double x)
{
	const uint16_t sign = signbit(x) ? 0x8000 : 0;
	int exponent = x == 0 || ilogb(x) < -14 ? -14 : ilogb(x);
	int fraction = exponent > 15 ? 2048 : (int)rint(ldexp(fabs(x), 10 - exponent));

	if (fraction == 2048) {
		fraction = 1024;
		exponent++;
	}
	if (exponent > 15)
		return sign | 0x7c00;
	return (uint16_t)(sign | (fraction < 1024 ? fraction : (exponent + 15) << 10 | (fraction - 1024)));
}

static float from_bf16(uint16_t bits)
{
	const uint32_t wide = (uint32_t)bits << 16;
	float x;

	memcpy(&x, &wide, sizeof(x));
	return x;
}

static uint16_t to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double nccl_get(int type, const void *memory, size_t i)
{
	switch (type) {
	case DDP_NCCL_FLOAT32: return ((const float *)memory)[i];
	case DDP_NCCL_FLOAT64: return ((const double *)memory)[i];
	case DDP_NCCL_FLOAT16: return decode_half(((const uint16_t *)memory)[i], 10, 15);
	case DDP_NCCL_BFLOAT16: return from_bf16(((const uint16_t *)memory)[i]);
	default: return 0;
	}
}

void nccl_put(int type, void *memory, size_t i, double x)
{
	switch (type) {
	case DDP_NCCL_FLOAT32: ((float *)memory)[i] = (float)x; break;
	case DDP_NCCL_FLOAT64: ((double *)memory)[i] = x; break;
	case DDP_NCCL_FLOAT16: ((uint16_t *)memory)[i] = to_f16(x); break;
	case DDP_NCCL_BFLOAT16: ((uint16_t *)memory)[i] = to_bf16((float)x); break;
	default: break;
	}
}

int64_t nccl_get_integer(int type, const void *memory, size_t i)
{
	switch (type) {
	case DDP_NCCL_INT8: return ((const int8_t *)memory)[i];
	case DDP_NCCL_UINT8: return ((const uint8_t *)memory)[i];
	case DDP_NCCL_INT32: return ((const int32_t *)memory)[i];
	default: return ((const int64_t *)memory)[i];
	}
}

void nccl_put_integer(int type, void *memory, size_t i, uint64_t x)
{
	switch (type) {
	case DDP_NCCL_INT8:
	case DDP_NCCL_UINT8: ((uint8_t *)memory)[i] = (uint8_t)x; break;
	case DDP_NCCL_INT32: ((int32_t *)memory)[i] = (int32_t)x; break;
	default: ((int64_t *)memory)[i] = (int64_t)x; break;
	}
}

bool nccl_is_integer(int type)
{
	return type == DDP_NCCL_INT8 || type == DDP_NCCL_UINT8 || type == DDP_NCCL_INT32 || type == DDP_NCCL_INT64;
}

void nccl_combine_one(int type, int op, void *into, const void *from, size_t i)
{
	if (nccl_is_integer(type)) {
		const int64_t a = nccl_get_integer(type, into, i), b = nccl_get_integer(type, from, i);
		const uint64_t sum = (uint64_t)a + (uint64_t)b, product = (uint64_t)a * (uint64_t)b;
		nccl_put_integer(type, into, i, op == DDP_NCCL_PROD ? product : op == DDP_NCCL_MAX ? (uint64_t)(a > b ? a : b) :
		            op == DDP_NCCL_MIN ? (uint64_t)(a < b ? a : b) : sum);
		return;
	}
	const double a = nccl_get(type, into, i), b = nccl_get(type, from, i);
	nccl_put(type, into, i, op == DDP_NCCL_PROD ? a * b : op == DDP_NCCL_MAX ? fmax(a, b) :
	    op == DDP_NCCL_MIN ? fmin(a, b) : a + b);
}
