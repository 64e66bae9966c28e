/*
 * Optimizer updates and norms, with the same bits as on the host: sums in its order, and
 * no multiply-add that rounds once, which times() and plus() keep the compiler from.
 */
#include "cuda/functions.cuh"
#include "cuda/optim.cuh"

enum { THREADS = 256 };

template <typename T>
__global__ void adamw_kernel(float *param, T *grad, float *m, float *v, bf16 *rounded, int64_t n,
                             adamw_consts c)
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
static void adamw(T *grad, dk_cuda_queue *q, float *param, void *grads, float *m, float *v,
                  bf16 *rounded, int64_t n, const adamw_consts *c)
{
	grad = static_cast<T *>(grads);
	launch(q, "adamw", adamw_kernel<T>, dim3((unsigned)ceil_div(n, THREADS)), THREADS, 0, param, grad,
	       m, v, rounded, n, *c);
}

adamw_consts dk_cuda_adamw_consts(const dk_adamw_args *args)
{
	const double correction1 = 1 - pow(args->beta1, (double)args->step);
	const double correction2 = 1 - pow(args->beta2, (double)args->step);
	adamw_consts c;

	c.grad_scale = (float)args->grad_scale;
	c.decay = args->coupled ? 1 : (float)(1 - args->learning_rate * args->weight_decay);
	c.beta1 = (float)args->beta1;
	c.one_beta1 = (float)(1 - args->beta1);
	c.beta2 = (float)args->beta2;
	c.one_beta2 = (float)(1 - args->beta2);
	c.root_correction2 = (float)sqrt(correction2);
	c.epsilon = (float)args->epsilon;
	c.minus_step_size = (float)(-args->learning_rate / correction1);
	c.coupled = args->coupled ? (float)args->weight_decay : 0;
	return c;
}

void dk_cuda_adamw(dk_queue *queue, float *param, float *grad, float *m, float *v, int64_t n,
                   const dk_adamw_args *args)
{
	const adamw_consts c = dk_cuda_adamw_consts(args);

	if (n > 0)
		FOR_GRADIENT(queue, adamw, own(queue), param, grad, m, v, reinterpret_cast<bf16 *>(args->rounded),
		         n, &c);
}

struct sgd_consts {
	float grad_scale, weight_decay, momentum, minus_learning_rate, nesterov;
};

template <typename T>
__global__ void sgd_kernel(float *param, T *grad, float *buffer, bf16 *rounded, int64_t n,
                           sgd_consts c)
{
	const int64_t i = grid_thread();

	if (i >= n)
		return;
	float g = plus(times(wide(grad[i]), c.grad_scale), times(param[i], c.weight_decay));
	if (buffer != NULL) {
		const float b = plus(times(buffer[i], c.momentum), g);
		buffer[i] = b;
		g = c.nesterov != 0 ? plus(g, times(b, c.nesterov)) : b;
	}
	const float p = plus(param[i], times(g, c.minus_learning_rate));
	param[i] = p;
	put(grad + i, 0);
	if (rounded != NULL)
		put(rounded + i, p);
}

template <typename T>
static void sgd(T *grad, dk_cuda_queue *q, float *param, void *grads, float *buffer, bf16 *rounded,
                int64_t n, const sgd_consts *c)
{
	grad = static_cast<T *>(grads);
	launch(q, "sgd", sgd_kernel<T>, dim3((unsigned)ceil_div(n, THREADS)), THREADS, 0, param, grad,
	       buffer, rounded, n, *c);
}

void dk_cuda_sgd(dk_queue *queue, float *param, float *grad, float *buffer, int64_t n,
                 const dk_sgd_args *args)
{
	sgd_consts c;

	c.grad_scale = (float)args->grad_scale;
	c.weight_decay = (float)args->weight_decay;
	/* The first step takes the gradient as it is. */
	c.momentum = args->step > 1 ? (float)args->momentum : 0;
	c.minus_learning_rate = (float)-args->learning_rate;
	c.nesterov = args->nesterov ? (float)args->momentum : 0;
	if (n > 0)
		FOR_GRADIENT(queue, sgd, own(queue), param, grad, buffer,
		         reinterpret_cast<bf16 *>(args->rounded), n, &c);
}

/* ---- norms ---- */

/* Without its sign, a float's bits order as an integer: numbers, infinity, NaN. */
template <typename T> __global__ void largest_kernel(const T *x, int64_t n, int *largest)
{
	int most = 0;

	for (int64_t i = grid_thread(); i < n; i += (int64_t)gridDim.x * blockDim.x) {
		const int bits = (int)(__float_as_uint(wide(x[i])) & 0x7fffffffu);
		most = bits > most ? bits : most;
	}
	for (int lane = WARP / 2; lane > 0; lane /= 2) {
		const int other = __shfl_xor_sync(EVERY_LANE, most, lane);
		most = other > most ? other : most;
	}
	if (threadIdx.x % WARP == 0)
		atomicMax(largest, most);
}

