/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings: looked up, and their gradients. */
#include "cuda/functions.cuh"

enum { THREADS = 256, MOST_BUCKETS = 512, BUCKET_ROWS = 64 };

template <typename T>
__global__ void embed_kernel(T *out, const int32_t *tokens, const T *wte, const T *wpe, int64_t rows,
                             int64_t length, int64_t width)
{
	const int64_t i = grid_thread(), row = i / width, column = i % width;

	if (row < rows)
		put(out + i, wide(wte[tokens[row] * width + column]) + wide(wpe[row % length * width + column]));
}

template <typename T>
static void embed(T *, dk_cuda_queue *q, void *out, const int32_t *tokens, const void *wte,
                  const void *wpe, int64_t rows, int64_t length, int64_t width)
{
	launch(q, "embedding", embed_kernel<T>, dim3((unsigned)ceil_div(rows * width, THREADS)), THREADS, 0,
	       static_cast<T *>(out), tokens, static_cast<const T *>(wte), static_cast<const T *>(wpe), rows,
	       length, width);
}

void dk_cuda_embedding_forward(dk_queue *queue, float *out, const int32_t *tokens, const float *wte,
                               const float *wpe, int64_t batch, int64_t length, int64_t width)
{
	if (batch * length * width > 0)
		FOR_TYPE(queue, embed, own(queue), out, tokens, wte, wpe, batch * length, length, width);
}

/* dwpe += the sum over the batch, in order. */
template <typename G, typename T>
__global__ void positions_kernel(G *dwpe, const T *dout, int64_t batch, int64_t size)
{
	const int64_t i = grid_thread();

	if (i >= size)
		return;
	float sum = wide(dwpe[i]);
	for (int64_t b = 0; b < batch; b++)
		sum += wide(dout[b * size + i]);
	put(dwpe + i, sum);
}

/* out row rows[i] += values row i, in order and without atomics on floats. The rows' numbers are split into
   buckets, and sorted in these, which keeps those of one row in order; what a row gets is then a run, which
   one block adds up. */
struct row_order {
	int buckets, count;
	int32_t *begins;               /* [buckets]: where each begins in the arrays, of [count] each: */
	int32_t *split, *split_values; /* rows by bucket, and which row of the values each gets */
	int32_t *rows, *values;        /* the same sorted */
};

/* Rows that follow each other are in unlike ones. */
__device__ inline int bucket_of(int32_t row, int buckets)
{
	return (int)((uint64_t)((uint32_t)row * 2654435761u) * (unsigned)buckets >> 32);
}

/* A block picks those of its bucket, in order. Shared: a number of each warp. */
__global__ void split_kernel(row_order order, const int32_t *rows)
{
	int *shared = static_cast<int *>(launch_memory());
	const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, mine = (int)blockIdx.x;
	int before = 0;

	for (int i = (int)threadIdx.x; i < order.count; i += THREADS)
		before += bucket_of(rows[i], order.buckets) < mine;
	int at = block_sum(before, shared);
	if (threadIdx.x == 0)
		order.begins[mine] = at;
	for (int first = 0; first < order.count; first += THREADS) {
		const int i = first + (int)threadIdx.x;
		const bool picked = i < order.count && bucket_of(rows[i], order.buckets) == mine;
		const unsigned mask = __ballot_sync(EVERY_LANE, picked);
		if (lane == 0)
			shared[warp] = __popc(mask);
		__syncthreads();
		int to = at + __popc(mask & ((1u << lane) - 1));
		for (int w = 0; w < THREADS / WARP; w++) {
			to += w < warp ? shared[w] : 0;
			at += shared[w];
		}
		if (picked) {
			order.split[to] = rows[i];
			order.split_values[to] = i;
		}
		__syncthreads();
	}
}

struct sort_function {
	row_order order;

	__device__ void operator()(int64_t i) const
	{
		const int32_t row = order.split[i];
		const int bucket = bucket_of(row, order.buckets);
		const int begin = order.begins[bucket];
		const int end = bucket + 1 < order.buckets ? order.begins[bucket + 1] : order.count;
		int to = begin;
		for (int other = begin; other < end; other++)
			to += order.split[other] < row || (order.split[other] == row && other < i);
		order.rows[to] = row;
		order.values[to] = order.split_values[i];
	}
};

