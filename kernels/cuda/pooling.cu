/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling. Windows may overlap: backward, each number of an image looks for those that saw it. */
#include "cuda/window.cuh"

enum { THREADS = 256 };

static const int64_t MOST_IMAGES = 65535; /* that a grid has side by side */

/* Calls f(image, i) for each of `numbers` of each image. */
template <class F> __global__ void images_kernel(int64_t batch, int numbers, F f)
{
	const int i = (int)grid_thread();

	for (int64_t image = blockIdx.y; image < batch && i < numbers; image += gridDim.y)
		f(image, i);
}

template <class F> static void for_images(dk_queue *queue, const char *name, int64_t batch, int64_t numbers, F f)
{
	if (batch * numbers > 0)
		launch(dk_cuda_of_images(queue), name, images_kernel<F>,
		       dim3((unsigned)ceil_div(numbers, THREADS), (unsigned)(batch < MOST_IMAGES ? batch : MOST_IMAGES)),
		       THREADS, 0, batch, numbers, f);
}

static int64_t numbers_of(const window &w)
{
	return (int64_t)w.height * w.width * w.channels;
}

static int64_t outs_of(const window &w)
{
	return (int64_t)w.down * w.across * w.channels;
}

/* Calls see(k, at) for each number of the window at a place that lies in the image. */
template <class F> __device__ inline void for_seen(const window &w, int place, F see)
{
	const int top = place / w.across * w.stride - w.padding, left = place % w.across * w.stride - w.padding;

	for (int ky = 0; ky < w.size; ky++)
		for (int kx = 0; kx < w.size; kx++) {
			const int y = top + ky, x = left + kx;
			if (y >= 0 && y < w.height && x >= 0 && x < w.width)
				see(ky * w.size + kx, (y * w.width + x) * w.channels);
		}
}

struct max_function {
	window w;
	float *out;
	int32_t *which;
	const float *in;

	__device__ void operator()(int64_t image, int i) const
	{
		const float *from = in + image * w.height * w.width * w.channels + i % w.channels;
		float best = -INFINITY;
		int chosen = -1;
		for_seen(w, i / w.channels, [&](int k, int at) {
			const float x = from[at];
			if (chosen < 0 || x > best || x != x) {
				best = x;
				chosen = k;
			}
		});
		const int64_t to = image * w.down * w.across * w.channels + i;
		out[to] = best;
		which[to] = chosen;
	}
};

void dk_cuda_max_pool_forward(dk_queue *queue, float *out, int32_t *which, const float *in, const dk_window *size)
{
	const max_function f = {window(size), out, which, in};

	for_images(queue, "maximum", size->batch, outs_of(f.w), f);
}

/* din = `scale` times the sum of what places(at, k) gives for each place that saw a number of an
   image as number k of its window. */
template <class F> struct slope_function {
	window w;
	float *din;
	float scale;
	F places;

	__device__ void operator()(int64_t image, int i) const
	{
		const int line = w.width * w.channels, channel = i % w.channels;
		const int64_t outs = image * w.down * w.across * w.channels + channel;
		float sum = 0;
		for_places_that_see(w, i / line, i % line / w.channels, [&](int place_line, int column, int k) {
			sum += places(outs + (place_line * w.across + column) * w.channels, k);
		});
		din[image * w.height * line + i] = sum * scale;
	}
};

struct max_slope {
	const float *dout;
	const int32_t *which;

	__device__ float operator()(int64_t at, int k) const
	{
		return which[at] == k ? dout[at] : 0;
	}
};

void dk_cuda_max_pool_backward(dk_queue *queue, float *din, const float *dout, const int32_t *which,
                               const dk_window *size)
{
	const slope_function<max_slope> f = {window(size), din, 1, {dout, which}};

	for_images(queue, "maximum's gradient", size->batch, numbers_of(f.w), f);
}

struct average_function {
	window w;
	float *out;
	const float *in;

	__device__ void operator()(int64_t image, int i) const
	{
		const float *from = in + image * w.height * w.width * w.channels + i % w.channels;
		float sum = 0;
		for_seen(w, i / w.channels, [&](int, int at) { sum += from[at]; });
		out[image * w.down * w.across * w.channels + i] = sum * (1 / (float)(w.size * w.size));
	}
};

void dk_cuda_average_pool_forward(dk_queue *queue, float *out, const float *in, const dk_window *size)
{
	const average_function f = {window(size), out, in};

	for_images(queue, "average", size->batch, outs_of(f.w), f);
}

struct average_slope {
	const float *dout;

	__device__ float operator()(int64_t at, int) const
	{
		return dout[at];
	}
};

void dk_cuda_average_pool_backward(dk_queue *queue, float *din, const float *dout, const dk_window *size)
{
	const window w(size);
	const slope_function<average_slope> f = {w, din, 1 / (float)(w.size * w.size), {dout}};

	for_images(queue, "average's gradient", size->batch, numbers_of(f.w), f);
}
