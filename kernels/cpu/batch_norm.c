/* SPDX-License-Identifier: Apache-2.0 */
/* Batch normalisation. Rows are cut into chunks whose length hangs on the number of
   channels alone; each chunk gives its sums, which are then taken together in the order of
   the chunks: the same bits with any number of threads. */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"

enum { CHUNK = 16384 }; /* numbers: a chunk is read twice, the second time from the cache */

static const double epsilon = 1e-5;

struct norm {
	float *out, *sums; /* sums [chunks, 2, channels] */
	const float *in, *dout, *mean, *dmean, *slope, *scale, *bias;
	int64_t rows, channels;
	int64_t first, some; /* channels of a group */
	bool relu;           /* forward; backward, `bias` says so */
};

static int64_t chunk_rows(int64_t channels)
{
	return channels < CHUNK ? CHUNK / channels : 1;
}

static int64_t chunks(int64_t rows, int64_t channels)
{
	return (rows + chunk_rows(channels) - 1) / chunk_rows(channels);
}

size_t dk_batch_norm_work(int64_t rows, int64_t channels)
{
	return (size_t)(2 * channels * chunks(rows, channels) + 7 * channels + 1);
}

double *dk_cpu_batch_norm_own_sums(float *work, int64_t rows, int64_t channels)
{
	const int64_t used = 2 * channels * chunks(rows, channels) + 3 * channels;

	return (double *)(void *)(work + used + used % 2);
}

/* The chunk's first row; its rows in *count. */
static int64_t chunk(const struct norm *n, int64_t number, int64_t *count)
{
	const int64_t first = number * chunk_rows(n->channels), rest = n->rows - first;

	*count = rest < chunk_rows(n->channels) ? rest : chunk_rows(n->channels);
	return first;
}

static void moments_span(void *arg, int64_t first, int64_t last)
{
	const struct norm *n = arg;
	int64_t rows;

	for (int64_t i = first; i < last; i++) {
		float *mean = n->sums + 2 * i * n->channels;
		const float *in = n->in + chunk(n, i, &rows) * n->channels;
		dk_inner()->moments(mean, mean + n->channels, in, rows, n->channels);
	}
}

void dk_cpu_batch_norm_moments(double *moments, float *work, const float *in, int64_t rows,
                               int64_t channels)
{
	const int64_t count = chunks(rows, channels);
	struct norm n = {.sums = work, .in = in, .rows = rows, .channels = channels};

	dk_parallel(count, 1, moments_span, &n);
	for (int64_t c = 0; c < channels; c++) {
		double sum = 0, squares = 0;
		int64_t some;
		for (int64_t i = 0; i < count; i++) {
			const float *sums = work + 2 * i * channels + c;
			const double mean = sums[0];
			chunk(&n, i, &some);
			sum += mean * (double)some;
			squares += sums[channels] + mean * mean * (double)some;
		}
		moments[c] = sum;
		moments[channels + c] = squares;
	}
}

void dk_cpu_batch_norm_statistics(float *mean, float *rstd, float *running_mean,
                                  float *running_variance, double momentum, const double *moments,
                                  int64_t all_rows, int64_t channels)
{
	const double rows = (double)all_rows;

	for (int64_t c = 0; c < channels; c++) {
		const double average = moments[c] / rows, squares = moments[channels + c] - average * moments[c];
		const double variance = squares < 0 ? 0 : squares / rows; /* rounding may leave less than 0 */
		mean[c] = (float)average;
		rstd[c] = (float)(1 / sqrt(variance + epsilon));
		if (running_mean != NULL)
			running_mean[c] = (float)((1 - momentum) * running_mean[c] + momentum * average);
		if (running_variance != NULL)
			running_variance[c] = (float)((1 - momentum) * running_variance[c] +
			                              momentum * variance * (rows > 1 ? rows / (rows - 1) : 1));
	}
}

static void rows_span(void *arg, int64_t first, int64_t last)
{
	const struct norm *n = arg;

	dk_inner()->norm_rows(n->out + first * n->channels, n->in + first * n->channels, n->mean,
	                      n->scale, n->bias, last - first, n->channels, n->relu);
}

static void apply(struct norm *n, float *work, const float *rstd, const float *gain)
{
	for (int64_t c = 0; c < n->channels; c++)
		work[c] = gain[c] * rstd[c];
	n->scale = work;
	dk_parallel(n->rows, chunk_rows(n->channels), rows_span, n);
}

void dk_cpu_batch_norm_apply(float *out, float *work, const float *in, const float *mean,
                             const float *rstd, const float *gain, const float *bias, int64_t rows,
                             int64_t channels)
{
	apply(&(struct norm){.out = out, .in = in, .mean = mean, .bias = bias, .rows = rows, .channels = channels},
	      work, rstd, gain);
}

void dk_cpu_batch_norm_relu_forward(float *out, float *mean, float *rstd, float *running_mean,
                                    float *running_variance, double momentum, float *work,
                                    const float *in, const float *gain, const float *bias,
                                    int64_t rows, int64_t channels)
{
	double *moments = dk_cpu_batch_norm_own_sums(work, rows, channels);
	dk_cpu_batch_norm_moments(moments, work, in, rows, channels);
	dk_cpu_batch_norm_statistics(mean, rstd, running_mean, running_variance, momentum, moments, rows, channels);
	apply(&(struct norm){.out = out, .in = in, .mean = mean, .bias = bias, .rows = rows, .channels = channels,
		.relu = true}, work, rstd, gain);
}

