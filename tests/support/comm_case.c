/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/comm_cases.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/halves.h"

unsigned int case_roll(unsigned int *state, unsigned int sides)
{
	*state = *state * 1664525u + 1013904223u;
	return (*state >> 8) % sides;
}

/* ---- values --------------------------------------------------------------------- */

/* What a case expects is computed from what this rank alone has: nothing that the thread
   sanitizer has to watch, and for most of an element's time. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

/* The ranks of a large world whose elements count in a reduction of a 16-bit type: with more,
   sums of ADDENDS values of up to 8, scaled by up to 3, would take more than bf16's 8 bits, which
   nodes round to between them, and products would leave f16's range. */
enum { ADDENDS = 5 };

UNWATCHED static bool takes_part(const test_case *t, int rank, size_t i)
{
	const size_t stride = ((size_t)t->size + ADDENDS - 1) / ADDENDS;

	return !ddp_kind_reduces(t->c.kind) || ddp_type_bytes(t->c.type) != 2 || ((size_t)rank + i) % stride == 0;
}

/* Element i of rank r's input: small, so that sums and products stay exact. */
UNWATCHED static double value(const test_case *t, int rank, size_t i)
{
	if (!takes_part(t, rank, i))
		return t->c.op == DDP_PROD ? 1 : 0;
	unsigned int x = t->seed * 2654435761u + (unsigned int)rank * 40503u + (unsigned int)i * 2246822519u;

	x ^= x >> 15;
	if (t->c.type == DDP_BOOL)
		return (x >> 4) % 2;
	if (t->c.op == DDP_PROD)
		return 1 + (x >> 4) % 2;
	if (t->c.type == DDP_U8)
		return (x >> 4) % 16;
	return (int)((x >> 4) % 17) - 8;
}

UNWATCHED static double to_grid(double x, int fraction_bits, int least_exponent)
{
	if (x == 0 || !isfinite(x))
		return x;
	int exponent = ilogb(x) < least_exponent ? least_exponent : ilogb(x);
	double unit = ldexp(1, exponent - fraction_bits);

	return rint(x / unit) * unit;
}

/* The nearest value that the type holds. */
UNWATCHED static double held(ddp_type type, double x)
{
	switch (type) {
	case DDP_F32: return (float)x;
	case DDP_F16: return to_grid(x, 10, -14);
	case DDP_BF16: return to_grid(x, 7, -126);
	case DDP_I32: return (double)(int32_t)(int64_t)x;
	case DDP_U8: return (double)(uint8_t)(int64_t)x;
	case DDP_I8: return (double)(int8_t)(int64_t)x;
	case DDP_BOOL: return x != 0;
	default: return x;
	}
}

static uint16_t encode16(double x, int fraction_bits, int bias)
{
	if (x == 0)
		return 0;
	int exponent = ilogb(x);
	unsigned int fraction = (unsigned int)(ldexp(fabs(x), fraction_bits - exponent)) &
		((1u << fraction_bits) - 1);

	return (uint16_t)((x < 0 ? 0x8000u : 0) | (unsigned int)(exponent + bias) << fraction_bits | fraction);
}

void case_put(ddp_type type, void *memory, size_t i, double x)
{
	switch (type) {
	case DDP_F32: ((float *)memory)[i] = (float)x; break;
	case DDP_F64: ((double *)memory)[i] = x; break;
	case DDP_F16: ((uint16_t *)memory)[i] = encode16(x, 10, 15); break;
	case DDP_BF16: ((uint16_t *)memory)[i] = encode16(x, 7, 127); break;
	case DDP_I32: ((int32_t *)memory)[i] = (int32_t)x; break;
	case DDP_I64: ((int64_t *)memory)[i] = (int64_t)x; break;
	case DDP_U8: ((uint8_t *)memory)[i] = (uint8_t)x; break;
	case DDP_I8: ((int8_t *)memory)[i] = (int8_t)x; break;
	case DDP_BOOL: ((uint8_t *)memory)[i] = x != 0; break;
	}
}

double case_get(ddp_type type, const void *memory, size_t i)
{
	switch (type) {
	case DDP_F32: return ((const float *)memory)[i];
	case DDP_F64: return ((const double *)memory)[i];
	case DDP_F16: return decode_half(((const uint16_t *)memory)[i], 10, 15);
	case DDP_BF16: return decode_half(((const uint16_t *)memory)[i], 7, 127);
	case DDP_I32: return ((const int32_t *)memory)[i];
	case DDP_I64: return (double)((const int64_t *)memory)[i];
	case DDP_BOOL:
	case DDP_U8: return ((const uint8_t *)memory)[i];
	case DDP_I8: return ((const int8_t *)memory)[i];
	}
	return 0;
}

