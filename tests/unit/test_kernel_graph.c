/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* runs: asan; as: test_kernel_graph_cuda */
/* Graphs of kernels: a launch does what was captured, on what lies there then; a capture that
   fails leaves the queue as it was. */
#include <string.h>

#include "tests/support/kernel_cases.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

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
	kernel_place_give(&place, a, values, ROWS * DEPTH);
	kernel_place_give(&place, b, values, DEPTH * COLUMNS);
}

static void set_kept(float value)
{
	float values[OUT];

	for (int i = 0; i < OUT; i++)
		values[i] = value;
	kernel_place_give(&place, kept, values, OUT);
}

static void assert_kept(const float *want)
{
	float got[OUT];

	kernel_place_take(&place, got, kept, OUT);
	assert_memory_equal(got, want, sizeof(got));
	assert_null(dk_failure());
}

/* What uncaptured work comes to. */
static void work_out(uint64_t seed, float *want)
{
	give_inputs(seed);
	work();
	kernel_place_take(&place, want, kept, OUT);
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

TEST_RUNS(a_launch_does_what_was_captured, on_each_queue(try_launches));

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

TEST_RUNS(a_function_with_a_result_spoils_a_capture, on_each_queue(try_result));

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

TEST_RUNS(a_copy_of_the_hosts_spoils_a_capture, on_each_queue(try_host_copies));

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

TEST_RUNS(each_call_that_fails_is_named, on_each_queue(try_failures));

TEST(the_host_captures_nothing)
{
	assert_false(dk_graph_begin());
	dk_queue *mixed = dk_open_mixed();
	dk_use(mixed);
	assert_false(dk_graph_begin());
	dk_use(NULL);
	dk_close(mixed);
}
