/* SPDX-License-Identifier: Apache-2.0 */
/* kernels: the matrix product against a plain one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/support/kernel_values.h"
#include "cpu/product.h"
#include "kernels.h"

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

static void product_takes_all_forms_and_strides(void **state)
{
	(void)state;
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
static void product_takes_a_large_operand_in_parts(void **state)
{
	(void)state;
	dk_set_threads(2);
	product_case(33, 530, 8210, 2, 0.5f);
	dk_set_threads(1);
}

/* Of large products, each element is summed in one order. */
static void product_has_the_same_bits_on_any_number_of_threads(void **state)
{
	enum { M = 150, N = 330, K = 600 };
	float *a = make(M * K, sizeof(float)), *b = make(K * N, sizeof(float));
	float *one = make(M * N, sizeof(float)), *many = make(M * N, sizeof(float));
	dk_gemm_args args = {.m = M, .n = N, .k = K, .a = a, .lda = K, .b = b, .ldb = N, .c = one, .ldc = N};

	(void)state;
	random_state = 7;
	for (int i = 0; i < M * K; i++)
		a[i] = (float)uniform();
	for (int i = 0; i < K * N; i++)
		b[i] = (float)uniform();
	dk_set_threads(1);
	const bool own = dk_product(&args);
	args.c = many;
	for (int threads = 2; own && threads <= 12; threads += 5) {
		dk_set_threads(threads);
		assert_true(dk_product(&args));
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(product_takes_all_forms_and_strides),
		cmocka_unit_test(product_takes_a_large_operand_in_parts),
		cmocka_unit_test(product_has_the_same_bits_on_any_number_of_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
