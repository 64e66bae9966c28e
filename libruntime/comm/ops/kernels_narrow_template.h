/* SPDX-License-Identifier: Apache-2.0 */
/* The part of comm/ops/kernels_template.h for f16, bf16, u8 and i8.

   An instruction set may have better than what is here: WIDEN_U16, WIDEN_U8 and
   WIDEN_F16 bring as many elements as a vector has lanes of 32 bits from memory into
   such, NARROW_U16, NARROW_U8 and NARROW_F16 bring them back; HALVES takes the lower 16
   bits of each lane from one vector and the upper ones from the other; MIDDLE the upper
   ones of the first, and above them the lower ones of the second; ROUND_UP adds 1 to
   lanes of 16 bits for which `rest` exceeds 0x8000, but not to 0xffff; UPPER_PRODUCT,
   LEAST and MOST are of such lanes, too. UNWEAVE puts lanes of 16 bits with even numbers
   before the others; CUT_NAN makes a NaN of f32 a quiet one of bf16. */
#define INLINE KERNEL __attribute__((always_inline)) static inline

enum { LANES = VECTOR_BYTES / 4 };

/* These vectors have as many narrow elements as there are lanes of 32 bits. */
typedef uint16_t v_u16_lanes __attribute__((vector_size(VECTOR_BYTES / 2), aligned(1), may_alias));
typedef uint8_t v_u8_lanes __attribute__((vector_size(VECTOR_BYTES / 4), aligned(1), may_alias));
typedef int8_t v_i8_lanes __attribute__((vector_size(VECTOR_BYTES / 4), aligned(1), may_alias));

#ifndef HALVES
#define WIDEN_U16(x) __builtin_convertvector(*(const v_u16_lanes *)(const void *)(x), v_u32)
#define WIDEN_U8(x) __builtin_convertvector(*(const v_u8_lanes *)(const void *)(x), v_u32)
#define NARROW_U16(to, x) (*(v_u16_lanes *)(void *)(to) = __builtin_convertvector(x, v_u16_lanes))
#define NARROW_U8(to, x) (*(v_u8_lanes *)(void *)(to) = __builtin_convertvector(x, v_u8_lanes))
#define HALVES(low, high) (((v_u32)(low) & 0xffff) | ((v_u32)(high) & 0xffff0000))
#define MIDDLE(a, b) ((a) >> 16 | (b) << 16)
#define ROUND_UP(x, rest) ((x) - (v_u16)((v_u16)((rest) > 0x8000) & (v_u16)((x) != 0xffff)))
#define UPPER_PRODUCT(x, factor) \
	((v_u16)(((v_u32)(x) & 0xffff) * (factor) >> 16 | (((v_u32)(x) >> 16) * (factor) & 0xffff0000)))
#define LEAST(a, b) (((a) & ((a) < (b))) | ((b) & ~((a) < (b))))
#define MOST(a, b) (((a) & ((a) > (b))) | ((b) & ~((a) > (b))))
#endif

/* Selects by lane. In a mask, all bits of a lane are set, or none. */
#define SELECT(mask, yes, no) (((yes) & (v_u32)(mask)) | ((no) & ~(v_u32)(mask)))

/* ---- a vector of accumulators, in the elements' order -------------------------------- */

INLINE void widen_bf16(const uint16_t *from, v_f32 *a)
{
	*a = (v_f32)((v_u32)WIDEN_U16(from) << 16);
}

/* Rounds like ddp_bf16_from_float(). */
INLINE void narrow_bf16(uint16_t *to, const v_f32 *a)
{
	const v_u32 bits = (v_u32)*a;
	const v_u32 rounded = SELECT(*a != *a, bits | 0x400000, bits + 0x7fff + (bits >> 16 & 1));

	NARROW_U16(to, rounded >> 16);
}

#ifdef WIDEN_F16
INLINE void widen_f16(const uint16_t *from, v_f32 *a)
{
	*a = (v_f32)WIDEN_F16(from);
}

INLINE void narrow_f16(uint16_t *to, const v_f32 *a)
{
	NARROW_F16(to, *a);
}
#else
/* Converts like ddp_f16_to_float(). The upper halves are zero. */
INLINE void f16_to_f32(v_u32 *x)
{
	const v_u32 sign = (*x & 0x8000) << 16, magnitude = *x & 0x7fff;
	const v_u32 subnormal = (v_u32)(__builtin_convertvector(magnitude, v_f32) * 0x1p-24f);
	const v_u32 ordinary = SELECT(magnitude < 0x400, subnormal, (magnitude << 13) + 0x38000000);
	const v_u32 special = 0x7f800000 | (magnitude & 0x3ff) << 13 |
		((v_u32)(magnitude > 0x7c00) & 0x400000);

	*x = sign | SELECT(magnitude >= 0x7c00, special, ordinary);
}

