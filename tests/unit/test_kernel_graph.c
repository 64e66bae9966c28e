/*
 * Graphs of kernels: a launch does what was captured, on what lies there then; a capture that
 * fails leaves the queue as it was; and a GPT comes to the same bits by graphs and without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/gpt_inside.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernel_values.h"

/* ---- a few kernels ------------------------------------------------------------------------- */

enum { ROWS = 5, DEPTH = 12, COLUMNS = 16, OUT = ROWS * COLUMNS };

static float *a, *b, *product, *out, *kept; /* [ROWS, DEPTH], [DEPTH, COLUMNS], three of [OUT] */

static void allocate_all(void)
{
	a = bytes_there(ROWS * DEPTH * sizeof(float));
	b = bytes_there(DEPTH * COLUMNS * sizeof(float));
	product = bytes_there(OUT * sizeof(float));
	out = bytes_there(OUT * sizeof(float));
	kept = bytes_there(OUT * sizeof(float));
}

/* kept = gelu(a b), by a kernel of each kind. */
static void work(void)
{
	dk_zero(product, OUT);
	dk_gemm(&(dk_gemm_args){.m = ROWS, .n = COLUMNS, .k = DEPTH, .a = a, .lda = DEPTH, .b = b,
		.ldb = COLUMNS, .c = product, .ldc = COLUMNS, .beta = 1});
	dk_gelu_forward(out, product, OUT);
	dk_copy(kept, out, OUT * type_bytes(place.type));
}

static void give_inputs(uint64_t seed)
{
	float values[DEPTH * COLUMNS];

	random_state = seed;
	for (int i = 0; i < DEPTH * COLUMNS; i++)
		values[i] = (float)uniform() - 0.5f;
	place.give(&place, a, values, ROWS * DEPTH);
	place.give(&place, b, values, DEPTH * COLUMNS);
}

static void set_kept(float value)
{
	float values[OUT];

	for (int i = 0; i < OUT; i++)
		values[i] = value;
	place.give(&place, kept, values, OUT);
}

static void assert_kept(const float *want)
{
	float got[OUT];

	place.take(&place, got, kept, OUT);
	assert_memory_equal(got, want, sizeof(got));
	assert_null(dk_failure());
}

/* What uncaptured work comes to. */
static void work_out(uint64_t seed, float *want)
{
	give_inputs(seed);
	work();
	place.take(&place, want, kept, OUT);
	assert_null(dk_failure());
}

static dk_graph *capture(const char **why)
{
	assert_true(dk_graph_begin());
	work();
	return dk_graph_end(why);
}

static void try_launches(void)
{
	float want[2][OUT], zeros[OUT] = {0};
	const char *why = "";

	allocate_all();
	work_out(1, want[0]);
	work_out(2, want[1]);
	assert_true(memcmp(want[0], want[1], sizeof(want[0])) != 0);
	set_kept(0);
	dk_graph *graph = capture(&why);
	if (graph == NULL)
		fail_msg("%s", why);
	assert_kept(zeros);
	for (int i = 0; i < 4; i++) {
		give_inputs((uint64_t)i % 2 + 1);
		dk_graph_launch(graph);
		assert_kept(want[i % 2]);
	}
	dk_graph_free(graph);
	dk_graph_free(NULL);
}

static void a_launch_does_what_was_captured(void **state)
{
	(void)state;
	on_each_queue(try_launches);
}

/* As before the capture. */
static void expect_work(const float *want)
{
	set_kept(0);
	work();
	assert_kept(want);
}

static void try_result(void)
{
	float want[OUT];
	const char *why = NULL;

	allocate_all();
	work_out(1, want);
	assert_true(dk_graph_begin());
	work();
	(void)dk_sum_squares(product, OUT / 2);
	assert_null(dk_graph_end(&why));
	assert_true(why != NULL && why[0] != '\0');
	expect_work(want);
	dk_graph *graph = capture(&why);
	assert_non_null(graph);
	set_kept(0);
	dk_graph_launch(graph);
	assert_kept(want);
	dk_graph_free(graph);
}

static void a_function_with_a_result_spoils_a_capture(void **state)
{
	(void)state;
	on_each_queue(try_result);
}

static void try_host_copies(void)
{
	float want[OUT], host[OUT] = {0};
	const char *why = NULL;

	allocate_all();
	work_out(1, want);
	for (int into = 0; into < 2; into++) {
		assert_true(dk_graph_begin());
		work();
		dk_copy(into ? kept : host, into ? host : kept, sizeof(host) / 2);
		assert_null(dk_graph_end(&why));
		assert_non_null(strstr(why, "a copy from or to the host's memory"));
		expect_work(want);
	}
}

static void a_copy_of_the_hosts_spoils_a_capture(void **state)
{
	(void)state;
	on_each_queue(try_host_copies);
}

