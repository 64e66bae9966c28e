/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* comm/ops/combine_nodes: the order of nodes, and what it costs that partial results travel in 16 bits.
   comm/ops/blocks: how operations are cut. */
#include <math.h>
#include <stdlib.h>

#include "comm/api.h"
#include "comm/core/offsets.h"
#include "comm/ops/blocks.h"
#include "comm/ops/combine_nodes.h"
#include "comm/ops/kernels_table.h"
#include "tests/support/test.h"

enum { NODES = 9, COUNT = 1500 }; /* several blocks, and a tail */

/* ---- order --------------------------------------------------------------------------- */

/* Integers of up to 4 bits, in any type; products stay in range. */
static void put(ddp_type type, ddp_op op, void *memory, size_t i, int x)
{
	x = op == DDP_PROD ? 1 + x % 2 : x;
	switch (type) {
	case DDP_F32: ((float *)memory)[i] = (float)x; break;
	case DDP_F64: ((double *)memory)[i] = x; break;
	case DDP_F16: ((uint16_t *)memory)[i] = ddp_f16_from_float((float)x); break;
	case DDP_BF16: ((uint16_t *)memory)[i] = ddp_bf16_from_float((float)x); break;
	case DDP_I32: ((int32_t *)memory)[i] = x; break;
	case DDP_I64: ((int64_t *)memory)[i] = x; break;
	case DDP_U8:
	case DDP_I8: ((uint8_t *)memory)[i] = (uint8_t)x; break;
	case DDP_BOOL: ((uint8_t *)memory)[i] = x % 2; break;
	}
}

static double get(ddp_type type, const void *memory, size_t i)
{
	switch (type) {
	case DDP_F32: return ((const float *)memory)[i];
	case DDP_F64: return ((const double *)memory)[i];
	case DDP_F16: return ddp_f16_to_float(((const uint16_t *)memory)[i]);
	case DDP_BF16: return ddp_bf16_to_float(((const uint16_t *)memory)[i]);
	case DDP_I32: return ((const int32_t *)memory)[i];
	case DDP_I64: return (double)((const int64_t *)memory)[i];
	case DDP_BOOL:
	case DDP_U8: return ((const uint8_t *)memory)[i];
	case DDP_I8: return ((const int8_t *)memory)[i];
	}
	return 0;
}

static int part_of(int node, size_t i)
{
	return (int)((i * 2654435761u + (size_t)node * 40503u) >> 7 & 7);
}

static double combined(ddp_op op, int nodes, size_t i)
{
	double result = part_of(0, i);

	if (op == DDP_PROD)
		result = 1 + part_of(0, i) % 2;
	for (int node = 1; node < nodes; node++) {
		const double x = part_of(node, i);
		switch (op) {
		case DDP_PROD: result *= 1 + part_of(node, i) % 2; break;
		case DDP_MIN: result = x < result ? x : result; break;
		case DDP_MAX: result = x > result ? x : result; break;
		case DDP_BAND: result = (int)result & (int)x; break;
		case DDP_BOR: result = (int)result | (int)x; break;
		case DDP_BXOR: result = (int)result ^ (int)x; break;
		default: result += x;
		}
	}
	return op == DDP_AVG ? trunc(result / 4) : result;
}

/* A result may go where a part came from, and to several places. */
static void combine_all_nodes(void)
{
	static double memory[NODES][COUNT], copy[COUNT];
	void *parts[NODES], *scratch = malloc(ddp_combine_scratch_bytes(NODES));

	assert_non_null(scratch);
	for (int type = DDP_F32; type <= DDP_I8; type++) {
		const bool integer = ddp_type_is_integer((ddp_type)type);
		for (int op = DDP_SUM; op <= (integer ? DDP_BXOR : DDP_MAX); op++) {
			const ddp_type travel = ddp_travel_type((ddp_type)type, (ddp_op)op);
			for (int nodes = 2; nodes <= NODES; nodes++) {
				void *dst[2] = { memory[nodes / 2], copy };
				const ddp_combination last = { .type = (ddp_type)type, .op = (ddp_op)op, .ndst = 2, .dst = dst,
				                        .divisor = op == DDP_AVG ? 4 : 0 };
				for (int node = 0; node < nodes; node++) {
					parts[node] = memory[node];
					for (size_t i = 0; i < COUNT; i++)
						put(travel, last.op, memory[node], i, part_of(node, i));
				}
				if (travel != last.type) /* it is narrower than a part */
					dst[0] = copy + COUNT / 2;
				ddp_combine_nodes(&last, travel, parts, nodes, COUNT, scratch);
				for (size_t i = 0; i < COUNT; i++) {
					const double want = combined(last.op, nodes, i), have = get(last.type, dst[0], i);
					if (last.op == DDP_AVG && !integer)
						assert_true(trunc(have) == want);
					else
						assert_true(have == (type == DDP_U8 ? (uint8_t)want : type == DDP_I8 ? (int8_t)(uint8_t)(int)want : want));
					assert_true(have == get(last.type, dst[1], i));
				}
			}
		}
	}
	free(scratch);
}

