/*
 * The part of comm/ops/kernels_template.h for f16, bf16 and u8. Without explicit
 * vectors gcc's -O2 leaves these loops scalar, at a tenth of the speed and less.
 *
 * Elements are not brought into order where that is of no consequence: a vector
 * of 32-bit lanes holds two elements of 16 bits in each, or four of 8.
 */
#define INLINE KERNEL __attribute__((always_inline)) static inline

/* Of 8 elements, in their order. */
typedef uint16_t v_u16x8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t v_u8x8 __attribute__((vector_size(8), aligned(1), may_alias));

/* By lane; in a mask all bits of a lane are set, or none. */
#ifdef KERNEL_F16C
#define SELECT(mask, yes, no) ((v_u32)_mm256_blendv_epi8((__m256i)(no), (__m256i)(yes), (__m256i)(mask)))
#else
#define SELECT(mask, yes, no) (((yes) & (v_u32)(mask)) | ((no) & ~(v_u32)(mask)))
#endif

/* ---- conversion: 16 bits in each lane ------------------------------------------- */

/* As ddp_bf16_from_float(); the result is in the upper half of each lane. */
INLINE void round_bf16(v_u32 *x)
{
	const v_u32 bits = *x;

	*x = SELECT((v_f32)bits != (v_f32)bits, bits | 0x400000, bits + 0x7fff + (bits >> 16 & 1));
}

#ifndef KERNEL_F16C
/* As ddp_f16_to_float(); the upper halves are zero. */
INLINE void f16_to_f32(v_u32 *x)
{
	const v_u32 sign = (*x & 0x8000) << 16, magnitude = *x & 0x7fff;
	const v_u32 ordinary = (v_u32)((v_f32)(magnitude << 13) * 0x1p112f);

	const v_u32 special = 0x7f800000 | (magnitude & 0x3ff) << 13 |
		((v_u32)(magnitude > 0x7c00) & 0x400000);

	*x = sign | SELECT(magnitude >= 0x7c00, special, ordinary);
}

/* As ddp_f16_from_float(); the result is in the lower half of each lane. */
INLINE void f32_to_f16(v_u32 *x)
{
	const v_u32 sign = *x >> 16 & 0x8000, magnitude = *x & 0x7fffffff;
	const v_u32 infinite = { 0x7c00, 0x7c00, 0x7c00, 0x7c00, 0x7c00, 0x7c00, 0x7c00, 0x7c00 };
	const v_u32 subnormal = (v_u32)((v_f32)magnitude + 0.5f) - 0x3f000000;
	const v_u32 normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
	const v_u32 finite = SELECT(magnitude < 0x38800000, subnormal, normal);
	const v_u32 number = SELECT(magnitude < 0x477ff000, finite, infinite);

	*x = sign | SELECT(magnitude > 0x7f800000, 0x7e00 | (magnitude >> 13 & 0x3ff), number);
}
#endif

/* 16 elements, two vectors of accumulators. */
INLINE void widen_bf16(const char *from, v_f32 *a, v_f32 *b)
{
	const v_u32 x = (v_u32)*(const v_u8 *)from;

	*a = (v_f32)(x << 16);
	*b = (v_f32)(x & 0xffff0000);
}

INLINE void narrow_bf16(char *to, const v_f32 *a, const v_f32 *b)
{
	v_u32 low = (v_u32)*a, high = (v_u32)*b;

	round_bf16(&low);
	round_bf16(&high);
	*(v_u8 *)to = (v_u8)(low >> 16 | (high & 0xffff0000));
}

INLINE void widen_f16(const char *from, v_f32 *a, v_f32 *b)
{
#ifdef KERNEL_F16C
	*a = (v_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
	*b = (v_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + 16)));
#else
	const v_u32 x = (v_u32)*(const v_u8 *)from;
	v_u32 low = x & 0xffff, high = x >> 16;

	f16_to_f32(&low);
	f16_to_f32(&high);
	*a = (v_f32)low;
	*b = (v_f32)high;
