/*
 * The bodies of comm/ops/kernels, compiled once per instruction set: the includer
 * defines KERNEL (function attributes) and KERNEL_TABLE (the table's name).
 * Vectors are 32 bytes; a target with narrower ones gets several.
 */
enum {
	VECTOR_BYTES = 32,
	FAR_SOURCES = 4,             /* from so many sources on, */
	FAR_BYTES = 16 * 1024 * 1024 /* and so much memory of 4-byte elements */
};

#define VECTOR(type) type __attribute__((vector_size(32), aligned(sizeof(type)), may_alias))
typedef VECTOR(float) v_f32;
typedef VECTOR(double) v_f64;
typedef VECTOR(int32_t) v_i32;
typedef VECTOR(int64_t) v_i64;
typedef VECTOR(uint32_t) v_u32;
typedef VECTOR(uint64_t) v_u64;
typedef VECTOR(uint8_t) v_u8; /* at any address */
typedef VECTOR(int8_t) v_i8;
typedef VECTOR(uint16_t) v_u16;

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

/* Division of integers, for which processors have no vectors, by a product. In
   double an int32_t times a little more than 1 / d is, cut, the quotient: what is
   added is more than what is lost by rounding, and less than 1 / d / 2^31. Of an
   int64_t the magnitude n, of 63 bits, divided by d and cut, is n * m >> 63 + l,
   with l = ceil(log2(d)) and m = floor(2^(63 + l) / d) + 1. */
typedef struct divisor_int64_t {
	int64_t divisor;
	uint64_t factor;
	int shift;
} divisor_int64_t;
typedef float divisor_float;
typedef double divisor_double, divisor_int32_t;
typedef uint8_t divisor_uint8_t;

#define divisor_of_float(d) ((float)(d))
#define divisor_of_double(d) (d)
#define divisor_of_int32_t(d) (1.0 / (int32_t)(d) * (1 + 0x1p-50))
#define divisor_of_uint8_t(d) ((uint8_t)(d))

KERNEL static inline divisor_int64_t divisor_of_int64_t(double given)
{
	divisor_int64_t d = { .divisor = (int64_t)given };

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

#define divide_float(v, k) (*(v) /= *(k))
#define divide_double(v, k) (*(v) /= *(k))
#define divide_uint8_t(v, k) (*(v) /= *(k))

KERNEL static inline void divide_int32_t(v_i32 *v, const double *inverse)
{
	typedef int32_t v_i32x4 __attribute__((vector_size(16)));
	v_i32x4 half[2];

	memcpy(half, v, sizeof(half));
	for (int i = 0; i < 2; i++)
		half[i] = __builtin_convertvector(__builtin_convertvector(half[i], v_f64) * *inverse, v_i32x4);
	memcpy(v, half, sizeof(half));
}

KERNEL static inline void divide_int64_t(v_i64 *v, const divisor_int64_t *d)
{
	int64_t x[4];

	memcpy(x, v, sizeof(x));
	for (int i = 0; i < 4; i++)
		x[i] = quotient(x[i], d);
	memcpy(v, x, sizeof(x));
}

/* Sums and products of integers wrap around, as unsigned ones do. */
#define OP_SUM(T, UT, V, UV, MV, a, b) ((V)((UV)(a) + (UV)(b)))
#define OP_PROD(T, UT, V, UV, MV, a, b) ((V)((UV)(a) * (UV)(b)))
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
	return f->divisor != 0 ? (T)(acc / (T)f->divisor) : acc; \
}

