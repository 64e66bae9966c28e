/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan bare */
/* examples/models/gpt: gradients by finite differences, sizes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "models/gpt.h"
#include "tests/support/test.h"

/* A model over plain memory. */
struct rig {
	gpt *model;
	int count;
	const ddp_param *params;
	float **data, **grad;
	int *told; /* how often each parameter was announced */
	int last;  /* the one announced last */
};

static int64_t elements(const ddp_param *p)
{
	return p->ndim == 2 ? p->shape[0] * p->shape[1] : p->shape[0];
}

static struct rig make_rig(const gpt_config *config, int batch)
{
	struct rig r = {.model = gpt_create(config, batch, 1)};

	assert_non_null(r.model);
	r.params = gpt_params(r.model, &r.count);
	r.data = calloc((size_t)r.count, sizeof(float *));
	r.grad = calloc((size_t)r.count, sizeof(float *));
	r.told = calloc((size_t)r.count, sizeof(int));
	assert_true(r.data != NULL && r.grad != NULL && r.told != NULL);
	for (int i = 0; i < r.count; i++) {
		r.data[i] = calloc((size_t)elements(&r.params[i]), sizeof(float));
		r.grad[i] = calloc((size_t)elements(&r.params[i]), sizeof(float));
		assert_true(r.data[i] != NULL && r.grad[i] != NULL);
	}
	gpt_bind(r.model, r.data, r.grad);
	gpt_initialise(r.model, 3);
	return r;
}

static void free_rig(struct rig *r)
{
	for (int i = 0; i < r->count; i++) {
		free(r->data[i]);
		free(r->grad[i]);
	}
	free(r->data);
	free(r->grad);
	free(r->told);
	gpt_free(r->model);
}

static ddp_status count_ready(void *user, int param)
{
	struct rig *r = user;

	r->told[param]++;
	r->last = param;
	return DDP_OK;
}

static ddp_status refuse(void *user, int param)
{
	int *calls = user;

	++*calls;
	return DDP_ERR_PEER;
}

static void fill_tokens(int32_t *tokens, int count, int vocab)
{
	for (int i = 0; i < count; i++)
		tokens[i] = (int32_t)((i * i * 7 + i * 3 + 1) % vocab);
}

/* Larger than at the start, so that every path carries some gradient. */
static void roughen(struct rig *r)
{
	for (int i = 0; i < r->count; i++)
		for (int64_t k = 0; k < elements(&r->params[i]); k++)
			r->data[i][k] = r->data[i][k] * 8 + 0.1f * sinf((float)(k * 13 + i));
}

/* Along the direction of its own gradient, each tensor's slope must be the
   gradient's norm. */
static void check_tensor(struct rig *r, int param, const int32_t *tokens, int batch,
                         int length)
{
	int64_t n = elements(&r->params[param]);
	float *kept = malloc((size_t)n * sizeof(float));
	double norm = sqrt(dk_sum_squares(r->grad[param], n)), step = 0.02 / norm;
	double loss[2];

	assert_non_null(kept);
	assert_true(norm > 1e-4);
	memcpy(kept, r->data[param], (size_t)n * sizeof(float));
	for (int side = 0; side < 2; side++) {
		double h = side == 0 ? step : -step;
		for (int64_t k = 0; k < n; k++)
			r->data[param][k] = (float)(kept[k] + h * r->grad[param][k] / norm);
		loss[side] = gpt_forward(r->model, tokens, batch, length);
	}
	memcpy(r->data[param], kept, (size_t)n * sizeof(float));
	free(kept);
	double slope = (loss[0] - loss[1]) / (2 * step);
	if (!(fabs(slope - norm) <= 0.01 * norm))
		fail_msg("%s: gradient %.6g, by differences %.6g", r->params[param].name, norm, slope);
}

static void check_gradients(const gpt_config *config, int batch, int length, double dropout)
{
	struct rig r = make_rig(config, batch);
	int32_t tokens[64];

	assert_true(batch * (length + 1) <= 64);
	fill_tokens(tokens, batch * (length + 1), config->vocab);
	roughen(&r);
	gpt_set_dropout(r.model, dropout, 5, 3);
	gpt_forward(r.model, tokens, batch, length);
	assert_int_equal(gpt_backward(r.model, count_ready, NULL, &r), DDP_OK);
	assert_int_equal(r.last, 0);
	for (int i = 0; i < r.count; i++) {
		assert_int_equal(r.told[i], 1);
		check_tensor(&r, i, tokens, batch, length);
	}
	free_rig(&r);
}

