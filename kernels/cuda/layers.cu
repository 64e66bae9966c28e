/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers and layernorm. */
#include "cuda/row_sums.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP, LOADS = 16 };
enum { PACK_BYTES = 16, LANE_UNIT = 8, LANE_MOST = 32 /* columns of a row in registers */ };

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
	partial += blockIdx.y * chunks * width + column;
	float sum = wide(to[column]);
	int64_t c = 0;
	/* Few threads have work here: each has many loads under way. */
	for (; c + LOADS <= chunks; c += LOADS) {
		float values[LOADS];
		UNROLL
		for (int k = 0; k < LOADS; k++)
			values[k] = partial[(c + k) * width];
		UNROLL
		for (int k = 0; k < LOADS; k++)
			sum += values[k];
	}
	for (; c < chunks; c++)
		sum += partial[c * width];
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

bool dk_cuda_linear_gelu_forward(dk_queue *queue, float *out, float *before, const float *in,
                                 const float *weight, const float *bias, int64_t rows, int64_t inputs,
                                 int64_t outputs)
{
	const dk_product_args p = {false, false, rows, outputs, inputs, in, inputs, weight, outputs, 0, out, out,
		outputs, bias, false, DK_GELU, before};

	return dk_cuda_product(own(queue), &p);
}

