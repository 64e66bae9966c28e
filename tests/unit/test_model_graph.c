/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* runs: asan; as: test_model_graph_cuda; takes: 9 */
/* examples/models by graphs: a GPT and a network for images come to the same bits by graphs and
   without, whatever shapes their passes have and whatever they drop, and where captures fail. */
#include <stdlib.h>

#include "models/gpt_inside.h"
#include "models/net_inside.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernel_values.h"
#include "tests/support/sanitizers.h"
#include "tests/support/small_net.h"
#include "tests/support/test.h"

static void (*trying)(bool images);

static void try_models(void)
{
	if (place.type == DK_F32 || place.type == DK_MIXED)
		trying(false);
	if (place.type == DK_F32)
		trying(true);
}

/* Tries a GPT, and the network for images, for the types that they have. */
static void with_each_model(void (*test)(bool images))
{
	trying = test;
	on_each_queue(try_models);
}

/* ---- a model, by graphs or without --------------------------------------------------------- */

static const gpt_config tiny = {.layers = 2, .heads = 3, .width = 24, .vocab = 61, .length = 9};
enum { MOST_PARAMS = 64, MOST_TOLD = 4 * MOST_PARAMS, MOST_PASSES = 64, IMAGE = SIDE * SIDE * CHANNELS };

struct side {
	gpt *gpt; /* or */
	net *net;
	graphs *graphs;
	const ddp_param *params;
	int count;
	float *data[MOST_PARAMS], *narrow[MOST_PARAMS], *grads[MOST_PARAMS];
	double *loss;
	double dropout;    /* of the GPT; the network has its own */
	bool recompute;    /* likewise: make_gpt() makes one that does */
	net_random random;
	int told[MOST_TOLD], tellings; /* what was read, told ready, and had rows, in order */
};

/* Freed by release(). */
static void *allocate_zeros(void *user, size_t bytes)
{
	const kernel_place as_f32 = {.type = DK_F32, .copy = place.copy};
	const int64_t n = (int64_t)(bytes / sizeof(float));
	float *there = place.alloc(bytes);

	kernel_place_give(&as_f32, there, floats(n), n);
	return there;
}

static void release(void *user, void *memory)
{
	place.free(memory);
}

static int64_t elements(const ddp_param *p)
{
	int64_t count = 1;

	for (int i = 0; i < p->ndim; i++)
		count *= p->shape[i];
	return count;
}

static void note(struct side *s, int what)
{
	assert_true(s->tellings < MOST_TOLD);
	s->told[s->tellings++] = what;
}

static void reads(void *user, int param)
{
	note(user, param);
}

static ddp_status ready(void *user, int param)
{
	note(user, 100 + param);
	return DDP_OK;
}

static ddp_status rows(void *user, int param, const int32_t *index, const float *values, int64_t count)
{
	note(user, (int)(1000 + param + count));
	return DDP_OK;
}

static void bind(struct side *s)
{
	const bool mixed = place.type == DK_MIXED;

	for (int i = 0; i < s->count && mixed; i++)
		dk_to_bf16((uint16_t *)s->narrow[i], s->data[i], elements(&s->params[i]));
	if (s->net != NULL)
		net_bind(s->net, s->data, s->grads);
	else
		gpt_bind(s->gpt, mixed ? s->narrow : s->data, s->grads);
}

static void make_gpt(struct side *s)
{
	const gpt_memory memory = {.alloc = allocate_zeros, .release = release};
	gpt_config config = tiny;

	config.mixed = place.type == DK_MIXED;
	config.recompute = s->recompute;
	s->gpt = gpt_create_on(&memory, &config, BATCH, MOST_PASSES);
	assert_non_null(s->gpt);
	s->params = gpt_params(s->gpt, &s->count);
	s->graphs = &s->gpt->graphs;
}

static void make_net(struct side *s)
{
	const net_memory memory = {.alloc = allocate_zeros, .release = release};

	s->net = net_create_on(&memory, BATCH, &(ddp_image_shape){CHANNELS, SIDE, SIDE}, MOST_PASSES);
	assert_non_null(s->net);
	dk_onednn_free(s->net->onednn);
	s->net->onednn = NULL;
	build_small_net(s->net);
	assert_true(net_finish(s->net));
	s->params = net_params(s->net, &s->count);
	s->graphs = &s->net->graphs;
}

static void make_side(struct side *s, bool images, bool wanted)
{
	const bool recompute = s->recompute;

	*s = (struct side){.recompute = recompute};
	s->random = (net_random){.seed = 9, .counter = 100};
	(images ? make_net : make_gpt)(s);
	assert_true(s->count <= MOST_PARAMS);
	for (int i = 0; i < s->count; i++) {
		const size_t bytes = (size_t)elements(&s->params[i]) * sizeof(float);
		s->data[i] = allocate_zeros(NULL, bytes);
		s->narrow[i] = allocate_zeros(NULL, bytes);
		s->grads[i] = s->params[i].kind == DDP_PARAM_TRAINED ? allocate_zeros(NULL, bytes) : NULL;
	}
	s->loss = allocate_zeros(NULL, sizeof(double));
	if (images) {
		net_bind(s->net, s->data, s->grads);
		assert_true(net_initialise(s->net, 5));
		net_bind_loss(s->net, s->loss);
		net_use_graphs(s->net, wanted);
	} else {
		gpt_bind(s->gpt, s->data, s->grads);
		assert_true(gpt_initialise(s->gpt, 5));
		gpt_bind_loss(s->gpt, s->loss);
		gpt_bind_reads(s->gpt, reads, s);
		gpt_use_graphs(s->gpt, wanted);
	}
	bind(s);
}