TEST(gradients_are_those_of_the_loss)
{
	const gpt_config tied = {.layers = 2, .heads = 3, .width = 15, .vocab = 23, .length = 9};
	const gpt_config untied = {.layers = 1, .heads = 2, .width = 8, .vocab = 11, .length = 5,
		.untied = true};

	check_gradients(&tied, 3, 9, 0);
	check_gradients(&tied, 2, 4, 0);
	check_gradients(&untied, 4, 5, 0);
	check_gradients(&untied, 4, 5, 0.3);
}

/* Keeps the dense part as it is when it is told ready, to see that it stays. */
struct dense_part {
	struct rig rig;
	float *wte;
	int64_t elements;
};

static ddp_status keep_dense(void *user, int param)
{
	struct dense_part *part = user;

	if (param == 0)
		memcpy(part->wte, part->rig.grad[0], (size_t)part->elements * sizeof(float));
	return count_ready(&part->rig, param);
}

static ddp_status take_rows(void *user, int param, const int32_t *index, const float *values,
                            int64_t count)
{
	struct dense_part *part = user;

	assert_int_equal(param, 0);
	assert_int_equal(part->rig.told[0], 1);
	assert_memory_equal(part->wte, part->rig.grad[0], (size_t)part->elements * sizeof(float));
	dk_add_rows(part->rig.grad[0], index, values, count, part->rig.params[0].shape[1]);
	return DDP_OK;
}

TEST(embedding_comes_as_rows_after_the_dense_part)
{
	const gpt_config config = {.layers = 1, .heads = 2, .width = 8, .vocab = 11, .length = 5};
	struct rig whole = make_rig(&config, 3);
	struct dense_part part = {.rig = make_rig(&config, 3)};
	int32_t tokens[18];

	part.elements = elements(&part.rig.params[0]);
	part.wte = calloc((size_t)part.elements, sizeof(float));
	assert_non_null(part.wte);
	assert_int_equal(part.rig.params[0].sparse_rows, 3 * 5);
	fill_tokens(tokens, 18, config.vocab);
	gpt_forward(whole.model, tokens, 3, 5);
	assert_int_equal(gpt_backward(whole.model, count_ready, NULL, &whole), DDP_OK);
	gpt_forward(part.rig.model, tokens, 3, 5);
	assert_int_equal(gpt_backward(part.rig.model, keep_dense, take_rows, &part), DDP_OK);
	for (int i = 0; i < whole.count; i++) {
		assert_int_equal(part.rig.told[i], 1);
		assert_memory_equal(whole.grad[i], part.rig.grad[i],
		                    (size_t)elements(&whole.params[i]) * sizeof(float));
	}
	free(part.wte);
	free_rig(&part.rig);
	free_rig(&whole);
}

TEST(two_micro_batches_add_up)
{
	const gpt_config config = {.layers = 1, .heads = 2, .width = 8, .vocab = 11, .length = 5};
	struct rig whole = make_rig(&config, 2), parts = make_rig(&config, 2);
	int32_t tokens[12];

	fill_tokens(tokens, 12, config.vocab);
	double loss = gpt_forward(whole.model, tokens, 2, 5);
	assert_int_equal(gpt_backward(whole.model, count_ready, NULL, &whole), DDP_OK);
	double sum = gpt_forward(parts.model, tokens, 1, 5);
	assert_int_equal(gpt_backward(parts.model, count_ready, NULL, &parts), DDP_OK);
	sum += gpt_forward(parts.model, tokens + 6, 1, 5);
	assert_int_equal(gpt_backward(parts.model, count_ready, NULL, &parts), DDP_OK);
	assert_true(fabs(loss - sum) < 1e-5 * loss);
	for (int i = 0; i < whole.count; i++)
		for (int64_t k = 0; k < elements(&whole.params[i]); k++)
			assert_true(fabsf(whole.grad[i][k] - parts.grad[i][k]) <=
			            1e-5f + 1e-4f * fabsf(whole.grad[i][k]));
	free_rig(&whole);
	free_rig(&parts);
}

/* The classifier of the last position, by the two ways there are. */
TEST(next_logits_are_those_that_the_loss_sees)
{
	const gpt_config config = {.layers = 1, .heads = 2, .width = 8, .vocab = 11, .length = 5};
	struct rig r = make_rig(&config, 1);
	int32_t tokens[6];
	float logits[11];
	double total = 0, losses = 0;

	roughen(&r);
	fill_tokens(tokens, 6, config.vocab);
	for (int length = 1; length <= 5; length++) {
		gpt_next_logits(r.model, tokens, length, logits);
		total = 0;
		for (int i = 0; i < 11; i++)
			total += exp(logits[i]);
		losses += log(total) - logits[tokens[length]];
	}
	assert_true(fabs(gpt_forward(r.model, tokens, 1, 5) - losses) < 1e-4);
	free_rig(&r);
}

