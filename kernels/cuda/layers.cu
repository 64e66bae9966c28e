/* Linear layers and layernorm. */
#include "cuda/row_sums.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP };

/* ---- sums over rows, of two values for each element ---- */

template <typename T> struct column_sums_of {
	const T *dout;
	__device__ void operator()(int64_t i, int64_t, int64_t, float *first, float *) const
	{
		*first += wide(dout[i]);
	}
};

template <typename T> struct layernorm_params_of {
	const T *dout, *in;
	const float *mean, *rstd;
	__device__ void operator()(int64_t i, int64_t row, int64_t, float *first, float *second) const
	{
		*first += wide(dout[i]) * ((wide(in[i]) - mean[row]) * rstd[row]);
		*second += wide(dout[i]);
	}
};

template <typename G>
__global__ void add_chunks(G *first, G *second, const float *partial, int64_t chunks, int64_t width)
{
	const int64_t column = grid_thread();
	G *to = blockIdx.y == 0 ? first : second;

	if (column >= width || to == NULL)
		return;
	partial += blockIdx.y * chunks * width;
	float sum = wide(to[column]);
	for (int64_t c = 0; c < chunks; c++)
		sum += partial[c * width + column];
	put(to + column, sum);
}

/* first, second [width] += the sums of the values */
template <typename G, class F>
static void add_sums(dk_cuda_queue *q, const char *name, G *first, G *second, int64_t rows, int64_t width, F values)
{
	int64_t chunks;
	const float *partial = sum_chunks<float>(q, name, rows, width, &chunks, values);

	if (partial != NULL)
		launch(q, name, add_chunks<G>, dim3((unsigned)ceil_div(width, THREADS), 2), THREADS, 0, first, second,
		       partial, chunks, width);
}

/* ---- linear ---- */

void dk_cuda_gemm(dk_queue *queue, const dk_gemm_args *g)
{
	const dk_product_args p = {g->transpose_a, g->transpose_b, g->m, g->n, g->k, g->a, g->lda,
		g->b, g->ldb, g->beta, g->c, g->c, g->ldc, NULL, false};

	dk_cuda_product(own(queue), &p);
}

void dk_cuda_linear_forward(dk_queue *queue, float *out, const float *in, const float *weight,
                            const float *bias, const float *residual, int64_t rows, int64_t inputs,
                            int64_t outputs)
{
	const dk_product_args p = {false, false, rows, outputs, inputs, in, inputs, weight, outputs,
		residual != NULL ? 1.0f : 0.0f, residual != NULL ? residual : out, out, outputs, bias, false};

	dk_cuda_product(own(queue), &p);
}

template <typename G, typename T>
static void bias_gradient(G *, T *, dk_cuda_queue *q, void *dbias, const void *dout, int64_t rows,
                          int64_t width)
{
	add_sums(q, "bias's gradient", static_cast<G *>(dbias), static_cast<G *>(NULL), rows, width,
	         column_sums_of<T>{static_cast<const T *>(dout)});
}

void dk_cuda_add_columns(dk_cuda_queue *q, float *to, const float *x, int64_t rows, int64_t width)
{
	if (rows > 0)
		add_sums(q, "columns' sums", to, static_cast<float *>(NULL), rows, width, column_sums_of<float>{x});
}

void dk_cuda_linear_backward_params(dk_queue *queue, float *dweight, float *dbias,
                                    const float *dout, const float *in, int64_t rows,
                                    int64_t inputs, int64_t outputs)
{
	const dk_product_args p = {true, false, inputs, outputs, rows, in, inputs, dout, outputs, 1, dweight,
		dweight, outputs, NULL, queue->type == DK_MIXED};

	FOR_TYPES(queue, bias_gradient, own(queue), dbias, dout, rows, outputs);
	dk_cuda_product(own(queue), &p);
}

void dk_cuda_linear_backward_input(dk_queue *queue, float *din, const float *dout,
                                   const float *weight, int64_t rows, int64_t inputs,
                                   int64_t outputs)
{
	const dk_product_args p = {false, true, rows, inputs, outputs, dout, outputs, weight, outputs, 0, din,
		din, inputs, NULL, false};

	dk_cuda_product(own(queue), &p);
}

/* ---- layernorm: a row is a warp's ---- */