/* The calls of CUDA's, of which each fails once; the first is made but once. */
static void try_failures(void)
{
	static const struct { int call; const char *named; } cases[] = {
		{1, "CUDA: a stream for graphs: out of memory"}, {2, "CUDA: cudaStreamBeginCapture: out of memory"},
		{2, "CUDA: cudaStreamEndCapture: out of memory"}, {3, "CUDA: cudaGraphInstantiateWithFlags: out of memory"}};
	float want[OUT];
	const char *why = "";

	if (place.fail_graph == NULL)
		return;
	allocate_all();
	work_out(1, want);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		set_kept(0);
		place.fail_graph(cases[i].call);
		assert_null(capture(&why));
		assert_string_equal(why, cases[i].named);
		expect_work(want);
	}
	dk_graph *graph = capture(&why);
	assert_non_null(graph);
	place.fail_graph(1);
	dk_graph_launch(graph);
	assert_string_equal(dk_failure(), "CUDA: cudaGraphLaunch: out of memory");
	assert_false(dk_graph_begin());
	dk_graph_free(graph);
}

static void each_call_that_fails_is_named(void **state)
{
	(void)state;
	on_each_queue(try_failures);
}

static void the_host_captures_nothing(void **state)
{
	(void)state;
	assert_false(dk_graph_begin());
	dk_queue *mixed = dk_open_mixed();
	dk_use(mixed);
	assert_false(dk_graph_begin());
	dk_use(NULL);
	dk_close(mixed);
}

/* ---- a GPT --------------------------------------------------------------------------------- */

static const gpt_config tiny = {.layers = 2, .heads = 3, .width = 24, .vocab = 61, .length = 9};
enum { BATCH = 2, MOST_PARAMS = 64, MOST_TOLD = 4 * MOST_PARAMS, PASSES = 6 };

/* Numbers of f32, in a place of any type. */
static const kernel_place *as_f32(void)
{
	static kernel_place plain;

	plain = place;
	plain.type = DK_F32;
	return &plain;
}

static void *allocate_zeros(void *user, size_t bytes)
{
	float *zeros = calloc(bytes / sizeof(float) + 1, sizeof(float)), *there = place.alloc(bytes);

	(void)user;
	assert_non_null(zeros);
	place.give(as_f32(), there, zeros, (int64_t)(bytes / sizeof(float)));
	free(zeros);
	return there;
}

static void release(void *user, void *memory)
{
	(void)user;
	place.free(memory);
}

struct side {
	gpt *model;
	const ddp_param *params;
	int count;
	float *data[MOST_PARAMS], *narrow[MOST_PARAMS], *grads[MOST_PARAMS];
	double *loss;
	int told[MOST_TOLD], tellings; /* what was read, told ready, and had rows, in order */
};

static int64_t elements(const ddp_param *p)
{
	return p->ndim == 2 ? p->shape[0] * p->shape[1] : p->shape[0];
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
	(void)index;
	(void)values;
	note(user, (int)(1000 + param + count));
	return DDP_OK;
}

static void bind(struct side *s)
{
	const bool mixed = place.type == DK_MIXED;

	for (int i = 0; i < s->count && mixed; i++)
		dk_to_bf16((uint16_t *)s->narrow[i], s->data[i], elements(&s->params[i]));
	gpt_bind(s->model, mixed ? s->narrow : s->data, s->grads);
}

static void make_side(struct side *s, bool graphs)
{
	const gpt_memory memory = {.alloc = allocate_zeros, .release = release};
	gpt_config config = tiny;

	memset(s, 0, sizeof(*s));
	config.mixed = place.type == DK_MIXED;
	s->model = gpt_create_on(&memory, &config, BATCH, PASSES);
	assert_non_null(s->model);
	s->params = gpt_params(s->model, &s->count);
	assert_true(s->count <= MOST_PARAMS);
	for (int i = 0; i < s->count; i++) {
		const size_t bytes = (size_t)elements(&s->params[i]) * sizeof(float);
		s->data[i] = allocate_zeros(NULL, bytes);
		s->narrow[i] = allocate_zeros(NULL, bytes);
		s->grads[i] = allocate_zeros(NULL, bytes);
	}
	s->loss = allocate_zeros(NULL, sizeof(double));
	gpt_bind(s->model, s->data, s->grads);
	assert_true(gpt_initialise(s->model, 5));
	bind(s);
	gpt_bind_loss(s->model, s->loss);
	gpt_bind_reads(s->model, reads, s);
	gpt_use_graphs(s->model, graphs);
}

static void free_side(struct side *s)
{
	gpt_free(s->model);
	for (int i = 0; i < s->count; i++) {
		place.free(s->data[i]);
		place.free(s->narrow[i]);
		place.free(s->grads[i]);
	}
	place.free(s->loss);
}

/* Other samples each time, and a parameter that an optimizer might have changed. */
static void pass(struct side *s, int number, int batch, int length)
{
	const float changed = 0.5f + 0.1f * (float)number;
	int32_t tokens[BATCH * 10];

	for (int i = 0; i < batch * (length + 1); i++)
		tokens[i] = (i * 7 + 3 + number * 11) % 61;
	place.give(&place, place.type == DK_MIXED ? s->narrow[2] : s->data[2], &changed, 1);
	s->tellings = 0;
	assert_true(gpt_forward(s->model, tokens, batch, length) == 0);
	assert_int_equal(gpt_backward(s->model, ready, rows, s), DDP_OK);
	assert_null(dk_failure());
}

