/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"

/* Below this many elements, waking threads costs more than it saves. */
enum { OPTIM_GRAIN = 32768, LARGEST_GRAIN = 131072 };

struct update {
	float *param, *grad, *first, *second;
	uint16_t *rounded; /* or NULL */
	dk_adamw_consts adamw;
	dk_sgd_consts sgd;
};

static void round_span(const struct update *u, int64_t first, int64_t last)
{
	if (u->rounded != NULL)
		dk_cpu_to_bf16(u->rounded + first, u->param + first, last - first);
}

static void adamw_span(void *arg, int64_t first, int64_t last)
{
	struct update *u = arg;

	dk_inner()->adamw(u->param + first, u->grad + first, u->first + first,
	                  u->second + first, last - first, &u->adamw);
	round_span(u, first, last);
}

dk_adamw_consts dk_adamw_consts_of(const dk_adamw_args *args)
{
	double step = (double)args->step;
	double correction1 = 1 - pow(args->beta1, step);
	double correction2 = 1 - pow(args->beta2, step);

	return (dk_adamw_consts){
		.grad_scale = (float)args->grad_scale,
		.decay = args->coupled ? 1 : (float)(1 - args->learning_rate * args->weight_decay),
		.beta1 = (float)args->beta1,
		.one_beta1 = (float)(1 - args->beta1),
		.beta2 = (float)args->beta2,
		.one_beta2 = (float)(1 - args->beta2),
		.root_correction2 = (float)sqrt(correction2),
		.epsilon = (float)args->epsilon,
		.minus_step_size = (float)(-args->learning_rate / correction1),
		.coupled = args->coupled ? (float)args->weight_decay : 0,
	};
}

void dk_cpu_adamw(float *param, float *grad, float *m, float *v, int64_t n,
                  const dk_adamw_args *args)
{
	struct update u = {
		.param = param, .grad = grad, .first = m, .second = v, .rounded = args->rounded,
		.adamw = dk_adamw_consts_of(args),
	};

	dk_parallel(n, OPTIM_GRAIN, adamw_span, &u);
}

static void sgd_span(void *arg, int64_t first, int64_t last)
{
	struct update *u = arg;

	dk_inner()->sgd(u->param + first, u->grad + first,
	                u->first != NULL ? u->first + first : NULL, last - first, &u->sgd);
	round_span(u, first, last);
}

void dk_cpu_sgd(float *param, float *grad, float *buffer, int64_t n, const dk_sgd_args *args)
{
	struct update u = {
		.param = param, .grad = grad, .first = buffer, .rounded = args->rounded,
		.sgd = {
			.grad_scale = (float)args->grad_scale,
			.weight_decay = (float)args->weight_decay,
			/* The first step takes the gradient as it is. */
			.momentum = args->step > 1 ? (float)args->momentum : 0,
			.minus_learning_rate = (float)-args->learning_rate,
			.nesterov = args->nesterov ? (float)args->momentum : 0,
		},
	};

	dk_parallel(n, OPTIM_GRAIN, sgd_span, &u);
}

struct largest {
	const float *x;
	atomic_int bits;
};

static void largest_span(void *arg, int64_t first, int64_t last)
{
	struct largest *l = arg;
	int32_t bits = dk_inner()->largest_bits(l->x + first, last - first);
	int before = atomic_load(&l->bits);

	while (bits > before && !atomic_compare_exchange_weak(&l->bits, &before, bits))
		continue;
}

float dk_cpu_largest(const float *x, int64_t n)
{
	struct largest l = {.x = x};
	float largest;

	dk_parallel(n, LARGEST_GRAIN, largest_span, &l);
	int32_t bits = atomic_load(&l.bits);
	memcpy(&largest, &bits, sizeof(largest));
	return largest;
}

/* Sums are kept per piece, and the pieces do not hang on the threads. */
enum { MAX_PIECES = 2048 };

struct squares {
	const float *x;
	int64_t n, piece;
	double sums[MAX_PIECES];
};

static void squares_span(void *arg, int64_t first, int64_t last)
{
	struct squares *s = arg;

	for (int64_t i = first; i < last; i++) {
		int64_t start = i * s->piece;
		int64_t count = s->n - start < s->piece ? s->n - start : s->piece;
		s->sums[i] = dk_inner()->sum_squares(s->x + start, count);
	}
}

double dk_cpu_sum_squares(const float *x, int64_t n)
{
	struct squares s = {.x = x, .n = n, .piece = OPTIM_GRAIN};
	double total = 0;

	while (n / s.piece >= MAX_PIECES)
		s.piece *= 2;
	int64_t pieces = (n + s.piece - 1) / s.piece;
	dk_parallel(pieces, 1, squares_span, &s);
	for (int64_t i = 0; i < pieces; i++)
		total += s.sums[i];
	return total;
}

void dk_cpu_largest_at(float *largest, const dk_array *arrays, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		largest[i] = dk_cpu_largest(arrays[i].x, arrays[i].n);
}

struct pieces {
	dk_array array;
	int64_t piece;
	double *sums;
};

static void pieces_span(void *arg, int64_t first, int64_t last)
{
	const struct pieces *p = arg;

	for (int64_t i = first; i < last; i++) {
		int64_t start = i * p->piece;
		int64_t count = p->array.n - start < p->piece ? p->array.n - start : p->piece;
		p->sums[i] = dk_inner()->sum_squares(p->array.x + start, count);
	}
}

void dk_cpu_squares_at(double *sums, const dk_array *arrays, int64_t count, int64_t piece)
{
	for (int64_t i = 0; i < count; i++) {
		const int64_t pieces = (arrays[i].n + piece - 1) / piece;
		struct pieces p = {.array = arrays[i], .piece = piece, .sums = sums};

		dk_parallel(pieces, 1, pieces_span, &p);
		sums += pieces;
	}
}