bool dk_cuda_linear_gelu_backward(dk_queue *queue, float *dbefore, const float *dout, const float *weight,
                                  const float *before, int64_t rows, int64_t inputs, int64_t outputs)
{
	const dk_product_args p = {false, true, rows, inputs, outputs, dout, outputs, weight, outputs, 0, dbefore,
		dbefore, inputs, NULL, false, DK_GELU_SLOPE, const_cast<float *>(before)};

	return dk_cuda_product(own(queue), &p);
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

/* Rows that fit into a warp's registers: each is read once, 16 bytes at a time. A lane has COLUMNS of
   it, in packs of N, each WARPth one from its own on. */
template <typename T, int COLUMNS> struct warp_packs {
	enum { N = PACK_BYTES / sizeof(T), COUNT = COLUMNS / N };
	pack<T, N> packs[COUNT];

	__device__ static int column(int j, int lane)
	{
		return (j * WARP + lane) * N;
	}

	__device__ void load(const T *row, int width, int lane)
	{
		UNROLL
		for (int j = 0; j < COUNT; j++)
			if (column(j, lane) < width)
				packs[j] = *reinterpret_cast<const pack<T, N> *>(row + column(j, lane));
	}

	/* f(column's place in the lane's registers, pack, element of it) */
	template <class F> __device__ void each(int width, int lane, F f)
	{
		UNROLL
		for (int j = 0; j < COUNT; j++)
			if (column(j, lane) < width) {
				UNROLL
				for (int k = 0; k < N; k++)
					f(j * N + k, j, k);
			}
	}

	__device__ void store(T *row, int width, int lane) const
	{
		UNROLL
		for (int j = 0; j < COUNT; j++)
			if (column(j, lane) < width)
				*reinterpret_cast<pack<T, N> *>(row + column(j, lane)) = packs[j];
	}
};

/* The columns of each lane, if a row fits into registers; otherwise 0. */
template <typename T> static int lane_columns(int64_t width, const void *const *addresses, int count)
{
	const int64_t unit = PACK_BYTES / sizeof(T), of_warp = WARP * LANE_UNIT;
	uintptr_t bits = 0;

	for (int i = 0; i < count; i++)
		bits |= reinterpret_cast<uintptr_t>(addresses[i]);
	if (width % unit != 0 || bits % PACK_BYTES != 0 || width > LANE_MOST * WARP)
		return 0;
	return (int)(ceil_div(width, of_warp) * LANE_UNIT);
}

template <typename T, int COLUMNS>
__global__ void layernorm_row_kernel(T *out, float *mean, float *rstd, const T *in, const T *gain,
                                     const T *bias, int64_t rows, int width)
{
	typedef warp_packs<T, COLUMNS> packs;
	int64_t row;
	int lane;

	if (!warp_row(rows, &row, &lane))
		return;
	packs x, gains, biases;
	float sum = 0, square = 0;
	x.load(in + row * width, width, lane);
	gains.load(gain, width, lane);
	biases.load(bias, width, lane);
	x.each(width, lane, [&](int, int j, int k) { sum += wide(x.packs[j].at[k]); });
	const float m = warp_sum(sum) / (float)width;
	x.each(width, lane, [&](int, int j, int k) {
		const float d = wide(x.packs[j].at[k]) - m;
		square += d * d;
	});
	const float s = 1 / sqrtf(warp_sum(square) / (float)width + 1e-5f);
	x.each(width, lane, [&](int, int j, int k) {
		put(&x.packs[j].at[k], (wide(x.packs[j].at[k]) - m) * s * wide(gains.packs[j].at[k]) +
		                       wide(biases.packs[j].at[k]));
	});
	x.store(out + row * width, width, lane);
	if (lane == 0) {
		mean[row] = m;
		rstd[row] = s;
	}
}

template <typename T>
static void layernorm(T *, dk_cuda_queue *q, void *out, float *mean, float *rstd, const void *in,
                      const void *gain, const void *bias, int64_t rows, int64_t width)
{
	const void *const addresses[] = {out, in, gain, bias};
	void (*kernel)(T *, float *, float *, const T *, const T *, const T *, int64_t, int) = NULL;

	switch (lane_columns<T>(width, addresses, 4)) {
	case 8: kernel = layernorm_row_kernel<T, 8>; break;
	case 16: kernel = layernorm_row_kernel<T, 16>; break;
	case 24: kernel = layernorm_row_kernel<T, 24>; break;
	case 32: kernel = layernorm_row_kernel<T, 32>; break;
	default: break;
	}
	if (kernel != NULL)
		launch(q, "layernorm", kernel, dim3((unsigned)ceil_div(rows, WARPS)), THREADS, 0, static_cast<T *>(out),
		       mean, rstd, static_cast<const T *>(in), static_cast<const T *>(gain),
		       static_cast<const T *>(bias), rows, width);
	else
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

/* Computes both gradients at once, for a chunk of rows. Those of the input are added to din. The sums over the
   chunk's rows for the parameters' gradients are partial [2, chunks, width]. */
template <typename T, int COLUMNS>
__global__ void __launch_bounds__(THREADS)
layernorm_backward_kernel(float *partial, T *din, const T *dout, const T *in, const float *mean, const float *rstd,
                          const T *gain, int64_t rows, int width, int64_t chunk_rows)
{
	typedef warp_packs<T, COLUMNS> packs;
	float *shared = static_cast<float *>(launch_memory()); /* [2, COLUMNS, WARP] */
	const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
	const int64_t begin = blockIdx.x * chunk_rows, end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
	float weights[COLUMNS] = {}, biases[COLUMNS] = {};
	packs gains;

	gains.load(gain, width, lane);
	for (int64_t row = begin + warp; row < end; row += WARPS) {
		const float m = mean[row], s = rstd[row];
		float sum = 0, dot = 0;
		packs d, x, to;
		d.load(dout + row * width, width, lane);
		x.load(in + row * width, width, lane);
		to.load(din + row * width, width, lane);
		d.each(width, lane, [&](int c, int j, int k) {
			const float gradient = wide(d.packs[j].at[k]), norm = (wide(x.packs[j].at[k]) - m) * s;
			const float dnorm = gradient * wide(gains.packs[j].at[k]);
			weights[c] += gradient * norm;
			biases[c] += gradient;
			sum += dnorm;
			dot += dnorm * norm;
		});
		const float dnorm_mean = warp_sum(sum) / (float)width, dot_mean = warp_sum(dot) / (float)width;
		d.each(width, lane, [&](int, int j, int k) {
			const float norm = (wide(x.packs[j].at[k]) - m) * s;
			const float dnorm = wide(d.packs[j].at[k]) * wide(gains.packs[j].at[k]);
			put(&to.packs[j].at[k], wide(to.packs[j].at[k]) + (dnorm - dnorm_mean - norm * dot_mean) * s);
		});
		to.store(din + row * width, width, lane);
	}
	/* The warps' sums, one behind the other. */
	for (int w = 0; w < WARPS; w++) {
		UNROLL
		for (int c = 0; c < COLUMNS && w == warp; c++) {
			float *weight = shared + c * WARP + lane, *bias = weight + COLUMNS * WARP;
			*weight = (w > 0 ? *weight : 0) + weights[c];
			*bias = (w > 0 ? *bias : 0) + biases[c];
		}
		__syncthreads();
	}
	for (int i = (int)threadIdx.x; i < 2 * width; i += THREADS) {
		const int column = i % width, at = column / packs::N;
		const int c = at / WARP * packs::N + column % packs::N;
		partial[((int64_t)(i / width) * gridDim.x + blockIdx.x) * width + column] =
			shared[(i / width * COLUMNS + c) * WARP + at % WARP];
	}
}

/* The gradients of rows in registers of COLUMNS columns a lane. */
template <int COLUMNS, typename G, typename T>
static void layernorm_rows_backward(dk_cuda_queue *q, T *din, G *dgain, G *dbias, const T *dout, const T *in,
                                    const float *mean, const float *rstd, const T *gain, int64_t rows, int64_t width)
{
	const int64_t block_rows = 64, room = q->scratch_size / (2 * width);
	const int64_t least = room > 0 ? ceil_div(rows, room) : rows, chunk_rows = least > block_rows ? least : block_rows;
	const int64_t chunks = ceil_div(rows, chunk_rows);
	float *partial = dk_cuda_scratch(q, 2 * chunks * width);

	if (partial == NULL || rows == 0)
		return;
	launch(q, "layernorm's gradients", layernorm_backward_kernel<T, COLUMNS>, dim3((unsigned)chunks), THREADS,
	       2 * COLUMNS * WARP * sizeof(float), partial, din, dout, in, mean, rstd, gain, rows, (int)width, chunk_rows);
	launch(q, "layernorm's gradients", add_chunks<G>, dim3((unsigned)ceil_div(width, THREADS), 2), THREADS, 0, dgain,
	       dbias, partial, chunks, width);
}

template <typename G, typename T>
static void layernorm_backward(G *, T *, dk_cuda_queue *q, void *to, void *to_gain, void *to_bias,
                               const void *from, const void *input, const float *mean,
                               const float *rstd, const void *weight, int64_t rows, int64_t width)
{
	T *din = static_cast<T *>(to);
	G *dgain = static_cast<G *>(to_gain), *dbias = static_cast<G *>(to_bias);
	const T *dout = static_cast<const T *>(from), *in = static_cast<const T *>(input);
	const T *gain = static_cast<const T *>(weight);
	const void *const addresses[] = {din, dout, in, gain};

	switch (lane_columns<T>(width, addresses, 4)) {
	case 8: layernorm_rows_backward<8>(q, din, dgain, dbias, dout, in, mean, rstd, gain, rows, width); return;
	case 16: layernorm_rows_backward<16>(q, din, dgain, dbias, dout, in, mean, rstd, gain, rows, width); return;
	case 24: layernorm_rows_backward<24>(q, din, dgain, dbias, dout, in, mean, rstd, gain, rows, width); return;
	case 32: layernorm_rows_backward<32>(q, din, dgain, dbias, dout, in, mean, rstd, gain, rows, width); return;
	default: break;
	}
	add_sums(q, "layernorm's parameters", dgain, dbias, rows, width, layernorm_params_of<T>{dout, in, mean, rstd});
	launch(q, "layernorm's gradient", layernorm_input_kernel<T>, dim3((unsigned)ceil_div(rows, WARPS)),
	       THREADS, 0, din, dout, in, mean, rstd, gain, rows, width);
}

void dk_cuda_layernorm_backward(dk_queue *queue, float *din, float *dgain, float *dbias,
                                const float *dout, const float *in, const float *mean,
                                const float *rstd, const float *gain, int64_t rows, int64_t width)
{
	FOR_TYPES(queue, layernorm_backward, own(queue), din, dgain, dbias, dout, in, mean, rstd, gain, rows,
	         width);
}
