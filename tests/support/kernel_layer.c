/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tests/support/kernel_layer.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

enum { PROBES = 24, MIXED_PROBES = 2 };

SLOW static double weighted_sum(const double *out, const float *weights, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += out[i] * weights[i];
	return sum;
}

/* The host's; in the place, for the time of the computation, are others. */
struct run {
	float *in[INPUTS], *din[INPUTS], *out, *dout;
	double *wide[INPUTS], *wide_out;
	int64_t out_size;
};

static float start_of(const layer *l, int input)
{
	return l->adds[input] ? 0.5f : 1e30f;
}

float rounded(float x)
{
	uint16_t narrow;

	if (type_bytes(place.type) == sizeof(narrow)) {
		dk_to_bf16(&narrow, &x, 1);
		dk_from_bf16(&x, &narrow, 1);
	}
	return x;
}

static struct run make_run(const layer *l, const shape *s)
{
	struct run r = {.out_size = l->size(s, -1)};

	random_state = 42;
	for (int k = 0; k < l->inputs; k++) {
		int64_t n = l->size(s, k);
		r.in[k] = floats(n);
		r.din[k] = floats(n);
		r.wide[k] = doubles(n);
		for (int64_t i = 0; i < n; i++)
			r.wide[k][i] = r.in[k][i] = rounded((float)(l->spread * uniform() + (k == 0 ? l->centre : 0)));
	}
	r.out = floats(r.out_size);
	r.dout = floats(r.out_size);
	r.wide_out = doubles(r.out_size);
	for (int64_t i = 0; i < r.out_size; i++)
		r.dout[i] = r.out_size == 1 ? 1 : rounded((float)uniform());
	return r;
}

static dk_type type_of_gradient(const layer *l, int input)
{
	return l->adds[input] && !(l->carries && input == 0) ? gradient_type() : place.type;
}

static void compute(struct run *r, const layer *l, const shape *s)
{
	layer_memory m = {.out = give(r->out, r->out_size), .dout = give(r->dout, r->out_size),
		.kept = bytes_there((l->kept != NULL ? l->kept(s) : 1) * sizeof(float))};
	shape there = *s;

	for (int k = 0; k < l->inputs; k++) {
		for (int64_t i = 0; i < l->size(s, k); i++)
			r->din[k][i] = start_of(l, k);
		m.in[k] = give(r->in[k], l->size(s, k));
		m.din[k] = give_as(type_of_gradient(l, k), r->din[k], l->size(s, k));
	}
	dk_use(place.queue);
	if (s->tokens != NULL) {
		const size_t bytes = (size_t)l->tokens(s) * sizeof(int32_t);
		int32_t *tokens = bytes_there(bytes);
		dk_copy(tokens, s->tokens, bytes);
		there.tokens = tokens;
	}
	l->forward(&there, &m);
	l->backward(&there, &m);
	assert_null(dk_failure());
	dk_use(NULL);
	take(r->out, m.out, r->out_size);
	take(r->dout, m.dout, r->out_size);
	for (int k = 0; k < l->inputs; k++) {
		take(r->in[k], m.in[k], l->size(s, k));
		take_as(type_of_gradient(l, k), r->din[k], m.din[k], l->size(s, k));
	}
}

static void check_forward(struct run *r, const layer *l, const shape *s)
{
	const bool in_f32 = place.type == DK_F32 || (place.type == DK_TF32 && !l->product);

	l->naive(s, r->wide, r->wide_out);
	for (int64_t i = 0; i < r->out_size; i++)
		if (!(fabs(r->out[i] - r->wide_out[i]) <=
		      (in_f32 ? 2e-5 : 1e-2) * (fabs(r->wide_out[i]) + 1)))
			fail_msg("%s %ld,%ld,%ld,%ld: out[%ld] is %.8g, naively %.8g", l->name,
			         (long)s->a, (long)s->b, (long)s->c, (long)s->d, (long)i, r->out[i],
			         r->wide_out[i]);
}

static void check_slope(const struct run *r, const layer *l, const shape *s, int input, int64_t i,
                        double slope)
{
	double got = (double)r->din[input][i] - (l->adds[input] ? start_of(l, input) : 0);

	if (!(fabs(got - slope) <= (place.type == DK_F32 ? 1e-4 : 3e-2) * (fabs(slope) + 1)))
		fail_msg("%s %ld,%ld,%ld,%ld: gradient of input %d at %ld is %.8g, by "
		         "differences %.8g", l->name, (long)s->a, (long)s->b, (long)s->c,
		         (long)s->d, input, (long)i, got, slope);
}

/* Of both runs, of one thread and of many: they have the same inputs. */
static void check_gradient(struct run *r, const struct run *many, const layer *l, const shape *s,
                           int input)
{
	const double h = 1e-4;
	int64_t n = l->size(s, input);
	/* The formulas are those of f32, which are probed at more places. */
	const int64_t probes = type_bytes(place.type) == sizeof(uint16_t) ? MIXED_PROBES : PROBES;
	int64_t stride = n > probes ? n / probes : 1;

	for (int64_t i = n > probes ? n % stride : 0; i < n; i += stride) {
		double *x = r->wide[input] + i, here = *x;
		*x = here + h;
		l->naive(s, r->wide, r->wide_out);
		double slope = weighted_sum(r->wide_out, r->dout, r->out_size);
		*x = here - h;
		l->naive(s, r->wide, r->wide_out);
		slope = (slope - weighted_sum(r->wide_out, r->dout, r->out_size)) / (2 * h);
		*x = here;
		check_slope(r, l, s, input, i, slope);
		check_slope(many, l, s, input, i, slope);
	}
}

static void check_same(const struct run *many, const struct run *r, const layer *l, const shape *s)
{
	assert_memory_equal(many->out, r->out, (size_t)r->out_size * sizeof(float));
	for (int k = 0; k < l->inputs; k++)
		assert_memory_equal(many->din[k], r->din[k], (size_t)l->size(s, k) * sizeof(float));
}

static int64_t numbers(const layer *l, const shape *s)
{
	int64_t sum = l->size(s, -1) + (l->kept != NULL ? (int64_t)l->kept(s) : 0);

	for (int k = 0; k < l->inputs; k++)
		sum += l->size(s, k);
	return sum;
}

static void check_in_place(const layer *l, const shape *shapes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!fits(numbers(l, &shapes[i])))
			continue;
		struct run r = make_run(l, &shapes[i]), many = make_run(l, &shapes[i]);
		dk_set_threads(MANY_THREADS);
		place.shuffle(1);
		compute(&many, l, &shapes[i]);
		dk_set_threads(1);
		place.shuffle(2);
		compute(&r, l, &shapes[i]);
		check_forward(&r, l, &shapes[i]);
		check_forward(&many, l, &shapes[i]);
		for (int k = 0; k < l->inputs; k++)
			check_gradient(&r, &many, l, &shapes[i], k);
		if (!l->product || place.queue != NULL)
			check_same(&many, &r, l, &shapes[i]);
	}
}

static const layer *tried;
static const shape *tried_shapes;
static size_t tried_count;

static void try_layer(void)
{
	check_in_place(tried, tried_shapes, tried_count);
}

void check_layer(const layer *l, const shape *shapes, size_t count)
{
	tried = l;
	tried_shapes = shapes;
	tried_count = count;
	(l->f32_only ? in_each_place_of_f32 : in_each_place)(try_layer);
}
