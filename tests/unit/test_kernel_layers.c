/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan; takes: 6 */
/* runs: unit asan; as: test_kernel_device */
/* runs: asan; as: test_kernel_cuda; takes: 8 */
/* kernels: each layer against a naive double-precision version of its forward, and its
   gradients, as tests/support/kernel_layer.h tells, in each place and type that the program
   is linked with. */
#include <math.h>
#include <string.h>

#include "tests/support/kernel_layer.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

/* ---- linear: a rows, b inputs, c outputs, d: with residual --------------------------- */

static int64_t linear_size(const shape *s, int input)
{
	const int64_t sizes[] = {s->a * s->b, s->b * s->c, s->c, s->a * s->c};

	return input < 0 ? s->a * s->c : sizes[input];
}

SLOW static void linear_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t r = 0; r < s->a; r++)
		for (int64_t o = 0; o < s->c; o++) {
			double sum = in[2][o] + (s->d ? in[3][r * s->c + o] : 0);
			for (int64_t i = 0; i < s->b; i++)
				sum += in[0][r * s->b + i] * in[1][i * s->c + o];
			out[r * s->c + o] = sum;
		}
}

static void linear_forward(const shape *s, const layer_memory *m)
{
	dk_linear_forward(m->out, m->in[0], m->in[1], m->in[2], s->d ? m->in[3] : NULL, s->a, s->b, s->c);
}

static void linear_backward(const shape *s, const layer_memory *m)
{
	dk_linear_backward_params(m->din[1], m->din[2], m->dout, m->in[0], s->a, s->b, s->c);
	dk_linear_backward_input(m->din[0], m->dout, m->in[1], s->a, s->b, s->c);
	/* the residual's is the caller's */
	if (s->d)
		dk_copy(m->din[3], m->dout, (size_t)(s->a * s->c) * type_bytes(place.type));
	else
		dk_zero(m->din[3], s->a * s->c);
}

TEST(linear_layer)
{
	const layer l = {.name = "linear", .inputs = 4, .adds = {false, true, true, false}, .spread = 1,
		.size = linear_size, .naive = linear_naive, .forward = linear_forward, .backward = linear_backward,
		.product = true};
	const shape shapes[] = {{1, 1, 1, 0, NULL}, {3, 5, 7, 1, NULL}, {17, 31, 13, 0, NULL}, {70, 9, 35, 1, NULL},
		{130, 65, 203, 1, NULL}, {140, 3, 300, 1, NULL}, {601, 19, 517, 0, NULL}};

	CHECK(l, shapes);
}

/* ---- linear, GELU, linear: a rows, b inputs, c between them, d outputs -------------------- */

static int64_t mlp_size(const shape *s, int input)
{
	const int64_t sizes[] = {s->a * s->b, s->b * s->c, s->c, s->c * s->d, s->d};

	return input < 0 ? s->a * s->d : sizes[input];
}

SLOW static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

SLOW static void mlp_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t r = 0; r < s->a; r++) {
		memcpy(out + r * s->d, in[4], (size_t)s->d * sizeof(*out));
		for (int64_t h = 0; h < s->c; h++) {
			double sum = in[2][h];
			for (int64_t i = 0; i < s->b; i++)
				sum += in[0][r * s->b + i] * in[1][i * s->c + h];
			const double hidden = gelu(sum);
			for (int64_t o = 0; o < s->d; o++)
				out[r * s->d + o] += hidden * in[3][h * s->d + o];
		}
	}
}

/* Before GELU, behind it, and the gradient of the former. */
static size_t mlp_kept(const shape *s)
{
	return (size_t)(3 * s->a * s->c);
}

static void mlp_forward(const shape *s, const layer_memory *m)
{
	float *before = m->kept, *hidden = before + s->a * s->c;

	dk_linear_gelu_forward(hidden, before, m->in[0], m->in[1], m->in[2], s->a, s->b, s->c);
	dk_linear_forward(m->out, hidden, m->in[3], m->in[4], NULL, s->a, s->c, s->d);
}

