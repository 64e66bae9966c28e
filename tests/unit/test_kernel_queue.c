/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* runs: asan; as: test_kernel_queue_cuda */
/* kernels on a queue: what does not hang on the order of sums has the host's bits, and a
   whole model passes forward and backward there as on the host. The queues are those of
   kernels/cuda over the emulation, on a GPU, or of the fake GPU. */
#include <math.h>
#include <string.h>

#include "table.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

enum { LONGEST = 70001 };

/* Numbers that bf16 has, too. */
static void fill(float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)(int)(uniform() * 128) * 0x1p-6f;
}

/* f32 of the host to the place as they are, and back. */
static void *give_bits(const void *from, size_t bytes)
{
	return give_as(DK_F32, from, (int64_t)(bytes / sizeof(float)));
}

static void assert_bits(const void *there, const void *want, size_t bytes)
{
	float *got = floats((int64_t)(bytes / sizeof(float)));

	take_as(DK_F32, got, there, (int64_t)(bytes / sizeof(float)));
	assert_memory_equal(got, want, bytes);
}

static float *give_gradient(const float *from, int64_t n)
{
	return give_as(gradient_type(), from, n);
}

static const int64_t lengths[] = {1, 31, 256, 1001, LONGEST};
enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]), FEW_LENGTHS = 3 };

/* All where nothing else has the type's kernels. */
static int lengths_here(void)
{
	return place.type == DK_F32 || place.type == DK_BF16 ? LENGTHS : FEW_LENGTHS;
}

static float param[LONGEST + 1], grad[LONGEST + 1], first[LONGEST + 1], second[LONGEST + 1];

static void fill_all(int64_t n)
{
	random_state = 9;
	fill(param, n);
	fill(grad, n);
	fill(first, n);
	fill(second, n);
	for (int64_t i = 0; i < n; i++)
		second[i] = fabsf(second[i]);
}

/* `other`: Nesterov's momentum, and weight decay as a part of the gradient. */
static void update(dk_rule rule, int64_t n, bool momentum, int64_t step, bool other)
{
	const size_t bytes = (size_t)n * sizeof(float);
	static uint16_t rounded[LONGEST + 1];
	dk_update_args a = {.rule = rule, .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8,
		.weight_decay = 0.1, .momentum = 0.9, .nesterov = other, .coupled = other, .step = step, .grad_scale = 0.3};

	fill_all(n);
	float *param_there = give_bits(param, bytes), *first_there = give_bits(first, bytes);
	float *second_there = give_bits(second, bytes), *grad_there = give_gradient(grad, n);
	float *rounded_there = bytes_there(bytes);
	a.rounded = (uint16_t *)rounded_there;
	dk_use(place.queue);
	dk_update(param_there, grad_there, momentum ? first_there : NULL, second_there, n, &a);
	assert_true(dk_largest(grad_there, n) == 0);
	assert_null(dk_failure());
	dk_use(NULL);
	a.rounded = rounded;
	dk_update(param, grad, momentum ? first : NULL, second, n, &a);
	assert_bits(param_there, param, bytes);
	assert_bits(first_there, first, bytes);
	assert_bits(second_there, second, bytes);
	assert_bits(rounded_there, rounded, (size_t)(n / 2) * sizeof(float));
}

static void try_updates(void)
{
	for (int i = 0; i < lengths_here(); i++) {
		for (int rule = 0; rule < DK_RULES; rule++) {
			update((dk_rule)rule, lengths[i], true, 1, true);
			update((dk_rule)rule, lengths[i], true, 2, false);
			update((dk_rule)rule, lengths[i], true, 3, true);
		}
		update(DK_SGD, lengths[i], false, 2, false);
	}
}

TEST_RUNS(updates_have_the_hosts_bits, in_each_place(try_updates));

/* What an update of whole tensors works on, here or there. */
typedef struct whole {
	float *param, *grad, *first, *second, *rows, *columns;
	double *squares, *row_sums, *column_sums, *mean;
} whole;

