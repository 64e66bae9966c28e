/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of comm/ops/kernels, compiled once per instruction set: the includer
   defines KERNEL (function attributes), KERNEL_TABLE (the table), KERNEL_NAME (what users
   call the set) and VECTOR_BYTES, 32 or 64; a target with narrower vectors gets several. Without
   explicit vectors gcc's -O2 leaves such loops scalar. It may also define what the
   instruction set has for it: TRUNCATE cuts doubles, IS_ZERO looks at all bits, and
   TIMES_DOUBLE multiplies int32_t by a double and cuts the products; from memory, halves
   of a vector that were just written come back together only after a stall. */
#define VECTOR(type) type __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(type)), may_alias))
typedef VECTOR(float) v_f32;
typedef VECTOR(double) v_f64;
typedef VECTOR(int32_t) v_i32;
typedef VECTOR(int64_t) v_i64;
typedef VECTOR(uint32_t) v_u32;
typedef VECTOR(uint64_t) v_u64;
typedef VECTOR(uint8_t) v_u8; /* at any address */
typedef VECTOR(int8_t) v_i8;
typedef VECTOR(uint16_t) v_u16;
typedef VECTOR(int16_t) v_i16;

/* An integer is scaled in double, cut, and held in its type's range. The
   largest int64_t is no double: its successor is. */
KERNEL static inline float scaled_float(float x, double scale)
{
	return x * (float)scale;
}

KERNEL static inline double scaled_double(double x, double scale)
{
	return x * scale;
}

KERNEL static inline int32_t scaled_int32_t(int32_t x, double scale)
{
	const double y = x * scale;

	return y >= INT32_MAX ? INT32_MAX : y <= INT32_MIN ? INT32_MIN : (int32_t)y;
}

KERNEL static inline int64_t scaled_int64_t(int64_t x, double scale)
{
	const double y = (double)x * scale;

	if (scale == 1)
		return x;
	return y >= 0x1p63 ? INT64_MAX : y < -0x1p63 ? INT64_MIN : (int64_t)y;
}

KERNEL static inline uint8_t scaled_uint8_t(uint8_t x, double scale)
{
	(void)scale; /* in accumulator form only */
	return x;
}

KERNEL static inline int8_t scaled_int8_t(int8_t x, double scale)
{
	(void)scale; /* in accumulator form only */
	return x;
}

/* Division of integers, for which processors have no vectors, by a product. In
   double an int32_t times a little more than 1 / d is, cut, the quotient: what is
   added is more than what is lost by rounding, and less than 1 / d / 2^31. Of an
   int64_t the magnitude n, of 63 bits, divided by d and cut, is n * m >> 63 + l,
   with l = ceil(log2(d)) and m = floor(2^(63 + l) / d) + 1. */
typedef struct divisor_int64_t {
	int64_t divisor;
	double inverse; /* of less than 2^50; a little more than that of divisor */
	uint64_t factor;
	int shift;
} divisor_int64_t;
typedef double divisor_int32_t;
typedef uint8_t divisor_uint8_t;
typedef int8_t divisor_int8_t;

/* If 1 / d is exact, as for powers of two, x / d is x times that. */
typedef struct divisor_float {
	float divisor, inverse; /* 0: it is not exact */
} divisor_float;
typedef struct divisor_double {
	double divisor, inverse;
} divisor_double;

#define divisor_of_int32_t(d) (1.0 / (int32_t)(d) * (1 + 0x1p-50))
#define divisor_of_uint8_t(d) ((uint8_t)(d))
#define divisor_of_int8_t(d) ((int8_t)(d))

KERNEL static inline bool is_power_of_two(double d)
{
	return d >= 1 && d <= 0x1p31 && ((uint32_t)d & ((uint32_t)d - 1)) == 0 && d == (uint32_t)d;
}

KERNEL static inline divisor_float divisor_of_float(double d)
{
	return (divisor_float){ (float)d, is_power_of_two(d) ? 1 / (float)d : 0 };
}

KERNEL static inline divisor_double divisor_of_double(double d)
{
	return (divisor_double){ d, is_power_of_two(d) ? 1 / d : 0 };
}

KERNEL static inline divisor_int64_t divisor_of_int64_t(double given)
{
	divisor_int64_t d = { .divisor = (int64_t)given };

	d.inverse = 1.0 / (double)d.divisor * (1 + 0x1p-51);

	while (d.divisor > (int64_t)1 << d.shift)
		d.shift++;
	if (d.divisor > 1)
		d.factor = (uint64_t)(((unsigned __int128)1 << (63 + d.shift)) / (uint64_t)d.divisor) + 1;
	return d;
}

