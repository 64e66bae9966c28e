/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: tsan no-ucx no-pmix no-blas bare asan; takes: 9 */
/* kernels: the matrix product against a plain one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/product.h"
#include "kernels.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

/* clang's OpenMP forgets what it has made for threads that a smaller team does without. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libomp.so"; }

/* form: 1 transposes a, 2 transposes b */
static void product_case(int64_t m, int64_t n, int64_t k, int form, float beta)
{
	enum { PAD = 3 };
	int64_t lda = (form & 1 ? m : k) + PAD, ldb = (form & 2 ? k : n) + PAD, ldc = n + PAD;
	float *a = make((size_t)((form & 1 ? k : m) * lda), sizeof(float));
	float *b = make((size_t)((form & 2 ? n : k) * ldb), sizeof(float));
	float *c = make((size_t)(m * ldc), sizeof(float));

	random_state = 5;
	for (int64_t i = 0; i < (form & 1 ? k : m) * lda; i++)
		a[i] = (float)uniform();
	for (int64_t i = 0; i < (form & 2 ? n : k) * ldb; i++)
		b[i] = (float)uniform();
	for (int64_t i = 0; i < m * ldc; i++)
		c[i] = 0.5f;
	dk_gemm(&(dk_gemm_args){.transpose_a = form & 1, .transpose_b = form & 2, .m = m, .n = n,
		.k = k, .a = a, .lda = lda, .b = b, .ldb = ldb, .beta = beta, .c = c, .ldc = ldc});
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < ldc; j++) {
			double sum = j < n ? 0.5 * beta : 0.5;
			for (int64_t l = 0; j < n && l < k; l++)
				sum += (double)(form & 1 ? a[l * lda + i] : a[i * lda + l]) *
				       (form & 2 ? b[j * ldb + l] : b[l * ldb + j]);
			if (!(fabs(c[i * ldc + j] - sum) <= 1e-5 * (double)(k + 1)))
				fail_msg("%ldx%ldx%ld form %d: c[%ld,%ld] is %.8g, not %.8g", (long)m,
				         (long)n, (long)k, form, (long)i, (long)j, c[i * ldc + j], sum);
		}
	free(a);
	free(b);
	free(c);
}

TEST(product_takes_all_forms_and_strides)
{
	for (int threads = 1; threads <= MANY_THREADS; threads += 2) {
		dk_set_threads(threads);
		for (int form = 0; form < 4; form++) {
			product_case(1, 1, 1, form, 0);
			product_case(5, 7, 3, form, 1);
			product_case(49, 130, 33, form, 0);
			product_case(200, 51, 65, form, 1);
			product_case(129, 101, 131, form, 0.5f);
			product_case(301, 97, 530, form, 1);
		}
	}
	dk_set_threads(1);
}

/* Of b, no more than 4 million numbers are packed at once: here it is cut both ways. */
TEST(product_takes_a_large_operand_in_parts)
{
	dk_set_threads(2);
	product_case(33, 530, 8210, 2, 0.5f);
	dk_set_threads(1);
}

/* Of large products, each element is summed in one order. */
TEST(product_has_the_same_bits_on_any_number_of_threads)
{
	enum { M = 1200, N = 330, K = 600 }; /* a thread takes its rows in several blocks */
	float *a = make(M * K, sizeof(float)), *b = make(K * N, sizeof(float));
	float *one = make(M * N, sizeof(float)), *many = make(M * N, sizeof(float));
	dk_gemm_args args = {.m = M, .n = N, .k = K, .a = a, .lda = K, .b = b, .ldb = N, .c = one, .ldc = N};

	random_state = 7;
	for (int i = 0; i < M * K; i++)
		a[i] = (float)uniform();
	for (int i = 0; i < K * N; i++)
		b[i] = (float)uniform();
	dk_set_threads(1);
	const bool own = dk_product(&(dk_product_args){.gemm = args});
	args.c = many;
	for (int threads = 2; own && threads <= 12; threads += 5) {
		dk_set_threads(threads);
		assert_true(dk_product(&(dk_product_args){.gemm = args}));
		assert_memory_equal(one, many, M * N * sizeof(float));
	}
	dk_set_threads(1);
	free(a);
	free(b);
	free(one);
	free(many);
	if (!own)
		skip(); /* the processor has no AVX-512 */
}

