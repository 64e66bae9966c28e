/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling: threads work on whole images, since windows may overlap. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"

struct pooling {
	const dk_window *w;
	float *out, *din;
	const float *in, *dout;
	int32_t *which;
	const int32_t *chosen;
};

static int64_t image(const dk_window *w)
{
	return w->height * w->width * w->channels;
}

/* Images that are worth a thread. */
static int64_t image_grain(const dk_window *w)
{
	enum { GRAIN = 16384 };

	return image(w) < GRAIN ? GRAIN / image(w) : 1;
}

static void max_span(void *arg, int64_t first, int64_t last)
{
	const struct pooling *p = arg;

	dk_inner()->max_pool(p->out, p->which, p->in, p->w, first, last);
}

void dk_cpu_max_pool_forward(float *out, int32_t *which, const float *in, const dk_window *w)
{
	dk_parallel(w->batch, image_grain(w), max_span,
	            &(struct pooling){.w = w, .out = out, .which = which, .in = in});
}

static void max_backward_span(void *arg, int64_t first, int64_t last)
{
	const struct pooling *p = arg;

	memset(p->din + first * image(p->w), 0, (size_t)((last - first) * image(p->w)) * sizeof(float));
	dk_inner()->max_pool_grad(p->din, p->dout, p->chosen, p->w, first, last);
}

void dk_cpu_max_pool_backward(float *din, const float *dout, const int32_t *which, const dk_window *w)
{
	dk_parallel(w->batch, image_grain(w), max_backward_span,
	            &(struct pooling){.w = w, .din = din, .chosen = which, .dout = dout});
}

static void average_span(void *arg, int64_t first, int64_t last)
{
	const struct pooling *p = arg;

	dk_inner()->average_pool(p->out, p->in, p->w, first, last);
}

void dk_cpu_average_pool_forward(float *out, const float *in, const dk_window *w)
{
	dk_parallel(w->batch, image_grain(w), average_span,
	            &(struct pooling){.w = w, .out = out, .in = in});
}

static void average_backward_span(void *arg, int64_t first, int64_t last)
{
	const struct pooling *p = arg;

	memset(p->din + first * image(p->w), 0, (size_t)((last - first) * image(p->w)) * sizeof(float));
	dk_inner()->average_pool_grad(p->din, p->dout, p->w, first, last);
}

void dk_cpu_average_pool_backward(float *din, const float *dout, const dk_window *w)
{
	dk_parallel(w->batch, image_grain(w), average_backward_span,
	            &(struct pooling){.w = w, .din = din, .dout = dout});
}