/* The row of the calling warp, and whether there is one. */
__device__ inline bool warp_row(int64_t rows, int64_t *row, int *lane)
{
	*row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
	*lane = (int)(threadIdx.x % WARP);
	return *row < rows;
}

template <typename T>
__global__ void layernorm_kernel(T *out, float *mean, float *rstd, const T *in, const T *gain,
                                 const T *bias, int64_t rows, int64_t width)
{
	int64_t row;
	int lane;

	if (!warp_row(rows, &row, &lane))
		return;
	in += row * width;
	out += row * width;
	float sum = 0, square = 0;
	for (int64_t i = lane; i < width; i += WARP)
		sum += wide(in[i]);
	const float m = warp_sum(sum) / (float)width;
	for (int64_t i = lane; i < width; i += WARP) {
		const float d = wide(in[i]) - m;
		square += d * d;
	}
	const float s = 1 / sqrtf(warp_sum(square) / (float)width + 1e-5f);
	for (int64_t i = lane; i < width; i += WARP)
		put(out + i, (wide(in[i]) - m) * s * wide(gain[i]) + wide(bias[i]));
	if (lane == 0) {
		mean[row] = m;
		rstd[row] = s;
	}
}

template <typename T>
static void layernorm(T *, dk_cuda_queue *q, void *out, float *mean, float *rstd, const void *in,
                      const void *gain, const void *bias, int64_t rows, int64_t width)
{
	launch(q, "layernorm", layernorm_kernel<T>, dim3((unsigned)ceil_div(rows, WARPS)), THREADS, 0,
	       static_cast<T *>(out), mean, rstd, static_cast<const T *>(in), static_cast<const T *>(gain),
	       static_cast<const T *>(bias), rows, width);
}

void dk_cuda_layernorm_forward(dk_queue *queue, float *out, float *mean, float *rstd,
                               const float *in, const float *gain, const float *bias, int64_t rows,
                               int64_t width)
{
	FOR_TYPE(queue, layernorm, own(queue), out, mean, rstd, in, gain, bias, rows, width);
}

template <typename T>
__global__ void layernorm_input_kernel(T *din, const T *dout, const T *in, const float *mean,
                                       const float *rstd, const T *gain, int64_t rows,
                                       int64_t width)
{
	int64_t row;
	int lane;

	if (!warp_row(rows, &row, &lane))
		return;
	din += row * width;
	dout += row * width;
	in += row * width;
	const float m = mean[row], s = rstd[row];
	float sum = 0, dot = 0;
	for (int64_t i = lane; i < width; i += WARP) {
		const float dnorm = wide(dout[i]) * wide(gain[i]);
		sum += dnorm;
		dot += dnorm * ((wide(in[i]) - m) * s);
	}
	const float dnorm_mean = warp_sum(sum) / (float)width;
	const float dot_mean = warp_sum(dot) / (float)width;
	for (int64_t i = lane; i < width; i += WARP) {
		const float norm = (wide(in[i]) - m) * s;
		const float d = (wide(dout[i]) * wide(gain[i]) - dnorm_mean - norm * dot_mean) * s;
		put(din + i, wide(din[i]) + d);
	}
}

template <typename G, typename T>
static void layernorm_backward(G *, T *, dk_cuda_queue *q, void *din, void *dgain, void *dbias,
                               const void *dout, const void *in, const float *mean,
                               const float *rstd, const void *gain, int64_t rows, int64_t width)
{
	const layernorm_params_of<T> params = {static_cast<const T *>(dout), static_cast<const T *>(in), mean, rstd};

	add_sums(q, "layernorm's parameters", static_cast<G *>(dgain), static_cast<G *>(dbias), rows, width, params);
	launch(q, "layernorm's gradient", layernorm_input_kernel<T>, dim3((unsigned)ceil_div(rows, WARPS)),
	       THREADS, 0, static_cast<T *>(din), static_cast<const T *>(dout), static_cast<const T *>(in), mean,
	       rstd, static_cast<const T *>(gain), rows, width);
}

void dk_cuda_layernorm_backward(dk_queue *queue, float *din, float *dgain, float *dbias,
                                const float *dout, const float *in, const float *mean,
                                const float *rstd, const float *gain, int64_t rows, int64_t width)
{
	FOR_TYPES(queue, layernorm_backward, own(queue), din, dgain, dbias, dout, in, mean, rstd, gain, rows,
	         width);
}
