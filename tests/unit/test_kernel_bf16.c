/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* products of bf16: each set of instructions that this processor has gives what the same
   numbers give in double precision, at odd sizes and either orientation. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/mixed.h"
#include "kernels.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

typedef struct matrix {
	float *wide;
	uint16_t *narrow;
} matrix;

static matrix make_matrix(int64_t n)
{
	matrix m = {make((size_t)n, sizeof(float)), make((size_t)n, sizeof(uint16_t))};

	for (int64_t i = 0; i < n; i++)
		m.wide[i] = (float)uniform();
	dk_to_bf16(m.narrow, m.wide, n);
	dk_from_bf16(m.wide, m.narrow, n);
	return m;
}

static uint16_t *pack(const dk_bf16_set *set, const dk_side *side)
{
	uint16_t *packed = aligned_alloc(64, (size_t)dk_packed_size(side->rows, side->depth) * sizeof(uint16_t));

	assert_non_null(packed);
	dk_pack(set, packed, side, 0, dk_strips(side->rows));
	return packed;
}

static double element(const matrix *m, const dk_side *side, int64_t row, int64_t k)
{
	return m->wide[side->across ? k * side->ld + row : row * side->ld + k];
}

static void check_product(const dk_bf16_set *set, int64_t rows, int64_t columns, int64_t depth, bool a_across,
                          bool b_across, bool adds)
{
	matrix a = make_matrix(rows * depth), b = make_matrix(columns * depth);
	const dk_side left = {a.narrow, a_across ? rows : depth, a_across, false, rows, depth};
	const dk_side right = {b.narrow, b_across ? columns : depth, b_across, true, columns, depth};
	const int64_t ldc = dk_strips(columns) * DK_STRIP;
	uint16_t *packed_a = pack(set, &left), *packed_b = pack(set, &right);
	float *c = make((size_t)(dk_strips(rows) * DK_STRIP * ldc), sizeof(float));

	c[0] = adds ? 2 : NAN;
	if (set->begin != NULL)
		set->begin();
	dk_multiply(set, c, ldc, dk_range(packed_a, depth, 0, dk_strips(rows), 0),
	            dk_range(packed_b, depth, 0, dk_strips(columns), 0), dk_ceil_div(depth, DK_DEPTH), adds);
	if (set->end != NULL)
		set->end();
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < columns; j++) {
			double want = adds && i == 0 && j == 0 ? 2 : 0, size = 1;
			for (int64_t k = 0; k < depth; k++) {
				const double term = element(&a, &left, i, k) * element(&b, &right, j, k);
				want += term;
				size += fabs(term);
			}
			/* Sums of f32, in any order. */
			if (!(fabs(c[i * ldc + j] - want) <= 1e-6 * size))
				fail_msg("%s %ld,%ld,%ld: c[%ld, %ld] is %.9g, not %.9g", set->name, (long)rows,
				         (long)columns, (long)depth, (long)i, (long)j, c[i * ldc + j], want);
		}
	}
	void *const used[] = {a.wide, a.narrow, b.wide, b.narrow, packed_a, packed_b, c};
	for (size_t i = 0; i < sizeof(used) / sizeof(used[0]); i++)
		free(used[i]);
}

TEST(products_are_those_of_double_precision)
{
	static const int64_t shapes[][3] = {{1, 1, 1}, {16, 16, 32}, {17, 33, 31}, {70, 5, 65}, {32, 32, 600}};
	const dk_bf16_set *set;

	for (int i = 0; (set = dk_bf16_set_at(i)) != NULL; i++) {
		print_message("%s\n", set->name);
		for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
			for (int way = 0; way < 8; way++)
				check_product(set, shapes[s][0], shapes[s][1], shapes[s][2], way & 1, way & 2, way & 4);
		}
	}
}