static void update_whole(const whole *w, int64_t matrices, int64_t rows, int64_t columns)
{
	const int64_t n = matrices * rows * columns;
	const dk_update_args args = {.learning_rate = 1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6,
		.weight_decay = 0.1, .step = 3, .grad_scale = 0.3};
	const dk_ratio ratio = {.over = w->squares, .under = w->squares + 1, .over_least = 0.1, .count = n};
	const dk_ratio inverse = {.under = w->squares, .under_least = 1e-7, .count = 1};
	const dk_estimate both = {.rows = w->rows, .columns = w->columns, .mean = w->mean, .least_mean = 1e-3,
		.least = 1e-4f, .matrices = matrices, .height = rows, .width = columns};
	const dk_estimate plain = {.columns = w->second, .least = 1e-3f, .matrices = 1, .height = 1, .width = n};

	dk_adamw_direction(w->param, w->grad, w->first, w->second, n, &args);
	dk_sum_squares_at(w->squares, w->param, n);
	dk_sum_squares_at(w->squares + 1, w->grad, n);
	dk_mix(w->param, w->grad, 0.9f, -0.3, &ratio, n);
	dk_mix_squares(w->second, w->grad, 0.7f, 0.3f, n - n / 3);
	dk_column_squares(w->column_sums, w->grad, matrices, rows, columns);
	dk_move_means(w->columns, NULL, w->column_sums, matrices, columns, rows, 0.4);
	dk_move_means(w->rows, w->mean, w->row_sums, matrices, rows, columns, 0.4);
	dk_divide_by_roots(w->grad, &both);
	dk_mix(w->first, w->param, 0.5f, 2, NULL, n);
	dk_mix(w->param, w->param, 0, 1, &inverse, n);
	dk_divide_by_roots(w->first, &plain);
}

static void whole_case(int64_t matrices, int64_t rows, int64_t columns)
{
	const int64_t n = matrices * rows * columns, sides = matrices * (rows + columns);
	const size_t bytes = (size_t)n * sizeof(float);
	double *sums = doubles(2 + sides + matrices);
	float *means = floats(sides);

	assert_true(n <= LONGEST);
	fill_all(n);
	fill(means, sides);
	for (int64_t i = 0; i < sides; i++)
		means[i] = fabsf(means[i]);
	for (int64_t i = 0; i < matrices * rows; i++)
		sums[2 + i] = fabs(uniform()) * (double)columns;
	const whole here = {param, grad, first, second, means, means + matrices * rows, sums, sums + 2,
		sums + 2 + matrices * rows, sums + 2 + sides};
	whole there = {give_bits(param, bytes), give_bits(grad, bytes), give_bits(first, bytes),
		give_bits(second, bytes), give_bits(means, (size_t)(matrices * rows) * sizeof(float)),
		give_bits(here.columns, (size_t)(matrices * columns) * sizeof(float)),
		give_bits(sums, 2 * sizeof(double)), give_bits(here.row_sums, (size_t)(matrices * rows) * sizeof(double)),
		give_bits(here.column_sums, (size_t)(matrices * columns) * sizeof(double)),
		give_bits(here.mean, (size_t)matrices * sizeof(double))};
	dk_use(place.queue);
	update_whole(&there, matrices, rows, columns);
	assert_null(dk_failure());
	dk_use(NULL);
	update_whole(&here, matrices, rows, columns);
	assert_bits(there.param, param, bytes);
	assert_bits(there.grad, grad, bytes);
	assert_bits(there.first, first, bytes);
	assert_bits(there.second, second, bytes);
	assert_bits(there.rows, here.rows, (size_t)(matrices * rows) * sizeof(float));
	assert_bits(there.columns, here.columns, (size_t)(matrices * columns) * sizeof(float));
	assert_bits(there.squares, here.squares, 2 * sizeof(double));
	assert_bits(there.column_sums, here.column_sums, (size_t)(matrices * columns) * sizeof(double));
	assert_bits(there.mean, here.mean, (size_t)matrices * sizeof(double));
}

static void try_whole_tensors(void)
{
	enum { LONG = 2 * DK_ROWS_AT_ONCE + 3 };

	whole_case(1, 1, 1);
	whole_case(3, 5, 300);
	whole_case(2, LONG, 7);
	if (place.leave_scratch == NULL)
		return;
	/* Sums of three parts of two columns, and no more. */
	place.leave_scratch(&place, 12);
	whole_case(2, LONG, 5);
	place.leave_scratch(&place, 0);
}

TEST_RUNS(updates_of_whole_tensors_have_the_hosts_bits, in_each_place(try_whole_tensors));

