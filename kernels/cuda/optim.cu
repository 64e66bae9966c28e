/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer updates and norms, with the same bits as on the host: sums in its order, and
   no multiply-add that rounds once, which times() and plus() keep the compiler from. */
#include "cuda/functions.cuh"
#include "cuda/optim.cuh"

enum { THREADS = 256 };

template <typename T>
__global__ void adamw_kernel(float *param, T *grad, float *m, float *v, bf16 *rounded, int64_t n,
                             dk_update_consts c)
{
	const int64_t i = grid_thread();

	if (i >= n)
		return;
	float g = times(wide(grad[i]), c.grad_scale);
	if (c.coupled != 0)
		g = plus(g, times(param[i], c.coupled));
	const float mi = plus(times(m[i], c.beta1), times(g, c.one_beta1));
	const float vi = plus(times(v[i], c.beta2), times(times(g, c.one_beta2), g));
	const float denominator = plus(__fdiv_rn(__fsqrt_rn(vi), c.root_correction2), c.epsilon);
	const float p = plus(times(param[i], c.decay), __fdiv_rn(times(mi, c.minus_step_size), denominator));
	m[i] = mi;
	v[i] = vi;
	param[i] = p;
	put(grad + i, 0);
	if (rounded != NULL)
		put(rounded + i, p);
}

template <typename T>
__global__ void sgd_kernel(float *param, T *grad, float *buffer, bf16 *rounded, int64_t n,
                           dk_update_consts c)
{
	const int64_t i = grid_thread();

	if (i >= n)
		return;
	float g = plus(times(wide(grad[i]), c.grad_scale), times(param[i], c.coupled));
	if (buffer != NULL) {
		const float b = plus(times(buffer[i], c.momentum), g);
		buffer[i] = b;
		g = c.nesterov != 0 ? plus(g, times(b, c.nesterov)) : b;
	}
	const float p = plus(param[i], times(g, c.minus_step_size));
	param[i] = p;
	put(grad + i, 0);
	if (rounded != NULL)
		put(rounded + i, p);
}

template <typename T>
__global__ void lion_kernel(float *param, T *grad, float *m, bf16 *rounded, int64_t n, dk_update_consts c)
{
	const int64_t i = grid_thread();

	if (i >= n)
		return;
	const float g = times(wide(grad[i]), c.grad_scale);
	const float mean = plus(times(m[i], c.beta1), times(g, c.one_beta1));
	const float direction = mean > 0 ? 1 : mean < 0 ? -1 : 0;
	const float p = plus(times(param[i], c.decay), times(direction, c.minus_step_size));
	m[i] = plus(times(m[i], c.beta2), times(g, c.one_beta2));
	param[i] = p;
	put(grad + i, 0);
	if (rounded != NULL)
		put(rounded + i, p);
}

template <typename T>
static void update(T *grad, dk_cuda_queue *q, float *param, void *grads, float *first, float *second, int64_t n,
                   const dk_update_args *args)
{
	const dim3 blocks((unsigned)ceil_div(n, THREADS));
	const dk_update_consts c = dk_update_consts_of(args);
	bf16 *rounded = reinterpret_cast<bf16 *>(args->rounded);

	grad = static_cast<T *>(grads);
	switch (args->rule) {
	case DK_ADAMW:
		launch(q, "adamw", adamw_kernel<T>, blocks, THREADS, 0, param, grad, first, second, rounded, n, c);
		break;
	case DK_SGD:
		launch(q, "sgd", sgd_kernel<T>, blocks, THREADS, 0, param, grad, first, rounded, n, c);
		break;
	case DK_LION:
		launch(q, "lion", lion_kernel<T>, blocks, THREADS, 0, param, grad, first, rounded, n, c);
		break;
	}
}

void dk_cuda_update(dk_queue *queue, float *param, float *grad, float *first, float *second, int64_t n,
                    const dk_update_args *args)
{
	if (n > 0)
		FOR_GRADIENT(queue, update, own(queue), param, grad, first, second, n, args);
}

/* ---- norms ---- */

/* The host's order of squares: pieces of so many elements, each of so many running sums. */
enum { PIECE = DK_PIECE_MAX, MOST_PIECES = 2048, SUMS = DK_SQUARES_SUMS, SUM_LOADS = 32, LOADS = 8 };
static_assert((int)SUMS == (int)WARP, "a warp's shuffles add up a piece's sums");

/* Tells a kernel of arrays, in less than the 4 KiB that its arguments may have. Arrays are cut into pieces,
   which are numbered through. */