/* Rounds like ddp_f16_from_float(). The result is in the lower half of each lane. */
INLINE void f32_to_f16(v_u32 *x)
{
	const v_u32 sign = *x >> 16 & 0x8000, magnitude = *x & 0x7fffffff;
	const v_u32 infinite = (magnitude & 0) | 0x7c00;
	const v_u32 subnormal = (v_u32)((v_f32)magnitude + 0.5f) - 0x3f000000;
	const v_u32 normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
	const v_u32 finite = SELECT(magnitude < 0x38800000, subnormal, normal);
	const v_u32 number = SELECT(magnitude < 0x477ff000, finite, infinite);

	*x = sign | SELECT(magnitude > 0x7f800000, 0x7e00 | (magnitude >> 13 & 0x3ff), number);
}

INLINE void widen_f16(const uint16_t *from, v_f32 *a)
{
	v_u32 x = WIDEN_U16(from);

	f16_to_f32(&x);
	*a = (v_f32)x;
}

INLINE void narrow_f16(uint16_t *to, const v_f32 *a)
{
	v_u32 x = (v_u32)*a;

	f32_to_f16(&x);
	NARROW_U16(to, x);
}
#endif

INLINE void widen_u8(const uint8_t *from, v_i32 *a)
{
	*a = (v_i32)WIDEN_U8(from);
}

INLINE void narrow_u8(uint8_t *to, const v_i32 *a)
{
	NARROW_U8(to, *a);
}

INLINE void widen_i8(const int8_t *from, v_i32 *a)
{
	*a = __builtin_convertvector(*(const v_i8_lanes *)(const void *)from, v_i32);
}

/* ---- two vectors, in an order that costs less ------------------------------------------ */

/* The even elements, and the odd ones. */
INLINE void widen_pair_bf16(const uint16_t *from, v_f32 *a, v_f32 *b)
{
	const v_u32 x = (v_u32)*(const v_u8 *)(const void *)from;

	*a = (v_f32)(x << 16);
	*b = (v_f32)(x & 0xffff0000);
}

/* Rounds 16 bits up if what is cut off exceeds a half, or is one and they are odd:
   whose last bit then makes it more. Of a NaN that comes from elements of 16 bits
   nothing is cut off; or all bits are set, and stay so. */
INLINE void narrow_pair_bf16(uint16_t *to, const v_f32 *a, const v_f32 *b)
{
	const v_u32 middle = MIDDLE((v_u32)*a, (v_u32)*b);
	const v_u16 upper = (v_u16)HALVES(middle, (v_u32)*b);
	const v_u16 lower = (v_u16)HALVES((v_u32)*a, middle);
	const v_u16 rest = lower | (upper & 1);

	*(v_u8 *)(void *)to = (v_u8)ROUND_UP(upper, rest);
}

#ifdef UNWEAVE
/* Rounds two vectors like ddp_bf16_from_float(), in the elements' order. */
INLINE void narrow_two_bf16(uint16_t *to, v_f32 a, v_f32 b)
{
	v_u16 woven;

	a = (v_f32)CUT_NAN(a);
	b = (v_f32)CUT_NAN(b);
	narrow_pair_bf16((uint16_t *)&woven, &a, &b);
	*(v_u8 *)(void *)to = (v_u8)UNWEAVE(woven);
}
#endif

#ifdef WIDEN_F16
INLINE void widen_pair_f16(const uint16_t *from, v_f32 *a, v_f32 *b)
{
	widen_f16(from, a);
	widen_f16(from + LANES, b);
}

INLINE void narrow_pair_f16(uint16_t *to, const v_f32 *a, const v_f32 *b)
{
	narrow_f16(to, a);
	narrow_f16(to + LANES, b);
}
#else
INLINE void widen_pair_f16(const uint16_t *from, v_f32 *a, v_f32 *b)
{
	const v_u32 x = (v_u32)*(const v_u8 *)(const void *)from;
	v_u32 low = x & 0xffff, high = x >> 16;

	f16_to_f32(&low);
	f16_to_f32(&high);
	*a = (v_f32)low;
	*b = (v_f32)high;
}