static void mlp_backward(const shape *s, const layer_memory *m)
{
	float *before = m->kept, *hidden = before + s->a * s->c, *dbefore = hidden + s->a * s->c;

	dk_linear_backward_params(m->din[3], m->din[4], m->dout, hidden, s->a, s->c, s->d);
	dk_linear_gelu_backward(dbefore, m->dout, m->in[3], before, s->a, s->c, s->d);
	dk_linear_backward_params(m->din[1], m->din[2], dbefore, m->in[0], s->a, s->b, s->c);
	dk_linear_backward_input(m->din[0], dbefore, m->in[1], s->a, s->b, s->c);
}

/* With and without rows of whole 16 bytes. */
TEST(linear_layers_with_gelu)
{
	const layer l = {.name = "linear and GELU", .inputs = 5, .adds = {false, true, true, true, true}, .spread = 0.7f,
		.size = mlp_size, .naive = mlp_naive, .forward = mlp_forward, .backward = mlp_backward,
		.kept = mlp_kept, .product = true};
	const shape shapes[] = {{1, 1, 1, 1, NULL}, {3, 5, 8, 8, NULL}, {7, 8, 16, 5, NULL}, {19, 11, 7, 3, NULL},
		{70, 9, 24, 16, NULL}, {601, 6, 32, 8, NULL}};

	CHECK(l, shapes);
}

/* ---- embedding: a batch, b length, c width, d vocab ------------------------------------ */

static int64_t embedding_size(const shape *s, int input)
{
	const int64_t sizes[] = {s->d * s->c, s->b * s->c};

	return input < 0 ? s->a * s->b * s->c : sizes[input];
}

SLOW static void embedding_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t r = 0; r < s->a * s->b; r++)
		for (int64_t i = 0; i < s->c; i++)
			out[r * s->c + i] = in[0][s->tokens[r] * s->c + i] + in[1][r % s->b * s->c + i];
}

static void embedding_forward(const shape *s, const layer_memory *m)
{
	dk_embedding_forward(m->out, s->tokens, m->in[0], m->in[1], s->a, s->b, s->c);
}

static void embedding_backward(const shape *s, const layer_memory *m)
{
	dk_embedding_backward(m->din[0], m->din[1], m->dout, s->tokens, s->a, s->b, s->c);
}

static int64_t embedding_tokens(const shape *s)
{
	return s->a * s->b;
}

TEST(embedding_layer)
{
	static const int32_t tokens[] = {4, 0, 4, 2, 1, 1, 4, 3, 0, 4, 2, 2, 1, 0, 3};
	const layer l = {.name = "embedding", .inputs = 2, .adds = {true, true}, .spread = 1,
		.size = embedding_size, .naive = embedding_naive, .forward = embedding_forward,
		.backward = embedding_backward, .tokens = embedding_tokens};
	const shape shapes[] = {{1, 1, 1, 5, tokens}, {3, 5, 7, 5, tokens}, {5, 3, 130, 5, tokens}};

	CHECK(l, shapes);
}

/* ---- layernorm: a rows, b width --------------------------------------------------------- */

static int64_t layernorm_size(const shape *s, int input)
{
	return input <= 0 ? s->a * s->b : s->b;
}

SLOW static void layernorm_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t r = 0; r < s->a; r++) {
		const double *x = in[0] + r * s->b;
		double mean = 0, variance = 0;
		for (int64_t i = 0; i < s->b; i++)
			mean += x[i] / (double)s->b;
		for (int64_t i = 0; i < s->b; i++)
			variance += (x[i] - mean) * (x[i] - mean) / (double)s->b;
		for (int64_t i = 0; i < s->b; i++)
			out[r * s->b + i] = (x[i] - mean) / sqrt(variance + 1e-5) * in[1][i] + in[2][i];
	}
}

static size_t layernorm_kept(const shape *s)
{
	return (size_t)(2 * s->a);
}