UNWATCHED static bool is_float(ddp_type type)
{
	return type == DDP_F32 || type == DDP_F64 || type == DDP_F16 || type == DDP_BF16;
}

/* Element i of the reduction over all ranks, computed plainly. */
UNWATCHED static double reduced(const bench *b, const test_case *t, size_t i)
{
	double result = 0;

	for (int r = 0; r < b->size; r++) {
		double x = value(t, r, i) * t->scales[r];
		if (!is_float(t->c.type))
			x = trunc(x);
		switch (r == 0 ? DDP_SUM : t->c.op) {
		case DDP_SUM:
		case DDP_AVG: result = r == 0 ? x : result + x; break;
		case DDP_PROD: result *= x; break;
		case DDP_MIN: result = x < result ? x : result; break;
		case DDP_MAX: result = x > result ? x : result; break;
		case DDP_BAND: result = (double)((int64_t)result & (int64_t)x); break;
		case DDP_BOR: result = (double)((int64_t)result | (int64_t)x); break;
		case DDP_BXOR: result = (double)((int64_t)result ^ (int64_t)x); break;
		}
	}
	if (t->c.op == DDP_AVG) {
		result /= b->size;
		if (!is_float(t->c.type))
			result = trunc(result);
		else if (t->c.type != DDP_F64)
			result = (float)result;
	}
	return held(t->c.type, result);
}

/* ---- making a case ----------------------------------------------------------------- */

size_t case_random_count(bench *b)
{
	switch (case_roll(&b->common, 8)) {
	case 0: return case_roll(&b->common, 3);
	case 1:
	case 2: return case_roll(&b->common, 64);
	case 3:
	case 4: return case_roll(&b->common, 3000);
	case 5:
	case 6: return case_roll(&b->common, (unsigned int)b->most / 4 + 1);
	default: return case_roll(&b->common, (unsigned int)b->most + 1);
	}
}

UNWATCHED static size_t sum(const size_t *counts, int n)
{
	size_t total = 0;

	for (int i = 0; i < n; i++)
		total += counts[i];
	return total;
}

static void choose_counts(bench *b, test_case *t)
{
	ddp_operation *c = &t->c;
	bool per_rank = c->kind >= DDP_REDUCE_SCATTER && c->kind <= DDP_ALL_TO_ALL;
	size_t count = case_random_count(b);

	t->vector = per_rank && case_roll(&b->common, 3) == 0;
	if (!per_rank) {
		c->count = c->kind == DDP_BARRIER ? 0 : count;
		return;
	}
	c->count = t->vector ? 0 : count / (size_t)b->size;
	for (int i = 0; i < b->size; i++) {
		t->counts[i] = t->vector ? case_roll(&b->common, (unsigned int)count / (unsigned int)b->size + 1) : c->count;
		t->recv_counts[i] = t->counts[i];
	}
	if (!t->vector)
		return;
	if (c->kind == DDP_ALL_TO_ALL) {
		for (int from = 0; from < b->size; from++) {
			for (int to = 0; to < b->size; to++)
				t->pairs[from][to] = case_roll(&b->common, (unsigned int)count / (unsigned int)b->size + 1);
		}
		for (int i = 0; i < b->size; i++) {
			t->counts[i] = t->pairs[b->rank][i];
			t->recv_counts[i] = t->pairs[i][b->rank];
		}
		c->recv_counts = t->recv_counts;
	}
	c->counts = t->counts;
}

static void choose_sizes(const bench *b, test_case *t)
{
	const ddp_operation *c = &t->c;
	bool root = c->root == b->rank;
	size_t mine = c->kind >= DDP_REDUCE_SCATTER && c->kind <= DDP_ALL_TO_ALL ? t->counts[b->rank] : c->count;
	size_t all = sum(t->counts, b->size);

	t->send_count = t->recv_count = mine;
	switch (c->kind) {
	case DDP_REDUCE: t->recv_count = root ? mine : 0; break;
	case DDP_BROADCAST: t->send_count = 0; break;
	case DDP_REDUCE_SCATTER: t->send_count = all; break;
	case DDP_ALL_GATHER: t->recv_count = all; break;
	case DDP_GATHER: t->recv_count = root ? all : 0; break;
	case DDP_SCATTER: t->send_count = root ? all : 0; break; /* in place: from the start */
	case DDP_ALL_TO_ALL: t->send_count = all; t->recv_count = sum(t->recv_counts, b->size); break;
	case DDP_BARRIER: t->send_count = t->recv_count = 0; break;
	default: break;
	}
}