TEST(the_first_error_of_ready_ends_the_announcements)
{
	const gpt_config config = {.layers = 1, .heads = 1, .width = 4, .vocab = 5, .length = 3};
	struct rig r = make_rig(&config, 1);
	const int32_t tokens[] = {1, 2, 3, 4};
	int calls = 0;

	gpt_forward(r.model, tokens, 1, 3);
	assert_int_equal(gpt_backward(r.model, refuse, NULL, &calls), DDP_ERR_PEER);
	assert_int_equal(calls, 1);
	free_rig(&r);
}

TEST(sizes_that_do_not_divide_are_named)
{
	gpt_config config = {.layers = 1, .heads = 3, .width = 16, .vocab = 5, .length = 3};
	char why[160] = "";

	assert_false(gpt_config_valid(&config, why, sizeof(why)));
	assert_string_equal(why, "width 16 is not a multiple of the 3 heads");
	config.heads = 0;
	assert_false(gpt_config_valid(&config, why, sizeof(why)));
	config = (gpt_config){.layers = 1, .heads = 1, .width = 1024, .vocab = 5, .length = 3};
	assert_false(gpt_config_valid(&config, why, sizeof(why)));
	assert_non_null(strstr(why, "give more heads"));
	config.heads = 16;
	assert_true(gpt_config_valid(&config, why, sizeof(why)));
}

/* Binds the model to the parameters in bf16 or f16, in memory to be freed. */
static uint16_t **narrow(struct rig *r, bool f16)
{
	uint16_t **narrow = calloc((size_t)r->count, sizeof(*narrow));

	assert_non_null(narrow);
	for (int i = 0; i < r->count; i++) {
		const int64_t n = elements(&r->params[i]);
		narrow[i] = calloc((size_t)n, sizeof(**narrow));
		assert_non_null(narrow[i]);
		if (f16)
			dk_to_f16(narrow[i], r->data[i], n, 1);
		else
			dk_to_bf16(narrow[i], r->data[i], n);
	}
	gpt_bind(r->model, (float **)(void *)narrow, r->grad);
	return narrow;
}

static double apart(const float *a, const float *b, int64_t n)
{
	double squares = 0, difference = 0;

	for (int64_t i = 0; i < n; i++) {
		squares += (double)a[i] * a[i];
		difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
	}
	return sqrt(difference / squares);
}

static ddp_status add_rows(void *user, int param, const int32_t *index, const float *values, int64_t count)
{
	struct rig *r = user;

	dk_add_rows(r->grad[param], index, values, count, r->params[param].shape[1]);
	return DDP_OK;
}

/* What of bf16's 8 bits, or of f16's 11, is left after two layers, forward and backward. f16's loss is scaled. */
static void check_mixed(double dropout, bool f16)
{
	const double scale = f16 ? 64 : 1, share = f16 ? 0.125 : 1; /* share: of bf16's errors */
	gpt_config config = {.layers = 2, .heads = 3, .width = 48, .vocab = 61, .length = 17};
	enum { BATCH = 2 };
	int32_t tokens[BATCH * 18];
	float logits[2][61];
	double loss[2];

	fill_tokens(tokens, BATCH * 18, config.vocab);
	struct rig plain = make_rig(&config, BATCH);
	config.mixed = true;
	config.f16 = f16;
	struct rig mixed = make_rig(&config, BATCH);
	uint16_t **params = narrow(&mixed, f16);
	dk_queue *queue = f16 ? dk_open_f16() : dk_open_mixed();
	assert_non_null(queue);
	gpt_scale_loss(mixed.model, scale);
	gpt_set_dropout(plain.model, dropout, 5, 3);
	gpt_set_dropout(mixed.model, dropout, 5, 3);
	loss[0] = gpt_forward(plain.model, tokens, BATCH, config.length);
	assert_int_equal(gpt_backward(plain.model, count_ready, add_rows, &plain), DDP_OK);
	gpt_next_logits(plain.model, tokens, 9, logits[0]);
	dk_use(queue);
	loss[1] = gpt_forward(mixed.model, tokens, BATCH, config.length);
	assert_int_equal(gpt_backward(mixed.model, count_ready, add_rows, &mixed), DDP_OK);
	gpt_next_logits(mixed.model, tokens, 9, logits[1]);
	assert_null(dk_failure());
	dk_use(NULL);
	assert_true(fabs(loss[1] - loss[0]) < share * 2e-3 * loss[0]);
	assert_true(apart(logits[0], logits[1], config.vocab) < share * 0.03);
	for (int i = 0; i < plain.count; i++) {
		dk_scale(mixed.grad[i], elements(&plain.params[i]), (float)(1 / scale));
		const double error = apart(plain.grad[i], mixed.grad[i], elements(&plain.params[i]));
		if (!(error < share * 0.05))
			fail_msg("the gradient of %s is off by %.3g", plain.params[i].name, error);
		free(params[i]);
	}
	free(params);
	dk_close(queue);
	free_rig(&plain);
	free_rig(&mixed);
}