KERNEL static inline int64_t quotient(int64_t x, const divisor_int64_t *d)
{
	const int64_t sign = x >> 63;
	const uint64_t n = ((uint64_t)x ^ (uint64_t)sign) - (uint64_t)sign;

	if (d->factor == 0 || n >> 63 != 0)
		return x / d->divisor;
	const uint64_t q = (uint64_t)((unsigned __int128)n * d->factor >> 63) >> d->shift;
	return (int64_t)((q ^ (uint64_t)sign) - (uint64_t)sign);
}

#define divide_float(v, k) (*(v) = (k)->inverse != 0 ? *(v) * (k)->inverse : *(v) / (k)->divisor)
#define divide_double(v, k) divide_float(v, k)
#define divide_uint8_t(v, k) (*(v) /= *(k))
#define divide_int8_t(v, k) (*(v) /= *(k))

KERNEL static inline void divide_int32_t(v_i32 *v, const double *inverse)
{
#ifdef TIMES_DOUBLE
	*v = (v_i32)TIMES_DOUBLE(*v, *inverse);
#else
	typedef int32_t v_half __attribute__((vector_size(VECTOR_BYTES / 2)));
	v_half half[2];

	memcpy(half, v, sizeof(half));
	for (int i = 0; i < 2; i++)
		half[i] = __builtin_convertvector(__builtin_convertvector(half[i], v_f64) * *inverse, v_half);
	memcpy(v, half, sizeof(half));
#endif
}

#ifdef TRUNCATE
/* An int64_t below 2^50 is exact in double, and the product of it with a little
   more than 1 / d is, cut, the quotient, as in divide_int32_t(). Such a number n, added
   to the bits of 1.5 * 2^52, gives those of 1.5 * 2^52 + n. */
KERNEL static inline bool divide_int64_t_fast(v_i64 *v, const divisor_int64_t *d)
{
	const v_i64 bits = { 0 };
	const v_f64 offset = { 0 };
	const v_u64 above = (v_u64)(*v + ((int64_t)1 << 50)) >> 51;

	if (!IS_ZERO(above))
		return false;
	const v_f64 x = (v_f64)(*v + (bits + 0x4338000000000000)) - (offset + 0x1.8p52);
	*v = (v_i64)((v_f64)TRUNCATE(x * d->inverse) + (offset + 0x1.8p52)) - (bits + 0x4338000000000000);
	return true;
}
#else
#define divide_int64_t_fast(v, d) false
#endif

KERNEL static inline void divide_int64_t(v_i64 *v, const divisor_int64_t *d)
{
	int64_t x[VECTOR_BYTES / 8];

	if (divide_int64_t_fast(v, d))
		return;
	memcpy(x, v, sizeof(x));
	for (int i = 0; i < VECTOR_BYTES / 8; i++)
		x[i] = quotient(x[i], d);
	memcpy(v, x, sizeof(x));
}

/* Sums and products of integers wrap around, as unsigned ones do. */
#define OP_SUM(T, UT, V, UV, MV, a, b) ((V)((UV)(a) + (UV)(b)))
#define OP_PROD(T, UT, V, UV, MV, a, b) ((V)((UV)(a) * (UV)(b)))
#define OP_BAND(T, UT, V, UV, MV, a, b) ((V)((a) & (b)))
#define OP_BOR(T, UT, V, UV, MV, a, b) ((V)((a) | (b)))
#define OP_BXOR(T, UT, V, UV, MV, a, b) ((V)((a) ^ (b)))
/* IEEE 754's minimum and maximum, whichever operand comes first: of equal zeros
   the sign decides, and where one is a NaN all bits are set, which is one. */
#define OP_MIN(T, UT, V, UV, MV, a, b) \
	((V)(((MV)(a) & ~(MV)((a) > (b))) | ((MV)(b) & ~(MV)((a) < (b))) | UNORDERED(MV, a, b)))
#define OP_MAX(T, UT, V, UV, MV, a, b) \
	((V)((((MV)(a) | (MV)((a) < (b))) & ((MV)(b) | (MV)((a) > (b)))) | UNORDERED(MV, a, b)))
#define UNORDERED(MV, a, b) ((MV)((a) != (a)) | (MV)((b) != (b)))