/* A buffer in shared or private memory, between guards. */
static unsigned char *buffer(bench *b, size_t bytes, bool *heap)
{
	size_t whole = (bytes + 2 * CASE_GUARD + 63) / 64 * 64;
	unsigned char *block;

	*heap = case_roll(&b->own, 3) == 0 || b->arena_used + whole > CASE_ARENA_BYTES;
	/* Often all ranks use shared memory, which is another path. */
	if (case_roll(&b->common, 2) == 0 && b->arena_used + whole <= CASE_ARENA_BYTES)
		*heap = false;
	if (*heap) {
		block = malloc(whole);
		CHECK(block != NULL);
	} else {
		block = (unsigned char *)b->arena + b->arena_used;
		b->arena_used += whole;
	}
	memset(block, 0xa5, bytes + 2 * CASE_GUARD);
	return block;
}

static void fill(const bench *b, const test_case *t, void *memory)
{
	for (size_t i = 0; i < t->send_count; i++)
		case_put(t->c.type, memory, i, value(t, b->rank, i));
}

/* In place: the input lies where send NULL says. */
static void place_buffers(bench *b, test_case *t)
{
	ddp_operation *c = &t->c;
	size_t element = ddp_type_bytes(c->type);
	size_t bytes = (t->send_count > t->recv_count ? t->send_count : t->recv_count) * element;

	if (c->kind == DDP_BROADCAST) {
		t->recv_block = buffer(b, t->recv_count * element, &t->recv_heap);
		c->recv = t->recv_block + CASE_GUARD;
		t->send_count = b->rank == c->root ? c->count : 0;
		fill(b, t, c->recv);
		t->send_count = 0;
		return;
	}
	if (!t->in_place) {
		t->send_block = buffer(b, t->send_count * element, &t->send_heap);
		t->recv_block = buffer(b, t->recv_count * element, &t->recv_heap);
		c->send = t->send_block + CASE_GUARD;
		c->recv = t->recv_block + CASE_GUARD;
		fill(b, t, t->send_block + CASE_GUARD);
		return;
	}
	t->recv_block = buffer(b, bytes, &t->recv_heap);
	c->recv = t->recv_block + CASE_GUARD;
	size_t offset = 0;
	if (c->kind == DDP_ALL_GATHER || (c->kind == DDP_GATHER && c->root == b->rank))
		offset = sum(t->counts, b->rank);
	fill(b, t, t->recv_block + CASE_GUARD + offset * element);
}

void case_make(bench *b, test_case *t)
{
	static const ddp_operation_kind kinds[] = {
		DDP_ALL_REDUCE, DDP_REDUCE, DDP_BROADCAST, DDP_REDUCE_SCATTER, DDP_ALL_GATHER, DDP_GATHER,
		DDP_SCATTER, DDP_ALL_TO_ALL, DDP_BARRIER, DDP_ALL_REDUCE,
	};
	static const double scales[] = { 1, 2, 0.5, 3, 0 };

	memset(t, 0, sizeof(*t));
	t->size = b->size;
	t->seed = case_roll(&b->common, 1u << 20);
	t->c.kind = kinds[case_roll(&b->common, 10)];
	t->c.type = (ddp_type)case_roll(&b->common, 9);
	t->c.op = (ddp_op)case_roll(&b->common, is_float(t->c.type) ? 5 : 8);
	if (t->c.type == DDP_BOOL && t->c.op == DDP_AVG)
		t->c.op = DDP_SUM;
	t->c.root = (int)case_roll(&b->common, (unsigned int)b->size);
	t->c.lane = b->lanes > 1 ? (int)case_roll(&b->common, (unsigned int)b->lanes) : 0;
	t->in_place = case_roll(&b->common, 3) == 0;
	const bool takes_scale = !ddp_op_is_bitwise(t->c.op) && t->c.type != DDP_BOOL;
	bool scaled = case_roll(&b->common, 3) == 0 && takes_scale;
	for (int r = 0; r < b->size; r++)
		t->scales[r] = scaled && t->c.op != DDP_PROD ? scales[case_roll(&b->common, 5)] : 1;
	t->c.scaled = scaled;
	t->c.scale = scaled ? t->scales[b->rank] : 0;
	choose_counts(b, t);
	if (t->c.kind == DDP_ALL_TO_ALL && t->vector)
		t->in_place = false; /* there is no such form */
	choose_sizes(b, t);
	place_buffers(b, t);
}

