/* SPDX-License-Identifier: Apache-2.0 */
/* Batch normalisation. Sums over rows are taken in f64. Of `work` nothing is used. */
#include "cuda/row_sums.cuh"

enum { THREADS = 256 };

/* ---- sums over rows ---- */

struct moments_of {
	const float *in;

	__device__ void operator()(int64_t i, int64_t, int64_t, double *first, double *second) const
	{
		*first += in[i];
		*second += (double)in[i] * in[i];
	}
};

struct slopes_of {
	const float *dout, *in, *mean;

	__device__ void operator()(int64_t i, int64_t, int64_t channel, double *first, double *second) const
	{
		*first += dout[i];
		*second += (double)dout[i] * (in[i] - mean[channel]);
	}
};

/* sums [2, channels] = those of all chunks */
__global__ void join_kernel(double *sums, const double *partial, int64_t chunks, int64_t channels)
{
	const int64_t channel = grid_thread();
	double sum = 0;

	if (channel >= channels)
		return;
	partial += blockIdx.y * chunks * channels;
	for (int64_t c = 0; c < chunks; c++)
		sum += partial[c * channels + channel];
	sums[blockIdx.y * channels + channel] = sum;
}

template <class F>
static void sum_rows(dk_cuda_queue *q, const char *name, double *sums, int64_t rows, int64_t channels, F values)
{
	int64_t chunks;
	const double *partial = sum_chunks<double>(q, name, rows, channels, &chunks, values);

	if (partial == NULL)
		return;
	launch(q, name, join_kernel, dim3((unsigned)ceil_div(channels, THREADS), 2), THREADS, 0, sums, partial, chunks,
	       channels);
}

void dk_cuda_batch_norm_moments(dk_queue *queue, double *moments, float *, const float *in, int64_t rows,
                                int64_t channels)
{
	const moments_of values = {in};

	sum_rows(dk_cuda_of_images(queue), "norm's moments", moments, rows, channels, values);
}

__global__ void params_kernel(float *dgain, float *dbias, const double *sums, const float *rstd, int64_t channels)
{
	const int64_t c = grid_thread();

	if (c >= channels)
		return;
	dbias[c] += (float)sums[c];
	dgain[c] += (float)(sums[channels + c] * rstd[c]);
}

void dk_cuda_batch_norm_sums(dk_queue *queue, double *sums, float *dgain, float *dbias, float *, const float *dout,
                             const float *in, const float *mean, const float *rstd, int64_t rows, int64_t channels)
{
	dk_cuda_queue *q = dk_cuda_of_images(queue);
	const slopes_of values = {dout, in, mean};

	sum_rows(q, "norm's sums", sums, rows, channels, values);
	launch(q, "norm's parameters", params_kernel, dim3((unsigned)ceil_div(channels, THREADS)), THREADS, 0, dgain,
	       dbias, sums, rstd, channels);
}

/* ---- of channels ---- */

__device__ inline double rstd_of(double variance)
{
	return 1 / sqrt(variance + 1e-5);
}

__global__ void statistics_kernel(float *mean, float *rstd, float *running_mean, float *running_variance,
                                  double momentum, const double *moments, double rows, int64_t channels)
{
	const int64_t c = grid_thread();

	if (c >= channels)
		return;
	const double average = moments[c] / rows, squares = moments[channels + c] - average * moments[c];
	const double variance = squares < 0 ? 0 : squares / rows; /* rounding may leave less than 0 */
	mean[c] = (float)average;
	rstd[c] = (float)rstd_of(variance);
	if (running_mean != NULL)
		running_mean[c] = (float)((1 - momentum) * running_mean[c] + momentum * average);
	if (running_variance != NULL)
		running_variance[c] = (float)((1 - momentum) * running_variance[c] +
		                              momentum * variance * (rows > 1 ? rows / (rows - 1) : 1));
}