template <typename G, typename T>
__global__ void add_rows_kernel(G *out, row_order order, const T *values, int64_t width)
{
	enum { COLUMNS = 4, LOADS = 8 }; /* of a thread at a time, and rows of these */
	const int begin = (int)blockIdx.x;
	const int32_t row = order.rows[begin];

	if (begin > 0 && order.rows[begin - 1] == row)
		return;
	out += row * width;
	for (int64_t column = threadIdx.x; column < width; column += COLUMNS * THREADS) {
		float sums[COLUMNS];
		UNROLL
		for (int c = 0; c < COLUMNS; c++)
			sums[c] = column + c * THREADS < width ? wide(out[column + c * THREADS]) : 0;
		for (int i = begin; i < order.count && order.rows[i] == row; i += LOADS) {
			float added[LOADS][COLUMNS];
			bool is_there[LOADS];
			UNROLL
			for (int k = 0; k < LOADS; k++) {
				is_there[k] = i + k < order.count && order.rows[i + k] == row;
				const T *value = values + (is_there[k] ? order.values[i + k] : 0) * width + column;
				UNROLL
				for (int c = 0; c < COLUMNS; c++)
					added[k][c] = is_there[k] && column + c * THREADS < width ? wide(value[c * THREADS]) : 0;
			}
			UNROLL
			for (int k = 0; k < LOADS; k++)
				UNROLL
				for (int c = 0; c < COLUMNS; c++)
					sums[c] = is_there[k] ? sums[c] + added[k][c] : sums[c];
		}
		UNROLL
		for (int c = 0; c < COLUMNS; c++)
			if (column + c * THREADS < width)
				put(out + column + c * THREADS, sums[c]);
	}
}

/* The order lies in scratch. False: there is none, and the queue keeps the failure. */
static bool order_rows(dk_cuda_queue *q, const int32_t *rows, int count, row_order *order)
{
	const int most = ceil_div(count, BUCKET_ROWS), buckets = most < MOST_BUCKETS ? most : MOST_BUCKETS;
	int32_t *memory = reinterpret_cast<int32_t *>(dk_cuda_scratch(q, buckets + 4 * (int64_t)count));

	if (memory == NULL)
		return false;
	*order = {buckets, count, memory, memory + buckets, memory + buckets + count, memory + buckets + 2 * count,
		memory + buckets + 3 * count};
	launch(q, "rows' order", split_kernel, dim3((unsigned)buckets), THREADS, THREADS / WARP * sizeof(int), *order,
	       rows);
	for_each(q, "rows' order", count, sort_function{*order});
	return true;
}

template <typename G, typename T>
static void add_rows(G *, T *, dk_cuda_queue *q, void *out, const int32_t *rows, const void *values, int64_t count,
                     int64_t width)
{
	const int64_t room = q->scratch_size / 5, most = room > 0 ? room : 1;
	row_order order;

	for (int64_t first = 0; first < count; first += most) {
		const int64_t n = count - first < most ? count - first : most;
		if (order_rows(q, rows + first, (int)n, &order))
			launch(q, "rows' sums", add_rows_kernel<G, T>, dim3((unsigned)n), THREADS, 0, static_cast<G *>(out),
			       order, static_cast<const T *>(values) + first * width, width);
	}
}

void dk_cuda_add_rows(dk_queue *queue, float *out, const int32_t *rows, const float *values,
                      int64_t count, int64_t width)
{
	float *const f32 = NULL;

	if (count == 0)
		return;
	if (queue->type == DK_MIXED)
		add_rows(f32, f32, own(queue), out, rows, values, count, width);
	else
		FOR_TYPES(queue, add_rows, own(queue), out, rows, values, count, width);
}

template <typename G, typename T>
static void positions(G *, T *, dk_cuda_queue *q, void *dwpe, const void *dout, int64_t batch, int64_t size)
{
	launch(q, "positions' gradient", positions_kernel<G, T>, dim3((unsigned)ceil_div(size, THREADS)), THREADS,
	       0, static_cast<G *>(dwpe), static_cast<const T *>(dout), batch, size);
}

void dk_cuda_embedding_backward(dk_queue *queue, float *dwte, float *dwpe, const float *dout,
                                const int32_t *tokens, int64_t batch, int64_t length, int64_t width)
{
	if (batch * length * width == 0)
		return;
	if (dwte != NULL)
		FOR_TYPES(queue, add_rows, own(queue), dwte, tokens, dout, batch * length, width);
	if (dwpe != NULL)
		FOR_TYPES(queue, positions, own(queue), dwpe, dout, batch, length * width);
}
