/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction sets' versions of comm/ops/kernels share this. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "comm/ops/kernels.h"
#include "kernels/half.h"

typedef struct ddp_kernel_table {
	const char *name;
	void (*combine)(const ddp_combination *c, size_t first, size_t count);
	void (*take)(void *dst, void *src, size_t bytes);
} ddp_kernel_table;

extern const ddp_kernel_table ddp_kernels_generic;
#ifdef __x86_64__
extern const ddp_kernel_table ddp_kernels_avx2, ddp_kernels_avx512;
/* These compilers know the instructions. */
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

/* Returns the number that sums are divided by, or 1 where they are not divided. A compiler may divide before it looks
   whether the number is 0, and the program may trap that: so it must not know the number. */
static inline double ddp_divisor(const ddp_combination *f)
{
	double divisor = f->divisor != 0 ? f->divisor : 1;

	__asm__("" : "+m"(divisor));
	return divisor;
}

/* Many sources that are in no cache are read a block after the other: going through all
   at once takes up to twice as long, all the more if they are a power of two apart. */
static inline bool ddp_is_far(const ddp_combination *f, size_t count)
{
	return f->nsrc >= FAR_SOURCES && count >= FAR_BYTES / 4 / (size_t)f->nsrc;
}

/* A block of accumulators. */
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

/* Rounds to the nearest, ties to even. A NaN stays one. */
static inline uint16_t ddp_bf16_from_float(float value)
{
	uint32_t bits = ddp_bits_of_float(value);
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (uint16_t)(value != value ? bits >> 16 | 0x40 : rounded);
}

static inline float ddp_f16_to_float(uint16_t half)
{
	return dk_half_to_float(half);
}

/* Rounds to the nearest, ties to even. A value that is too large becomes infinite. */
static inline uint16_t ddp_f16_from_float(float value)
{
	return dk_half_of(value);
}