/* ---- checking ----------------------------------------------------------------------- */

/* Element i of what this rank must have received. */
UNWATCHED static double expected(const bench *b, const test_case *t, size_t i)
{
	const ddp_operation *c = &t->c;

	switch (c->kind) {
	case DDP_ALL_REDUCE:
	case DDP_REDUCE: return reduced(b, t, i);
	case DDP_BROADCAST: return value(t, c->root, i);
	case DDP_REDUCE_SCATTER: return reduced(b, t, sum(t->counts, b->rank) + i);
	case DDP_SCATTER: return value(t, c->root, sum(t->counts, b->rank) + i);
	default: break;
	}
	const size_t *counts = c->kind == DDP_ALL_TO_ALL ? t->recv_counts : t->counts;
	int from = 0;
	while (i >= counts[from])
		i -= counts[from++];
	if (c->kind != DDP_ALL_TO_ALL)
		return value(t, from, i);
	size_t offset = t->vector ? sum(t->pairs[from], b->rank) : c->count * (size_t)b->rank;
	return value(t, from, offset + i);
}

/* ---- what NCCL does otherwise -------------------------------------------------------- */

bool case_fits_nccl(const bench *b, const test_case *t)
{
	const bool power_of_2 = (b->size & (b->size - 1)) == 0, narrow = ddp_type_bytes(t->c.type) == 2;

	if (b->alone || !ddp_kind_reduces(t->c.kind))
		return true;
	if (ddp_op_is_bitwise(t->c.op) && (t->c.type != DDP_BOOL || t->c.op == DDP_BXOR))
		return false;
	if (t->c.op == DDP_AVG && (t->c.type == DDP_U8 || t->c.type == DDP_I8 || (t->c.scaled && (!is_float(t->c.type) || (narrow && !power_of_2)))))
		return false;
	if (t->c.scaled && t->c.op != DDP_SUM && t->c.op != DDP_AVG)
		return false;
	for (int r = 0; r < b->size; r++) {
		if (t->c.scaled && !is_float(t->c.type) && t->scales[r] != trunc(t->scales[r]))
			return false;
	}
	return true;
}

/* It multiplies by 1/ranks, which it rounds, before it sums for an average. */
static double slack(const bench *b, const test_case *t)
{
	const bool rounds = !b->alone && t->c.memory == DDP_MEMORY_DEVICE && ddp_kind_reduces(t->c.kind) &&
	                    t->c.op == DDP_AVG && is_float(t->c.type) && (b->size & (b->size - 1)) != 0;
	const int bits = t->c.type == DDP_BF16 ? 7 : t->c.type == DDP_F16 ? 10 : t->c.type == DDP_F32 ? 22 : 51;

	return rounds ? ldexp(24, -bits) : 0;
}

static void explain(const bench *b, const test_case *t, size_t i, double want, double have)
{
	char text[128];

	ddp_collective_describe(&t->c, text, sizeof(text));
	fprintf(stderr, "# rank %d of %d: %s%s%s, element %zu of %zu: %g instead of %g\n", b->rank,
	        b->size, text, t->in_place ? " in place" : "", t->vector ? " by counts" : "", i,
	        t->recv_count, have, want);
	_exit(1);
}

static void check_guards(const unsigned char *block, size_t bytes)
{
	for (int i = 0; i < CASE_GUARD; i++)
		CHECK(block[i] == 0xa5 && block[CASE_GUARD + bytes + (size_t)i] == 0xa5);
}

void case_check(const bench *b, const test_case *t)
{
	size_t element = ddp_type_bytes(t->c.type);
	size_t recv = t->recv_count * element, send = t->send_count * element;

	for (size_t i = 0; i < t->recv_count; i++) {
		double want = expected(b, t, i), have = case_get(t->c.type, t->recv_block + CASE_GUARD, i);
		if (!(fabs(want - have) <= slack(b, t)))
			explain(b, t, i, want, have);
	}
	if (t->send_block != NULL) {
		check_guards(t->send_block, send);
		for (size_t i = 0; i < t->send_count; i++)
			CHECK(case_get(t->c.type, t->send_block + CASE_GUARD, i) == value(t, b->rank, i));
		check_guards(t->recv_block, recv);
	} else {
		check_guards(t->recv_block, recv > send ? recv : send);
	}
}

void case_free(test_case *t)
{
	if (t->send_heap)
		free(t->send_block);
	if (t->recv_heap)
		free(t->recv_block);
}
