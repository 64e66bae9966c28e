/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine's matrix product does at best, by the library that the
   kernels use: prints 1e9 operations per second, the median of `rounds`.
   usage: rank_sgemm THREADS ROUNDS */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "kernels.h"

enum { SIZE = 2048 };

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static float *make_matrix(void)
{
	float *matrix = malloc(sizeof(float) * SIZE * SIZE);

	if (matrix == NULL) {
		fprintf(stderr, "rank_sgemm: out of memory\n");
		exit(EXIT_FAILURE);
	}
	for (int i = 0; i < SIZE * SIZE; i++)
		matrix[i] = (float)(i % 13) * 0.1f;
	return matrix;
}

int main(int argc, char **argv)
{
	int threads = argc == 3 ? atoi(argv[1]) : 0, rounds = argc == 3 ? atoi(argv[2]) : 0;

	if (threads < 1 || rounds < 1 || rounds > 1000) {
		fprintf(stderr, "usage: rank_sgemm THREADS ROUNDS\n");
		return EXIT_FAILURE;
	}
	float *a = make_matrix(), *b = make_matrix(), *c = make_matrix();
	double *seconds = malloc(sizeof(double) * (size_t)rounds);
	if (seconds == NULL) {
		fprintf(stderr, "rank_sgemm: out of memory\n");
		return EXIT_FAILURE;
	}
	dk_set_threads(threads);
	for (int i = -1; i < rounds; i++) {
		uint64_t start = ddp_now_ns();
		dk_gemm(&(dk_gemm_args){.m = SIZE, .n = SIZE, .k = SIZE, .a = a, .lda = SIZE, .b = b,
			.ldb = SIZE, .c = c, .ldc = SIZE});
		if (i >= 0)
			seconds[i] = ddp_seconds_since(start);
	}
	qsort(seconds, (size_t)rounds, sizeof(double), by_size);
	printf("%.2f\n", 2e-9 * SIZE * SIZE * SIZE / seconds[rounds / 2]);
	free(seconds);
	free(a);
	free(b);
	free(c);
	return EXIT_SUCCESS;
}