INLINE void narrow_pair_f16(uint16_t *to, const v_f32 *a, const v_f32 *b)
{
	v_u32 low = (v_u32)*a, high = (v_u32)*b;

	f32_to_f16(&low);
	f32_to_f16(&high);
	*(v_u8 *)(void *)to = (v_u8)(low | high << 16);
}
#endif

/* ---- combinations that keep accumulators in registers ------------------------------------ */

/* Four vectors of accumulators, from and to elements: in pairs; or in the elements' order,
   as the other side, which is in accumulator form, has it. */
#define LOAD_PAIRS(NAME, N, a) do { \
	widen_pair_##NAME((const N *)from + i, &a##0, &a##1); \
	widen_pair_##NAME((const N *)from + i + 2 * LANES, &a##2, &a##3); \
} while (0)
#define STORE_PAIRS(NAME, N, a) do { \
	narrow_pair_##NAME((N *)to + i, &a##0, &a##1); \
	narrow_pair_##NAME((N *)to + i + 2 * LANES, &a##2, &a##3); \
} while (0)
#define LOAD_ORDERED(NAME, N, a) do { \
	const N *x = (const N *)from + i; \
	widen_##NAME(x, &a##0); widen_##NAME(x + LANES, &a##1); \
	widen_##NAME(x + 2 * LANES, &a##2); widen_##NAME(x + 3 * LANES, &a##3); \
} while (0)
#define STORE_ORDERED(NAME, N, a) do { \
	N *y = (N *)to + i; \
	narrow_##NAME(y, &a##0); narrow_##NAME(y + LANES, &a##1); \
	narrow_##NAME(y + 2 * LANES, &a##2); narrow_##NAME(y + 3 * LANES, &a##3); \
} while (0)