static void layernorm_forward(const shape *s, const layer_memory *m)
{
	dk_layernorm_forward(m->out, m->kept, m->kept + s->a, m->in[0], m->in[1], m->in[2], s->a, s->b);
}

static void layernorm_backward(const shape *s, const layer_memory *m)
{
	dk_layernorm_backward(m->din[0], m->din[1], m->din[2], m->dout, m->in[0], m->kept, m->kept + s->a,
	                      m->in[1], s->a, s->b);
}

TEST(layernorm_layer)
{
	const layer l = {.name = "layernorm", .inputs = 3, .adds = {true, true, true}, .spread = 2,
		.size = layernorm_size, .naive = layernorm_naive, .forward = layernorm_forward,
		.backward = layernorm_backward, .kept = layernorm_kept, .carries = true};
	const shape shapes[] = {{1, 2, 0, 0, NULL}, {5, 7, 0, 0, NULL}, {9, 16, 0, 0, NULL},
		{33, 129, 0, 0, NULL}, {70, 40, 0, 0, NULL}, {67, 512, 0, 0, NULL},
		{9, 600, 0, 0, NULL}, {130, 1000, 0, 0, NULL}, {3, 1032, 0, 0, NULL}};

	CHECK(l, shapes);
}

/* ---- GELU: a elements -------------------------------------------------------------------- */

static int64_t elements(const shape *s, int input)
{
	return s->a;
}

SLOW static void gelu_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t i = 0; i < s->a; i++)
		out[i] = gelu(in[0][i]);
}

static void gelu_forward(const shape *s, const layer_memory *m)
{
	dk_gelu_forward(m->out, m->in[0], s->a);
}

static void gelu_backward(const shape *s, const layer_memory *m)
{
	dk_copy(m->din[0], m->dout, (size_t)s->a * type_bytes(place.type));
	dk_gelu_backward(m->din[0], m->in[0], s->a);
}

TEST(gelu_layer)
{
	const layer l = {.name = "gelu", .inputs = 1, .spread = 6, .size = elements, .naive = gelu_naive,
		.forward = gelu_forward, .backward = gelu_backward};
	const shape shapes[] = {{1, 0, 0, 0, NULL}, {37, 0, 0, 0, NULL}, {1000, 0, 0, 0, NULL}, {50001, 0, 0, 0, NULL}};

	CHECK(l, shapes);
}

static void try_huge_inputs(void)
{
	const float huge = place.type == DK_MIXED_F16 ? 49152 : 1e9f;
	const float in[] = {-huge, -100, -12, 12, 100, huge};
	const float ones[] = {1, 1, 1, 1, 1, 1};
	float out[6], grad[6];
	float *in_there = give(in, 6), *out_there = give(ones, 6), *grad_there = give(ones, 6);

	dk_use(place.queue);
	dk_gelu_forward(out_there, in_there, 6);
	dk_gelu_backward(grad_there, in_there, 6);
	dk_use(NULL);
	take(out, out_there, 6);
	take(grad, grad_there, 6);
	for (int i = 0; i < 6; i++) {
		const float want = i < 3 ? 0 : rounded(in[i]);
		assert_true(fabsf(out[i] - want) <= 1e-5f * want + 1e-6f);
		assert_true(fabsf(grad[i] - (i >= 3)) <= 1e-5f);
	}
}

TEST_RUNS(gelu_of_huge_inputs_is_finite, in_each_place(try_huge_inputs));

/* ---- sum: a elements ---------------------------------------------------------------------- */

SLOW static void sum_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t i = 0; i < s->a; i++)
		out[i] = in[0][i] + in[1][i];
}

static void sum_forward(const shape *s, const layer_memory *m)
{
	dk_add(m->out, m->in[0], m->in[1], s->a);
}

/* In the memory of what is added, too. */
static void sum_backward(const shape *s, const layer_memory *m)
{
	for (int i = 0; i < 2; i++)
		dk_zero(m->din[i], s->a);
	dk_add(m->din[0], m->din[0], m->dout, s->a);
	dk_add(m->din[1], m->dout, m->din[1], s->a);
}

