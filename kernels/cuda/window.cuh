/* SPDX-License-Identifier: Apache-2.0 */
/* window: a dk_window, as kernels for images use it. Its sizes fit 32 bits, which divide faster. */
#pragma once

#include "cuda/functions.cuh"

struct window {
	int height, width, channels, size, stride, padding;
	int down, across; /* places */

	explicit window(const dk_window *w)
		: height((int)w->height), width((int)w->width), channels((int)w->channels), size((int)w->size),
		  stride((int)w->stride), padding((int)w->padding), down((int)dk_window_places(w, w->height)),
		  across((int)dk_window_places(w, w->width))
	{
	}
};

/* Calls see(line, column, k) for each place whose window has the image's number at (y, x) as
   its number k, in the order of k. */
template <class F> __device__ inline void for_places_that_see(const window &w, int y, int x, F see)
{
	for (int ky = (y + w.padding) % w.stride; ky < w.size; ky += w.stride)
		for (int kx = (x + w.padding) % w.stride; kx < w.size; kx += w.stride) {
			/* Both differences are multiples of the stride. */
			const int line = (y + w.padding - ky) / w.stride, column = (x + w.padding - kx) / w.stride;
			if (line >= 0 && line < w.down && column >= 0 && column < w.across)
				see(line, column, ky * w.size + kx);
		}
}