static void free_side(struct side *s)
{
	gpt_free(s->gpt);
	net_free(s->net);
	for (int i = 0; i < s->count; i++) {
		place.free(s->data[i]);
		place.free(s->narrow[i]);
		if (s->grads[i] != NULL)
			place.free(s->grads[i]);
	}
	place.free(s->loss);
}

/* ---- passes -------------------------------------------------------------------------------- */

static void draw_tokens(int32_t *tokens, int number, int count)
{
	for (int i = 0; i < count; i++)
		tokens[i] = (i * 7 + 3 + number * 11) % 61;
}

static void draw_images(float *images, int32_t *labels, int number)
{
	random_state = (uint64_t)number;
	for (int i = 0; i < BATCH * IMAGE; i++)
		images[i] = (float)uniform();
	for (int i = 0; i < BATCH; i++)
		labels[i] = (number + i) % CLASSES;
}

/* Other samples each time, which are gone behind it, and a parameter that an optimizer might have changed. */
static void pass(struct side *s, int number, int batch, int length)
{
	const float changed = 0.5f + 0.1f * (float)number;
	float images[BATCH * IMAGE];
	int32_t tokens[BATCH * 10], labels[BATCH];

	s->tellings = 0;
	if (s->net != NULL) {
		draw_images(images, labels, number);
		kernel_place_give(&place, s->data[0], &changed, 1);
		assert_true(net_forward(s->net, images, labels, batch, &s->random).loss == 0);
		assert_int_equal(net_backward(s->net, ready, s), DDP_OK);
	} else {
		draw_tokens(tokens, number, batch * (length + 1));
		kernel_place_give(&place, place.type == DK_MIXED ? s->narrow[2] : s->data[2], &changed, 1);
		gpt_set_dropout(s->gpt, s->dropout, 7, (uint64_t)number);
		assert_true(gpt_forward(s->gpt, tokens, batch, length) == 0);
		assert_int_equal(gpt_backward(s->gpt, ready, rows, s), DDP_OK);
	}
	assert_null(dk_failure());
}

static double evaluate(struct side *s, int number, int batch, int length)
{
	float images[BATCH * IMAGE];
	int32_t tokens[BATCH * 10], labels[BATCH];

	draw_images(images, labels, number);
	draw_tokens(tokens, number, batch * (length + 1));
	const double loss = s->net != NULL ? net_forward(s->net, images, labels, batch, NULL).loss
	                                   : gpt_evaluate(s->gpt, tokens, batch, length);
	assert_null(dk_failure());
	return loss;
}

static void expect_same_numbers(const float *there, const float *other, int64_t n)
{
	float *got = floats(n), *want = floats(n);

	take_as(DK_F32, got, there, n);
	take_as(DK_F32, want, other, n);
	assert_memory_equal(got, want, (size_t)n * sizeof(float));
}

/* Losses, gradients, running statistics, and what was told. */
static void expect_same(const struct side *got, const struct side *want)
{
	expect_same_numbers((float *)got->loss, (float *)want->loss, 2);
	for (int i = 0; i < got->count; i++)
		if (got->grads[i] != NULL)
			expect_same_numbers(got->grads[i], want->grads[i], elements(&got->params[i]));
		else
			expect_same_numbers(got->data[i], want->data[i], elements(&got->params[i]));
	assert_int_equal(got->tellings, want->tellings);
	assert_memory_equal(got->told, want->told, (size_t)got->tellings * sizeof(got->told[0]));
}

/* All parts of passes to train of this shape. */
static bool is_captured(const struct side *s, int batch, int length)
{
	for (int i = 0; i < GRAPH_SHAPES; i++) {
		const struct graph_set *set = &s->graphs->sets[i];
		const pass_shape *shape = &set->shape;
		int captured = 0;
		if (set->used == 0 || shape->batch != batch || shape->trains != (s->net != NULL) ||
		    (s->net == NULL && (shape->length != length || shape->dropout != s->dropout)))
			continue;
		for (int part = 0; part < s->graphs->parts; part++)
			captured += set->parts[part].graph != NULL;
		assert_true(captured == 0 || captured == s->graphs->parts);
		return captured > 0;
	}
	return false;
}

/* ---- tests --------------------------------------------------------------------------------- */