#define DEFINE_COMBINE(T, UT, V, UV, MV, OP, SCALES) \
DEFINE_ONE(T, UT, V, UV, MV, OP) \
KERNEL static void combine_##T##_##OP(const ddp_combination *f, size_t first, size_t count) \
{ \
	enum { LANES = VECTOR_BYTES / sizeof(T) }; \
	size_t i = first, end = first + count; \
	if (f->scale == NULL || (SCALES)) { \
		const divisor_##T divisor = divisor_of_##T(f->divisor); \
		for (; i + 4 * LANES <= end; i += 4 * LANES) { \
			const V *x = (const V *)((const T *)f->src[0] + i); \
			V a0 = x[0], a1 = x[1], a2 = x[2], a3 = x[3]; \
			if (f->scale != NULL) { \
				const T k = (T)f->scale[0]; \
				a0 *= k; a1 *= k; a2 *= k; a3 *= k; \
			} \
			for (int s = 1; s < f->nsrc; s++) { \
				x = (const V *)((const T *)f->src[s] + i); \
				V b0 = x[0], b1 = x[1], b2 = x[2], b3 = x[3]; \
				if (f->scale != NULL) { \
					const T k = (T)f->scale[s]; \
					b0 *= k; b1 *= k; b2 *= k; b3 *= k; \
				} \
				a0 = OP_##OP(T, UT, V, UV, MV, a0, b0); \
				a1 = OP_##OP(T, UT, V, UV, MV, a1, b1); \
				a2 = OP_##OP(T, UT, V, UV, MV, a2, b2); \
				a3 = OP_##OP(T, UT, V, UV, MV, a3, b3); \
			} \
			if (f->divisor != 0) { \
				V a[4] = { a0, a1, a2, a3 }; \
				for (int v = 0; v < 4; v++) \
					divide_##T(&a[v], &divisor); \
				a0 = a[0]; a1 = a[1]; a2 = a[2]; a3 = a[3]; \
			} \
			for (int d = 0; d < f->ndst; d++) { \
				V *y = (V *)((T *)f->dst[d] + i); \
				y[0] = a0; y[1] = a1; y[2] = a2; y[3] = a3; \
			} \
		} \
	} \
	for (; i < end; i++) { \
		T acc = one_##T##_##OP(f, i); \
		for (int d = 0; d < f->ndst; d++) \
			((T *)f->dst[d])[i] = acc; \
	} \
}

/* The same for many sources that are in no cache: a block of one source after
   the other, and of one destination after the other. Going through all at once
   takes up to twice as long, all the more if they are a power of two apart. */
#define DEFINE_FAR_COMBINE(T, UT, V, UV, MV, OP) \
KERNEL static void combine_far_##T##_##OP(const ddp_combination *f, size_t first, size_t count) \
{ \
	enum { VECTORS = 1024 / VECTOR_BYTES, BLOCK = 1024 / sizeof(T) }; \
	const divisor_##T divisor = divisor_of_##T(f->divisor); \
	size_t i = first, end = first + count; \
	V acc[VECTORS]; \
	for (; i + BLOCK <= end; i += BLOCK) { \
		const V *x = (const V *)((const T *)f->src[0] + i); \
		for (int v = 0; v < VECTORS; v++) \
			acc[v] = x[v]; \
		for (int s = 1; s < f->nsrc; s++) { \
			x = (const V *)((const T *)f->src[s] + i); \
			for (int v = 0; v < VECTORS; v++) \
				acc[v] = OP_##OP(T, UT, V, UV, MV, acc[v], x[v]); \
		} \
		for (int v = 0; v < VECTORS && f->divisor != 0; v++) \
			divide_##T(&acc[v], &divisor); \
		for (int d = 0; d < f->ndst; d++) { \
			V *y = (V *)((T *)f->dst[d] + i); \
			for (int v = 0; v < VECTORS; v++) \
				y[v] = acc[v]; \
		} \
	} \
	combine_##T##_##OP(f, i, end - i); \
}

#define DEFINE_COMBINES(T, UT, V, UV, MV, SCALES) \
DEFINE_COMBINE(T, UT, V, UV, MV, SUM, SCALES) \
DEFINE_COMBINE(T, UT, V, UV, MV, PROD, SCALES) \
DEFINE_COMBINE(T, UT, V, UV, MV, MIN, SCALES) \
DEFINE_COMBINE(T, UT, V, UV, MV, MAX, SCALES) \
DEFINE_FAR_COMBINE(T, UT, V, UV, MV, SUM) \
DEFINE_FAR_COMBINE(T, UT, V, UV, MV, PROD) \
DEFINE_FAR_COMBINE(T, UT, V, UV, MV, MIN) \
DEFINE_FAR_COMBINE(T, UT, V, UV, MV, MAX)