static void try_norms(void)
{
	for (int i = 0; i < lengths_here(); i++) {
		const int64_t n = lengths[i];
		fill_all(n);
		const double squares = dk_sum_squares(grad, n);
		float *there = give_gradient(grad, n);
		grad[n / 2] = -INFINITY;
		float *infinite = give_gradient(grad, n);
		grad[n - 1] = NAN;
		float *nan = give_gradient(grad, n);
		dk_use(place.queue);
		for (uint64_t seed = 0; seed < 4; seed++) {
			place.shuffle(seed);
			const double squares_there = dk_sum_squares(there, n);
			assert_memory_equal(&squares_there, &squares, sizeof(squares));
		}
		const float largest = dk_largest(infinite, n);
		assert_true(dk_sum_squares(there, 0) == 0 && dk_largest(there, 0) == 0);
		assert_true(isnan(dk_largest(nan, n)) && isnan(dk_sum_squares(nan, n)));
		dk_use(NULL);
		assert_true(largest == INFINITY);
	}
}

TEST_RUNS(norms_have_the_hosts_bits, in_each_place(try_norms));

/* More than a launch takes; some are empty, one has several pieces, and one an infinity. */
static void try_arrays(void)
{
	enum { COUNT = 450, PIECE = 200, LONG = 1300, ALL = COUNT * 40 + LONG, INFINITE = 301 };
	const size_t each = type_bytes(gradient_type());
	dk_array here[COUNT], there[COUNT];
	int64_t begin = 0, pieces = 0;
	float largest[COUNT];

	fill_all(ALL);
	for (int i = 0; i < COUNT; i++) {
		here[i] = (dk_array){grad + begin, i == 7 ? LONG : i % 6 == 5 ? 0 : i * 37 % 40};
		begin += here[i].n;
		pieces += (here[i].n + PIECE - 1) / PIECE;
	}
	assert_true(begin <= ALL && here[COUNT - 1].n == 0 && here[INFINITE].n > 0);
	grad[here[INFINITE].x - grad] = -INFINITY;
	char *memory = (char *)give_gradient(grad, ALL);
	for (int i = 0; i < COUNT; i++)
		there[i] = (dk_array){(float *)(void *)(memory + (size_t)(here[i].x - grad) * each), here[i].n};
	float *largest_there = bytes_there(sizeof(largest));
	double *sums = doubles(pieces), *sums_there = bytes_there((size_t)pieces * sizeof(*sums));
	dk_use(place.queue);
	dk_largest_at(largest_there, there, COUNT);
	dk_squares_at(sums_there, there, COUNT, PIECE);
	dk_largest_at(largest_there, there, 0);
	dk_squares_at(sums_there, there, 0, PIECE);
	assert_null(dk_failure());
	dk_use(NULL);
	dk_largest_at(largest, here, COUNT);
	dk_squares_at(sums, here, COUNT, PIECE);
	assert_true(largest[INFINITE] == INFINITY && largest[INFINITE + 1] < 3);
	assert_bits(largest_there, largest, sizeof(largest));
	assert_bits(sums_there, sums, (size_t)pieces * sizeof(*sums));
}

TEST_RUNS(arrays_have_the_hosts_bits, in_each_place(try_arrays));

static uint64_t plain_checksum(const float *x, int64_t n)
{
	const int64_t lanes = DK_CHECKSUM_LANES, rows = (n + lanes - 1) / lanes;
	uint64_t sum = 0;

	for (int64_t i = 0; i < n; i++) {
		uint32_t word;
		memcpy(&word, x + i, sizeof(word));
		sum += word * (uint64_t)(2 * (lanes * (rows - i / lanes) + i % lanes) + 1);
	}
	return sum;
}

/* From an element whose vector is not aligned, in pieces with and without a rest. */
static void try_checksums(void)
{
	const int64_t piece = 1000;

	for (int i = 0; i < lengths_here(); i++) {
		const int64_t n = lengths[i], pieces = (n + piece - 1) / piece;
		fill_all(n);
		grad[n / 2] = NAN;
		float *there = give_bits(grad, (size_t)n * sizeof(float));
		uint64_t *sums = bytes_there((size_t)pieces * sizeof(*sums)), *wanted = (uint64_t *)(void *)doubles(pieces);
		for (int64_t p = 0; p < pieces; p++)
			wanted[p] = plain_checksum(grad + p * piece, p + 1 < pieces ? piece : n - p * piece);
		dk_use(place.queue);
		dk_checksum_at(sums, there, n, piece);
		dk_checksum_at(sums, there, 0, piece);
		dk_use(NULL);
		assert_bits(sums, wanted, (size_t)pieces * sizeof(*sums));
		dk_checksum_at(wanted, grad, n, piece);
		assert_bits(sums, wanted, (size_t)pieces * sizeof(*sums));
	}
}