void dk_cuda_batch_norm_statistics(dk_queue *queue, float *mean, float *rstd, float *running_mean,
                                   float *running_variance, double momentum, const double *moments, int64_t all_rows,
                                   int64_t channels)
{
	launch(dk_cuda_of_images(queue), "norm's statistics", statistics_kernel,
	       dim3((unsigned)ceil_div(channels, THREADS)), THREADS, 0, mean, rstd, running_mean, running_variance,
	       momentum, moments, (double)all_rows, channels);
}

/* ---- of rows: a thread keeps what it needs of its channel ---- */

struct line {
	float offset, factor, bias;
};

__device__ inline float on_line(const line &l, float x)
{
	return (x - l.offset) * l.factor + l.bias;
}

struct apply_function {
	float *out;
	const float *in, *mean, *rstd, *gain, *bias;

	__device__ line of(int64_t c) const
	{
		const line l = {mean[c], gain[c] * rstd[c], bias[c]};

		return l;
	}
	__device__ void at(const line &l, int64_t i) const
	{
		out[i] = on_line(l, in[i]);
	}
};

struct eval_function {
	float *out;
	const float *in, *gain, *bias, *running_mean, *running_variance;

	__device__ line of(int64_t c) const
	{
		const line l = {running_mean[c], (float)(gain[c] * rstd_of(running_variance[c])), bias[c]};

		return l;
	}
	__device__ void at(const line &l, int64_t i) const
	{
		out[i] = on_line(l, in[i]);
	}
};

struct input_function {
	float *din;
	const float *dout, *in, *mean, *rstd, *gain;
	const double *sums;
	double rows;
	int64_t channels;

	struct slope {
		float mean, dmean, slope, factor;
	};

	__device__ slope of(int64_t c) const
	{
		const slope s = {mean[c], (float)(sums[c] / rows),
			(float)(sums[channels + c] / rows * rstd[c] * rstd[c]), gain[c] * rstd[c]};

		return s;
	}
	__device__ void at(const slope &s, int64_t i) const
	{
		din[i] = (dout[i] - s.dmean - (in[i] - s.mean) * s.slope) * s.factor;
	}
};

template <class F> __global__ void rows_kernel(int64_t rows, int64_t channels, F f)
{
	const int64_t channel = tile_column();

	if (channel >= channels)
		return;
	const auto known = f.of(channel);
	for (int64_t row = (int64_t)blockIdx.y * TILE_ROWS + threadIdx.x / TILE_COLUMNS; row < rows;
	     row += (int64_t)gridDim.y * TILE_ROWS)
		f.at(known, row * channels + channel);
}

template <class F> static void for_rows(dk_queue *queue, const char *name, int64_t rows, int64_t channels, F f)
{
	const int64_t each = 8, most = 65535, blocks = ceil_div(rows, TILE_ROWS * each);

	if (rows > 0)
		launch(dk_cuda_of_images(queue), name, rows_kernel<F>,
		       dim3(tiles_of(channels), (unsigned)(blocks < most ? blocks : most)), THREADS, 0, rows, channels, f);
}

void dk_cuda_batch_norm_apply(dk_queue *queue, float *out, float *, const float *in, const float *mean,
                              const float *rstd, const float *gain, const float *bias, int64_t rows, int64_t channels)
{
	const apply_function f = {out, in, mean, rstd, gain, bias};

	for_rows(queue, "norm", rows, channels, f);
}

void dk_cuda_batch_norm_eval(dk_queue *queue, float *out, const float *in, const float *gain, const float *bias,
                             const float *running_mean, const float *running_variance, int64_t rows,
                             int64_t channels)
{
	const eval_function f = {out, in, gain, bias, running_mean, running_variance};

	for_rows(queue, "norm by running statistics", rows, channels, f);
}

void dk_cuda_batch_norm_input(dk_queue *queue, float *din, float *, const float *dout, const float *in,
                              const float *mean, const float *rstd, const float *gain, const double *sums,
                              int64_t all_rows, int64_t rows, int64_t channels)
{
	const input_function f = {din, dout, in, mean, rstd, gain, sums, (double)all_rows, channels};

	for_rows(queue, "norm's gradient", rows, channels, f);
}