TEST(all_nodes_are_combined)
{
	for (int level = 0; level < DDP_KERNEL_LEVELS; level++) {
		if (ddp_kernels_use(level) != NULL)
			combine_all_nodes();
	}
}

/* ---- accuracy ------------------------------------------------------------------------------ */

enum { RANKS = 4, SAMPLES = 20000 };

static float normal(unsigned int *seed)
{
	double sum = -6;

	for (int i = 0; i < 12; i++) {
		*seed = *seed * 1664525u + 1013904223u;
		sum += (*seed >> 8) / 16777216.0;
	}
	return (float)sum;
}

/* Half a unit in the last place of x. */
static double half_a_unit(ddp_type type, double x)
{
	return x == 0 ? 0 : ldexp(0.5, ilogb(x) - (type == DDP_F16 ? 10 : 7));
}

/* What may be wrong with a sum of all ranks: half a unit of it, and if partial results
   are rounded to travel, half a unit of each; and what f32 leaves of such sums. */
static double allowed_error(ddp_type type, bool rounded, int nodes, uint16_t (*inputs)[SAMPLES], size_t i,
                            double exact)
{
	double most = 0;

	for (int node = 0; node < nodes && rounded; node++) {
		double part = 0;
		for (int r = 0; r < RANKS; r++)
			part += get(type, inputs[node * RANKS + r], i);
		most += half_a_unit(type, part);
	}
	return most + half_a_unit(type, fabs(exact) + most) + 1e-5;
}

/* The root of the mean square of what is wrong with sums of all ranks, beside that of
   the sums. Nodes' sums travel as `travel`. */
static double error_of(ddp_type type, ddp_type travel, int nodes, uint16_t (*inputs)[SAMPLES])
{
	static float partials[8][SAMPLES];
	static uint16_t result[SAMPLES];
	void *parts[8], *dst[1], *scratch = malloc(ddp_combine_scratch_bytes(nodes));
	ddp_combination combination = { .type = type, .op = DDP_SUM, .wide_dst = travel != type, .nsrc = RANKS, .ndst = 1,
	                  .dst = dst };
	double errors = 0, sums = 0;

	assert_non_null(scratch);
	for (int node = 0; node < nodes; node++) {
		const void *src[RANKS];
		for (int r = 0; r < RANKS; r++)
			src[r] = inputs[node * RANKS + r];
		combination.src = src;
		dst[0] = parts[node] = partials[node];
		ddp_combine(&combination, 0, SAMPLES);
	}
	dst[0] = result;
	combination.wide_dst = false;
	ddp_combine_nodes(&combination, travel, parts, nodes, SAMPLES, scratch);
	for (size_t i = 0; i < SAMPLES; i++) {
		double exact = 0;
		for (int r = 0; r < nodes * RANKS; r++)
			exact += get(type, inputs[r], i);
		const double error = fabs(get(type, result, i) - exact);
		assert_true(error <= allowed_error(type, travel == type, nodes, inputs, i, exact));
		errors += error * error;
		sums += exact * exact;
	}
	free(scratch);
	return sqrt(errors / sums);
}

TEST(travelling_in_16_bits_costs_a_rounding_per_node)
{
	static uint16_t inputs[8 * RANKS][SAMPLES];
	unsigned int seed = 1;

	print_message("sums of normal numbers, %d ranks a node: relative error\n", RANKS);
	for (ddp_type type = DDP_F16; type <= DDP_BF16; type++) {
		for (int nodes = 2; nodes <= 8; nodes *= 2) {
			for (int r = 0; r < nodes * RANKS; r++) {
				for (size_t i = 0; i < SAMPLES; i++)
					inputs[r][i] = type == DDP_F16 ? ddp_f16_from_float(normal(&seed))
						: ddp_bf16_from_float(normal(&seed));
			}
			const double f32 = error_of(type, DDP_F32, nodes, inputs), own = error_of(type, type, nodes, inputs);
			print_message("%-4s %d nodes: %.5f%% if nodes' sums travel as f32, %.5f%% as %s, %.2f times that\n",
			              ddp_type_name(type), nodes, 100 * f32, 100 * own, ddp_type_name(type), own / f32);
			/* Each of two roundings is worth about as much as the other. */
			assert_true(own < 1.6 * f32);
		}
	}
}