TEST(a_mixed_model_is_that_of_f32_within_rounding)
{
	for (int f16 = 0; f16 < 2; f16++) {
		check_mixed(0, f16 != 0);
		check_mixed(0.2, f16 != 0);
	}
}

TEST(dropout_hangs_on_its_seed_and_the_pass_alone)
{
	const gpt_config config = {.layers = 2, .heads = 2, .width = 32, .vocab = 30, .length = 8};
	static const struct { double probability; uint64_t seed, pass; } passes[] = {
		{0, 0, 0}, {0.2, 1, 0}, {0.2, 1, 1}, {0.2, 2, 0}, {0.3, 1, 0}, {0.2, 1, 0},
	};
	enum { PASSES = sizeof(passes) / sizeof(passes[0]) };
	struct rig r = make_rig(&config, 4);
	float with[30], without[30];
	double loss[PASSES];
	int32_t tokens[36];

	fill_tokens(tokens, 36, config.vocab);
	roughen(&r);
	for (int i = 0; i < PASSES; i++) {
		gpt_set_dropout(r.model, passes[i].probability, passes[i].seed, passes[i].pass);
		loss[i] = gpt_forward(r.model, tokens, 4, 8);
	}
	for (int i = 1; i < PASSES - 1; i++)
		for (int k = 0; k < i; k++)
			assert_true(loss[i] != loss[k]);
	assert_true(loss[PASSES - 1] == loss[1]);
	/* What comes next is asked without. */
	gpt_next_logits(r.model, tokens, 8, with);
	gpt_set_dropout(r.model, 0, 0, 0);
	gpt_next_logits(r.model, tokens, 8, without);
	assert_memory_equal(with, without, sizeof(with));
	free_rig(&r);
}

/* A pass that keeps the layers' inputs alone has the bits of one that keeps all, in less memory. */
static void check_recompute(bool mixed, double dropout)
{
	gpt_config config = {.layers = 3, .heads = 3, .width = 48, .vocab = 61, .length = 16, .mixed = mixed};
	enum { BATCH = 2, ROWS = BATCH * 16 };
	dk_queue *queue = mixed ? dk_open_mixed() : NULL;
	int32_t tokens[2][BATCH * 17];

	struct rig plain = make_rig(&config, BATCH);
	config.recompute = true;
	struct rig again = make_rig(&config, BATCH);
	uint16_t **params[] = {mixed ? narrow(&plain, false) : NULL, mixed ? narrow(&again, false) : NULL};
	fill_tokens(tokens[0], BATCH * 17, config.vocab);
	fill_tokens(tokens[1], BATCH * 17, config.vocab - 7);
	dk_use(queue);
	for (int pass = 0; pass < 2; pass++) {
		struct rig *rigs[] = {&plain, &again};
		double loss[2];
		for (int i = 0; i < 2; i++) {
			gpt_set_dropout(rigs[i]->model, dropout, 5, (uint64_t)pass);
			loss[i] = gpt_forward(rigs[i]->model, tokens[pass], BATCH, config.length);
			assert_int_equal(gpt_backward(rigs[i]->model, count_ready, add_rows, rigs[i]), DDP_OK);
		}
		assert_memory_equal(&loss[0], &loss[1], sizeof(loss[0]));
		for (int i = 0; i < plain.count; i++)
			assert_memory_equal(plain.grad[i], again.grad[i], (size_t)elements(&plain.params[i]) * sizeof(float));
	}
	dk_use(NULL);
	/* Of each layer but one: 15 times the stream, two layernorms' statistics, and attention's. */
	const size_t each = (size_t)ROWS * 48 * 15 * (mixed ? sizeof(uint16_t) : sizeof(float)) +
	                    (size_t)ROWS * (4 + 3) * sizeof(float);
	assert_int_equal(gpt_activation_bytes(plain.model) - gpt_activation_bytes(again.model),
	                 (size_t)(config.layers - 1) * each);
	for (int i = 0; i < plain.count && mixed; i++) {
		free(params[0][i]);
		free(params[1][i]);
	}
	free(params[0]);
	free(params[1]);
	dk_close(queue);
	free_rig(&plain);
	free_rig(&again);
}

TEST(layers_that_are_computed_again_give_the_same_bits)
{
	for (int mixed = 0; mixed < 2; mixed++) {
		check_recompute(mixed != 0, 0);
		check_recompute(mixed != 0, 0.2);
	}
}

int main(void)
{
	dk_set_threads(1);
	return test_run(NULL, NULL);
}
