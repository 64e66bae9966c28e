/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan bare */
/* comm/ops/kernels: conversions of 16-bit types, and equal results of all instruction sets. */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/api.h"
#include "comm/ops/kernels_table.h"
#include "tests/support/halves.h"
#include "tests/support/test.h"

TEST(every_f16_is_decoded_and_encoded)
{
	for (uint32_t bits = 0; bits < 0x10000; bits++) {
		float x = ddp_f16_to_float((uint16_t)bits);
		if ((bits & 0x7fff) > 0x7c00) {
			assert_true(isnan(x) && isnan(ddp_f16_to_float(ddp_f16_from_float(x))));
			continue;
		}
		if ((bits & 0x7fff) == 0x7c00)
			assert_true(isinf(x) && (signbit(x) != 0) == (bits >> 15 != 0));
		else
			assert_true((double)x == decode_half((uint16_t)bits, 10, 15));
		assert_int_equal(ddp_f16_from_float(x), bits);
	}
}

TEST(between_two_f16_the_nearest_is_taken)
{
	for (uint32_t bits = 0; bits < 0x7bff; bits++) {
		double low = decode_half((uint16_t)bits, 10, 15), high = decode_half((uint16_t)(bits + 1), 10, 15);
		float middle = (float)((low + high) / 2);
		assert_int_equal(ddp_f16_from_float(middle), bits + (bits & 1));
		assert_int_equal(ddp_f16_from_float(nextafterf(middle, 0)), bits);
		assert_int_equal(ddp_f16_from_float(nextafterf(middle, 1e6f)), bits + 1);
	}
	assert_int_equal(ddp_f16_from_float(65519.0f), 0x7bff);
	assert_int_equal(ddp_f16_from_float(65520.0f), 0x7c00);
	assert_int_equal(ddp_f16_from_float(-1e30f), 0xfc00);
}

TEST(bf16_is_rounded_to_even_and_nan_stays)
{
	for (uint32_t bits = 0; bits < 0x7f80; bits++) {
		float x = ddp_bf16_to_float((uint16_t)bits);
		assert_int_equal(ddp_bf16_from_float(x), bits);
		float middle = ddp_float_of_bits(bits << 16 | 0x8000);
		assert_int_equal(ddp_bf16_from_float(middle), bits + (bits & 1));
	}
	assert_true(isnan(ddp_bf16_to_float(ddp_bf16_from_float(NAN))));
	/* A NaN whose upper half alone would be infinity. */
	assert_true(isnan(ddp_bf16_to_float(ddp_bf16_from_float(ddp_float_of_bits(0x7f800001)))));
}

enum { HALVES = 0x10000 };

/* Through the vectors of all levels: each half, and what is between it and the next. */
static void expect_conversions(ddp_type type, float (*widened)(uint16_t), uint16_t (*rounded)(float))
{
	static uint16_t halves[HALVES], from_wide[HALVES];
	static float middles[HALVES], wide[HALVES];
	const void *src[1];
	void *dst[1];
	ddp_combination c = { .type = type, .nsrc = 1, .src = src, .ndst = 1, .dst = dst };

	for (size_t i = 0; i < HALVES; i++) {
		const float next = widened((uint16_t)(i + 1));
		halves[i] = (uint16_t)i;
		middles[i] = widened(halves[i]);
		if (isfinite(middles[i]) && isfinite(next))
			middles[i] = (middles[i] + next) / 2;
	}
	c.wide_dst = true;
	src[0] = halves;
	dst[0] = wide;
	ddp_combine(&c, 0, HALVES);
	c.wide_dst = false;
	c.wide_src = true;
	src[0] = middles;
	dst[0] = from_wide;
	ddp_combine(&c, 0, HALVES);
	for (size_t i = 0; i < HALVES; i++) {
		const float want = widened((uint16_t)i), back = widened(from_wide[i]);
		assert_true(isnan(want) ? isnan(wide[i]) : memcmp(&want, &wide[i], sizeof(want)) == 0);
		assert_true(isnan(middles[i]) ? isnan(back) : rounded(middles[i]) == from_wide[i]);
	}
}

