/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan bare */
/* kernels: optimizer updates and norms against a plain double-precision form. */
#include <dlfcn.h>
#include <fenv.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/inner.h"
#include "kernels.h"
#include "tests/support/kernel_sets.h"
#include "tests/support/test.h"

enum { LONGEST = 100003 };

static float param[LONGEST], grad[LONGEST], m[LONGEST], v[LONGEST];
static double want[LONGEST], want_m[LONGEST], want_v[LONGEST];

static void fill(int64_t n)
{
	srand(7);
	for (int64_t i = 0; i < n; i++) {
		param[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
		grad[i] = (float)(rand() % 2001 - 1000) * 1e-2f;
		m[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
		v[i] = (float)(rand() % 1000) * 1e-3f;
		want[i] = param[i];
		want_m[i] = m[i];
		want_v[i] = v[i];
	}
}

static void assert_near(float got, double wanted)
{
	if (fabs(got - wanted) > 2e-6 * (fabs(wanted) + 1))
		fail_msg("got %.9g, wanted %.9g", got, wanted);
}

static void adamw_case(bool coupled)
{
	const int64_t lengths[] = {1, 3, 7, 8, 9, 17, 1000, LONGEST};
	const dk_update_args a = {.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95,
		.epsilon = 1e-8, .weight_decay = 0.1, .step = 3, .grad_scale = 0.25, .coupled = coupled};

	for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
		int64_t n = lengths[k];
		fill(n + 1 <= LONGEST ? n + 1 : n);
		float guard = param[n < LONGEST ? n : 0];
		for (int64_t i = 0; i < n; i++) {
			/* In f32, since the two may nearly cancel. */
			const float scaled = grad[i] * (float)a.grad_scale, own = param[i] * (float)a.weight_decay;
			const double g = coupled ? scaled + own : scaled;
			want_m[i] = a.beta1 * want_m[i] + (1 - a.beta1) * g;
			want_v[i] = a.beta2 * want_v[i] + (1 - a.beta2) * g * g;
			double m_hat = want_m[i] / (1 - pow(a.beta1, 3));
			double v_hat = want_v[i] / (1 - pow(a.beta2, 3));
			want[i] -= coupled ? 0 : a.learning_rate * a.weight_decay * want[i];
			want[i] -= a.learning_rate * m_hat / (sqrt(v_hat) + a.epsilon);
		}
		dk_update(param, grad, m, v, n, &a);
		for (int64_t i = 0; i < n; i++) {
			assert_near(param[i], want[i]);
			assert_near(m[i], want_m[i]);
			assert_near(v[i], want_v[i]);
			assert_true(grad[i] == 0);
		}
		if (n < LONGEST)
			assert_true(param[n] == guard);
	}
}

static void adam_and_adamw(void)
{
	adamw_case(false);
	adamw_case(true);
}

static void sgd_case(int64_t n, double momentum, int64_t step, bool with_buffer, bool nesterov)
{
	const dk_update_args a = {.rule = DK_SGD, .learning_rate = 0.05, .momentum = momentum,
		.weight_decay = 0.01, .coupled = true, .step = step, .grad_scale = 0.5, .nesterov = nesterov};

	fill(n);
	for (int64_t i = 0; i < n; i++) {
		double g = grad[i] * a.grad_scale + a.weight_decay * want[i];
		if (with_buffer) {
			want_m[i] = (step > 1 ? momentum * want_m[i] : 0) + g;
			g = nesterov ? g + momentum * want_m[i] : want_m[i];
		}
		want[i] -= a.learning_rate * g;
	}
	dk_update(param, grad, with_buffer ? m : NULL, NULL, n, &a);
	for (int64_t i = 0; i < n; i++) {
		assert_near(param[i], want[i]);
		assert_near(m[i], want_m[i]);
		assert_true(grad[i] == 0);
	}
}

/* Momentum counts from the second step on. */
static void sgd(void)
{
	const int64_t lengths[] = {1, 7, 8, 13, 4097, LONGEST};

	for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
		for (int nesterov = 0; nesterov < 2; nesterov++) {
			sgd_case(lengths[k], 0.9, 1, true, nesterov);
			sgd_case(lengths[k], 0.9, 2, true, nesterov);
		}
		sgd_case(lengths[k], 0, 2, false, false);
	}
}

static double sign_of(double x)
{
	return x > 0 ? 1 : x < 0 ? -1 : 0;
}