static void expect_same_numbers(const float *there, const float *other, int64_t n)
{
	float *got = make((size_t)n, sizeof(float)), *want = make((size_t)n, sizeof(float));

	place.take(as_f32(), got, there, n);
	place.take(as_f32(), want, other, n);
	assert_memory_equal(got, want, (size_t)n * sizeof(float));
	free(got);
	free(want);
}

static void expect_same(const struct side *got, const struct side *want)
{
	expect_same_numbers((float *)got->loss, (float *)want->loss, 2);
	for (int i = 0; i < got->count; i++)
		expect_same_numbers(got->grads[i], want->grads[i], elements(&got->params[i]));
	assert_int_equal(got->tellings, want->tellings);
	assert_memory_equal(got->told, want->told, (size_t)got->tellings * sizeof(got->told[0]));
}

static bool has_model(void)
{
	return place.type == DK_F32 || place.type == DK_MIXED;
}

static void try_model(void)
{
	/* The third shape is seen once, as an epoch's last. */
	static const struct { int batch, length; bool captured; } passes[PASSES] = {
		{BATCH, 9, false}, {BATCH, 9, true}, {BATCH, 9, true}, {1, 5, true}, {1, 5, true}, {BATCH, 9, true}};
	static struct side by_graphs, plain;

	if (!has_model())
		return;
	make_side(&by_graphs, true);
	make_side(&plain, false);
	for (int i = 0; i < PASSES; i++) {
		pass(&by_graphs, i, passes[i].batch, passes[i].length);
		pass(&plain, i, passes[i].batch, passes[i].length);
		expect_same(&by_graphs, &plain);
		assert_int_equal(by_graphs.model->forward[0].graph != NULL, passes[i].captured);
		assert_int_equal(by_graphs.model->backward[1].graph != NULL, passes[i].captured);
		assert_int_equal(by_graphs.model->backward[1].batch, BATCH);
		assert_null(plain.model->forward[0].graph);
	}
	assert_null(gpt_graph_failure(by_graphs.model));
	free_side(&by_graphs);
	free_side(&plain);
}

static void a_model_comes_to_the_same_bits_by_graphs(void **state)
{
	(void)state;
	on_each_queue(try_model);
}

/* Other parameters and gradients, of which the graphs know nothing. */
static void try_bind(void)
{
	static struct side bound_anew, plain;

	if (!has_model())
		return;
	make_side(&bound_anew, true);
	make_side(&plain, false);
	for (int i = 0; i < 2; i++)
		pass(&bound_anew, i, BATCH, 9);
	assert_non_null(bound_anew.model->forward[0].graph);
	for (int i = 0; i < bound_anew.count; i++) {
		place.free(bound_anew.grads[i]);
		bound_anew.grads[i] = allocate_zeros(NULL, (size_t)elements(&bound_anew.params[i]) * sizeof(float));
	}
	bind(&bound_anew);
	place.give(as_f32(), (float *)bound_anew.loss, (const float[]){0, 0}, 2);
	for (int i = 2; i < 5; i++) {
		pass(&bound_anew, i, BATCH, 9);
		pass(&plain, i, BATCH, 9);
		expect_same(&bound_anew, &plain);
	}
	free_side(&bound_anew);
	free_side(&plain);
}

static void what_is_bound_anew_is_captured_anew(void **state)
{
	(void)state;
	on_each_queue(try_bind);
}

/* In forward (behind the call that is made but once), or in backward, behind the four calls for each
   layer of forward: the pass is done all the same. */
static void try_failing_model(void)
{
	static struct side failing, plain;

	if (!has_model() || place.fail_graph == NULL)
		return;
	for (int call = 2; call <= 11; call += 9) {
		make_side(&failing, true);
		make_side(&plain, false);
		for (int i = 0; i < 3; i++) {
			place.fail_graph(i == 1 ? call : 0);
			pass(&failing, i, BATCH, 9);
			pass(&plain, i, BATCH, 9);
			expect_same(&failing, &plain);
			assert_int_equal(gpt_graph_failure(failing.model) != NULL, i >= 1);
			assert_int_equal(failing.model->graphs, i < 1);
		}
		free_side(&failing);
		free_side(&plain);
	}
}

static void a_model_goes_on_where_capturing_fails(void **state)
{
	(void)state;
	on_each_queue(try_failing_model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_launch_does_what_was_captured),
		cmocka_unit_test(a_function_with_a_result_spoils_a_capture),
		cmocka_unit_test(a_copy_of_the_hosts_spoils_a_capture),
		cmocka_unit_test(each_call_that_fails_is_named),
		cmocka_unit_test(the_host_captures_nothing),
		cmocka_unit_test(a_model_comes_to_the_same_bits_by_graphs),
		cmocka_unit_test(what_is_bound_anew_is_captured_anew),
		cmocka_unit_test(a_model_goes_on_where_capturing_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