#endif
}

INLINE void narrow_f16(char *to, const v_f32 *a, const v_f32 *b)
{
#ifdef KERNEL_F16C
	_mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph((__m256)*a, _MM_FROUND_TO_NEAREST_INT));
	_mm_storeu_si128((__m128i *)(void *)(to + 16), _mm256_cvtps_ph((__m256)*b, _MM_FROUND_TO_NEAREST_INT));
#else
	v_u32 low = (v_u32)*a, high = (v_u32)*b;

	f32_to_f16(&low);
	f32_to_f16(&high);
	*(v_u8 *)to = (v_u8)(low | high << 16);
#endif
}

/* ---- combinations that keep accumulators in registers ------------------------------------ */

/* Combines 32 elements at a time; returns the first that is left. */
#define DEFINE_HALF_COMBINE(NAME, OP) \
KERNEL static size_t combine_##NAME##_##OP(const ddp_combination *f, size_t i, size_t end) \
{ \
	for (; i + 32 <= end; i += 32) { \
		const char *x = (const char *)f->src[0] + 2 * i; \
		v_f32 a0, a1, a2, a3, b0, b1, b2, b3; \
		widen_##NAME(x, &a0, &a1); \
		widen_##NAME(x + 32, &a2, &a3); \
		if (f->scale != NULL) { \
			const float k = (float)f->scale[0]; \
			a0 *= k; a1 *= k; a2 *= k; a3 *= k; \
		} \
		for (int s = 1; s < f->nsrc; s++) { \
			x = (const char *)f->src[s] + 2 * i; \
			widen_##NAME(x, &b0, &b1); \
			widen_##NAME(x + 32, &b2, &b3); \
			if (f->scale != NULL) { \
				const float k = (float)f->scale[s]; \
				b0 *= k; b1 *= k; b2 *= k; b3 *= k; \
			} \
			a0 = OP_##OP(float, float, v_f32, v_f32, v_i32, a0, b0); \
			a1 = OP_##OP(float, float, v_f32, v_f32, v_i32, a1, b1); \
			a2 = OP_##OP(float, float, v_f32, v_f32, v_i32, a2, b2); \
			a3 = OP_##OP(float, float, v_f32, v_f32, v_i32, a3, b3); \
		} \
		if (f->divisor != 0) { \
			const float k = (float)f->divisor; \
			a0 /= k; a1 /= k; a2 /= k; a3 /= k; \
		} \
		for (int d = 0; d < f->ndst; d++) { \
			char *y = (char *)f->dst[d] + 2 * i; \
			narrow_##NAME(y, &a0, &a1); \
			narrow_##NAME(y + 32, &a2, &a3); \
		} \
	} \
	return i; \
}

#define DEFINE_HALF_COMBINES(NAME) \
DEFINE_HALF_COMBINE(NAME, SUM) \
DEFINE_HALF_COMBINE(NAME, PROD) \
DEFINE_HALF_COMBINE(NAME, MIN) \
DEFINE_HALF_COMBINE(NAME, MAX)

DEFINE_HALF_COMBINES(bf16)
DEFINE_HALF_COMBINES(f16)

/* Sums that are cut to 8 bits are sums of 8 bits; so are products and extremes. */
DEFINE_COMBINES(uint8_t, uint8_t, v_u8, v_u8, v_i8, false)

enum { MEAN_SOURCES = 128, MEAN_DIVISOR = 1 << 15 };

#ifdef KERNEL_F16C
#define UPPER_PRODUCT(x, factor) ((v_u16)_mm256_mulhi_epu16((__m256i)(x), _mm256_set1_epi16((short)(factor))))
#else
#define UPPER_PRODUCT(x, factor) \
	((v_u16)(((v_u32)(x) & 0xffff) * (factor) >> 16 | (((v_u32)(x) >> 16) * (factor) & 0xffff0000)))