template <typename T>
static void largest_at(const T *, dk_cuda_queue *q, const void *x, int64_t n, void *bits)
{
	enum { MOST_BLOCKS = 1024 };
	const int64_t blocks = ceil_div(n, 4 * THREADS);

	if (q->failure[0] == '\0' &&
	    dk_cuda_check(q, cudaMemsetAsync(bits, 0, sizeof(int), q->stream), "largest") && n > 0)
		launch(q, "largest", largest_kernel<T>, dim3(blocks < MOST_BLOCKS ? (unsigned)blocks : (unsigned)MOST_BLOCKS),
		       THREADS, 0, static_cast<const T *>(x), n, static_cast<int *>(bits));
}

void dk_cuda_largest_at(dk_queue *queue, float *largest, const float *x, int64_t n)
{
	FOR_GRADIENT(queue, largest_at, own(queue), x, n, largest);
}

/* The kernel's bits of a float, as the double that dk_cuda_fetch() brings. */
__global__ void largest_result(const int *bits, double *result)
{
	*result = __uint_as_float((unsigned)*bits);
}

template <typename T> static void largest(const T *, dk_cuda_queue *q, const void *x, int64_t n)
{
	float *bits = dk_cuda_scratch(q, 1);

	if (bits == NULL)
		return;
	largest_at(static_cast<const T *>(NULL), q, x, n, bits);
	launch(q, "largest", largest_result, dim3(1), 1, 0, reinterpret_cast<int *>(bits), q->result);
}

float dk_cuda_largest(dk_queue *queue, const float *x, int64_t n)
{
	if (n == 0)
		return 0;
	FOR_GRADIENT(queue, largest, own(queue), x, n);
	return (float)dk_cuda_fetch(own(queue));
}

/* The host's order: pieces of so many elements, each of so many running sums. */
enum { PIECE = 32768, MOST_PIECES = 2048, SUMS = DK_SQUARES_SUMS, LOADS = 32 };

template <typename T> __device__ inline void add_square(double *sum, T x)
{
	const double value = wide(x);

	*sum += value * value; /* the product is exact */
}

template <typename T>
__global__ void squares_kernel(const T *x, int64_t n, int64_t piece, int64_t pieces, double *sums)
{
	const int64_t index = grid_thread() / SUMS;
	const int lane = (int)(threadIdx.x % SUMS);
	double sum = 0;

	if (index < pieces) {
		const int64_t end = (index + 1) * piece < n ? (index + 1) * piece : n;
		int64_t i = index * piece + lane;
		/* The sums' order leaves few threads: each has many loads under way. */
		for (; i + (LOADS - 1) * SUMS < end; i += LOADS * SUMS) {
			T values[LOADS];
			UNROLL
			for (int k = 0; k < LOADS; k++)
				values[k] = x[i + k * SUMS];
			UNROLL
			for (int k = 0; k < LOADS; k++)
				add_square(&sum, values[k]);
		}
		for (; i < end; i += SUMS)
			add_square(&sum, x[i]);
	}
	for (int width = SUMS / 2; width > 0; width /= 2) {
		const double other = __shfl_xor_sync(EVERY_LANE, sum, width);
		sum = sum + other;
	}
	if (index < pieces && lane == 0)
		sums[index] = sum;
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
static void squares(const T *, dk_cuda_queue *q, const void *x, int64_t n, double *result)
{
	int64_t piece = PIECE;

	while (n / piece >= MOST_PIECES)
		piece *= 2;
	const int64_t pieces = ceil_div(n, piece);
	double *sums = reinterpret_cast<double *>(dk_cuda_scratch(q, 2 * pieces));
	if (sums == NULL)
		return;
	launch(q, "sum of squares", squares_kernel<T>, dim3((unsigned)ceil_div(pieces * SUMS, WARP)), WARP, 0,
	       static_cast<const T *>(x), n, piece, pieces, sums);
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

template <typename T>
static void squares_at(const T *, dk_cuda_queue *q, double *sums, const void *x, int64_t n, int64_t piece)
{
	const int64_t pieces = ceil_div(n, piece);

	launch(q, "squares", squares_kernel<T>, dim3((unsigned)ceil_div(pieces * SUMS, WARP)), WARP, 0,
	       static_cast<const T *>(x), n, piece, pieces, sums);
}

void dk_cuda_squares_at(dk_queue *queue, double *sums, const float *x, int64_t n, int64_t piece)
{
	if (n > 0)
		FOR_GRADIENT(queue, squares_at, own(queue), sums, x, n, piece);
}