/* One element; also the tail and the scaled integers of the loops below. */
#define DEFINE_ONE(T, UT, V, UV, MV, OP) \
KERNEL static inline T one_##T##_##OP(const ddp_combination *f, size_t i) \
{ \
	T acc = ((const T *)f->src[0])[i]; \
	if (f->scale != NULL) \
		acc = scaled_##T(acc, f->scale[0]); \
	for (int s = 1; s < f->nsrc; s++) { \
		T x = ((const T *)f->src[s])[i]; \
		if (f->scale != NULL) \
			x = scaled_##T(x, f->scale[s]); \
		const V a = { acc }, b = { x }; \
		acc = OP_##OP(T, UT, V, UV, MV, a, b)[0]; \
	} \
	return f->divisor != 0 ? (T)(acc / (T)ddp_divisor(f)) : acc; \
}

/* Four vectors of accumulators, from and to element i of a buffer. */
#define LOAD_OWN(T, V, a) do { \
	const V *x = (const V *)((const T *)from + i); \
	a##0 = x[0]; a##1 = x[1]; a##2 = x[2]; a##3 = x[3]; \
} while (0)
#define STORE_OWN(T, V, a) do { \
	V *y = (V *)((T *)to + i); \
	y[0] = a##0; y[1] = a##1; y[2] = a##2; y[3] = a##3; \
} while (0)

/* Combines whole groups of four vectors; the first element that is left. NAME is of
   the elements, T of their accumulators; SCALES: sources may have a scale. */
#define DEFINE_GROUPS(NAME, T, UT, V, UV, MV, OP, SCALES, LOAD, STORE) \
KERNEL static size_t groups_##NAME##_##OP(const ddp_combination *f, size_t i, size_t end) \
{ \
	enum { GROUP = 4 * VECTOR_BYTES / sizeof(T) }; \
	const divisor_##T divisor = divisor_of_##T(ddp_divisor(f)); \
	for (; i + GROUP <= end; i += GROUP) { \
		V a0, a1, a2, a3, b0, b1, b2, b3; \
		const void *from = f->src[0]; \
		LOAD(T, V, a); \
		if ((SCALES) && f->scale != NULL) { \
			const T k = (T)f->scale[0]; \
			a0 *= k; a1 *= k; a2 *= k; a3 *= k; \
		} \
		for (int s = 1; s < f->nsrc; s++) { \
			from = f->src[s]; \
			LOAD(T, V, b); \
			if ((SCALES) && f->scale != NULL) { \
				const T k = (T)f->scale[s]; \
				b0 *= k; b1 *= k; b2 *= k; b3 *= k; \
			} \
			a0 = OP_##OP(T, UT, V, UV, MV, a0, b0); \
			a1 = OP_##OP(T, UT, V, UV, MV, a1, b1); \
			a2 = OP_##OP(T, UT, V, UV, MV, a2, b2); \
			a3 = OP_##OP(T, UT, V, UV, MV, a3, b3); \
		} \
		if (f->divisor != 0) { \
			divide_##T(&a0, &divisor); \
			divide_##T(&a1, &divisor); \
			divide_##T(&a2, &divisor); \
			divide_##T(&a3, &divisor); \
		} \
		for (int d = 0; d < f->ndst; d++) { \
			void *to = f->dst[d]; \
			STORE(T, V, a); \
		} \
	} \
	return i; \
}

/* Defines the functions of a type that is its own accumulator. */
#define DEFINE_COMBINE(T, UT, V, UV, MV, OP, SCALES) \
DEFINE_ONE(T, UT, V, UV, MV, OP) \
DEFINE_GROUPS(T, T, UT, V, UV, MV, OP, SCALES, LOAD_OWN, STORE_OWN) \
KERNEL static void combine_##T##_##OP(const ddp_combination *f, size_t first, size_t count) \
{ \
	size_t i = first, end = first + count; \
	if (f->scale == NULL || (SCALES)) \
		i = groups_##T##_##OP(f, i, end); \
	for (; i < end; i++) { \
		T acc = one_##T##_##OP(f, i); \
		for (int d = 0; d < f->ndst; d++) \
			((T *)f->dst[d])[i] = acc; \
	} \
}

#define DEFINE_COMBINES(T, UT, V, UV, MV, SCALES) \
DEFINE_COMBINE(T, UT, V, UV, MV, SUM, SCALES) \
DEFINE_COMBINE(T, UT, V, UV, MV, PROD, SCALES) \
DEFINE_COMBINE(T, UT, V, UV, MV, MIN, SCALES) \
DEFINE_COMBINE(T, UT, V, UV, MV, MAX, SCALES)

#define DEFINE_BITWISE(T, UT, V, UV, MV) \
DEFINE_COMBINE(T, UT, V, UV, MV, BAND, false) \
DEFINE_COMBINE(T, UT, V, UV, MV, BOR, false) \
DEFINE_COMBINE(T, UT, V, UV, MV, BXOR, false)