static void lion(void)
{
	const int64_t lengths[] = {1, 7, 8, 13, 4097, LONGEST};
	const dk_update_args a = {.rule = DK_LION, .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.99,
		.weight_decay = 0.1, .step = 3, .grad_scale = 0.25};

	for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
		fill(lengths[k]);
		m[0] = grad[0] = 0; /* a sign of 0 is 0 */
		for (int64_t i = 0; i < lengths[k]; i++) {
			const double g = grad[i] * a.grad_scale;
			if (i > 0 && fabs(0.9 * m[i] + 0.1 * g) < 1e-6)
				m[i] = 1; /* rounding would decide on the sign */
			want[i] -= a.learning_rate * (sign_of(0.9 * m[i] + 0.1 * g) + a.weight_decay * want[i]);
			want_m[i] = 0.99 * m[i] + 0.01 * g;
		}
		dk_update(param, grad, m, NULL, lengths[k], &a);
		for (int64_t i = 0; i < lengths[k]; i++) {
			assert_near(param[i], want[i]);
			assert_near(m[i], want_m[i]);
			assert_true(grad[i] == 0);
		}
	}
}

TEST(each_rule_is_its_papers)
{
	static void (*const cases[DK_RULES])(void) = {
		[DK_ADAMW] = adam_and_adamw, [DK_SGD] = sgd, [DK_LION] = lion,
	};

	for (int rule = 0; rule < DK_RULES; rule++) {
		if (cases[rule] == NULL)
			fail_msg("%s has no case of rule %d", __FILE__, rule);
		cases[rule]();
	}
}

TEST(sum_of_squares_is_exact_to_double)
{
	const int64_t lengths[] = {0, 1, 5, 8, 11, 32768, 32769, LONGEST};

	fill(LONGEST);
	for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
		double sum = 0;
		for (int64_t i = 0; i < lengths[k]; i++)
			sum += (double)grad[i] * grad[i];
		double got = dk_sum_squares(grad, lengths[k]);
		if (fabs(got - sum) > 1e-12 * sum)
			fail_msg("n %ld: got %.17g, wanted %.17g", (long)lengths[k], got, sum);
	}
}

TEST(largest_finds_what_is_not_finite_anywhere)
{
	static const int64_t lengths[] = {1, 3, 4, 7, 8, 9, 31, 1000, LONGEST};

	assert_true(dk_largest(grad, 0) == 0);
	for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
		int64_t n = lengths[k], spots[] = {0, n / 3, n / 2, n - 1};
		for (size_t s = 0; s < sizeof(spots) / sizeof(spots[0]); s++) {
			fill(n);
			grad[spots[s]] = -1e30f;
			assert_true(dk_largest(grad, n) == 1e30f);
			assert_true(dk_inner_base.largest_bits(grad, n) == dk_inner()->largest_bits(grad, n));
			grad[spots[s]] = -INFINITY;
			assert_true(dk_largest(grad, n) == INFINITY);
			grad[(spots[s] + 1) % n] = -NAN;
			assert_true(isnan(dk_largest(grad, n)));
			grad[spots[s]] = NAN;
			assert_true(isnan(dk_largest(grad, n)));
		}
	}
}

static uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

TEST(bf16_is_the_nearest)
{
	const float in[] = {0, -0.0f, 1, 1 + 0x1p-8f, 1 + 0x1.8p-7f, 1 + 0x1.002p-8f, -1 - 0x1p-8f,
		INFINITY, -INFINITY, 0x1.fffffep127f, 0x1p-149f, 3.14159265f};
	const uint32_t nearest[] = {0, 0x8000, 0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf80, 0x7f80, 0xff80,
		0x7f80, 0, 0x4049};
	enum { COUNT = sizeof(in) / sizeof(in[0]) };
	static uint16_t narrow[LONGEST];
	uint32_t quiet_only_below = 0x7f800001;
	float nan, back[COUNT];

	dk_to_bf16(narrow, in, COUNT);
	dk_from_bf16(back, narrow, COUNT);
	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(narrow[i], nearest[i]);
		assert_true(bits_of(back[i]) == nearest[i] << 16);
	}
	memcpy(&nan, &quiet_only_below, sizeof(nan));
	dk_to_bf16(narrow, &nan, 1);
	dk_from_bf16(back, narrow, 1);
	assert_true(isnan(back[0]));
}

