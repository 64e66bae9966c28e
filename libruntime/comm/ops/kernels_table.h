/* What the instruction sets' versions of comm/ops/kernels share. */
#ifndef DDP_COMM_OPS_KERNELS_TABLE_H
#define DDP_COMM_OPS_KERNELS_TABLE_H

#include <stdint.h>
#include <string.h>

#include "comm/ops/kernels.h"

typedef struct ddp_kernel_table {
	const char *name;
	void (*combine)(const ddp_combination *c, size_t first, size_t count);
	void (*take)(void *dst, void *src, size_t bytes);
} ddp_kernel_table;

extern const ddp_kernel_table ddp_kernels_generic;
#ifdef __x86_64__
extern const ddp_kernel_table ddp_kernels_avx2, ddp_kernels_avx512;
/* What these compilers know. */
#if defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 12
#define DDP_HAS_KERNELS_AVX512FP16
extern const ddp_kernel_table ddp_kernels_avx512fp16;
#endif
#endif

typedef void (*combine_fn)(const ddp_combination *c, size_t first, size_t count);

enum {
	BLOCK = 512,
	FAR_SOURCES = 4,             /* from so many sources on, */
	FAR_BYTES = 16 * 1024 * 1024 /* and so much memory of 4-byte elements */
};

/* Many sources that are in no cache are read a block after the other: going through all
   at once takes up to twice as long, all the more if they are a power of two apart. */
static inline bool ddp_is_far(const ddp_combination *f, size_t count)
{
	return f->nsrc >= FAR_SOURCES && count >= FAR_BYTES / 4 / (size_t)f->nsrc;
}

/* Of accumulators. */
typedef union combine_block {
	float f32[BLOCK];
	double f64[BLOCK];
	int32_t i32[BLOCK];
	int64_t i64[BLOCK];
	uint8_t u8[2 * BLOCK];
} __attribute__((aligned(64))) combine_block;

static inline float ddp_float_of_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline uint32_t ddp_bits_of_float(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float ddp_bf16_to_float(uint16_t half)
{
	return ddp_float_of_bits((uint32_t)half << 16);
}

/* To nearest, ties to even; a NaN stays one. */
static inline uint16_t ddp_bf16_from_float(float value)
{
	uint32_t bits = ddp_bits_of_float(value);
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (uint16_t)(value != value ? bits >> 16 | 0x40 : rounded);
}

static inline float ddp_f16_to_float(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16;
	uint32_t magnitude = half & 0x7fff;

	if (magnitude >= 0x7c00) /* infinity; a NaN is made quiet */
		return ddp_float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13 |
		                         (magnitude > 0x7c00 ? 0x400000 : 0));
	/* Shifted into place, a half is 2^112 too small, also a subnormal one. */
	return ddp_float_of_bits(ddp_bits_of_float(ddp_float_of_bits(magnitude << 13) * 0x1p112f) |
	                         sign);
}

/* To nearest, ties to even; too large a value becomes infinite. */
static inline uint16_t ddp_f16_from_float(float value)
{
	uint32_t bits = ddp_bits_of_float(value);
	uint32_t sign = bits >> 16 & 0x8000;
	uint32_t magnitude = bits & 0x7fffffff;

	if (magnitude > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
	if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000) { /* subnormal: let the addition round */
		float shifted = ddp_float_of_bits(magnitude) + 0.5f;
		return (uint16_t)(sign | (ddp_bits_of_float(shifted) - 0x3f000000));
	}
	return (uint16_t)(sign | ((magnitude + 0xfff + (magnitude >> 13 & 1)) - 0x38000000) >> 13);
}

#endif
