/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution as a matrix product: what the window sees at a place is a row of a panel, and
   the panel times the weight gives the places' outputs. A panel has as many places as the
   queue's scratch has room for; with a window of 1 it is the images themselves. Sums over
   places come panel by panel, in order. */
#include "cuda/window.cuh"

enum { THREADS = 256, VECTOR = 4 };

/* The places of one panel. */
struct panel {
	int64_t image;   /* that the first one is in */
	int first, rows; /* counted from that image's first place */
};

/* panel [rows, row] = what the window sees, N channels a thread. */
template <int N>
__global__ void gather_kernel(float *panel_rows, const float *in, window w, panel p)
{
	const int i = (int)grid_thread(), channels = w.channels / N, row = w.size * w.size * channels;

	if (i >= p.rows * row)
		return;
	const int place = p.first + i / row, at = i % row, k = at / channels;
	const int inside = place % (w.down * w.across);
	const int y = inside / w.across * w.stride - w.padding + k / w.size;
	const int x = inside % w.across * w.stride - w.padding + k % w.size;
	pack<float, N> seen;
	for (int n = 0; n < N; n++)
		seen.at[n] = 0;
	if (y >= 0 && y < w.height && x >= 0 && x < w.width) {
		const int64_t image = p.image + place / (w.down * w.across);
		seen = *reinterpret_cast<const pack<float, N> *>(
			in + ((image * w.height + y) * w.width + x) * w.channels + at % channels * N);
	}
	*reinterpret_cast<pack<float, N> *>(panel_rows + (int64_t)i * N) = seen;
}

/* The other way round: each number of the images that the panel's windows saw adds up, in
   order, what they have for it. */
__global__ void scatter_kernel(float *din, const float *panel_rows, window w, panel p, int64_t numbers)
{
	const int64_t i = grid_thread();
	const int line = w.width * w.channels;

	if (i >= numbers)
		return;
	const int image = (int)(i / line / w.height), y = (int)(i / line % w.height);
	const int x = (int)(i % line) / w.channels, channel = (int)(i % line) % w.channels;
	float sum = 0;
	for_places_that_see(w, y, x, [&](int place_line, int column, int k) {
		const int place = (image * w.down + place_line) * w.across + column - p.first;
		if (place >= 0 && place < p.rows)
			sum += panel_rows[((int64_t)place * w.size * w.size + k) * w.channels + channel];
	});
	din[p.image * w.height * line + i] += sum;
}

struct convolution {
	dk_cuda_queue *q;
	window w;
	int64_t row, places;

	convolution(dk_queue *queue, const dk_window *size)
		: q(dk_cuda_of_images(queue)), w(size), row(size->size * size->size * size->channels),
		  places(size->batch * w.down * w.across)
	{
	}

	/* The window sees the image as it lies there. */
	bool is_plain() const
	{
		return w.size == 1 && w.stride == 1 && w.padding == 0;
	}

	/* The panel of the places from `place` on. */
	panel panel_at(int64_t place) const
	{
		const int64_t inside = place % ((int64_t)w.down * w.across);
		const int64_t most = is_plain() ? places : q->scratch_size / row;
		const panel p = {place / ((int64_t)w.down * w.across), (int)inside,
			(int)(most < places - place ? most : places - place)};

		return p;
	}

	/* Calls multiply(p, rows, place), rows [p.rows, row] being those of the panel whose first
	   place is `place`; NULL where they are the images' own. */
	template <class F> void for_panels(F multiply) const
	{
		float *rows = is_plain() ? NULL : dk_cuda_scratch(q, row);

		if (!is_plain() && rows == NULL)
			return;
		for (int64_t place = 0; place < places;) {
			const panel p = panel_at(place);
			multiply(p, rows, place);
			place += p.rows;
		}
	}

	const float *gathered(const panel &p, float *rows, const float *in, int64_t place) const
	{
		const bool packs = w.channels % VECTOR == 0 && reinterpret_cast<uintptr_t>(in) % (VECTOR * sizeof(float)) == 0;

		if (is_plain())
			return in + place * row;
		if (packs)
			launch(q, "convolution's panel", gather_kernel<VECTOR>,
			       dim3((unsigned)ceil_div(p.rows * row, VECTOR * THREADS)), THREADS, 0, rows, in, w, p);
		else
			launch(q, "convolution's panel", gather_kernel<1>, dim3((unsigned)ceil_div(p.rows * row, THREADS)),
			       THREADS, 0, rows, in, w, p);
		return rows;
	}
};

void dk_cuda_convolution_forward(dk_queue *queue, float *out, float *, const float *in, const float *weight,
                                 const float *bias, const dk_window *size, int64_t outputs)
{
	const convolution c(queue, size);

	c.for_panels([&](const panel &p, float *rows, int64_t place) {
		float *to = out + place * outputs;
		const dk_product_args product = {false, true, p.rows, outputs, c.row, c.gathered(p, rows, in, place),
			c.row, weight, c.row, 0, to, to, outputs, bias, false};
		dk_cuda_product(c.q, &product);
	});
}

void dk_cuda_convolution_backward_params(dk_queue *queue, float *dweight, float *dbias, float *,
                                         const float *dout, const float *in, const dk_window *size,
                                         int64_t outputs)
{
	const convolution c(queue, size);

	if (dbias != NULL)
		dk_cuda_add_columns(c.q, dbias, dout, c.places, outputs);
	c.for_panels([&](const panel &p, float *rows, int64_t place) {
		const dk_product_args product = {true, false, outputs, c.row, p.rows, dout + place * outputs, outputs,
			c.gathered(p, rows, in, place), c.row, 1, dweight, dweight, c.row, NULL, false};
		dk_cuda_product(c.q, &product);
	});
}

void dk_cuda_convolution_backward_input(dk_queue *queue, float *din, float *, const float *dout,
                                        const float *weight, const dk_window *size, int64_t outputs)
{
	const convolution c(queue, size);
	const int64_t image = size->height * size->width * size->channels;

	if (!c.is_plain())
		dk_cuda_zero(queue, din, size->batch * image);
	c.for_panels([&](const panel &p, float *rows, int64_t place) {
		float *to = c.is_plain() ? din : rows;
		const dk_product_args product = {false, false, p.rows, c.row, outputs, dout + place * outputs, outputs,
			weight, c.row, 0, to, to, c.row, NULL, false};
		dk_cuda_product(c.q, &product);
		if (c.is_plain())
			return;
		const int64_t images = (p.first + p.rows - 1) / (c.w.down * c.w.across) + 1, numbers = images * image;
		launch(c.q, "convolution's gradient", scatter_kernel, dim3((unsigned)ceil_div(numbers, THREADS)), THREADS,
		       0, din, rows, c.w, p, numbers);
	});
}