/* Scaled by 2; subnormal ones and the last that is finite, too. */
static void expect_nearest_f16(void)
{
	const float in[] = {0, -0.0f, 0.5f, 0.5f + 0x1p-12f, 0.5f + 0x1.8p-11f, -0.5f - 0x1.002p-12f, INFINITY,
		32759.999f, 32760, 0x1p-15f, 0x1p-16f, 0x1p-25f, 0x1p-26f, 0x1.8p-26f, 0x1.8p-25f, 3.14159265f};
	const uint16_t nearest[] = {0, 0x8000, 0x3c00, 0x3c00, 0x3c02, 0xbc01, 0x7c00,
		0x7bff, 0x7c00, 0x0400, 0x0200, 0x0001, 0, 0x0001, 0x0002, 0x4648};
	enum { COUNT = sizeof(in) / sizeof(in[0]) };
	uint16_t narrow[COUNT];
	float back[COUNT];

	dk_to_f16(narrow, in, COUNT, 2);
	dk_from_f16(back, narrow, COUNT, 0.5f);
	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(narrow[i], nearest[i]);
		/* Half of what it is rounded by is at most half of a last place. */
		assert_true(back[i] == in[i] || fabsf(back[i] - in[i]) <= fmaxf(fabsf(in[i]) * 0x1p-11f, 0x1p-26f) ||
		            narrow[i] == 0x7c00);
	}
	dk_to_f16(narrow, &(float){NAN}, 1, 1);
	dk_from_f16(back, narrow, 1, 1);
	assert_true(isnan(back[0]));
	/* The least one, which no rounding hides. */
	dk_from_f16(back, &(uint16_t){1}, 1, 1);
	assert_true(back[0] == 0x1p-24f);
}

/* Also where subnormal numbers of f32 count as 0, as in gpt. */
TEST(f16_is_the_nearest)
{
	fenv_t before;

	expect_nearest_f16();
	fegetenv(&before);
	dk_flush_denormals();
	expect_nearest_f16();
	fesetenv(&before);
}

TEST(updates_leave_what_they_made_in_bf16_too)
{
	static uint16_t rounded[LONGEST], want_rounded[LONGEST];
	const dk_update_args a = {.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95,
		.epsilon = 1e-8, .step = 3, .grad_scale = 0.25, .rounded = rounded};
	const dk_update_args s = {.rule = DK_SGD, .learning_rate = 0.05, .grad_scale = 0.5, .rounded = rounded};

	fill(LONGEST);
	dk_update(param, grad, m, v, LONGEST, &a);
	dk_to_bf16(want_rounded, param, LONGEST);
	assert_memory_equal(rounded, want_rounded, sizeof(rounded));
	fill(LONGEST);
	dk_update(param, grad, NULL, NULL, LONGEST, &s);
	dk_to_bf16(want_rounded, param, LONGEST);
	assert_memory_equal(rounded, want_rounded, sizeof(rounded));
}

TEST(threads_do_not_change_a_bit)
{
	const dk_update_args a = {.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95,
		.epsilon = 1e-8, .weight_decay = 0.1, .step = 3, .grad_scale = 0.25};
	static float kept[LONGEST];
	int before = dk_threads();

#ifdef __SANITIZE_THREAD__
	skip(); /* OpenMP's runtime is not instrumented */
#endif
	dk_set_threads(1);
	fill(LONGEST);
	double sum = dk_sum_squares(grad, LONGEST);
	dk_update(param, grad, m, v, LONGEST, &a);
	memcpy(kept, param, sizeof(kept));
	dk_set_threads(3);
	fill(LONGEST);
	double sum3 = dk_sum_squares(grad, LONGEST);
	dk_update(param, grad, m, v, LONGEST, &a);
	dk_set_threads(before);
	assert_memory_equal(kept, param, sizeof(kept));
	assert_memory_equal(&sum, &sum3, sizeof(sum));
}

static atomic_bool busy; /* the machine, to OpenMP */

/* Stands before the C library's. With OMP_DYNAMIC, OpenMP asks this for how many threads there is room. */
int getloadavg(double loads[], int count)
{
	for (int i = 0; i < count; i++)
		loads[i] = atomic_load(&busy) ? 1000 : 0;
	return count;
}

static void note_threads(void *arg, int64_t first, int64_t last)
{
	atomic_int *most = arg;

	atomic_store(&busy, false);
	if (dk_threads() > atomic_load(most))
		atomic_store(most, dk_threads());
}

