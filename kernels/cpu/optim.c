/* SPDX-License-Identifier: Apache-2.0 */
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
	dk_update_fn *inner;
	dk_update_consts consts;
};

static float *from(float *x, int64_t first)
{
	return x != NULL ? x + first : NULL;
}

static void update_span(void *arg, int64_t first, int64_t last)
{
	const struct update *u = arg;

	u->inner(u->param + first, u->grad + first, from(u->first, first), from(u->second, first), last - first,
	         &u->consts);
	if (u->rounded != NULL)
		dk_cpu_to_bf16(u->rounded + first, u->param + first, last - first);
}

void dk_cpu_update(float *param, float *grad, float *first, float *second, int64_t n,
                   const dk_update_args *args)
{
	struct update u = {
		.param = param, .grad = grad, .first = first, .second = second, .rounded = args->rounded,
		.inner = dk_inner()->update[args->rule], .consts = dk_update_consts_of(args),
	};

	dk_parallel(n, OPTIM_GRAIN, update_span, &u);
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

struct checksums {
	dk_array array;
	int64_t piece;
	uint64_t *sums;
};

static void checksums_span(void *arg, int64_t first, int64_t last)
{
	const struct checksums *c = arg;

	for (int64_t i = first; i < last; i++) {
		int64_t start = i * c->piece;
		int64_t count = c->array.n - start < c->piece ? c->array.n - start : c->piece;
		c->sums[i] = dk_inner()->checksum(c->array.x + start, count);
	}
}

void dk_cpu_checksum_at(uint64_t *sums, const float *x, int64_t n, int64_t piece)
{
	dk_parallel((n + piece - 1) / piece, 1, checksums_span,
	            &(struct checksums){.array = {x, n}, .piece = piece, .sums = sums});
}