TEST(every_half_is_converted_alike_by_all_instruction_sets)
{
	for (int level = 0; level < DDP_KERNEL_LEVELS; level++) {
		if (ddp_kernels_use(level) == NULL)
			continue;
		expect_conversions(DDP_F16, ddp_f16_to_float, ddp_f16_from_float);
		expect_conversions(DDP_BF16, ddp_bf16_to_float, ddp_bf16_from_float);
	}
}

/* ---- minimum and maximum of special values --------------------------------------------- */

enum { LENGTH = 77 }; /* vectors and a tail */

static void put(ddp_type type, void *memory, size_t i, double x)
{
	switch (type) {
	case DDP_F32: ((float *)memory)[i] = (float)x; break;
	case DDP_F64: ((double *)memory)[i] = x; break;
	case DDP_F16: ((uint16_t *)memory)[i] = ddp_f16_from_float((float)x); break;
	default: ((uint16_t *)memory)[i] = ddp_bf16_from_float((float)x); break;
	}
}

static double get(ddp_type type, const void *memory, size_t i)
{
	switch (type) {
	case DDP_F32: return ((const float *)memory)[i];
	case DDP_F64: return ((const double *)memory)[i];
	case DDP_F16: return ddp_f16_to_float(((const uint16_t *)memory)[i]);
	default: return ddp_bf16_to_float(((const uint16_t *)memory)[i]);
	}
}

/* Combines two values in every lane, in both orders, with all kernels. */
static void expect_extreme(ddp_type type, ddp_op op, double a, double b, double expected)
{
	double sources[2][LENGTH], result[LENGTH];

	for (int order = 0; order < 2; order++) {
		const void *src[2] = { sources[order], sources[1 - order] };
		void *dst[1] = { result };
		const ddp_combination combination = { .type = type, .op = op, .nsrc = 2, .src = src, .ndst = 1, .dst = dst };
		for (size_t i = 0; i < LENGTH; i++) {
			put(type, sources[0], i, a);
			put(type, sources[1], i, b);
		}
		for (int level = 0; level < DDP_KERNEL_LEVELS; level++) {
			if (ddp_kernels_use(level) == NULL)
				continue;
			ddp_combine(&combination, 0, LENGTH);
			for (size_t i = 0; i < LENGTH; i++) {
				double have = get(type, result, i);
				if (isnan(expected))
					assert_true(isnan(have));
				else
					assert_true(have == expected && signbit(have) == signbit(expected));
			}
		}
	}
}

TEST(minimum_and_maximum_are_those_of_ieee_754)
{
	static const ddp_type types[] = { DDP_F32, DDP_F64, DDP_F16, DDP_BF16 };

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		for (ddp_op op = DDP_MIN; op <= DDP_MAX; op++) {
			expect_extreme(types[t], op, NAN, 1, NAN);
			expect_extreme(types[t], op, -NAN, -INFINITY, NAN);
			expect_extreme(types[t], op, NAN, INFINITY, NAN);
			expect_extreme(types[t], op, NAN, 0, NAN);
			expect_extreme(types[t], op, NAN, NAN, NAN);
		}
		expect_extreme(types[t], DDP_MIN, 0.0, -0.0, -0.0);
		expect_extreme(types[t], DDP_MAX, 0.0, -0.0, 0.0);
		expect_extreme(types[t], DDP_MIN, -INFINITY, 2, -INFINITY);
		expect_extreme(types[t], DDP_MAX, -INFINITY, 2, 2);
		expect_extreme(types[t], DDP_MIN, -3, 2, -3);
		expect_extreme(types[t], DDP_MAX, -3, -2, -2);
		expect_extreme(types[t], DDP_MAX, -2, -2, -2);
	}
}

/* ---- pairs of halves -------------------------------------------------------------------- */

/* Each half with others: the next ones, those of the other sign, and scattered ones. */
static void make_partners(uint16_t *partners, unsigned int round)
{
	static const uint16_t turned[] = { 0x0000, 0x8000, 0x0001, 0x8001, 0x8010, 0x0400, 0x8200, 0x7fff };

	for (uint32_t i = 0; i < HALVES; i++)
		partners[i] = (uint16_t)(round < 8 ? i ^ turned[round] : i * (2 * round + 40503u) + round * 977u);
}