/* A function that dk_parallel() calls counts on being one thread, even if OpenMP gives one of the threads asked for. */
TEST(a_team_of_one_starts_no_other)
{
	void (*set_dynamic)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "omp_set_dynamic");
	const int before = dk_threads();
	atomic_int most = 0;

	if (set_dynamic == NULL)
		skip();
	dk_set_threads(4);
	set_dynamic(1);
	atomic_store(&busy, true);
	dk_parallel(64, 1, note_threads, &most);
	set_dynamic(0);
	assert_int_equal(most, 1);
	assert_int_equal(dk_threads(), 4);
	dk_set_threads(before);
}

static void compare_bits(const struct dk_inner *inner)
{
	const dk_update_consts c = {.grad_scale = 0.3f, .decay = 0.999f, .beta1 = 0.9f,
		.one_beta1 = 0.1f, .beta2 = 0.95f, .one_beta2 = 0.05f, .coupled = 0.01f, .momentum = 0.9f,
		.root_correction2 = 0.4f, .epsilon = 1e-8f, .minus_step_size = -0.01f};
	static float kept[LONGEST];

	fill(LONGEST);
	double sum = dk_inner_base.sum_squares(grad, LONGEST);
	double its_sum = inner->sum_squares(grad, LONGEST);
	assert_memory_equal(&sum, &its_sum, sizeof(sum));
	for (int rule = 0; rule < DK_RULES; rule++) {
		fill(LONGEST);
		assert_non_null(dk_inner_base.update[rule]);
		dk_inner_base.update[rule](param, grad, m, v, LONGEST, &c);
		memcpy(kept, param, sizeof(kept));
		fill(LONGEST);
		inner->update[rule](param, grad, m, v, LONGEST, &c);
		assert_memory_equal(kept, param, sizeof(kept));
	}
}

TEST(instruction_sets_give_the_same_bits)
{
	for (int i = 0; test_inner_at(i) != NULL; i++)
		compare_bits(test_inner_at(i));
}

/* What the instruction sets leave in grad and m of the same numbers. */
static void run_parts(const struct dk_inner *inner, float *results)
{
	const dk_update_consts c = {.grad_scale = 0.3f, .beta1 = 0.9f, .one_beta1 = 0.1f, .beta2 = 0.95f,
		.one_beta2 = 0.05f, .root_correction2 = 0.4f, .epsilon = 1e-8f, .minus_step_size = -1.5f,
		.coupled = 0.1f};

	fill(LONGEST);
	inner->adamw_direction(param, grad, m, v, LONGEST, &c);
	inner->mix(m, grad, 0.9f, -0.3f, LONGEST - 2);
	inner->mix_squares(v, m, 0.7f, 0.3f, LONGEST - 1);
	inner->divide_by_roots(grad, v, 0.6f, 1e-4f, LONGEST - 3);
	memcpy(results, grad, sizeof(grad));
	memcpy(results + LONGEST, m, sizeof(m));
	memcpy(results + 2 * LONGEST, v, sizeof(v));
}

TEST(parts_of_updates_are_what_they_say)
{
	static float base[3 * LONGEST], other[3 * LONGEST];
	static double sums[LONGEST];
	enum { ROWS = 301, COLUMNS = 332 };

	run_parts(&dk_inner_base, base);
	for (int i = 0; test_inner_at(i) != NULL; i++) {
		run_parts(test_inner_at(i), other);
		assert_memory_equal(base, other, sizeof(base));
	}
	fill(LONGEST);
	for (int64_t i = 0; i < LONGEST; i++) {
		const double g = grad[i] * 0.3;
		want_m[i] = 0.9 * want_m[i] + 0.1 * g;
		want_v[i] = 0.95 * want_v[i] + 0.05 * g * g;
		want[i] = 1.5 * want_m[i] / (sqrt(want_v[i]) / 0.4 + 1e-8) + 0.1 * want[i];
		want_m[i] = i < LONGEST - 2 ? 0.9 * want_m[i] - 0.3 * want[i] : want_m[i];
		want_v[i] = i < LONGEST - 1 ? 0.7 * want_v[i] + 0.3 * want_m[i] * want_m[i] : want_v[i];
		want[i] /= i < LONGEST - 3 ? sqrt(fmax(0.6 * want_v[i], 1e-4)) : 1;
		assert_near(base[i], want[i]);
		assert_near(base[LONGEST + i], want_m[i]);
		assert_near(base[2 * LONGEST + i], want_v[i]);
	}
	dk_column_squares(sums, grad, 1, ROWS, COLUMNS);
	for (int64_t j = 0; j < COLUMNS; j++) {
		double sum = 0;
		for (int64_t i = 0; i < ROWS; i++)
			sum += (double)grad[i * COLUMNS + j] * grad[i * COLUMNS + j];
		assert_true(sums[j] == sum);
	}
}