#endif

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
	for (; i + 32 <= end; i += 32) {
		v_u16 even = { 0 }, odd = { 0 };
		for (int s = 0; s < f->nsrc; s++) {
			const v_u16 x = (v_u16)*(const v_u8 *)((const uint8_t *)f->src[s] + i);
			even += x & 0xff;
			odd += x >> 8;
		}
		even = UPPER_PRODUCT(even, factor) >> (uint16_t)shift;
		odd = UPPER_PRODUCT(odd, factor) >> (uint16_t)shift;
		/* A mean that 8 bits do not hold is cut. */
		const v_u8 mean = (v_u8)((even & 0xff) | odd << 8);
		for (int d = 0; d < f->ndst; d++)
			*(v_u8 *)((uint8_t *)f->dst[d] + i) = mean;
	}
	return i;
}

/* ---- a block of accumulators at a time, in the elements' order --------------------- */

/* 8 elements of 16 or 8 bits; compilers take many instructions for it. */
#ifdef KERNEL_F16C
#define LOAD_U16(x) ((v_u32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(x))))
#define LOAD_U8(x) ((v_u32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(x))))
#else
#define LOAD_U16(x) __builtin_convertvector(*(const v_u16x8 *)(const void *)(x), v_u32)
#define LOAD_U8(x) __builtin_convertvector(*(const v_u8x8 *)(const void *)(x), v_u32)
#endif

KERNEL static void load_bf16(float *acc, const void *src, size_t n)
{
	const uint16_t *x = src;
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		*(v_u32 *)(void *)(acc + i) = LOAD_U16(x + i) << 16;
	for (; i < n; i++)
		acc[i] = ddp_bf16_to_float(x[i]);
}

KERNEL static void store_bf16(void *dst, const float *acc, size_t n)
{
	uint16_t *y = dst;
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		v_u32 x = *(const v_u32 *)(const void *)(acc + i);
		round_bf16(&x);
		*(v_u16x8 *)(void *)(y + i) = __builtin_convertvector(x >> 16, v_u16x8);
	}
	for (; i < n; i++)
		y[i] = ddp_bf16_from_float(acc[i]);
}

KERNEL static void load_f16(float *acc, const void *src, size_t n)
{
	const uint16_t *x = src;
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
#ifdef KERNEL_F16C
		_mm256_storeu_ps(acc + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
#else
		v_u32 bits = LOAD_U16(x + i);
		f16_to_f32(&bits);
		*(v_u32 *)(void *)(acc + i) = bits;
#endif
	}
	for (; i < n; i++)
		acc[i] = ddp_f16_to_float(x[i]);
}

KERNEL static void store_f16(void *dst, const float *acc, size_t n)
{
	uint16_t *y = dst;
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
#ifdef KERNEL_F16C
		_mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(acc + i),
		                                                             _MM_FROUND_TO_NEAREST_INT));
#else
		v_u32 bits = *(const v_u32 *)(const void *)(acc + i);
		f32_to_f16(&bits);
		*(v_u16x8 *)(void *)(y + i) = __builtin_convertvector(bits, v_u16x8);
#endif
	}
	for (; i < n; i++)
		y[i] = ddp_f16_from_float(acc[i]);
}

KERNEL static void load_u8(int32_t *acc, const void *src, size_t n)
{
	const uint8_t *x = src;
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		*(v_u32 *)(void *)(acc + i) = LOAD_U8(x + i);
	for (; i < n; i++)
		acc[i] = x[i];
}

KERNEL static void store_u8(void *dst, const int32_t *acc, size_t n)
{
	uint8_t *y = dst;
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		*(v_u8x8 *)(y + i) = __builtin_convertvector(*(const v_i32 *)(const void *)(acc + i), v_u8x8);
	for (; i < n; i++)
		y[i] = (uint8_t)acc[i];
}