#define LOAD_bf16(T, V, a) LOAD_PAIRS(bf16, uint16_t, a)
#define STORE_bf16(T, V, a) STORE_PAIRS(bf16, uint16_t, a)
#define LOAD_f16(T, V, a) LOAD_PAIRS(f16, uint16_t, a)
#define STORE_f16(T, V, a) STORE_PAIRS(f16, uint16_t, a)
#define LOAD_bf16_ordered(T, V, a) LOAD_ORDERED(bf16, uint16_t, a)
#ifdef UNWEAVE
#define STORE_bf16_ordered(T, V, a) do { \
	narrow_two_bf16((uint16_t *)to + i, a##0, a##1); \
	narrow_two_bf16((uint16_t *)to + i + 2 * LANES, a##2, a##3); \
} while (0)
#else
#define STORE_bf16_ordered(T, V, a) STORE_ORDERED(bf16, uint16_t, a)
#endif
#define LOAD_f16_ordered(T, V, a) LOAD_ORDERED(f16, uint16_t, a)
#define STORE_f16_ordered(T, V, a) STORE_ORDERED(f16, uint16_t, a)
#define LOAD_u8_ordered(T, V, a) LOAD_ORDERED(u8, uint8_t, a)
#define STORE_u8_ordered(T, V, a) STORE_ORDERED(u8, uint8_t, a)

/* Operations with scales go by blocks. */
enum { FORM_OWN, FORM_IN, FORM_OUT };

#define DEFINE_GROUPS_OF(NAME, T, UT, V, UV, MV, OP) \
DEFINE_GROUPS(NAME##_in, T, UT, V, UV, MV, OP, false, LOAD_OWN, STORE_##NAME##_ordered) \
DEFINE_GROUPS(NAME##_out, T, UT, V, UV, MV, OP, false, LOAD_##NAME##_ordered, STORE_OWN)
#ifdef WIDEN_F16
#define DEFINE_ALL_GROUPS(NAME, T, UT, V, UV, MV) \
DEFINE_GROUPS_OF(NAME, T, UT, V, UV, MV, SUM) \
DEFINE_GROUPS_OF(NAME, T, UT, V, UV, MV, PROD) \
DEFINE_GROUPS_OF(NAME, T, UT, V, UV, MV, MIN) \
DEFINE_GROUPS_OF(NAME, T, UT, V, UV, MV, MAX)
#define GROUPS_OF(NAME) { groups_##NAME##_SUM, groups_##NAME##_PROD, groups_##NAME##_MIN, groups_##NAME##_MAX }
#else /* what is rare goes by blocks: compilers take long for it */
#define DEFINE_ALL_GROUPS(NAME, T, UT, V, UV, MV) DEFINE_GROUPS_OF(NAME, T, UT, V, UV, MV, SUM)
#define GROUPS_OF(NAME) { groups_##NAME##_SUM }
#endif

DEFINE_GROUPS(bf16, float, float, v_f32, v_f32, v_i32, SUM, false, LOAD_bf16, STORE_bf16)
DEFINE_GROUPS(bf16, float, float, v_f32, v_f32, v_i32, PROD, false, LOAD_bf16, STORE_bf16)
DEFINE_GROUPS(f16, float, float, v_f32, v_f32, v_i32, SUM, false, LOAD_f16, STORE_f16)
DEFINE_GROUPS(f16, float, float, v_f32, v_f32, v_i32, PROD, false, LOAD_f16, STORE_f16)
DEFINE_ALL_GROUPS(bf16, float, float, v_f32, v_f32, v_i32)
DEFINE_ALL_GROUPS(f16, float, float, v_f32, v_f32, v_i32)
DEFINE_ALL_GROUPS(u8, int32_t, uint32_t, v_i32, v_u32, v_i32)

/* Halves in the order of their values, as integers without a sign: all bits turned over
   if that of the sign is set, else that one. Then `nans` is added or taken away, the
   number of NaN of one sign, so that all NaN come first, or last. */
INLINE void key_of_half(const uint16_t *from, uint16_t offset, v_u16 *key)
{
	const v_i16 bits = (v_i16)*(const v_u8 *)(const void *)from;

	*key = (v_u16)(bits ^ (bits >> 15 | (int16_t)0x8000)) + offset;
}

/* If the result is a NaN, all bits are set. */
INLINE void half_of_key(uint16_t *to, const v_u16 *key, uint16_t offset, bool least, uint16_t nans)
{
	const v_u16 nan = least ? (v_u16)(*key < (uint16_t)(2 * nans)) : (v_u16)(*key > (uint16_t)~(2 * nans));
	const v_i16 bits = (v_i16)(*key - offset);

	*(v_u8 *)(void *)to = (v_u8)((v_u16)(bits ^ (~bits >> 15 | (int16_t)0x8000)) | nan);
}

/* Minimum or maximum; returns the first element that is left. */
INLINE size_t extreme_of_halves(const ddp_combination *f, size_t i, size_t end, bool least)
{
	enum { EACH = 2 * LANES };
	const uint16_t nans = f->type == DDP_F16 ? 0x3ff : 0x7f, offset = (uint16_t)(least ? nans : -nans);

	for (; i + 4 * EACH <= end; i += 4 * EACH) {
		const uint16_t *x = (const uint16_t *)f->src[0] + i;
		v_u16 a0, a1, a2, a3, b0, b1, b2, b3;
		key_of_half(x, offset, &a0);
		key_of_half(x + EACH, offset, &a1);
		key_of_half(x + 2 * EACH, offset, &a2);
		key_of_half(x + 3 * EACH, offset, &a3);
		for (int s = 1; s < f->nsrc; s++) {
			x = (const uint16_t *)f->src[s] + i;
			key_of_half(x, offset, &b0);
			key_of_half(x + EACH, offset, &b1);
			key_of_half(x + 2 * EACH, offset, &b2);
			key_of_half(x + 3 * EACH, offset, &b3);
			a0 = least ? (v_u16)LEAST(a0, b0) : (v_u16)MOST(a0, b0);
			a1 = least ? (v_u16)LEAST(a1, b1) : (v_u16)MOST(a1, b1);
			a2 = least ? (v_u16)LEAST(a2, b2) : (v_u16)MOST(a2, b2);
			a3 = least ? (v_u16)LEAST(a3, b3) : (v_u16)MOST(a3, b3);
		}
		for (int d = 0; d < f->ndst; d++) {
			uint16_t *y = (uint16_t *)f->dst[d] + i;
			half_of_key(y, &a0, offset, least, nans);
			half_of_key(y + EACH, &a1, offset, least, nans);
			half_of_key(y + 2 * EACH, &a2, offset, least, nans);
			half_of_key(y + 3 * EACH, &a3, offset, least, nans);
		}
	}
	return i;
}

KERNEL static size_t least_of_halves(const ddp_combination *f, size_t first, size_t end)
{
	return extreme_of_halves(f, first, end, true);
}

KERNEL static size_t most_of_halves(const ddp_combination *f, size_t first, size_t end)
{
	return extreme_of_halves(f, first, end, false);
}

/* Processors have no product of 8 bits. */
#define OP_PROD8(T, UT, V, UV, MV, a, b) \
	((V)(((v_u16)(a) * (v_u16)(b) & 0xff) | ((v_u16)(a) >> 8) * ((v_u16)(b) & 0xff00)))

DEFINE_COMBINE(uint8_t, uint8_t, v_u8, v_u8, v_i8, SUM, false)
DEFINE_COMBINE(uint8_t, uint8_t, v_u8, v_u8, v_i8, PROD8, false)
DEFINE_COMBINE(uint8_t, uint8_t, v_u8, v_u8, v_i8, MIN, false)
DEFINE_COMBINE(uint8_t, uint8_t, v_u8, v_u8, v_i8, MAX, false)
DEFINE_COMBINE(int8_t, uint8_t, v_i8, v_u8, v_i8, MIN, false)
DEFINE_COMBINE(int8_t, uint8_t, v_i8, v_u8, v_i8, MAX, false)
DEFINE_BITWISE(uint8_t, uint8_t, v_u8, v_u8, v_i8)

enum { MEAN_SOURCES = 128, MEAN_DIVISOR = 1 << 15 };

static inline bool can_be_mean(const ddp_combination *f)
{
	return f->scale == NULL && f->nsrc <= MEAN_SOURCES && f->divisor >= 2 && f->divisor <= MEAN_DIVISOR;
}

/* One that 8 bits do not hold is cut. */
#define MEAN(even, odd) \
	((v_u8)((((v_u16)UPPER_PRODUCT(even, factor) >> (uint16_t)shift) & 0xff) | \
	        ((v_u16)UPPER_PRODUCT(odd, factor) >> (uint16_t)shift) << 8))

/* The mean of up to 128 sources: their sum n has 15 bits, and n / d, cut, is
   n * m >> 15 + l, with l = ceil(log2(d)) and m = floor(2^(15 + l) / d) + 1
   (Granlund and Montgomery, "Division by Invariant Integers", 1994). d > 1. */
KERNEL static size_t mean_of_u8(const ddp_combination *f, size_t i, size_t end)
{
	const uint32_t divisor = (uint32_t)f->divisor;
	uint32_t shift = 15;

	while (divisor > 1u << (shift - 15))
		shift++;
	const uint32_t factor = (uint32_t)(((uint64_t)1 << shift) / divisor) + 1;
	shift -= 16;
	for (; i + 2 * VECTOR_BYTES <= end; i += 2 * VECTOR_BYTES) {
		v_u16 even0 = { 0 }, odd0 = { 0 }, even1 = { 0 }, odd1 = { 0 };
		for (int s = 0; s < f->nsrc; s++) {
			const v_u8 *x = (const v_u8 *)((const uint8_t *)f->src[s] + i);
			const v_u16 x0 = (v_u16)x[0], x1 = (v_u16)x[1];
			even0 += x0 & 0xff;
			odd0 += x0 >> 8;
			even1 += x1 & 0xff;
			odd1 += x1 >> 8;
		}
		const v_u8 mean0 = MEAN(even0, odd0), mean1 = MEAN(even1, odd1);
		for (int d = 0; d < f->ndst; d++) {
			v_u8 *y = (v_u8 *)((uint8_t *)f->dst[d] + i);
			y[0] = mean0;
			y[1] = mean1;
		}
	}
	return i;
}

/* ---- a block of accumulators at a time, in the elements' order --------------------- */

#define DEFINE_LOAD(NAME, N, T, V, WIDE) \
KERNEL static void load_##NAME(T *acc, const void *src, size_t n) \
{ \
	const N *x = src; \
	size_t i = 0; \
	for (; i + LANES <= n; i += LANES) \
		widen_##NAME(x + i, (V *)(void *)(acc + i)); \
	for (; i < n; i++) \
		acc[i] = WIDE(x[i]); \
}
#define DEFINE_BLOCKS(NAME, N, T, V, WIDE, NARROW) \
DEFINE_LOAD(NAME, N, T, V, WIDE) \
KERNEL static void store_##NAME(void *dst, const T *acc, size_t n) \
{ \
	N *y = dst; \
	size_t i = 0; \
	for (; i + LANES <= n; i += LANES) \
		narrow_##NAME(y + i, (const V *)(const void *)(acc + i)); \
	for (; i < n; i++) \
		y[i] = NARROW(acc[i]); \
}

DEFINE_BLOCKS(bf16, uint16_t, float, v_f32, ddp_bf16_to_float, ddp_bf16_from_float)
DEFINE_BLOCKS(f16, uint16_t, float, v_f32, ddp_f16_to_float, ddp_f16_from_float)
DEFINE_BLOCKS(u8, uint8_t, int32_t, v_i32, (int32_t), (uint8_t))
DEFINE_LOAD(i8, int8_t, int32_t, v_i32, (int32_t))
