/* SPDX-License-Identifier: Apache-2.0 */
/* row_sums: sums of two values over rows, for each column, which come in chunks of rows whose
   partial sums are added in order: the same bits in each run. */
#pragma once

#include "cuda/functions.cuh"

/* A block takes so many columns, and each of its threads one of them in every so many rows. */
enum { TILE_COLUMNS = 32, TILE_ROWS = 8, TILE_THREADS = TILE_COLUMNS * TILE_ROWS };
static const int64_t MOST_CHUNKS = 128, FEWEST_ROWS = 64;

__device__ inline int64_t tile_column()
{
	return (int64_t)blockIdx.x * TILE_COLUMNS + threadIdx.x % TILE_COLUMNS;
}

static inline unsigned tiles_of(int64_t width)
{
	return (unsigned)ceil_div(width, TILE_COLUMNS);
}

/* partial [2, chunks, width] = what `values` adds up over each chunk of rows */
template <typename S, class F>
__global__ void chunk_kernel(S *partial, int64_t rows, int64_t width, int64_t chunk_rows, F values)
{
	S *shared = static_cast<S *>(launch_memory()); /* [2, TILE_ROWS, TILE_COLUMNS] */
	const int inside = (int)(threadIdx.x / TILE_COLUMNS);
	const int64_t column = tile_column(), begin = blockIdx.y * chunk_rows;
	const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
	S first = 0, second = 0;

	for (int64_t row = begin + inside; column < width && row < end; row += TILE_ROWS)
		values(row * width + column, row, column, &first, &second);
	shared[threadIdx.x] = first;
	shared[TILE_THREADS + threadIdx.x] = second;
	__syncthreads();
	if (inside > 1 || column >= width)
		return;
	/* The first row of threads adds up the first values, the second the second. */
	const S *mine = shared + inside * TILE_THREADS + threadIdx.x % TILE_COLUMNS;
	S sum = 0;
	for (int r = 0; r < TILE_ROWS; r++)
		sum += mine[r * TILE_COLUMNS];
	partial[(inside * (int64_t)gridDim.y + blockIdx.y) * width + column] = sum;
}

/* The partial sums, [2, *chunks, width], in scratch memory. NULL: there is none, as the queue
   knows. values(i, row, column, &first, &second) adds to both what element i of [rows, width] is. */
template <typename S, class F>
static const S *sum_chunks(dk_cuda_queue *q, const char *name, int64_t rows, int64_t width, int64_t *chunks, F values)
{
	const int64_t floats = 2 * (int64_t)(sizeof(S) / sizeof(float)), room = q->scratch_size / (floats * width);
	int64_t most = ceil_div(rows, FEWEST_ROWS);

	most = most > MOST_CHUNKS ? MOST_CHUNKS : most;
	most = most > room && room > 0 ? room : most;
	const int64_t chunk_rows = most > 0 ? ceil_div(rows, most) : 0;
	*chunks = most > 0 ? ceil_div(rows, chunk_rows) : 0;
	S *partial = reinterpret_cast<S *>(dk_cuda_scratch(q, floats * *chunks * width));
	if (partial != NULL && *chunks > 0)
		launch(q, name, chunk_kernel<S, F>, dim3(tiles_of(width), (unsigned)*chunks), TILE_THREADS,
		       2 * TILE_THREADS * sizeof(S), partial, rows, width, chunk_rows, values);
	return partial;
}