static void group_span(void *arg, int64_t first, int64_t last)
{
	const struct norm *n = arg;

	for (int64_t r = first; r < last; r++) {
		const int64_t at = r * n->channels + n->first;
		dk_inner()->norm_rows(n->out + at, n->in + at, n->mean + n->first, n->scale,
		                      n->bias + n->first, 1, n->some, false);
	}
}

void dk_cpu_batch_norm_eval(float *out, const float *in, const float *gain, const float *bias,
                            const float *running_mean, const float *running_variance,
                            int64_t rows, int64_t channels)
{
	/* The loop takes groups of channels, which need no memory but this. */
	enum { AT_ONCE = 256 };
	float scale[AT_ONCE];

	for (int64_t first = 0; first < channels; first += AT_ONCE) {
		struct norm n = {.out = out, .in = in, .first = first, .mean = running_mean, .scale = scale,
			.bias = bias, .channels = channels};
		n.some = channels - first < AT_ONCE ? channels - first : AT_ONCE;
		for (int64_t c = 0; c < n.some; c++)
			scale[c] = (float)(gain[first + c] / sqrt(running_variance[first + c] + epsilon));
		dk_parallel(rows, chunk_rows(n.some), group_span, &n);
	}
}

/* ---- backward --------------------------------------------------------------------------- */

static void sums_span(void *arg, int64_t first, int64_t last)
{
	const struct norm *n = arg;
	int64_t rows;

	for (int64_t i = first; i < last; i++) {
		const int64_t at = chunk(n, i, &rows) * n->channels;
		float *sum = n->sums + 2 * i * n->channels;
		dk_inner()->norm_sums(sum, sum + n->channels, n->dout + at, n->in + at, n->mean, n->scale,
		                      n->bias, rows, n->channels);
	}
}

static void input_span(void *arg, int64_t first, int64_t last)
{
	const struct norm *n = arg;
	const int64_t at = first * n->channels;

	dk_inner()->norm_input(n->out + at, n->dout + at, n->in + at, n->mean, n->dmean, n->slope,
	                       n->scale, n->bias, last - first, n->channels);
}

/* The sums of all chunks lie in `work`. */
static void sum_chunks(const struct norm *n, double *sums, float *dgain, float *dbias, const float *work,
                       const float *rstd)
{
	const int64_t channels = n->channels, count = chunks(n->rows, channels);

	for (int64_t c = 0; c < channels; c++) {
		double sum = 0, dot = 0;
		for (int64_t i = 0; i < count; i++) {
			sum += work[2 * i * channels + c];
			dot += work[(2 * i + 1) * channels + c];
		}
		dbias[c] += (float)sum;
		dgain[c] += (float)(dot * rstd[c]);
		sums[c] = sum;
		sums[channels + c] = dot;
	}
}

void dk_cpu_batch_norm_sums(double *sums, float *dgain, float *dbias, float *work, const float *dout,
                            const float *in, const float *mean, const float *rstd, int64_t rows,
                            int64_t channels)
{
	struct norm n = {.sums = work, .in = in, .dout = dout, .mean = mean, .rows = rows,
		.channels = channels};

	dk_parallel(chunks(rows, channels), 1, sums_span, &n);
	sum_chunks(&n, sums, dgain, dbias, work, rstd);
}

/* n->rows of `all_rows`. */
static void find_input(struct norm *n, float *work, const float *rstd, const float *gain, const double *sums,
                       int64_t all_rows)
{
	const int64_t channels = n->channels;
	float *dmean = work, *slope = work + channels, *scale = work + 2 * channels;

	for (int64_t c = 0; c < channels; c++) {
		dmean[c] = (float)(sums[c] / (double)all_rows);
		slope[c] = (float)(sums[channels + c] / (double)all_rows * rstd[c] * rstd[c]);
		scale[c] = gain[c] * rstd[c];
	}
	n->dmean = dmean;
	n->slope = slope;
	n->scale = scale;
	dk_parallel(n->rows, chunk_rows(channels), input_span, n);
}

void dk_cpu_batch_norm_input(float *din, float *work, const float *dout, const float *in,
                             const float *mean, const float *rstd, const float *gain,
                             const double *sums, int64_t all_rows, int64_t rows, int64_t channels)
{
	find_input(&(struct norm){.out = din, .in = in, .dout = dout, .mean = mean, .rows = rows, .channels = channels},
	           work, rstd, gain, sums, all_rows);
}

void dk_cpu_batch_norm_relu_backward(float *din, float *dgain, float *dbias, float *work,
                                     const float *dout, const float *in, const float *mean,
                                     const float *rstd, const float *gain, const float *bias,
                                     int64_t rows, int64_t channels)
{
	double *sums = dk_cpu_batch_norm_own_sums(work, rows, channels);
	float *scale = work + 2 * channels * chunks(rows, channels); /* behind the chunks' sums */
	struct norm n = {.out = din, .sums = work, .in = in, .dout = dout, .mean = mean, .scale = scale,
		.bias = bias, .rows = rows, .channels = channels};

	for (int64_t c = 0; c < channels; c++)
		scale[c] = gain[c] * rstd[c];
	dk_parallel(chunks(rows, channels), 1, sums_span, &n);
	sum_chunks(&n, sums, dgain, dbias, work, rstd);
	find_input(&n, work, rstd, gain, sums, rows);
}