/* What is captured of each shape's first pass is none of another's. */
static void try_shapes(bool images, double dropout, bool recompute)
{
	/* The second shape is as an epoch's last. */
	static const struct { int batch, length; bool captured; } passes[] = {{2, 9, false}, {2, 9, true}, {2, 9, true},
		{1, 5, false}, {2, 9, true}, {1, 5, true}, {1, 5, true}, {2, 9, true}};
	static struct side by_graphs, plain;

	by_graphs.recompute = recompute;
	make_side(&by_graphs, images, true);
	by_graphs.recompute = false; /* for the next use */
	make_side(&plain, images, false);
	by_graphs.dropout = plain.dropout = dropout;
	for (int i = 0; i < (int)(sizeof(passes) / sizeof(passes[0])); i++) {
		const int batch = passes[i].batch, length = passes[i].length;
		pass(&by_graphs, i, batch, length);
		pass(&plain, i, batch, length);
		expect_same(&by_graphs, &plain);
		assert_int_equal(is_captured(&by_graphs, batch, length), passes[i].captured);
		assert_false(is_captured(&plain, batch, length));
		if (i % 3 == 0)
			assert_true(evaluate(&by_graphs, i, batch, length) == evaluate(&plain, i, batch, length));
	}
	assert_int_equal(by_graphs.graphs->failure[0], '\0');
	free_side(&by_graphs);
	free_side(&plain);
}

static void try_all_shapes(bool images)
{
	static size_t turn;

	if (test_takes(turn++))
		try_shapes(images, 0, false);
	if (!images && test_takes(turn++))
		try_shapes(images, 0.3, true);
}

TEST_RUNS(models_come_to_the_same_bits_by_graphs, with_each_model(try_all_shapes));

/* Shapes that come once, as of texts that grow, take no graph from those that come again; and there are as
   many as there may be. */
static void try_many_shapes(bool images)
{
	static const int lengths[] = {9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 3, 5, 5, 7, 7, 8, 8, 8, 9, 3};
	static struct side by_graphs, plain;

	/* Which shapes have graphs is the same everywhere: the emulation, which is slow, does not try it. */
	if (images || place.fail_graph != NULL)
		return;
	make_side(&by_graphs, images, true);
	make_side(&plain, images, false);
	for (int i = 0; i < (int)(sizeof(lengths) / sizeof(lengths[0])); i++) {
		pass(&by_graphs, i, 1, lengths[i]);
		pass(&plain, i, 1, lengths[i]);
		expect_same(&by_graphs, &plain);
		assert_int_equal(is_captured(&by_graphs, 1, 9), i > 0);
	}
	assert_true(is_captured(&by_graphs, 1, 3) && is_captured(&by_graphs, 1, 5) && is_captured(&by_graphs, 1, 7));
	assert_false(is_captured(&by_graphs, 1, 8));
	free_side(&by_graphs);
	free_side(&plain);
}

TEST_RUNS(shapes_that_come_again_keep_their_graphs, with_each_model(try_many_shapes));

/* Other gradients, of which the graphs know nothing. */
static void try_bind(bool images)
{
	static struct side bound_anew, plain;

	make_side(&bound_anew, images, true);
	make_side(&plain, images, false);
	for (int i = 0; i < 2; i++) {
		pass(&bound_anew, i, 2, 9);
		pass(&plain, i, 2, 9);
	}
	assert_true(is_captured(&bound_anew, 2, 9));
	for (int i = 0; i < bound_anew.count; i++) {
		const size_t bytes = (size_t)elements(&plain.params[i]) * sizeof(float);
		if (plain.grads[i] == NULL)
			continue;
		place.free(bound_anew.grads[i]);
		place.free(plain.grads[i]);
		bound_anew.grads[i] = allocate_zeros(NULL, bytes);
		plain.grads[i] = allocate_zeros(NULL, bytes);
	}
	bind(&bound_anew);
	bind(&plain);
	for (int i = 2; i < 5; i++) {
		pass(&bound_anew, i, 2, 9);
		pass(&plain, i, 2, 9);
		expect_same(&bound_anew, &plain);
	}
	free_side(&bound_anew);
	free_side(&plain);
}

TEST_RUNS(what_is_bound_anew_is_captured_anew, with_each_model(try_bind));

/* In a part of forward (behind the call that is made but once), or of backward: each part makes four calls. The
   pass is done all the same, and only once. */
static void try_failing_model(bool images)
{
	static const int calls[] = {2, 7, 11};
	static struct side failing, plain;
	static size_t turn;

	if (place.fail_graph == NULL)
		return;
	for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
		if (!test_takes(turn++))
			continue;
		make_side(&failing, images, true);
		make_side(&plain, images, false);
		for (int i = 0; i < 3; i++) {
			place.fail_graph(i == 1 ? calls[c] : 0);
			pass(&failing, i, 2, 9);
			pass(&plain, i, 2, 9);
			expect_same(&failing, &plain);
			assert_int_equal(failing.graphs->failure[0] != '\0', i >= 1);
			assert_int_equal(failing.graphs->wanted, i < 1);
		}
		free_side(&failing);
		free_side(&plain);
	}
}

TEST_RUNS(a_model_goes_on_where_capturing_fails, with_each_model(try_failing_model));

int main(void)
{
	dk_set_threads(1); /* what is this small is slower with more */
	return test_run(NULL, NULL);
}