struct array_list {
	static const int MOST = 192;
	const void *x[MOST];
	int64_t n[MOST];
	unsigned first[MOST]; /* piece of each */
	int count;
	int64_t piece;
};

/* Makes a list of as many arrays from `arrays` on as it can hold; *pieces: how many pieces in all. */
static array_list list_of(const dk_array *arrays, int64_t count, int64_t piece, int64_t *pieces)
{
	array_list list;

	list.count = count < array_list::MOST ? (int)count : array_list::MOST;
	list.piece = piece;
	*pieces = 0;
	for (int i = 0; i < list.count; i++) {
		list.x[i] = arrays[i].x;
		list.n[i] = arrays[i].n;
		list.first[i] = (unsigned)*pieces;
		*pieces += ceil_div(arrays[i].n, piece);
	}
	return list;
}

/* The array that a piece is of: the last that begins there or before. One without elements begins where the
   next one does, or behind all pieces. */
__device__ inline int array_of(const array_list &list, unsigned piece)
{
	int low = 0, high = list.count - 1;

	while (low < high) {
		const int middle = (low + high + 1) / 2;
		if (list.first[middle] <= piece)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

/* The block's piece: elements [*begin, return) of the array. */
__device__ inline int64_t block_piece(const array_list &list, int array, int64_t *begin)
{
	*begin = (blockIdx.x - list.first[array]) * list.piece;
	return *begin + list.piece < list.n[array] ? *begin + list.piece : list.n[array];
}

/* Calls add(element) for every STEP-th element of x from x[i] on, up to x[end - 1], in their order; so many loads
   are under way at a time. */
template <int AT_ONCE, int STEP, typename T, class F>
__device__ inline void for_loads(const T *x, int64_t i, int64_t end, F add)
{
	for (; i + (AT_ONCE - 1) * STEP < end; i += AT_ONCE * STEP) {
		T values[AT_ONCE];
		UNROLL
		for (int k = 0; k < AT_ONCE; k++)
			values[k] = x[i + k * STEP];
		UNROLL
		for (int k = 0; k < AT_ONCE; k++)
			add(values[k]);
	}
	for (; i < end; i += STEP)
		add(x[i]);
}

/* Without its sign, a float's bits order as an integer: numbers, infinity, NaN. */
template <typename T> __device__ inline void note_magnitude(int *most, T x)
{
	const int bits = (int)(__float_as_uint(wide(x)) & 0x7fffffffu);

	*most = bits > *most ? bits : *most;
}

template <typename T> __global__ void largest_kernel(array_list list, int *largest)
{
	const int array = array_of(list, blockIdx.x);
	const T *x = static_cast<const T *>(list.x[array]);
	int64_t begin;
	const int64_t end = block_piece(list, array, &begin);
	int most = 0;

	for_loads<LOADS, THREADS>(x, begin + threadIdx.x, end, [&](T value) { note_magnitude(&most, value); });
	for (int lane = WARP / 2; lane > 0; lane /= 2) {
		const int other = __shfl_xor_sync(EVERY_LANE, most, lane);
		most = other > most ? other : most;
	}
	if (threadIdx.x % WARP == 0)
		atomicMax(largest + array, most);
}

template <typename T>
static void largest_at(const T *, dk_cuda_queue *q, void *bits, const dk_array *arrays, int64_t count)
{
	int *largest = static_cast<int *>(bits);
	int64_t pieces;

	if (count == 0 || q->failure[0] != '\0' ||
	    !dk_cuda_check(q, cudaMemsetAsync(largest, 0, (size_t)count * sizeof(int), q->stream), "largest"))
		return;
	for (int64_t i = 0; i < count; i += array_list::MOST) {
		const array_list list = list_of(arrays + i, count - i, PIECE, &pieces);
		if (pieces > 0)
			launch(q, "largest", largest_kernel<T>, dim3((unsigned)pieces), THREADS, 0, list, largest + i);
	}
}

void dk_cuda_largest_at(dk_queue *queue, float *largest, const dk_array *arrays, int64_t count)
{
	FOR_GRADIENT(queue, largest_at, own(queue), largest, arrays, count);
}

/* The kernel's bits of a float, as the double that dk_cuda_fetch() brings. */
__global__ void largest_result(const int *bits, double *result)
{
	*result = __uint_as_float((unsigned)*bits);
}

float dk_cuda_largest(dk_queue *queue, const float *x, int64_t n)
{
	dk_cuda_queue *q = own(queue);
	const dk_array array = {x, n};

	if (n == 0)
		return 0;
	float *bits = dk_cuda_scratch(q, 1);
	if (bits != NULL) {
		dk_cuda_largest_at(queue, bits, &array, 1);
		launch(q, "largest", largest_result, dim3(1), 1, 0, reinterpret_cast<int *>(bits), q->result);
	}
	return (float)dk_cuda_fetch(q);
}

template <typename T> __device__ inline void add_square(double *sum, T x)
{
	const double value = wide(x);

	*sum += value * value; /* the product is exact */
}

template <typename T> __global__ void squares_kernel(array_list list, double *sums)
{
	const int array = array_of(list, blockIdx.x);
	const T *x = static_cast<const T *>(list.x[array]);
	int64_t begin;
	const int64_t end = block_piece(list, array, &begin);
	double sum = 0;

	/* The sums' order leaves few threads: each has many loads under way. */
	for_loads<SUM_LOADS, SUMS>(x, begin + threadIdx.x, end, [&](T value) { add_square(&sum, value); });
	sum = warp_sum(sum);
	if (threadIdx.x == 0)
		sums[blockIdx.x] = sum;
}

template <typename T>
static void squares_at(const T *, dk_cuda_queue *q, double *sums, const dk_array *arrays, int64_t count, int64_t piece)
{
	int64_t pieces;

	for (int64_t i = 0; i < count; i += array_list::MOST, sums += pieces) {
		const array_list list = list_of(arrays + i, count - i, piece, &pieces);
		if (pieces > 0)
			launch(q, "squares", squares_kernel<T>, dim3((unsigned)pieces), SUMS, 0, list, sums);
	}
}

void dk_cuda_squares_at(dk_queue *queue, double *sums, const dk_array *arrays, int64_t count, int64_t piece)
{
	FOR_GRADIENT(queue, squares_at, own(queue), sums, arrays, count, piece);
}

/* ---- checksums ---- */

__global__ void checksum_kernel(const uint32_t *x, int64_t n, int64_t piece, unsigned long long *sums)
{
	const int64_t begin = blockIdx.x * piece, count = begin + piece < n ? piece : n - begin;
	const int64_t rows = (count + DK_CHECKSUM_LANES - 1) / DK_CHECKSUM_LANES;
	unsigned long long sum = 0;

	for (int64_t i = threadIdx.x; i < count; i += THREADS) {
		const int64_t row = i / DK_CHECKSUM_LANES, lane = i % DK_CHECKSUM_LANES;
		sum += x[begin + i] * (unsigned long long)(2 * (DK_CHECKSUM_LANES * (rows - row) + lane) + 1);
	}
	sum = block_sum(sum, static_cast<unsigned long long *>(launch_memory()));
	if (threadIdx.x == 0)
		sums[blockIdx.x] = sum;
}

void dk_cuda_checksum_at(dk_queue *queue, uint64_t *sums, const float *x, int64_t n, int64_t piece)
{
	if (n > 0)
		launch(own(queue), "checksum", checksum_kernel, dim3((unsigned)ceil_div(n, piece)), THREADS,
		       THREADS / WARP * sizeof(*sums), reinterpret_cast<const uint32_t *>(x), n, piece,
		       reinterpret_cast<unsigned long long *>(sums));
}

__global__ void squares_total(const double *sums, int64_t pieces, double *result)
{
	double *shared = static_cast<double *>(launch_memory());
	double total = 0;

	for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x)
		shared[i] = sums[i];
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	for (int64_t i = 0; i < pieces; i++)
		total += shared[i];
	*result = total;
}

template <typename T>
static void squares(const T *type, dk_cuda_queue *q, const float *x, int64_t n, double *result)
{
	const dk_array array = {x, n};
	int64_t piece = PIECE;

	while (n / piece >= MOST_PIECES)
		piece *= 2;
	const int64_t pieces = ceil_div(n, piece);
	double *sums = reinterpret_cast<double *>(dk_cuda_scratch(q, 2 * pieces));
	if (sums == NULL)
		return;
	squares_at(type, q, sums, &array, 1, piece);
	launch(q, "sum of squares", squares_total, dim3(1), THREADS, (size_t)pieces * sizeof(double), sums,
	       pieces, result);
}

double dk_cuda_sum_squares(dk_queue *queue, const float *x, int64_t n)
{
	if (n == 0)
		return 0;
	FOR_GRADIENT(queue, squares, own(queue), x, n, own(queue)->result);
	return dk_cuda_fetch(own(queue));
}

void dk_cuda_sum_squares_at(dk_queue *queue, double *sum, const float *x, int64_t n)
{
	squares(x, own(queue), x, n, sum);
}