/* Operands of a product, whose rows have no gaps, and what it should give. */
struct operands {
	dk_gemm_args g;
	float *a, *b, *c, *bias, *residual, *sums;
	double *wanted; /* [m, n] without bias and residual */
};

static float *numbers(int64_t n)
{
	float *x = make((size_t)n, sizeof(float));

	for (int64_t i = 0; i < n; i++)
		x[i] = (float)uniform();
	return x;
}

static struct operands make_operands(int64_t m, int64_t n, int64_t k, int form)
{
	struct operands o = {.a = numbers(m * k), .b = numbers(k * n), .c = numbers(m * n), .bias = numbers(n),
		.residual = numbers(m * n), .sums = numbers(n), .wanted = make((size_t)(m * n), sizeof(double))};

	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++)
			for (int64_t l = 0; l < k; l++)
				o.wanted[i * n + j] += (double)(form & 1 ? o.a[l * m + i] : o.a[i * k + l]) *
				                       (form & 2 ? o.b[j * k + l] : o.b[l * n + j]);
	o.g = (dk_gemm_args){.transpose_a = form & 1, .transpose_b = form & 2, .m = m, .n = n, .k = k, .a = o.a,
		.lda = form & 1 ? m : k, .b = o.b, .ldb = form & 2 ? k : n, .c = o.c, .ldc = n};
	return o;
}

static void free_operands(struct operands *o)
{
	free(o->a);
	free(o->b);
	free(o->c);
	free(o->bias);
	free(o->residual);
	free(o->sums);
	free(o->wanted);
}

static void check_near(const struct operands *o, const char *what, int64_t i, double got, double wanted)
{
	if (!(fabs(got - wanted) <= 1e-5 * (double)(o->g.k + 1)))
		fail_msg("%ldx%ldx%ld: %s %ld is %.8g, not %.8g", (long)o->g.m, (long)o->g.n, (long)o->g.k, what, (long)i, got,
		         wanted);
}

/* What is complete changes its sign, so that a number that is told of never, twice or too early is wrong. */
static void turn(void *user, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
	const struct operands *o = user;

	for (int64_t i = row; i < row + rows; i++)
		for (int64_t j = column; j < column + columns; j++)
			o->c[i * o->g.n + j] *= -1;
}

/* The same, and parts are whole rows. */
static void turn_rows(void *user, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
	const struct operands *o = user;

	assert_int_equal(column, 0);
	assert_int_equal(columns, o->g.n);
	turn(user, row, rows, column, columns);
}

/* The thread that has the first rows is late, so that others take rows of its part. */
static void turn_late(void *user, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
	if (row == 0)
		usleep(20000);
	turn(user, row, rows, column, columns);
}

TEST(product_lets_threads_take_rows_of_a_slow_one)
{
	random_state = 19;
	for (int threads = 2; threads <= 3; threads++) {
		dk_set_threads(threads);
		for (int form = 0; form < 4; form++) {
			struct operands o = make_operands(1200, 330, 40, form);
			dk_cpu_product(&(dk_product_args){.gemm = o.g, .done = turn_late, .user = &o});
			for (int64_t i = 0; i < o.g.m * o.g.n; i++)
				check_near(&o, "element", i, o.c[i], -o.wanted[i]);
			free_operands(&o);
		}
	}
	dk_set_threads(1);
}

static void wide_case(int64_t m, int64_t n, int64_t k)
{
	struct operands o = make_operands(m, n, k, 2);

	dk_cpu_product(&(dk_product_args){.gemm = o.g, .done = turn_rows, .wide_parts = true, .user = &o});
	for (int64_t i = 0; i < m * n; i++)
		check_near(&o, "element", i, o.c[i], -o.wanted[i]);
	free_operands(&o);
}

TEST(product_gives_wide_parts_to_who_wants_them)
{
	random_state = 17;
	dk_set_threads(1);
	wide_case(45, 33, 64);
	wide_case(300, 1100, 40);
}

enum { NO_RESIDUAL, RESIDUAL, RESIDUAL_IN_PLACE };