TEST_RUNS(checksums_are_the_same_everywhere, in_each_place(try_checksums));

static void flip(float *x, int bit)
{
	uint32_t word;

	memcpy(&word, x + bit / 32, sizeof(word));
	word ^= 1u << bit % 32;
	memcpy(x + bit / 32, &word, sizeof(word));
}

/* A bit that flips is seen, and so are two, wherever they are. */
TEST(a_checksum_sees_flipped_bits)
{
	enum { N = 40 };
	uint64_t before, sum;

	fill_all(N);
	dk_checksum_at(&before, grad, N, N);
	for (int i = 0; i < N * 32; i++) {
		flip(grad, i);
		dk_checksum_at(&sum, grad, N, N);
		assert_true(sum != before);
		for (int j = i + 1; j < N * 32; j += 7) {
			flip(grad, j);
			dk_checksum_at(&sum, grad, N, N);
			assert_true(sum != before);
			flip(grad, j);
		}
		flip(grad, i);
	}
}

/* From `from`, too, where nothing is aligned. */
static void convert(int64_t from, int64_t n)
{
	static uint16_t narrow[LONGEST + 1];
	float *there = give_bits(grad, (size_t)(from + n) * sizeof(float));
	float *narrow_there = bytes_there((size_t)(from + n) * sizeof(float));
	float *moved = bytes_there((size_t)n * sizeof(float));
	float *back = bytes_there((size_t)(from + n) * sizeof(float));

	dk_use(place.queue);
	dk_to_bf16((uint16_t *)narrow_there + from, there + from, n);
	dk_from_bf16(back, (uint16_t *)narrow_there + from, n);
	dk_copy(moved, (uint16_t *)narrow_there + from, (size_t)n * sizeof(uint16_t));
	dk_use(NULL);
	dk_to_bf16(narrow, grad + from, n);
	assert_bits(moved, narrow, (size_t)(n / 2) * sizeof(float));
	dk_from_bf16(param, narrow, n);
	assert_bits(back, param, (size_t)n * sizeof(float));
	/* And f16, in the same memory. */
	float *back_from_f16 = bytes_there((size_t)(from + n) * sizeof(float));
	dk_use(place.queue);
	dk_to_f16((uint16_t *)narrow_there + from, there + from, n, 0x1.8p-3f);
	dk_from_f16(back_from_f16, (uint16_t *)narrow_there + from, n, 0x1p5f);
	dk_use(NULL);
	dk_to_f16(narrow, grad + from, n, 0x1.8p-3f);
	dk_from_f16(param, narrow, n, 0x1p5f);
	assert_bits(back_from_f16, param, (size_t)n * sizeof(float));
}

static void try_conversions(void)
{
	const float odd[] = {1 + 0x1p-8f, 1 + 0x1.8p-7f, -1 - 0x1.002p-8f, INFINITY, 0x1.fffffep127f,
		0x1p-149f, -0.0f};

	for (int i = 0; i < lengths_here(); i++) {
		fill_all(lengths[i]);
		for (int64_t k = 0; k < lengths[i]; k++)
			grad[k] = k < 7 ? odd[k] : grad[k] * 1.01f;
		convert(0, lengths[i]);
		if (lengths[i] > 2)
			convert(1, lengths[i] - 2);
	}
}

TEST_RUNS(conversions_have_the_hosts_bits, in_each_place(try_conversions));

/* Of f32, numbers whose sum hangs on the order. */
static void fill_rows(float *x, int64_t n)
{
	fill(x, n);
	for (int64_t i = 0; i < n && gradient_type() == DK_F32; i++)
		x[i] = (float)uniform();
}

enum { ROWS = 700, OFTEN = 4, NEVER = 3 };

/* Rows that come often, seldom, and never. */
static int32_t draw_row(int i)
{
	const int32_t row = (int32_t)((uniform() + 1) / 2 * ROWS) % ROWS;

	return i % 3 == 0 ? OFTEN : row == NEVER ? 0 : row;
}