static void expect_same_halves(const ddp_combination *f, const uint16_t *have, const uint16_t *want)
{
	for (size_t i = 0; i < HALVES; i++) {
		if (have[i] != want[i] && !(isnan(get(f->type, have, i)) && isnan(get(f->type, want, i))))
			fail_msg("%s %s, divided by %g, of %#x and %#x: %#x, not %#x", ddp_type_name(f->type),
			         ddp_op_name(f->op), f->divisor, ((const uint16_t *)f->src[0])[i],
			         ((const uint16_t *)f->src[1])[i], have[i], want[i]);
	}
}

TEST(pairs_of_halves_are_combined_alike_by_all_instruction_sets)
{
	static const struct { ddp_op op; double divisor; } ways[] = {
		{ DDP_SUM, 0 }, { DDP_PROD, 0 }, { DDP_AVG, 2 }, { DDP_AVG, 64 }, { DDP_MIN, 0 }, { DDP_MAX, 0 },
	};
	static uint16_t all[HALVES], partners[HALVES], want[HALVES], have[HALVES];
	const void *src[2] = { all, partners };

	for (uint32_t i = 0; i < HALVES; i++)
		all[i] = (uint16_t)i;
	for (unsigned int round = 0; round < 12; round++) {
		make_partners(partners, round);
		for (size_t w = 0; w < 2 * sizeof(ways) / sizeof(ways[0]); w++) {
			ddp_combination f = { .type = w % 2 == 0 ? DDP_F16 : DDP_BF16, .op = ways[w / 2].op,
			                      .divisor = ways[w / 2].divisor, .nsrc = 2, .src = src, .ndst = 1 };
			for (int level = 0; level < DDP_KERNEL_LEVELS; level++) {
				void *dst[1] = { level == 0 ? want : have };
				f.dst = dst;
				if (ddp_kernels_use(level) == NULL)
					continue;
				ddp_combine(&f, 0, HALVES);
				if (level > 0)
					expect_same_halves(&f, have, want);
			}
		}
	}
}

/* ---- scaled integers -------------------------------------------------------------------- */

static int64_t scaled_i64(int64_t x, double scale)
{
	const int64_t zero = 0;
	const double scales[2] = { scale, 1 };
	const void *src[2] = { &x, &zero };
	int64_t result;
	void *dst[1] = { &result };
	const ddp_combination combination = { .type = DDP_I64, .op = DDP_SUM, .nsrc = 2, .src = src, .scale = scales,
	                        .ndst = 1, .dst = dst };

	ddp_combine(&combination, 0, 1);
	return result;
}

static int32_t scaled_i32(int32_t x, double scale)
{
	const void *src[1] = { &x };
	int32_t result;
	void *dst[1] = { &result };
	const ddp_combination combination = { .type = DDP_I32, .op = DDP_MAX, .nsrc = 1, .src = src, .scale = &scale,
	                        .ndst = 1, .dst = dst };

	ddp_combine(&combination, 0, 1);
	return result;
}

/* 8 bits are limited as i32, in which they are accumulated. */
static uint8_t scaled_8(ddp_type type, uint8_t x, double scale)
{
	const void *src[1] = { &x };
	uint8_t result;
	void *dst[1] = { &result };
	const ddp_combination combination = { .type = type, .op = DDP_SUM, .nsrc = 1, .src = src, .scale = &scale,
	                                      .ndst = 1, .dst = dst };

	ddp_combine(&combination, 0, 1);
	return result;
}

TEST(scaled_integers_stay_in_range)
{
	assert_int_equal((int8_t)scaled_8(DDP_I8, 100, 1.5), 150 - 256);
	assert_int_equal((int8_t)scaled_8(DDP_I8, (uint8_t)-100, 0.5), -50);
	assert_int_equal((int8_t)scaled_8(DDP_I8, 100, 1e300), -1); /* the low bits of INT32_MAX */
	assert_int_equal(scaled_8(DDP_U8, 200, 1.5), 300 - 256);
	assert_true(scaled_i64(INT64_MAX, 2) == INT64_MAX);
	assert_true(scaled_i64(INT64_MAX, 0.9999999999999999999) == INT64_MAX);
	assert_true(scaled_i64(INT64_MAX, -2) == INT64_MIN);
	assert_true(scaled_i64(INT64_MIN, 1.5) == INT64_MIN);
	assert_true(scaled_i64(INT64_MIN, -1) == INT64_MAX);
	assert_true(scaled_i64(-7, 0.5) == -3);
	/* More digits than a double has: untouched by another rank's scale. */
	assert_true(scaled_i64(INT64_MAX - 1, 1) == INT64_MAX - 1);
	assert_true(scaled_i32(INT32_MAX, 1e300) == INT32_MAX);
	assert_true(scaled_i32(INT32_MIN, 3) == INT32_MIN);
	assert_true(scaled_i32(INT32_MIN, -1) == INT32_MAX);
	assert_true(scaled_i32(7, -0.5) == -3);
}