DEFINE_COMBINES(float, float, v_f32, v_f32, v_i32, true)
DEFINE_COMBINES(double, double, v_f64, v_f64, v_i64, true)
DEFINE_COMBINES(int32_t, uint32_t, v_i32, v_u32, v_i32, false)
DEFINE_COMBINES(int64_t, uint64_t, v_i64, v_u64, v_i64, false)
DEFINE_BITWISE(int32_t, uint32_t, v_i32, v_u32, v_i32)
DEFINE_BITWISE(int64_t, uint64_t, v_i64, v_u64, v_i64)

#include "comm/ops/kernels_narrow_template.h"

/* ---- which combination ---------------------------------------------------------------------- */

/* Columns of the tables: AVG combines like SUM. */
enum { SUM_COLUMN, PROD_COLUMN, MIN_COLUMN, MAX_COLUMN, BAND_COLUMN, BOR_COLUMN, BXOR_COLUMN, COLUMNS };

#define COMBINES_OF(T) combine_##T##_SUM, combine_##T##_PROD, combine_##T##_MIN, combine_##T##_MAX
#define BITWISE_OF(T) combine_##T##_BAND, combine_##T##_BOR, combine_##T##_BXOR

static inline int column_of(ddp_type type, ddp_op op)
{
	static const unsigned char columns[] = {
		[DDP_SUM] = SUM_COLUMN, [DDP_AVG] = SUM_COLUMN, [DDP_PROD] = PROD_COLUMN, [DDP_MIN] = MIN_COLUMN,
		[DDP_MAX] = MAX_COLUMN, [DDP_BAND] = BAND_COLUMN, [DDP_BOR] = BOR_COLUMN, [DDP_BXOR] = BXOR_COLUMN,
	};

	if (type != DDP_BOOL || op == DDP_BXOR)
		return columns[op];
	return op == DDP_PROD || op == DDP_MIN || op == DDP_BAND ? BAND_COLUMN : BOR_COLUMN;
}

KERNEL static combine_fn choose_combine(ddp_type type, ddp_op op)
{
	/* Sums and products of 8 bits are the same with a sign and without. */
	static const combine_fn table[][COLUMNS] = {
		[DDP_F32] = { COMBINES_OF(float) },
		[DDP_F64] = { COMBINES_OF(double) },
		[DDP_I32] = { COMBINES_OF(int32_t), BITWISE_OF(int32_t) },
		[DDP_I64] = { COMBINES_OF(int64_t), BITWISE_OF(int64_t) },
		[DDP_U8] = { combine_uint8_t_SUM, combine_uint8_t_PROD8, combine_uint8_t_MIN, combine_uint8_t_MAX,
		             BITWISE_OF(uint8_t) },
		[DDP_I8] = { combine_uint8_t_SUM, combine_uint8_t_PROD8, combine_int8_t_MIN, combine_int8_t_MAX,
		             BITWISE_OF(uint8_t) },
		[DDP_BOOL] = { [BAND_COLUMN] = BITWISE_OF(uint8_t) },
	};

	return table[type][column_of(type, op)];
}

KERNEL static void widen(ddp_type type, combine_block *acc, const void *src, size_t n)
{
	if (type == DDP_U8)
		load_u8(acc->i32, src, n);
	else if (type == DDP_I8)
		load_i8(acc->i32, src, n);
	else if (type == DDP_F16)
		load_f16(acc->f32, src, n);
	else
		load_bf16(acc->f32, src, n);
}

KERNEL static void narrow(ddp_type type, void *dst, const combine_block *acc, size_t n)
{
	if (type == DDP_U8 || type == DDP_I8)
		store_u8(dst, acc->i32, n);
	else if (type == DDP_F16)
		store_f16(dst, acc->f32, n);
	else
		store_bf16(dst, acc->f32, n);
}

/* Combines elements from element i, as many as a block holds, in type `wide`. */
KERNEL static void combine_a_block(const ddp_combination *f, ddp_type wide, size_t i, size_t n)
{
	const combine_fn combine = choose_combine(wide, f->op);
	const size_t element = ddp_type_bytes(f->type), accumulator = ddp_type_bytes(wide);
	combine_block acc, next;
	const void *pair[2] = { &acc };
	void *result[1] = { &acc };
	double scales[2] = { 1, 1 };
	ddp_combination step = { .type = wide, .op = f->op, .src = pair, .ndst = 1, .dst = result };

	for (int s = 0; s < f->nsrc; s++) {
		const void *source = (const char *)f->src[s] + i * (f->wide_src ? accumulator : element);
		if (!f->wide_src && wide != f->type) {
			widen(f->type, &next, source, n);
			source = &next;
		}
		pair[s > 0] = source;
		step.nsrc = s > 0 ? 2 : 1;
		if (f->scale != NULL) {
			scales[s > 0] = f->scale[s];
			step.scale = scales;
		}
		step.divisor = s == f->nsrc - 1 ? f->divisor : 0;
		combine(&step, 0, n);
		pair[0] = &acc;
		scales[0] = 1;
	}
	for (int d = 0; d < f->ndst; d++) {
		if (f->wide_dst || wide == f->type)
			memcpy((char *)f->dst[d] + i * accumulator, &acc, n * accumulator);
		else
			narrow(f->type, (char *)f->dst[d] + i * element, &acc, n);
	}
}