static void add_rows(int count, int width, bool all_alike)
{
	int32_t *rows = (int32_t *)(void *)floats(count + 1);
	float *values = floats(((int64_t)count + 1) * width), *want = floats(ROWS * width), *got = floats(ROWS * width);

	random_state = 4;
	fill_rows(want, ROWS * width);
	fill_rows(values, (int64_t)count * width);
	for (int i = 0; i < count; i++)
		rows[i] = all_alike ? OFTEN : draw_row(i);
	float *there = give_gradient(want, ROWS * width), *values_there = give_gradient(values, ((int64_t)count + 1) * width);
	int32_t *rows_there = bytes_there(((size_t)count + 1) * sizeof(*rows));
	dk_use(place.queue);
	dk_copy(rows_there, rows, (size_t)count * sizeof(*rows));
	dk_add_rows(there, rows_there, values_there, count, width);
	assert_null(dk_failure());
	dk_use(NULL);
	dk_add_rows(want, rows, values, count, width);
	take_as(gradient_type(), got, there, ROWS * width);
	for (int i = 0; i < ROWS * width; i++)
		assert_true(gradient_type() == DK_F32 ? got[i] == want[i]
		                                      : fabsf(got[i] - want[i]) <= 0x1p-5f + 0x1p-6f * fabsf(want[i]));
}

static void try_rows(void)
{
	add_rows(0, 5, false);
	add_rows(1, 5, false);
	add_rows(300, 270, false);
	add_rows(300, 3, true);
	add_rows(1500, 3, false); /* of many buckets */
	add_rows(2, 1300, true);  /* wider than a block */
	if (place.leave_scratch == NULL)
		return;
	place.leave_scratch(&place, 404); /* cuts the work */
	add_rows(300, 7, false);
	place.leave_scratch(&place, 0);
}

TEST_RUNS(rows_are_added_in_order, in_each_place(try_rows));

/* One more bit than TF32 has, of which a GPU need not take notice. */
static void try_rounding(void)
{
	const float a = 1 + 0x1p-11f, b = 1;
	float c = 0;

	if (place.type != DK_F32 && place.type != DK_TF32)
		return;
	float *a_there = give_bits(&a, sizeof(a)), *b_there = give_bits(&b, sizeof(b));
	float *c_there = give_bits(&c, sizeof(c));
	dk_use(place.queue);
	dk_gemm(&(dk_gemm_args){.m = 1, .n = 1, .k = 1, .a = a_there, .lda = 1, .b = b_there, .ldb = 1,
		.c = c_there, .ldc = 1});
	assert_null(dk_failure());
	dk_use(NULL);
	take(&c, c_there, 1);
	assert_true(place.type == DK_F32 ? c == a : fabsf(c - a) <= 0x1p-11f);
	assert_true(place.type == DK_F32 || !place.host_memory || c != a);
}

TEST_RUNS(products_round_to_tf32_where_it_is_asked_for, in_each_place(try_rounding));

/* By one element behind where all else begins. */
static void try_bias(void)
{
	enum { OUTPUTS = 8 };
	const float in = 2, weight[OUTPUTS] = {1, 2, 3, 4, 5, 6, 7, 8}, bias[1 + OUTPUTS] = {9, 1, 1, 1, 1, 1, 1, 1, 1};
	float out[OUTPUTS];
	float *in_there = give(&in, 1), *weight_there = give(weight, OUTPUTS), *out_there = give(weight, OUTPUTS);
	const char *bias_there = (const char *)give(bias, 1 + OUTPUTS);

	dk_use(place.queue);
	dk_linear_forward(out_there, in_there, weight_there, (const float *)(bias_there + type_bytes(place.type)), NULL, 1,
	                  1, OUTPUTS);
	assert_null(dk_failure());
	dk_use(NULL);
	take(out, out_there, OUTPUTS);
	for (int i = 0; i < OUTPUTS; i++)
		assert_true(out[i] == in * weight[i] + 1);
}

TEST_RUNS(a_bias_may_lie_anywhere, in_each_place(try_bias));

/* How many products came with GELU in a forward and a backward pass, which give what two functions
   each do. They begin so many numbers behind where all else does. */