enum { COUNT = 1003, SOURCES = 3 };

/* Values that are ordinary in every type. */
static void fill(ddp_type type, void *memory, size_t count, unsigned int seed)
{
	for (size_t i = 0; i < count; i++) {
		seed = seed * 1664525u + 1013904223u;
		float x = (float)(int)(seed >> 8 & 0xffff) / 997.0f - 20;
		switch (type) {
		case DDP_F32: ((float *)memory)[i] = x; break;
		case DDP_F64: ((double *)memory)[i] = x * 1.000001; break;
		case DDP_F16: ((uint16_t *)memory)[i] = ddp_f16_from_float(x); break;
		case DDP_BF16: ((uint16_t *)memory)[i] = ddp_bf16_from_float(x); break;
		case DDP_I32: ((int32_t *)memory)[i] = (int32_t)(x * 1000); break;
		case DDP_I64: ((int64_t *)memory)[i] = (int64_t)(x * 100000); break;
		case DDP_U8:
		case DDP_I8: ((uint8_t *)memory)[i] = (uint8_t)(seed >> 20); break;
		case DDP_BOOL: ((uint8_t *)memory)[i] = seed >> 20 & 1; break;
		}
	}
}

/* Of which a type has combinations. */
static ddp_op last_op(ddp_type type)
{
	return ddp_type_is_integer(type) || type == DDP_BOOL ? DDP_BXOR : DDP_MAX;
}

enum { SCALED = 1, WIDE_SRC = 2, WIDE_DST = 4, VARIANTS = 8 };

static void expect_same_at_all_levels(ddp_combination *f)
{
	static double results[2][COUNT + 1];

	for (int level = 0; level < DDP_KERNEL_LEVELS; level++) {
		const char *name = ddp_kernels_use(level);
		void *dst[1] = { results[level > 0] };
		if (name == NULL)
			continue;
		f->dst = dst;
		f->ndst = 1;
		memset(dst[0], 0, sizeof(results[0]));
		ddp_combine(f, 1, COUNT - 2);
		if (memcmp(results[0], dst[0], sizeof(results[0])) != 0)
			fail_msg("%s: %s %s, divided by %g%s%s%s: other bits", name, ddp_type_name(f->type),
			         ddp_op_name(f->op), f->divisor, f->scale != NULL ? ", scaled" : "",
			         f->wide_src ? ", from accumulators" : "", f->wide_dst ? ", to accumulators" : "");
	}
}

TEST(instruction_sets_agree)
{
	static double sources[SOURCES][COUNT + 1];
	static const double divisors[] = { 2, 3, 7, 1024 };
	const double scales[SOURCES] = { 0.5, 2, 1.25 };
	const void *src[SOURCES];

	for (int type = DDP_F32; type <= DDP_BOOL; type++) {
		for (int variant = 0; variant < VARIANTS; variant++) {
			ddp_combination f = { .type = (ddp_type)type, .nsrc = SOURCES, .src = src,
			                      .wide_src = (variant & WIDE_SRC) != 0, .wide_dst = (variant & WIDE_DST) != 0,
			                      .scale = (variant & SCALED) != 0 ? scales : NULL };
			for (int s = 0; s < SOURCES; s++) {
				src[s] = sources[s];
				fill(f.wide_src ? ddp_accumulator(f.type) : f.type, sources[s], COUNT,
				     (unsigned int)(type * 10 + s));
			}
			for (ddp_op op = DDP_SUM; op <= last_op(f.type); op++) {
				if ((f.scale != NULL && (ddp_op_is_bitwise(op) || f.type == DDP_BOOL)) || (f.type == DDP_BOOL && op == DDP_AVG))
					continue;
				f.op = op;
				for (size_t d = 0; d < (op == DDP_AVG ? sizeof(divisors) / sizeof(divisors[0]) : 1); d++) {
					f.divisor = op == DDP_AVG ? divisors[d] : 0;
					expect_same_at_all_levels(&f);
				}
			}
		}
	}
}

