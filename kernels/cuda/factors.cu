/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices as products of two factors of low rank, with the same bits as on the host: the order
   of sums is that of kernels.h, and nothing is rounded once that the host rounds twice. */
#include "cuda/functions.cuh"
#include "cuda/optim.cuh"
#include "splitmix.h"

enum { THREADS = DK_FACTOR_LANES };

/* ---- orthonormal rows ---- */

struct random_function {
	float *values;
	int64_t columns;
	uint64_t stream;

	__device__ void operator()(int64_t i) const
	{
		const int64_t row = i / columns;

		values[i] = dk_random_at(dk_random_row(stream, row), i - row * columns);
	}
};

void dk_cuda_random_rows(dk_queue *queue, float *values, int64_t rows, int64_t columns, uint64_t stream)
{
	const random_function f = {values, columns, stream};

	for_each(own(queue), "random rows", rows * columns, f);
}

/* A factor in the work of one block: each of its threads has every so-many-th column, from its
   own number on, so that it reads only what it has written. */
struct block_factor {
	float *factor;
	int64_t length;
	double *lanes; /* shared, one for each thread */

	__device__ float *row(int64_t r) const
	{
		return factor + r * length;
	}

	/* Each thread gets the result. */
	__device__ double product(const float *a, const float *b) const
	{
		double sum = 0;

		for (int64_t i = threadIdx.x; i < length; i += THREADS)
			sum += (double)a[i] * (double)b[i]; /* the product is exact */
		return sum_of_block(lanes, THREADS, sum);
	}

	/* Takes from row `at` what lies in the direction of those before; what is left of its norm. */
	__device__ double project(int64_t at) const
	{
		float *own = row(at);

		for (int64_t r = 0; r < at; r++) {
			const float *other = row(r);
			const float share = (float)product(own, other);
			for (int64_t i = threadIdx.x; i < length; i += THREADS)
				own[i] = plus(own[i], -times(share, other[i]));
		}
		return sqrt(product(own, own));
	}

	/* False if the row is nothing but what others are. */
	__device__ bool orthonormalize(int64_t at) const
	{
		float *own = row(at);
		const double before = sqrt(product(own, own));
		double norm = project(at);

		/* The host's kernel does the same. */
		if (norm < before / 2)
			norm = project(at);
		if (!(norm > DK_FACTOR_ROUNDING * before))
			return false;
		for (int64_t i = threadIdx.x; i < length; i += THREADS)
			own[i] = (float)(own[i] / norm);
		return true;
	}
};

/* One block's: a row can begin only when those before are done, so more have nothing to do. */
__global__ void __launch_bounds__(THREADS)
orthonormal_kernel(float *factor, int64_t rank, int64_t length, bool refill, uint64_t stream)
{
	const block_factor f = {factor, length, static_cast<double *>(launch_memory())};

	for (int64_t at = 0; at < rank; at++) {
		float *own = f.row(at);
		bool good = f.orthonormalize(at);
		if (!good && refill) {
			const uint64_t from = dk_random_row(stream, at);
			for (int64_t i = threadIdx.x; i < length; i += THREADS)
				own[i] = dk_random_at(from, i);
			good = f.orthonormalize(at);
		}
		for (int64_t i = threadIdx.x; i < length && !good; i += THREADS)
			own[i] = 0;
	}
}

void dk_cuda_orthonormalize(dk_queue *queue, float *factor, int64_t rank, int64_t length, bool refill,
                            uint64_t stream)
{
	launch(own(queue), "orthonormal rows", orthonormal_kernel, dim3(1), THREADS, THREADS * sizeof(double),
	       factor, rank, length, refill, stream);
}

/* ---- products of two factors ---- */

struct restore_function {
	float *values, *rest;
	float share;
	dk_factors f;

	__device__ void operator()(int64_t i) const
	{
		const int64_t row = i / f.columns, column = i - row * f.columns;
		float sum = times(f.left[row], f.right[column]);

		for (int64_t c = 1; c < f.rank; c++)
			sum = plus(sum, times(f.left[c * f.rows + row], f.right[c * f.columns + column]));
		values[i] = sum;
		if (rest != NULL)
			rest[i] = plus(rest[i], -times(share, sum));
	}
};

void dk_cuda_restore(dk_queue *queue, float *values, float *rest, float share, const dk_factors *factors)
{
	const restore_function f = {values, rest, share, *factors};

	for_each(own(queue), "product of factors", factors->rows * factors->columns, f);
}