/* By what dk_mix() multiplies is a ratio of norms, each at least so much, and 1 without one. */
TEST(steps_are_as_long_as_norms_say)
{
	const double over = 9, under = 16, none = 0, nan = NAN;
	const struct {
		dk_ratio ratio;
		double want;
	} cases[] = {
		{{&over, &under, 0, 0, 1}, 0.75}, {{&over, &under, 0, 0, 100}, 0.75}, {{&over, &under, 5, 0, 1}, 1.25},
		{{&over, &under, 0, 2, 4}, 0.75}, {{&over, &under, 0, 3, 4}, 0.5}, {{NULL, &under, 0, 0, 1}, 0.25},
		{{&none, &under, 0, 0, 1}, 1}, {{&over, &none, 0, 0, 1}, 1}, {{&over, &none, 0, 0.5, 1}, 6},
		{{&nan, &under, 0, 0, 1}, 1},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		float x = 3;
		dk_mix(&x, &(float){5}, 2, 0.5, &cases[i].ratio, 1);
		assert_near(x, 6 + 2.5 * cases[i].want);
	}
	double sum;
	fill(LONGEST);
	dk_sum_squares_at(&sum, grad, LONGEST);
	assert_true(sum == dk_sum_squares(grad, LONGEST));
	dk_mix(grad, grad, 0, 1, &(dk_ratio){.under = &sum, .count = 1}, LONGEST);
	assert_near((float)dk_sum_squares(grad, LONGEST), 1);
}

/* Of matrices that are longer than what is summed at once. */
TEST(squares_are_estimated_by_rows_and_columns)
{
	enum { MATRICES = 2, ROWS = 2 * DK_ROWS_AT_ONCE + 7, COLUMNS = 41, ALL = MATRICES * ROWS * COLUMNS };
	static double sums[MATRICES * COLUMNS], row_sums[MATRICES * ROWS], mean[MATRICES];
	static float rows[MATRICES * ROWS], columns[MATRICES * COLUMNS];
	static double want_rows[MATRICES * ROWS], want_columns[MATRICES * COLUMNS], want_mean[MATRICES];
	const dk_estimate estimate = {.rows = rows, .columns = columns, .mean = mean, .least_mean = 1e-3,
		.least = 2e-2f, .matrices = MATRICES, .height = ROWS, .width = COLUMNS};

	assert_true((int)ALL <= (int)LONGEST);
	fill(ALL);
	for (int64_t i = 0; i < ALL; i++) {
		const int64_t row = i / COLUMNS, column = row / ROWS * COLUMNS + i % COLUMNS;
		if (row % 3 == 0)
			grad[i] *= 1e-3f; /* estimates below the least */
		want_rows[row] += 0.3 * grad[i] * grad[i] / COLUMNS;
		want_columns[column] += 0.3 * grad[i] * grad[i] / ROWS;
	}
	for (int64_t i = 0; i < MATRICES * ROWS; i++) {
		rows[i] = v[i];
		want_rows[i] += 0.7 * v[i];
		want_mean[i / ROWS] += want_rows[i] / ROWS;
	}
	for (int64_t i = 0; i < MATRICES * COLUMNS; i++) {
		columns[i] = m[i] * m[i];
		want_columns[i] += 0.7 * columns[i];
	}
	dk_squares_at(row_sums, &(dk_array){grad, ALL}, 1, COLUMNS);
	dk_column_squares(sums, grad, MATRICES, ROWS, COLUMNS);
	dk_move_means(rows, mean, row_sums, MATRICES, ROWS, COLUMNS, 0.3);
	dk_move_means(columns, NULL, sums, MATRICES, COLUMNS, ROWS, 0.3);
	memcpy(param, grad, sizeof(param));
	dk_divide_by_roots(grad, &estimate);
	for (int64_t i = 0; i < ALL; i++) {
		const int64_t row = i / COLUMNS, matrix = row / ROWS, column = matrix * COLUMNS + i % COLUMNS;
		const double square = want_rows[row] * want_columns[column] / fmax(want_mean[matrix], 1e-3);
		assert_near(rows[row], want_rows[row]);
		assert_near(columns[column], want_columns[column]);
		assert_near((float)mean[matrix], want_mean[matrix]);
		assert_near(grad[i], param[i] / sqrt(fmax(square, (double)2e-2f)));
	}
}
