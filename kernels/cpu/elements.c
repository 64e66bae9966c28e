/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, ReLU, dropout: element by element; cross-entropy: row by row. */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"

/* Elements that are worth a thread of their own; a multiple of what dropout draws at once. */
enum { GRAIN = 16384 };

struct elements {
	float *out;
	const float *a, *b;
	dk_dropping dropping;
};

static void add_span(void *arg, int64_t first, int64_t last)
{
	const struct elements *e = arg;

	dk_inner()->add(e->out + first, e->a + first, e->b + first, last - first);
}

void dk_cpu_add(float *out, const float *a, const float *b, int64_t n)
{
	dk_parallel(n, GRAIN, add_span, &(struct elements){.out = out, .a = a, .b = b});
}

static void relu_span(void *arg, int64_t first, int64_t last)
{
	const struct elements *e = arg;

	dk_inner()->relu(e->out + first, e->a + first, last - first);
}

void dk_cpu_relu_forward(float *out, const float *in, int64_t n)
{
	dk_parallel(n, GRAIN, relu_span, &(struct elements){.out = out, .a = in});
}

static void relu_backward_span(void *arg, int64_t first, int64_t last)
{
	const struct elements *e = arg;

	dk_inner()->relu_grad(e->out + first, e->a + first, last - first);
}

void dk_cpu_relu_backward(float *grad, const float *out, int64_t n)
{
	dk_parallel(n, GRAIN, relu_backward_span, &(struct elements){.out = grad, .a = out});
}

static void dropout_span(void *arg, int64_t first, int64_t last)
{
	const struct elements *e = arg;

	dk_inner()->dropout(e->out, e->a, first, last, &e->dropping);
}

void dk_cpu_dropout(float *out, const float *in, int64_t n, double probability,
                    const dk_random *random, uint64_t ahead)
{
	dk_parallel(n, GRAIN, dropout_span,
	            &(struct elements){.out = out, .a = in,
	                               .dropping = dk_dropping_of(probability, random, ahead)});
}

/* One row; the rows of a classifier of images are few and short. */
static double row_entropy(float *logits, int32_t target, int64_t classes)
{
	const float picked = logits[target];
	float sum;
	const float highest = dk_inner()->softmax_row(logits, classes, &sum);

	dk_inner()->scale(logits, classes, 1 / sum);
	logits[target] -= 1;
	return (double)highest - picked + log(sum);
}

double dk_cpu_cross_entropy(float *logits, const int32_t *targets, int64_t rows, int64_t classes)
{
	double loss = 0;

	for (int64_t r = 0; r < rows; r++)
		loss += row_entropy(logits + r * classes, targets[r], classes);
	return loss;
}

void dk_cpu_cross_entropy_loss(double *loss, float *logits, const int32_t *targets, int64_t rows,
                               int64_t classes)
{
	*loss += dk_cpu_cross_entropy(logits, targets, rows, classes);
}