static void extras_case(int64_t m, int64_t n, int64_t k, int form, int residual)
{
	struct operands o = make_operands(m, n, k, form);
	float *sums = numbers(n);

	if (residual == RESIDUAL_IN_PLACE)
		memcpy(o.c, o.residual, (size_t)(m * n) * sizeof(float));
	memcpy(sums, o.sums, (size_t)n * sizeof(float));
	dk_cpu_product(&(dk_product_args){.gemm = o.g, .bias = o.bias,
		.residual = residual == NO_RESIDUAL ? NULL : residual == RESIDUAL ? o.residual : o.c,
		.sums = form & 2 ? NULL : sums, .done = turn, .user = &o});
	for (int64_t i = 0; i < m * n; i++)
		check_near(&o, "element", i, o.c[i], -(o.wanted[i] + o.bias[i % n] + (residual != NO_RESIDUAL ? o.residual[i] : 0)));
	for (int64_t j = 0; j < n; j++) {
		double sum = o.sums[j];
		for (int64_t l = 0; l < k && !(form & 2); l++)
			sum += o.b[l * n + j];
		check_near(&o, "sum", j, sums[j], sum);
	}
	free(sums);
	free_operands(&o);
}

TEST(product_does_more_on_its_way)
{
	random_state = 11;
	for (int threads = 1; threads <= MANY_THREADS; threads += 2) {
		dk_set_threads(threads);
		for (int form = 0; form < 4; form++) {
			extras_case(3, 5, 7, form, RESIDUAL);
			extras_case(150, 70, 130, form, NO_RESIDUAL);
			extras_case(131, 101, 135, form, RESIDUAL_IN_PLACE);
			extras_case(301, 97, 530, form, RESIDUAL);
			extras_case(290, 1100, 36, form, NO_RESIDUAL);
		}
	}
	dk_set_threads(2);
	extras_case(33, 530, 8210, 1, RESIDUAL);
	dk_set_threads(1);
}

static void factors_case(int64_t m, int64_t n, int64_t k, int form)
{
	struct operands o = make_operands(m, n, k, form);
	const int64_t rows = form & 1 ? k : m, width = form & 1 ? m : k;
	float *factors = numbers(rows), *scaled = numbers(m * k), *got = numbers(m * n);
	dk_product_args args = {.gemm = o.g, .factors = factors};

	args.gemm.c = got;
	if (dk_product(&args)) {
		for (int64_t i = 0; i < m * k; i++)
			scaled[i] = o.a[i] * factors[i / width];
		o.g.a = scaled;
		assert_true(dk_product(&(dk_product_args){.gemm = o.g}));
		assert_memory_equal(got, o.c, (size_t)(m * n) * sizeof(float));
	}
	free(factors);
	free(scaled);
	free(got);
	free_operands(&o);
}

TEST(product_scales_rows_while_it_packs_them)
{
	if (!dk_has_panels())
		skip();
	random_state = 13;
	dk_set_threads(3);
	for (int form = 0; form < 4; form++) {
		factors_case(150, 70, 130, form);
		factors_case(301, 97, 530, form);
	}
	dk_set_threads(1);
}

/* b is packed with more depth than is used. */
static void panels_case(int64_t m, int64_t n, int64_t k, int64_t more, int form)
{
	struct operands o = make_operands(m, n, k, form & 1);
	const int64_t depth = k + more, columns = (n + DK_PANEL - 1) / DK_PANEL * DK_PANEL;
	float *b = numbers(depth * n), *panels, *tiles = make((size_t)DK_TILES_FLOATS(m, k), sizeof(float));

	if (posix_memalign((void **)&panels, 64, (size_t)(columns * depth + DK_PANEL) * sizeof(float)) != 0)
		abort();
	for (int64_t l = 0; l < k; l++)
		for (int64_t j = 0; j < n; j++)
			b[form & 2 ? j * depth + l : l * n + j] = o.b[l * n + j];
	dk_pack_panels(panels, &(dk_lines){.from = b, .ld = form & 2 ? depth : n, .across = !(form & 2), .count = n,
		.depth = depth});
	dk_product_by_panels(&o.g, panels, depth * DK_PANEL, tiles);
	for (int64_t i = 0; i < m * n; i++)
		check_near(&o, "element", i, o.c[i], o.wanted[i]);
	free(b);
	free(panels);
	free(tiles);
	free_operands(&o);
}

TEST(products_share_a_packed_operand)
{
	if (!dk_has_panels())
		skip();
	random_state = 17;
	for (int form = 0; form < 4; form++) {
		panels_case(1, 1, 1, 0, form);
		panels_case(64, 64, 64, 0, form);
		panels_case(64, 256, 64, 0, form);
		panels_case(71, 33, 17, 40, form);
		panels_case(29, 7, 65, 191, form);
	}
}