static int gelus(enum kernel_gelu how, int rows, int width, int offset)
{
	enum { DEPTH = 5, MOST = 8 + 7 * 24 };
	const float bias[] = {1, -1, 0.5f, 2, 0, 0, -2, 3, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4};
	const size_t behind = (size_t)offset * type_bytes(place.type);
	float values[MOST], got[2][MOST]; /* the latter: the two functions' */
	float *there[2][3]; /* of each way: before GELU, behind it, and the gradient before it */

	random_state = 3;
	for (int i = 0; i < MOST; i++)
		values[i] = (float)uniform();
	float *in = give(values, MOST), *weight = give(values + 1, MOST - 1), *bias_there = give(bias, width);
	for (int i = 0; i < 6; i++)
		there[i / 3][i % 3] = (float *)(void *)((char *)give(values, MOST) + behind);
	dk_use(place.queue);
	const int earlier = place.have_gelu(&place, how);
	dk_linear_gelu_forward(there[0][1], there[0][0], in, weight, bias_there, rows, DEPTH, width);
	dk_linear_gelu_backward(there[0][2], in, weight, there[0][0], rows, width, DEPTH);
	const int fused = place.have_gelu(&place, GELU_FUSED) - earlier;
	dk_linear_forward(there[1][0], in, weight, bias_there, NULL, rows, DEPTH, width);
	dk_gelu_forward(there[1][1], there[1][0], (int64_t)rows * width);
	dk_linear_backward_input(there[1][2], in, weight, rows, width, DEPTH);
	dk_gelu_backward(there[1][2], there[1][0], (int64_t)rows * width);
	assert_null(dk_failure());
	dk_use(NULL);
	for (int k = 0; k < 3; k++) {
		for (int way = 0; way < 2; way++)
			take(got[way], there[way][k], rows * width);
		for (int i = 0; i < rows * width; i++)
			assert_true(fabsf(got[0][i] - got[1][i]) <= (fused > 0 ? 1e-2f * (fabsf(got[1][i]) + 1) : 0));
	}
	return fused;
}

static bool has_gelu;

static void try_gelus(void)
{
	const int both = type_bytes(place.type) == sizeof(uint16_t) ? 2 : 0;

	if (place.have_gelu == NULL)
		return;
	has_gelu = true;
	assert_int_equal(gelus(GELU_SLOW, 5, 24, 0), 0);
	assert_int_equal(gelus(GELU_FUSED, 5, 24, 0), both);
	assert_int_equal(gelus(GELU_REFUSED, 7, 24, 0), 0);
	assert_int_equal(gelus(GELU_FUSED, 7, 24, 0), 0); /* it is asked once */
	assert_int_equal(gelus(GELU_FAILS, 6, 24, 0), 0);
	assert_int_equal(gelus(GELU_FUSED, 6, 24, 0), 0);
	assert_int_equal(gelus(GELU_FUSED, 5, 20, 0), 0);
	assert_int_equal(gelus(GELU_FUSED, 5, 24, 1), 0);
	assert_int_equal(gelus(GELU_FUSED, 5, 24, 8), both);
}

TEST(products_come_with_gelu_where_they_can)
{
	in_each_place(try_gelus);
	if (!has_gelu)
		skip(); /* no place here has such products */
}

/* What may be NULL where kernels are the host's: see table.h. */
static bool may_be_missing(size_t offset)
{
	switch (offset) {
	case offsetof(dk_table, enter):
	case offsetof(dk_table, leave):
	case offsetof(dk_table, linear_gelu_forward):
	case offsetof(dk_table, linear_gelu_backward):
		return true;
	default:
		return false;
	}
}

/* Bytes [start, end) of a table hold addresses. */
static void expect_entries(const char *what, const void *table, size_t start, size_t end, bool (*may_miss)(size_t))
{
	const char *const bytes = table;

	assert_non_null(table);
	for (size_t offset = start; offset < end; offset += sizeof(void *)) {
		const void *entry;
		memcpy(&entry, bytes + offset, sizeof(entry));
		if (entry == NULL && (may_miss == NULL || !may_miss(offset)))
			fail_msg("entry %zu of the table of %s is NULL", (offset - start) / sizeof(void *), what);
	}
}

static void try_tables(void)
{
	const dk_table *table = place.queue->table;

	assert_int_equal(table->bytes, sizeof(*table));
	expect_entries("kernels", table, offsetof(dk_table, open), sizeof(*table), place.host_kernels ? may_be_missing : NULL);
	expect_entries("images", table->images, offsetof(dk_image_table, convolution_forward), sizeof(*table->images), NULL);
	expect_entries("whole tensors", table->whole, 0, sizeof(*table->whole), NULL);
	expect_entries("factors", table->factors, 0, sizeof(*table->factors), NULL);
}

TEST_RUNS(no_function_is_missing_in_a_table, in_each_place(try_tables));

TEST_RUNS(a_model_passes_as_on_the_host, in_each_place(try_model_case));
