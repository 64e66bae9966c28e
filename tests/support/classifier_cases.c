/* SPDX-License-Identifier: Apache-2.0 */
/* classifier_cases: those of test_kernel_layers.c that are about the classifier, and about
   results, of which the classifier's is one. */
#include <math.h>
#include <string.h>

#include "tests/support/kernel_layer.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

/* ---- classifier: a rows, b width, c vocab; the output is the loss ---------------------------- */

static int64_t classifier_size(const shape *s, int input)
{
	const int64_t sizes[] = {s->a * s->b, s->c * s->b};

	return input < 0 ? 1 : sizes[input];
}

SLOW static void classifier_naive(const shape *s, double *const in[], double *out)
{
	*out = 0;
	for (int64_t r = 0; r < s->a; r++) {
		double total = 0, picked = 0;
		for (int64_t w = 0; w < s->c; w++) {
			double logit = 0;
			for (int64_t i = 0; i < s->b; i++)
				logit += in[0][r * s->b + i] * in[1][w * s->b + i];
			total += exp(logit);
			if (w == s->tokens[r])
				picked = logit;
		}
		*out += log(total) - picked;
	}
}

static size_t classifier_kept(const shape *s)
{
	return dk_classifier_work(s->a, s->c);
}

static void classifier_forward(const shape *s, const layer_memory *m)
{
	const float loss = (float)dk_classifier_forward(m->kept, m->in[0], m->in[1], s->tokens, s->a, s->b, s->c);

	kernel_place_give(&place, m->out, &loss, 1);
}

static void classifier_backward(const shape *s, const layer_memory *m)
{
	dk_classifier_backward(m->din[0], m->din[1], m->kept, m->in[0], m->in[1], s->tokens, s->a, s->b, s->c);
}

static int64_t classifier_tokens(const shape *s)
{
	return s->a;
}

TEST(classifier_layer)
{
	static int32_t tokens[600];
	const layer l = {.name = "classifier", .inputs = 2, .adds = {false, true}, .spread = 1.5f,
		.size = classifier_size, .naive = classifier_naive, .forward = classifier_forward,
		.backward = classifier_backward, .kept = classifier_kept, .tokens = classifier_tokens, .product = true};
	const shape shapes[] = {{1, 1, 1, 0, tokens}, {3, 5, 2, 0, tokens}, {7, 12, 257, 0, tokens},
		{5, 9, 2050, 0, tokens}, {130, 2, 1030, 0, tokens}, {600, 6, 1025, 0, tokens}};

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		for (int64_t r = 0; r < shapes[i].a; r++)
			tokens[r] = (int32_t)(r % 3 == 0 ? shapes[i].c - 1 : r * 37 % shapes[i].c);
		check_layer(&l, &shapes[i], 1);
	}
}

/* More than a case may have where plain versions take long; rows end within 16 bytes, and at them. */
static void try_large_vocabulary(void)
{
	enum { ROWS = 2, MOST = 5000 };
	static const int32_t targets[ROWS] = {3, 4098};
	const float in[ROWS] = {0.5f, -1}, zeros[ROWS] = {0};
	static float weight[MOST], dweight[MOST], none[MOST];

	for (int vocab = 4999; vocab <= MOST; vocab++) {
		double want[MOST] = {0}, slack[MOST] = {0}, loss = 0;
		for (int i = 0; i < vocab; i++)
			weight[i] = rounded((float)uniform());
		for (int r = 0; r < ROWS; r++) {
			double total = 0;
			for (int i = 0; i < vocab; i++)
				total += exp((double)in[r] * weight[i]);
			loss += log(total) - (double)in[r] * weight[targets[r]];
			for (int i = 0; i < vocab; i++) {
				const double share = exp((double)in[r] * weight[i]) / total;
				want[i] += in[r] * (share - (i == targets[r] ? 1 : 0));
				slack[i] += 0.02 * share + (i == targets[r] ? 0.005 : 0);
			}
		}
		float *in_there = give(in, ROWS), *weight_there = give(weight, vocab), *din = give(zeros, ROWS);
		float *dweight_there = give_as(gradient_type(), none, vocab);
		float *work = bytes_there(dk_classifier_work(ROWS, vocab) * sizeof(float));
		int32_t *targets_there = bytes_there(sizeof(targets));

		dk_use(place.queue);
		dk_copy(targets_there, targets, sizeof(targets));
		const double got = dk_classifier_forward(work, in_there, weight_there, targets_there, ROWS, 1, vocab);
		dk_classifier_backward(din, dweight_there, work, in_there, weight_there, targets_there, ROWS, 1, vocab);
		dk_use(NULL);
		take_as(gradient_type(), dweight, dweight_there, vocab);
		assert_true(fabs(got - loss) < 0.01);
		for (int i = 0; i < vocab; i++)
			assert_true(fabs(dweight[i] - want[i]) <= slack[i]);
	}
}

TEST_RUNS(classifier_takes_a_large_vocabulary, in_each_place(try_large_vocabulary));

