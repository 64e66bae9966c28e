/* SPDX-License-Identifier: Apache-2.0 */
/* comm/ops/kernels for x86-64 with AVX512_FP16: what is of 16 bits all along, without a
   detour by 32; all else is kernels_avx512's. Chosen at run time. The bits are those of
   the other instruction sets:

   - A sum, or a product, of two f16 that is rounded to f32 and then to f16 is the exact one
     rounded once, since f32 has more than twice the digits (Figueroa 1995). So is its
     half, a quarter, ..., unless that is subnormal, or the sum is infinite: then the
     group is combined by the others.
   - Numbers of 16 bits with a sign, an exponent and a fraction are in the same order
     whatever bits are the exponent's. So minima and maxima of bf16 are those of f16 of the
     same bits, if none is a NaN as f16. */
#include "comm/ops/kernels_table.h"

#ifdef DDP_HAS_KERNELS_AVX512FP16
#include <immintrin.h>

/* These kernels use no intrinsics, because clang 14 has none in a function of its own target. */
#define KERNEL __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512fp16")))
#define INLINE KERNEL __attribute__((always_inline)) static inline

enum { EACH = 32, GROUP = 4 * EACH };

#define DEFINE_INSTRUCTION(NAME) \
INLINE __m512i NAME(__m512i a, __m512i b) \
{ \
	__m512i result; \
	__asm__("v" #NAME " %2, %1, %0" : "=v"(result) : "v"(a), "v"(b)); \
	return result; \
}

DEFINE_INSTRUCTION(addph)
DEFINE_INSTRUCTION(mulph)
DEFINE_INSTRUCTION(minph)
DEFINE_INSTRUCTION(maxph)

/* Lanes in which either is a NaN. */
INLINE __mmask32 unordered(__m512i a, __m512i b)
{
	__mmask32 result;

	__asm__("vcmpph %3, %2, %1, %0" : "=k"(result) : "v"(a), "v"(b), "i"(_CMP_UNORD_Q));
	return result;
}

INLINE __mmask32 nan_infinite_or_subnormal(__m512i a)
{
	__mmask32 result;

	__asm__("vfpclassph %2, %1, %0" : "=k"(result) : "v"(a), "i"(0x01 | 0x80 | 0x08 | 0x10 | 0x20));
	return result;
}

/* A combination of two vectors; lanes for which it is not right join *special. */
typedef __m512i (*pair_fn)(__m512i a, __m512i b, __m512i inverse, __mmask32 *special);

INLINE __m512i sum(__m512i a, __m512i b, __m512i inverse, __mmask32 *special)
{
	(void)inverse;
	(void)special;
	return addph(a, b);
}

INLINE __m512i product(__m512i a, __m512i b, __m512i inverse, __mmask32 *special)
{
	(void)inverse;
	(void)special;
	return mulph(a, b);
}

INLINE __m512i mean(__m512i a, __m512i b, __m512i inverse, __mmask32 *special)
{
	const __m512i x = mulph(addph(a, b), inverse);

	*special |= nan_infinite_or_subnormal(x);
	return x;
}

/* If both are zeros, the instruction takes the second operand. */
INLINE __m512i least(__m512i a, __m512i b, __m512i inverse, __mmask32 *special)
{
	(void)inverse;
	*special |= unordered(a, b);
	return _mm512_or_si512(minph(a, b), minph(b, a));
}

INLINE __m512i most(__m512i a, __m512i b, __m512i inverse, __mmask32 *special)
{
	(void)inverse;
	*special |= unordered(a, b);
	return _mm512_and_si512(maxph(a, b), maxph(b, a));
}

INLINE __m512i load(const ddp_combination *f, int s, size_t i)
{
	return _mm512_loadu_si512((const uint16_t *)f->src[s] + i);
}

/* Whole groups; returns the first element that is left. */
INLINE size_t combine_halves(const ddp_combination *f, size_t i, size_t end, pair_fn pair)
{
	const uint16_t one_divided = ddp_f16_from_float((float)(1 / ddp_divisor(f)));
	const __m512i inverse = _mm512_set1_epi16((short)one_divided);

	for (; i + GROUP <= end; i += GROUP) {
		__m512i a = load(f, 0, i), b = load(f, 0, i + EACH);
		__m512i c = load(f, 0, i + 2 * EACH), d = load(f, 0, i + 3 * EACH);
		__mmask32 special = 0;
		for (int s = 1; s < f->nsrc; s++) {
			a = pair(a, load(f, s, i), inverse, &special);
			b = pair(b, load(f, s, i + EACH), inverse, &special);
			c = pair(c, load(f, s, i + 2 * EACH), inverse, &special);
			d = pair(d, load(f, s, i + 3 * EACH), inverse, &special);
		}
		if (special != 0) {
			ddp_kernels_avx512.combine(f, i, GROUP);
			continue;
		}
		for (int k = 0; k < f->ndst; k++) {
			uint16_t *to = (uint16_t *)f->dst[k] + i;
			_mm512_storeu_si512(to, a);
			_mm512_storeu_si512(to + EACH, b);
			_mm512_storeu_si512(to + 2 * EACH, c);
			_mm512_storeu_si512(to + 3 * EACH, d);
		}
	}
	return i;
}

KERNEL static size_t sum_of_halves(const ddp_combination *f, size_t i, size_t end)
{
	return combine_halves(f, i, end, sum);
}

KERNEL static size_t product_of_halves(const ddp_combination *f, size_t i, size_t end)
{
	return combine_halves(f, i, end, product);
}

KERNEL static size_t mean_of_halves(const ddp_combination *f, size_t i, size_t end)
{
	return combine_halves(f, i, end, mean);
}

KERNEL static size_t least_of_halves(const ddp_combination *f, size_t i, size_t end)
{
	return combine_halves(f, i, end, least);
}

KERNEL static size_t most_of_halves(const ddp_combination *f, size_t i, size_t end)
{
	return combine_halves(f, i, end, most);
}

/* One whose inverse is an ordinary f16. */
static bool is_power_of_two(double divisor)
{
	const uint32_t d = divisor >= 1 && divisor <= 1 << 14 ? (uint32_t)divisor : 0;

	return d != 0 && d == divisor && (d & (d - 1)) == 0;
}

static size_t (*choose(const ddp_combination *f))(const ddp_combination *, size_t, size_t)
{
	if ((f->type != DDP_F16 && f->type != DDP_BF16) || f->wide_src || f->wide_dst || f->scale != NULL || f->nsrc < 2)
		return NULL;
	if (f->op == DDP_MIN || f->op == DDP_MAX)
		return f->divisor != 0 ? NULL : f->op == DDP_MIN ? least_of_halves : most_of_halves;
	if (f->type == DDP_BF16 || f->nsrc > 2)
		return NULL;
	if (f->divisor != 0)
		return f->op != DDP_PROD && is_power_of_two(f->divisor) ? mean_of_halves : NULL;
	return f->op == DDP_PROD ? product_of_halves : sum_of_halves;
}

static void combine(const ddp_combination *f, size_t first, size_t count)
{
	size_t (*halves)(const ddp_combination *, size_t, size_t) = choose(f);
	const size_t end = first + count;

	if (halves != NULL && !ddp_is_far(f, count))
		first = halves(f, first, end);
	ddp_kernels_avx512.combine(f, first, end - first);
}

static void take(void *dst, void *src, size_t bytes)
{
	ddp_kernels_avx512.take(dst, src, bytes);
}

const ddp_kernel_table ddp_kernels_avx512fp16 = { .name = "AVX-512 with FP16", .combine = combine, .take = take };
#else
typedef int ddp_kernels_avx512fp16_is_for_x86_64;
#endif