DEFINE_COMBINES(float, float, v_f32, v_f32, v_i32, true)
DEFINE_COMBINES(double, double, v_f64, v_f64, v_i64, true)
DEFINE_COMBINES(int32_t, uint32_t, v_i32, v_u32, v_i32, false)
DEFINE_COMBINES(int64_t, uint64_t, v_i64, v_u64, v_i64, false)

#include "comm/ops/kernels_narrow_template.h"

/* ---- which combination ---------------------------------------------------------------------- */

/* The combination of a type that is its own accumulator, or of u8; AVG combines like SUM. */
#define COMBINES_OF(PREFIX) { \
	{ PREFIX##_float_SUM, PREFIX##_float_PROD, PREFIX##_float_MIN, PREFIX##_float_MAX }, \
	{ PREFIX##_double_SUM, PREFIX##_double_PROD, PREFIX##_double_MIN, PREFIX##_double_MAX }, \
	{ PREFIX##_int32_t_SUM, PREFIX##_int32_t_PROD, PREFIX##_int32_t_MIN, PREFIX##_int32_t_MAX }, \
	{ PREFIX##_int64_t_SUM, PREFIX##_int64_t_PROD, PREFIX##_int64_t_MIN, PREFIX##_int64_t_MAX }, \
	{ PREFIX##_uint8_t_SUM, PREFIX##_uint8_t_PROD, PREFIX##_uint8_t_MIN, PREFIX##_uint8_t_MAX } }

static inline int column_of(ddp_op op)
{
	return op == DDP_PROD ? 1 : op == DDP_MIN ? 2 : op == DDP_MAX ? 3 : 0;
}

KERNEL static combine_fn choose_combine(ddp_type type, ddp_op op, bool far)
{
	static const combine_fn table[2][5][4] = { COMBINES_OF(combine), COMBINES_OF(combine_far) };
	int row = type == DDP_F32 ? 0 : type == DDP_F64 ? 1 : type == DDP_I32 ? 2 : type == DDP_I64 ? 3 : 4;

	return table[far][row][column_of(op)];
}

KERNEL static combine_fn combine_wide(ddp_type type, ddp_op op)
{
	return choose_combine(type, op, false);
}

KERNEL static void divide(ddp_type wide, double divisor, void *acc, size_t n)
{
	const void *src[1] = { acc };
	void *dst[1] = { acc };
	const ddp_combination f = { .type = wide, .op = DDP_SUM, .nsrc = 1, .src = src,
	                            .ndst = 1, .dst = dst, .divisor = divisor };

	if (divisor != 0)
		combine_wide(wide, DDP_SUM)(&f, 0, n);
}

/* Element i of what `base` points to. */
KERNEL static inline void *element(const void *base, ddp_type type, size_t i)
{
	return (char *)(uintptr_t)base + i * (type == DDP_U8 ? 1 : 2);
}

KERNEL static void load_narrow(ddp_type type, narrow_block *acc, const void *src, size_t n)
{
	if (type == DDP_U8)
		load_u8(acc->i32, src, n);
	else if (type == DDP_F16)
		load_f16(acc->f32, src, n);
	else
		load_bf16(acc->f32, src, n);
}

KERNEL static void store_narrow(ddp_type type, void *dst, const narrow_block *acc, size_t n)
{
	if (type == DDP_U8)
		store_u8(dst, acc->i32, n);
	else if (type == DDP_F16)
		store_f16(dst, acc->f32, n);
	else
		store_bf16(dst, acc->f32, n);
}

KERNEL static void load(const ddp_combination *f, int s, narrow_block *acc, size_t i, size_t n)
{
	if (f->wide_src)
		memcpy(acc, (const char *)f->src[s] + i * 4, n * 4);
	else
		load_narrow(f->type, acc, element(f->src[s], f->type, i), n);
}

/* Combines at most NARROW_BLOCK elements from element i into *acc. */
KERNEL static void combine_narrow(const ddp_combination *f, ddp_type wide, size_t i, size_t n,
                                  narrow_block *acc)
{
	narrow_block next;
	const void *pair[2] = { acc, &next };
	void *result[1] = { acc };
	double scales[2] = { 1, 1 };
	ddp_combination step = { .type = wide, .op = f->op, .nsrc = 1, .src = pair,
	                         .ndst = 1, .dst = result, .scale = f->scale };
	const combine_fn combine = combine_wide(wide, f->op);

	load(f, 0, acc, i, n);
	if (f->scale != NULL) {
		combine(&step, 0, n);
		step.scale = scales;
	}
	step.nsrc = 2;
	for (int s = 1; s < f->nsrc; s++) {
		load(f, s, &next, i, n);
		if (f->scale != NULL)
			scales[1] = f->scale[s];
		combine(&step, 0, n);
	}
}

static inline bool is_far(const ddp_combination *f, size_t count)
{
	return f->nsrc >= FAR_SOURCES && f->scale == NULL && count >= FAR_BYTES / 4 / (size_t)f->nsrc;
}

/* Without blocks where that can be; returns the first element that is left. */
KERNEL static size_t combine_in_registers(const ddp_combination *f, size_t first, size_t count, bool far)
{
	static size_t (*const halves[2][4])(const ddp_combination *, size_t, size_t) = {
		{ combine_bf16_SUM, combine_bf16_PROD, combine_bf16_MIN, combine_bf16_MAX },
		{ combine_f16_SUM, combine_f16_PROD, combine_f16_MIN, combine_f16_MAX },
	};

	if (f->type != DDP_U8)
		return far ? first : halves[f->type == DDP_F16][column_of(f->op)](f, first, first + count);
	if (f->scale == NULL && f->divisor == 0) {
		choose_combine(f->type, f->op, far)(f, first, count);
		return first + count;
	}
	if (f->scale == NULL && column_of(f->op) == 0 && f->nsrc <= MEAN_SOURCES && f->divisor >= 2 &&
	    f->divisor <= MEAN_DIVISOR)
		return mean_of_u8(f, first, first + count);
	return first;
}

KERNEL static void reduce_narrow(const ddp_combination *f, size_t first, size_t count)
{
	const ddp_type wide = ddp_accumulator(f->type);
	narrow_block acc;

	if (!f->wide_src && !f->wide_dst) {
		size_t left = combine_in_registers(f, first, count, is_far(f, count));
		count -= left - first;
		first = left;
	}

	for (size_t done = 0; done < count; done += NARROW_BLOCK) {
		size_t n = count - done < NARROW_BLOCK ? count - done : NARROW_BLOCK;
		size_t i = first + done;

		combine_narrow(f, wide, i, n, &acc);
		divide(wide, f->divisor, &acc, n);
		for (int d = 0; d < f->ndst; d++) {
			if (f->wide_dst)
				memcpy((char *)f->dst[d] + i * 4, &acc, n * 4);
			else
				store_narrow(f->type, element(f->dst[d], f->type, i), &acc, n);
		}
	}
}

KERNEL static void run_combine(const ddp_combination *f, size_t first, size_t count)
{
	if (ddp_accumulator(f->type) != f->type)
		reduce_narrow(f, first, count);
	else
		choose_combine(f->type, f->op, is_far(f, count))(f, first, count);
}

/* Compilers may drop a store of what was just loaded, but not a volatile one. */
KERNEL static void run_take(void *dst, void *src, size_t bytes)
{
	const v_u8 *x = src;
	v_u8 *y = dst;
	size_t i = 0;

	for (; i + 64 <= bytes; i += 64, x += 2, y += 2) {
		v_u8 a = x[0], b = x[1];
		y[0] = a;
		y[1] = b;
		*(volatile uint64_t *)(void *)((char *)src + i) = ((v_u64)a)[0];
	}
	if (i == bytes)
		return;
	volatile unsigned char *line = (unsigned char *)src + i;
	memcpy((char *)dst + i, (const char *)src + i, bytes - i);
	*line = *((const unsigned char *)dst + i);
}

const ddp_kernel_table KERNEL_TABLE = { .combine = run_combine, .take = run_take };