/* ---- all types against one element at a time ------------------------------------------------ */

enum { ODD_COUNT = 203, MOST_SOURCES = 130 };

static float f32_at(ddp_type type, const void *memory, size_t i)
{
	return type == DDP_F32 ? ((const float *)memory)[i] : (float)get(type, memory, i);
}

/* Sources are combined from the first to the last, in f32; rounded at the end. */
static float plain_float(const ddp_combination *f, size_t i)
{
	const ddp_type type = f->wide_src ? DDP_F32 : f->type;
	float acc = f32_at(type, f->src[0], i) * (f->scale != NULL ? (float)f->scale[0] : 1);

	for (int s = 1; s < f->nsrc; s++) {
		const float x = f32_at(type, f->src[s], i) * (f->scale != NULL ? (float)f->scale[s] : 1);
		const bool less = x < acc || (x == acc && signbit(x) != 0);
		if (f->op == DDP_SUM || f->op == DDP_AVG)
			acc += x;
		else if (f->op == DDP_PROD)
			acc *= x;
		else if (isnan(x) || isnan(acc))
			acc = NAN;
		else if (less == (f->op == DDP_MIN))
			acc = x;
	}
	return f->divisor != 0 ? acc / (float)f->divisor : acc;
}

static int64_t int_at(ddp_type type, const void *memory, size_t i)
{
	return type == DDP_U8 ? ((const uint8_t *)memory)[i] : type == DDP_I8 ? ((const int8_t *)memory)[i]
		: type == DDP_I32 ? ((const int32_t *)memory)[i] : ((const int64_t *)memory)[i];
}

static int64_t plain_int(const ddp_combination *f, size_t i)
{
	const ddp_type type = f->wide_src ? ddp_accumulator(f->type) : f->type;
	int64_t acc = int_at(type, f->src[0], i);

	for (int s = 1; s < f->nsrc; s++) {
		const int64_t x = int_at(type, f->src[s], i);
		if (f->op == DDP_SUM || f->op == DDP_AVG)
			acc = (int64_t)((uint64_t)acc + (uint64_t)x);
		else if (f->op == DDP_PROD)
			acc = (int64_t)((uint64_t)acc * (uint64_t)x);
		else if (ddp_op_is_bitwise(f->op))
			acc = f->op == DDP_BAND ? acc & x : f->op == DDP_BOR ? acc | x : acc ^ x;
		else if ((x < acc) == (f->op == DDP_MIN))
			acc = x;
	}
	if (f->type != DDP_I64)
		acc = (int32_t)acc;
	return f->divisor != 0 ? acc / (int64_t)f->divisor : acc;
}

static void expect_plain(const ddp_combination *f, const void *result, size_t i)
{
	const ddp_type type = f->wide_dst ? ddp_accumulator(f->type) : f->type;
	char text[128];
	bool same;

	if (ddp_type_is_integer(f->type)) {
		const int64_t want = plain_int(f, i), have = int_at(type, result, i);
		same = type == DDP_U8 ? (uint8_t)want == have : type == DDP_I8 ? (int8_t)want == have : want == have;
		snprintf(text, sizeof(text), "%lld, not %lld", (long long)have, (long long)want);
	} else {
		float want = plain_float(f, i), have = f32_at(type, result, i);
		uint16_t half;
		if (type != DDP_F32) {
			put(type, &half, 0, want);
			want = f32_at(type, &half, 0);
		}
		same = (isnan(want) && isnan(have)) || memcmp(&want, &have, sizeof(want)) == 0;
		snprintf(text, sizeof(text), "%a, not %a", (double)have, (double)want);
	}
	if (!same)
		fail_msg("%s %s of %d%s, divided by %g%s: element %zu is %s", ddp_type_name(f->type),
		         ddp_op_name(f->op), f->nsrc, f->wide_src ? " accumulators" : "", f->divisor,
		         f->wide_dst ? ", to an accumulator" : "", i, text);
}