TEST(sum_layer)
{
	const layer l = {.name = "sum", .inputs = 2, .spread = 3, .size = elements, .naive = sum_naive,
		.forward = sum_forward, .backward = sum_backward};
	const shape shapes[] = {{1, 0, 0, 0, NULL}, {37, 0, 0, 0, NULL}, {1001, 0, 0, 0, NULL}, {50001, 0, 0, 0, NULL}};

	CHECK(l, shapes);
}

/* ---- dropout: a elements ------------------------------------------------------------------- */

/* The counter's lower half overflows. */
static const dk_random drop_from = {0x123456789abcdef0, 0xfffffff0};
enum { DROP_AHEAD = 8 };

/* Where the queue in use drops. */
static dk_random *give_random(const dk_random *from)
{
	dk_random *there = bytes_there(sizeof(*there));

	dk_copy(there, from, sizeof(*there));
	return there;
}

static void drop(float *out, const float *in, int64_t n)
{
	dk_dropout(out, in, n, 0.25, give_random(&drop_from), DROP_AHEAD);
}

SLOW static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
	uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};

	for (int round = 0; round < 10; round++, k[0] += 0x9e3779b9u, k[1] += 0xbb67ae85u) {
		const uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
		c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k[0];
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k[1];
		c[3] = (uint32_t)a;
	}
	memcpy(out, c, sizeof(c));
}

/* The known answers that come with Random123. */
TEST(plain_philox_gives_the_known_answers)
{
	static const struct {
		uint32_t counter[4], key[2], answer[4];
	} known[] = {
		{{0}, {0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
		 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	};

	for (int i = 0; i < 2; i++) {
		uint32_t got[4];
		philox(known[i].counter, known[i].key, got);
		assert_memory_equal(got, known[i].answer, sizeof(got));
	}
}

SLOW static void dropout_naive(const shape *s, double *const in[], double *out)
{
	for (int64_t i = 0; i < s->a; i++) {
		const uint64_t at = drop_from.counter + DROP_AHEAD + (uint64_t)(i / 4);
		uint32_t words[4];
		philox((const uint32_t[]){(uint32_t)at, (uint32_t)(at >> 32), 0, 0},
		       (const uint32_t[]){(uint32_t)drop_from.seed, (uint32_t)(drop_from.seed >> 32)}, words);
		out[i] = words[i % 4] < 0x40000000 ? 0 : in[0][i] / 0.75;
	}
}

static void dropout_forward(const shape *s, const layer_memory *m)
{
	drop(m->out, m->in[0], s->a);
}

/* In place. */
static void dropout_backward(const shape *s, const layer_memory *m)
{
	dk_copy(m->din[0], m->dout, (size_t)s->a * type_bytes(place.type));
	drop(m->din[0], m->din[0], s->a);
}

TEST(dropout_layer)
{
	const layer l = {.name = "dropout", .inputs = 1, .spread = 3, .size = elements, .naive = dropout_naive,
		.forward = dropout_forward, .backward = dropout_backward};
	const shape shapes[] = {{1, 0, 0, 0, NULL}, {3, 0, 0, 0, NULL}, {2003, 0, 0, 0, NULL}, {33003, 0, 0, 0, NULL}};

	CHECK(l, shapes);
}

/* Of one number. */
static float drop_one(float x, double probability)
{
	const dk_random zero = {0};
	float *there = give(&x, 1);

	dk_use(place.queue);
	dk_dropout(there, there, 1, probability, give_random(&zero), 0);
	dk_use(NULL);
	take(&x, there, 1);
	return x;
}

static void try_border(void)
{
	/* The first number for seed and counter 0 is 0x6627e8d5. */
	assert_true(drop_one(1, 0x6627e8d5 * 0x1p-32) > 1);
	assert_true(drop_one(1, 0x6627e8d6 * 0x1p-32) == 0);
}

TEST_RUNS(the_border_of_dropout_is_exact, in_each_place(try_border));