/* All ways of a product's result, of random operands, behind one another. */
static uint16_t *results(dk_mixed *q, const dk_bf16_set *set, int64_t rows, int64_t inputs, int64_t outputs,
                         size_t *bytes)
{
	const int64_t size = rows * outputs, params = inputs * outputs;
	dk_queue *const before = dk_use(&q->base);
	uint16_t *all = make((size_t)(3 * size + rows * inputs + 2 * (params + outputs)), sizeof(*all));
	uint16_t *plain = all, *added = plain + size, *scaled = added + size, *din = scaled + size;
	float *dweight = (float *)(void *)(din + rows * inputs), *dbias = dweight + params;
	matrix in = make_matrix(rows * inputs), weight = make_matrix(params), dout = make_matrix(size);
	matrix bias = make_matrix(outputs);

	q->set = set;
	for (int64_t i = 0; i < params; i++)
		dweight[i] = (float)i;
	bias.narrow[outputs / 2] = 0x7f81; /* a NaN */
	weight.narrow[0] = 0x7f80;         /* infinity */
	memcpy(added, dout.narrow, (size_t)size * sizeof(*added));
	memcpy(scaled, dout.narrow, (size_t)size * sizeof(*scaled));
	float *const x = (float *)(void *)in.narrow, *const w = (float *)(void *)weight.narrow;
	float *const d = (float *)(void *)dout.narrow, *const b = (float *)(void *)bias.narrow;
	dk_linear_forward((float *)(void *)plain, x, w, NULL, NULL, rows, inputs, outputs);
	dk_linear_forward((float *)(void *)added, x, w, b, (float *)(void *)added, rows, inputs, outputs);
	dk_gemm(&(dk_gemm_args){.m = rows, .n = outputs, .k = inputs, .a = x, .lda = inputs, .b = w,
		.ldb = outputs, .beta = 0.3f, .c = (float *)(void *)scaled, .ldc = outputs});
	dk_linear_backward_input((float *)(void *)din, d, w, rows, inputs, outputs);
	dk_linear_backward_params(dweight, dbias, d, x, rows, inputs, outputs);
	dk_use(before);
	const matrix used[] = {in, weight, dout, bias};
	for (size_t i = 0; i < sizeof(used) / sizeof(used[0]); i++) {
		free(used[i].wide);
		free(used[i].narrow);
	}
	*bytes = (size_t)(3 * size + rows * inputs + 2 * (params + outputs)) * sizeof(*all);
	return all;
}

TEST(what_is_not_packed_gives_the_same_bits)
{
	/* Whole blocks, and such with edges. */
	static const int64_t shapes[][3] = {{160, 96, 288}, {32, 512, 64}, {130, 64, 288}, {160, 65, 257}};
	dk_queue *queue = dk_open_mixed();
	const dk_bf16_set *set;

	assert_non_null(queue);
	for (int i = 0; (set = dk_bf16_set_at(i)) != NULL; i++) {
		dk_bf16_set packing = *set;
		packing.in_place = false;
		for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]) && set->in_place; s++) {
			size_t bytes;
			random_state = s + 1;
			uint16_t *here = results(dk_mixed_of(queue), set, shapes[s][0], shapes[s][1], shapes[s][2], &bytes);
			random_state = s + 1;
			uint16_t *packed = results(dk_mixed_of(queue), &packing, shapes[s][0], shapes[s][1],
			                           shapes[s][2], &bytes);
			assert_memory_equal(here, packed, bytes);
			free(here);
			free(packed);
		}
	}
	dk_close(queue);
}

TEST(numbers_are_rounded_to_the_nearest_and_even)
{
	const float in[] = {1, 1.00390625f, 1.01171875f, 1.00390637f, -0.0f, INFINITY, 3.4e38f, 0x1p-149f, 1.5f};
	const uint16_t want[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x8000, 0x7f80, 0x7f80, 0, 0x3fc0};
	enum { COUNT = sizeof(in) / sizeof(in[0]) };
	uint16_t out[COUNT];
	uint32_t bits = 0x7f800001u; /* a NaN that would become an infinity */
	float nan[11];

	dk_to_bf16(out, in, COUNT);
	assert_memory_equal(out, want, sizeof(want));
	for (int i = 0; i < 11; i++)
		memcpy(&nan[i], &bits, sizeof(bits));
	dk_to_bf16(out, nan, COUNT);
	for (int i = 0; i < COUNT; i++)
		assert_int_equal(out[i], 0x7fc0);
}