/* Any bits: also infinities, NaN and subnormal numbers, and the ends of ranges. */
static void fill_with_any(ddp_type type, void *memory, unsigned int seed)
{
	unsigned char *bytes = memory;
	const size_t element = ddp_type_bytes(type);

	for (size_t i = 0; i < ODD_COUNT * element; i++) {
		seed = seed * 1664525u + 1013904223u;
		bytes[i] = (unsigned char)(i / element % 11 == 0 ? seed >> 31 ? 0xff : 0 : seed >> 21);
	}
	/* The least integer there is, and 0 in all lower digits. */
	memset(bytes + 40 * element, 0, element);
	bytes[41 * element - 1] = 0x80;
}

static void expect_plain_at_all_levels(const ddp_combination *f)
{
	for (int level = 0; level < DDP_KERNEL_LEVELS; level++) {
		if (ddp_kernels_use(level) == NULL)
			continue;
		ddp_combine(f, 1, ODD_COUNT - 1);
		for (size_t i = 1; i < ODD_COUNT; i++)
			expect_plain(f, f->dst[0], i);
	}
}

TEST(every_combination_gives_the_bits_of_a_plain_one)
{
	static const ddp_type types[] = { DDP_F32, DDP_F16, DDP_BF16, DDP_I32, DDP_I64, DDP_U8, DDP_I8 };
	static const int counts[] = { 1, 2, 3, 7, 128, MOST_SOURCES };
	static unsigned char memory[MOST_SOURCES][ODD_COUNT * 8 + 8] __attribute__((aligned(8)));
	static unsigned char results[ODD_COUNT * 8 + 8] __attribute__((aligned(8)));
	const void *src[MOST_SOURCES];
	void *dst[1];

	/* Not all numbers are finite; but nothing is divided by zero. */
	feenableexcept(FE_DIVBYZERO);
	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		const ddp_type wide = ddp_accumulator(types[t]);
		for (int form = 0; form < (wide != types[t] ? 8 : 2); form++) {
			const bool ordinary = (form & 1) != 0;
			const ddp_type from = (form & 2) != 0 ? wide : types[t], to = (form & 4) != 0 ? wide : types[t];
			/* Not aligned to more than an element. */
			for (int s = 0; s < MOST_SOURCES; s++) {
				unsigned char *at = memory[s] + ddp_type_bytes(from);
				const unsigned int seed = (unsigned int)(t * 1000) + (unsigned int)s;
				src[s] = at;
				if (ordinary)
					fill(from, at, ODD_COUNT, seed);
				else
					fill_with_any(from, at, seed);
			}
			dst[0] = results + ddp_type_bytes(to);
			for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
				for (ddp_op op = DDP_SUM; op <= last_op(types[t]); op++) {
					const ddp_combination f = { .type = types[t], .op = op, .nsrc = counts[n], .src = src,
					                            .wide_src = from != types[t], .wide_dst = to != types[t],
					                            .ndst = 1, .dst = dst, .divisor = op == DDP_AVG ? counts[n] : 0 };
					expect_plain_at_all_levels(&f);
				}
			}
		}
	}
	fedisableexcept(FE_DIVBYZERO);
}

/* Of three ranks, each combination of truths. */
TEST(truths_are_combined_as_truths)
{
	static const struct { ddp_op op; unsigned int when; } table[] = { /* of the number of ranks that have true */
		{ DDP_SUM, 0xe }, { DDP_MAX, 0xe }, { DDP_BOR, 0xe }, { DDP_PROD, 0x8 }, { DDP_MIN, 0x8 },
		{ DDP_BAND, 0x8 }, { DDP_BXOR, 0xa },
	};
	bool sources[3][LENGTH], result[LENGTH];
	const void *src[3] = { sources[0], sources[1], sources[2] };
	void *dst[1] = { result };

	for (size_t i = 0; i < 3 * LENGTH; i++)
		sources[i % 3][i / 3] = (i / 3 >> i % 3 & 1) != 0;
	for (size_t t = 0; t < sizeof(table) / sizeof(table[0]); t++) {
		const ddp_combination f = { .type = DDP_BOOL, .op = table[t].op, .nsrc = 3, .src = src, .ndst = 1, .dst = dst };
		for (int level = 0; level < DDP_KERNEL_LEVELS; level++) {
			if (ddp_kernels_use(level) == NULL)
				continue;
			ddp_combine(&f, 0, LENGTH);
			for (size_t i = 0; i < LENGTH; i++) {
				const int count = sources[0][i] + sources[1][i] + sources[2][i];
				assert_int_equal(result[i], table[t].when >> count & 1);
			}
		}
	}
}