/* ---- comm/ops/blocks ------------------------------------------------------------ */

enum { LIMIT = 256 * 1024, WINDOW = 4 * 1024 * 1024, LONGEST = 1 << 30 };

TEST(a_window_holds_a_chunk_of_each_of_many_slices)
{
	static const struct {
		size_t element, wide;
	} types[] = { { 1, 4 }, { 2, 4 }, { 4, 4 }, { 8, 8 } };

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		const size_t element = types[t].element, wide = types[t].wide;
		for (size_t slices = 1; slices <= WINDOW / element; slices += 1 + slices / 7) {
			size_t count = ddp_chunk_count(LIMIT, WINDOW / slices, element, wide, LONGEST);
			assert_true(count > 0);
			assert_true(count * element * slices <= WINDOW);
			assert_true(count * wide <= LIMIT || count == 64);
			assert_true(count < 64 || count % 64 == 0);
		}
		assert_int_equal(ddp_chunk_count(LIMIT, WINDOW / (WINDOW / element * 2), element, wide, LONGEST), 0);
	}
}

/* Also where the longest slice is a little shorter than that: a window is cut
   into whole chunks, so it must hold one. */
TEST(a_chunk_as_long_as_the_longest_slice_fits_in_its_share)
{
	for (size_t slices = 1; slices <= WINDOW / 8 / 64; slices += 1 + slices / 7) {
		const size_t share = WINDOW / slices;
		for (size_t longest = share / 4 > 200 ? share / 4 - 200 : 0; longest < share / 4 + 200; longest++) {
			size_t count = ddp_chunk_count(LIMIT, share, 4, 4, longest);
			assert_true(count > 0 && count * 4 <= share);
			assert_true(count < longest + 64 || count == 64);
		}
	}
}

TEST(a_chunk_is_not_much_longer_than_the_longest_slice)
{
	assert_int_equal(ddp_chunk_count(LIMIT, WINDOW, 4, 4, LONGEST), LIMIT / 4);
	assert_int_equal(ddp_chunk_count(LIMIT, WINDOW, 4, 4, 65), 128);
	assert_int_equal(ddp_chunk_count(LIMIT, WINDOW, 4, 4, 0), 64);
}

TEST(parts_cover_everything_once)
{
	for (size_t count = 0; count < 300; count += 1 + count / 9) {
		for (int parts = 1; parts < 20; parts++) {
			size_t at = 0;
			for (int i = 0; i < parts; i++) {
				const ddp_range part = ddp_part(count, parts, i, 16);
				assert_int_equal(part.begin, at);
				at += part.count;
			}
			assert_int_equal(at, count);
		}
	}
}

TEST(offsets_of_blocks_are_sums_of_the_counts_before)
{
	const size_t counts[] = { 3, 0, 7, 1 }, recv_counts[] = { 0, 5, 2, 9 };
	const size_t offsets[] = { 0, 3, 3, 10, 11 }, recv_offsets[] = { 0, 0, 5, 7, 16 };
	const ddp_operation even = { .kind = DDP_ALL_TO_ALL, .count = 6 };
	const ddp_operation vector = { .kind = DDP_ALL_TO_ALL, .counts = counts, .recv_counts = recv_counts };
	ddp_comm *comm = calloc(1, sizeof(*comm));

	assert_non_null(comm);
	comm->size = 4;
	for (int again = 0; again < 2; again++) {
		comm->run.operation = &vector;
		assert_int_equal(ddp_offsets_make(comm), DDP_OK);
		for (int r = 0; r <= 4; r++) {
			assert_int_equal(ddp_block_offset(comm, r), offsets[r]);
			assert_int_equal(ddp_recv_offset(comm, r), recv_offsets[r]);
		}
		comm->run.operation = &even;
		assert_int_equal(ddp_offsets_make(comm), DDP_OK);
		assert_int_equal(ddp_block_offset(comm, 4), 24);
		assert_int_equal(ddp_recv_offset(comm, 1), 6);
	}
	ddp_offsets_free(comm);
	free(comm);
}