/* Combines a narrow type without blocks where that can be; returns the first element that is left. */
KERNEL static size_t combine_in_registers(const ddp_combination *f, size_t first, size_t end)
{
	static size_t (*const groups[2][3][4])(const ddp_combination *, size_t, size_t) = {
		{ GROUPS_OF(bf16_in), GROUPS_OF(f16_in), GROUPS_OF(u8_in) },
		{ GROUPS_OF(bf16_out), GROUPS_OF(f16_out), GROUPS_OF(u8_out) },
	};
	const int form = f->wide_src ? FORM_IN : f->wide_dst ? FORM_OUT : FORM_OWN;
	const int row = f->type == DDP_BF16 ? 0 : f->type == DDP_F16 ? 1 : 2;
	const int column = column_of(f->type, f->op);

	if (f->scale != NULL || f->type == DDP_I8 || column > MAX_COLUMN)
		return first;
	if (form != FORM_OWN && groups[form == FORM_OUT][row][column] == NULL)
		return first;
	if (form != FORM_OWN)
		return groups[form == FORM_OUT][row][column](f, first, end);
	if (row == 2)
		return column == 0 && can_be_mean(f) ? mean_of_u8(f, first, end) : first;
	if (column == 0)
		return (row == 0 ? groups_bf16_SUM : groups_f16_SUM)(f, first, end);
	if (column == 1)
		return (row == 0 ? groups_bf16_PROD : groups_f16_PROD)(f, first, end);
	if (f->nsrc > 1 && f->divisor == 0)
		return (column == 2 ? least_of_halves : most_of_halves)(f, first, end);
	return first;
}

KERNEL static void run_combine(const ddp_combination *f, size_t first, size_t count)
{
	ddp_type wide = ddp_accumulator(f->type);

	/* The shortest ones, for which time counts most, first. */
	if (wide == f->type && f->nsrc < FAR_SOURCES) {
		choose_combine(wide, f->op)(f, first, count);
		return;
	}
	const bool own_form = !f->wide_src && !f->wide_dst, far = ddp_is_far(f, count);
	const size_t end = first + count;

	/* Sums that are cut to 8 bits are sums of 8 bits; so are products and extremes. */
	if ((f->type == DDP_U8 || f->type == DDP_I8) && own_form && f->scale == NULL && f->divisor == 0)
		wide = f->type;
	if (!far && (wide == f->type || (f->wide_src && f->wide_dst))) {
		choose_combine(wide, f->op)(f, first, count);
		return;
	}
	if (!far)
		first = combine_in_registers(f, first, end);
	/* Blocks of a type that is not widened leave L1 to the sources that are read ahead. */
	const size_t most = wide == f->type ? 1024 / ddp_type_bytes(wide) : BLOCK;
	for (; first < end; first += most)
		combine_a_block(f, wide, first, end - first < most ? end - first : most);
}

/* Compilers may drop a store of what was just loaded, but not a volatile one. */
KERNEL static void run_take(void *dst, void *src, size_t bytes)
{
	enum { VECTORS = 64 / VECTOR_BYTES };
	const v_u8 *x = src;
	v_u8 *y = dst;
	size_t i = 0;

	for (; i + 64 <= bytes; i += 64, x += VECTORS, y += VECTORS) {
		const v_u8 first = x[0], last = x[VECTORS - 1];
		y[0] = first;
		y[VECTORS - 1] = last;
		*(volatile uint64_t *)(void *)((char *)src + i) = ((v_u64)first)[0];
	}
	if (i == bytes)
		return;
	volatile unsigned char *line = (unsigned char *)src + i;
	memcpy((char *)dst + i, (const char *)src + i, bytes - i);
	*line = *((const unsigned char *)dst + i);
}

const ddp_kernel_table KERNEL_TABLE = { .name = KERNEL_NAME, .combine = run_combine, .take = run_take };