/* Many sources that no cache holds are read in another order. */
TEST(slices_give_the_bits_of_the_whole)
{
	enum { MANY = 5, ELEMENTS = 1000003, SLICE = 100000 };
	char *memory = malloc((MANY + 2) * (size_t)ELEMENTS * 8);
	const void *src[MANY];
	void *dst[1];

	assert_non_null(memory);
	for (int type = DDP_F32; type <= DDP_F64; type++) {
		size_t bytes = ELEMENTS * ddp_type_bytes((ddp_type)type);
		char *whole = memory + MANY * bytes, *slices = whole + bytes;
		for (size_t i = 0; i < MANY * (size_t)ELEMENTS; i++)
			put((ddp_type)type, memory, i, ((double)(i * 2654435761u % 1000003) - 500000) / 777);
		for (int s = 0; s < MANY; s++)
			src[s] = memory + (size_t)s * bytes;
		for (int op = DDP_SUM; op <= DDP_MAX; op++) {
			ddp_combination combination = { .type = (ddp_type)type, .op = (ddp_op)op, .nsrc = MANY, .src = src,
			                  .ndst = 1, .dst = dst, .divisor = op == DDP_AVG ? MANY : 0 };
			dst[0] = whole;
			ddp_combine(&combination, 0, ELEMENTS);
			dst[0] = slices;
			for (size_t i = 0; i < ELEMENTS; i += SLICE)
				ddp_combine(&combination, i, ELEMENTS - i < SLICE ? ELEMENTS - i : SLICE);
			assert_memory_equal(whole, slices, bytes);
		}
	}
	free(memory);
}

/* Also where an element is scaled: no product may be fused with a sum, in
   vectors or out of them. */
TEST(scaled_elements_give_the_bits_of_the_whole_one_by_one)
{
	enum { MANY = 3, ELEMENTS = 257 };
	static double sources[MANY][ELEMENTS], whole[ELEMENTS], one_by_one[ELEMENTS];
	const double scales[MANY] = { 1 / 3.0, 1 / 7.0, 1.1 };
	const void *src[MANY];
	void *dst[1];

	for (int type = DDP_F32; type <= DDP_F64; type++) {
		ddp_combination combination = { .type = (ddp_type)type, .op = DDP_SUM, .nsrc = MANY, .src = src,
		                  .scale = scales, .ndst = 1, .dst = dst };
		for (size_t s = 0; s < MANY; s++) {
			src[s] = sources[s];
			for (size_t i = 0; i < ELEMENTS; i++)
				put((ddp_type)type, sources[s], i, (double)((s * ELEMENTS + i) * 2654435761u % 1000003) / 777);
		}
		dst[0] = whole;
		ddp_combine(&combination, 0, ELEMENTS);
		dst[0] = one_by_one;
		for (size_t i = 0; i < ELEMENTS; i++)
			ddp_combine(&combination, i, 1);
		assert_memory_equal(whole, one_by_one, ELEMENTS * ddp_type_bytes((ddp_type)type));
	}
}

TEST(what_is_taken_stays_as_it_was)
{
	static unsigned char source[1024] __attribute__((aligned(64))), target[1024], before[1024];

	for (size_t bytes = 0; bytes < 300; bytes++) {
		for (size_t shift = 0; shift < 9; shift += 4) {
			for (size_t i = 0; i < sizeof(source); i++)
				source[i] = before[i] = (unsigned char)(i * 7 + bytes);
			memset(target, 0, sizeof(target));
			ddp_take(target + shift, source, bytes);
			assert_memory_equal(source, before, sizeof(source));
			assert_memory_equal(target + shift, before, bytes);
			assert_int_equal(target[shift + bytes], 0);
			assert_true(shift == 0 || target[shift - 1] == 0);
		}
	}
}