static void try_large_logits(void)
{
	const float in[] = {100, 0}, weight[] = {50, 0, -50, 0, 49.75f, 0}, zeros[6] = {0};
	const int32_t targets[] = {2};
	float dweight[6];
	float *in_there = give(in, 2), *weight_there = give(weight, 6), *din = give(zeros, 2);
	float *dweight_there = give_as(gradient_type(), zeros, 6);
	float *work = bytes_there(dk_classifier_work(1, 3) * sizeof(float));
	int32_t *targets_there = bytes_there(sizeof(targets));

	dk_use(place.queue);
	dk_copy(targets_there, targets, sizeof(targets));
	double loss = dk_classifier_forward(work, in_there, weight_there, targets_there, 1, 2, 3);
	dk_classifier_backward(din, dweight_there, work, in_there, weight_there, targets_there, 1, 2, 3);
	dk_use(NULL);
	take_as(gradient_type(), dweight, dweight_there, 6);
	if (place.type == DK_F32) /* bf16 has no such large logits so near to each other */
		assert_true(fabs(loss - (25 + log1p(exp(-25)))) < 1e-2);
	assert_true(isfinite(loss));
	assert_true(fabsf(dweight[0] - 100) < 0.1f && fabsf(dweight[4] + 100) < 0.1f);
	assert_true(dweight[2] == 0 || fabsf(dweight[2]) < 1e-30f);
}

TEST_RUNS(classifier_survives_large_logits, in_each_place(try_large_logits));

static void try_not_a_number(void)
{
	const float in[] = {NAN, 1, 2, 3}, weight[] = {1, 2, 3, 4, 5, 6, 7, 8};
	const int32_t targets[] = {0, 1};
	float out[4];
	float *in_there = give(in, 4), *weight_there = give(weight, 8), *out_there = give(weight, 4);
	float *work = bytes_there(dk_classifier_work(2, 4) * sizeof(float));
	int32_t *targets_there = bytes_there(sizeof(targets));

	dk_use(place.queue);
	dk_copy(targets_there, targets, sizeof(targets));
	assert_true(isnan(dk_classifier_forward(work, in_there, weight_there, targets_there, 2, 2, 4)));
	dk_gelu_forward(out_there, in_there, 4);
	dk_use(NULL);
	take(out, out_there, 4);
	assert_true(isnan(out[0]) && !isnan(out[1]));
}

TEST_RUNS(a_number_that_is_none_stays_visible, in_each_place(try_not_a_number));

/* What a place keeps to itself until it is asked: nothing else waits for the work. */
static void try_results_that_stay(void)
{
	enum { N = 1001, PIECE = 300, PIECES = 4, ROWS = 3, WIDTH = 5, VOCAB = 7 };
	const int32_t targets[ROWS] = {6, 0, 3};
	float x[N], in[ROWS * WIDTH], weight[VOCAB * WIDTH];
	double got[PIECES + 1];
	float largest = 0;

	for (int i = 0; i < N; i++)
		x[i] = (float)uniform();
	for (int i = 0; i < ROWS * WIDTH; i++)
		in[i] = (float)uniform();
	for (int i = 0; i < VOCAB * WIDTH; i++)
		weight[i] = (float)uniform();
	float *x_there = give_as(gradient_type(), x, N), *in_there = give(in, ROWS * WIDTH);
	float *weight_there = give(weight, VOCAB * WIDTH);
	float *work = bytes_there(dk_classifier_work(ROWS, VOCAB) * sizeof(float));
	double *sums = bytes_there(sizeof(got));
	float *largest_there = bytes_there(sizeof(largest));
	int32_t *targets_there = bytes_there(sizeof(targets));

	memset(got, 0, sizeof(got));
	dk_use(place.queue);
	dk_copy(targets_there, targets, sizeof(targets));
	dk_copy(sums, got, sizeof(got));
	dk_largest_at(largest_there, &(dk_array){x_there, N}, 1);
	dk_squares_at(sums, &(dk_array){x_there, N}, 1, PIECE);
	for (int i = 0; i < 2; i++)
		dk_classifier_loss(sums + PIECES, work, in_there, weight_there, targets_there, ROWS, WIDTH, VOCAB);
	dk_copy(got, sums, sizeof(got));
	dk_copy(&largest, largest_there, sizeof(largest));
	assert_true(dk_largest(x_there, N) == largest);
	assert_true(largest > 0);
	const size_t piece = PIECE * type_bytes(gradient_type());
	for (int i = 0; i < PIECES; i++) {
		const float *begin = (const float *)(void *)((char *)x_there + (size_t)i * piece);
		assert_true(got[i] == dk_sum_squares(begin, i < PIECES - 1 ? PIECE : N - i * PIECE));
	}
	const double loss = dk_classifier_forward(work, in_there, weight_there, targets_there, ROWS, WIDTH, VOCAB);
	assert_true(loss > 0 && got[PIECES] == loss + loss);
	dk_largest_at(largest_there, &(dk_array){x_there, 0}, 1);
	dk_copy(&largest, largest_there, sizeof(largest));
	assert_true(dk_largest(x_there, 1) > 0 && largest == 0);
	assert_null(dk_failure());
	dk_use(NULL);
}

TEST_RUNS(results_stay_where_the_work_is_done, in_each_place(try_results_that_stay));
