/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "models/gpt.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/test.h"

static const gpt_config tiny = {.layers = 2, .heads = 3, .width = 24, .vocab = 61, .length = 9};
enum { BATCH = 2, MOST_PARAMS = 64 };

static ddp_status ready(void *user, int index)
{
	return DDP_OK;
}

static int64_t elements(const ddp_param *p)
{
	return p->ndim == 2 ? p->shape[0] * p->shape[1] : p->shape[0];
}

/* To bf16, which takes the place of the f32. */
static void narrow(float *x, int64_t n)
{
	uint16_t *made = (uint16_t *)floats(n);

	dk_to_bf16(made, x, n);
	memcpy(x, made, (size_t)n * sizeof(*made));
}

/* The loss; and gradients, one after the other. */
static double pass(dk_queue *queue, bool mixed, float **grad, int64_t *total)
{
	gpt_config config = tiny;
	config.mixed = mixed;
	gpt *model = gpt_create(&config, BATCH, 1);
	float *data[MOST_PARAMS], *grads[MOST_PARAMS];
	int32_t tokens[BATCH * 10];
	int count;

	assert_non_null(model);
	const ddp_param *params = gpt_params(model, &count);
	assert_true(count <= MOST_PARAMS);
	for (int i = 0; i < count; i++) {
		data[i] = floats(elements(&params[i]));
		grads[i] = floats(elements(&params[i]));
	}
	gpt_bind(model, data, grads);
	gpt_initialise(model, 5);
	for (int i = 0; i < count && mixed; i++)
		narrow(data[i], elements(&params[i]));
	for (int i = 0; i < BATCH * 10; i++)
		tokens[i] = (i * 7 + 3) % 61;
	dk_use(queue);
	const double loss = gpt_forward(model, tokens, BATCH, tiny.length);
	assert_int_equal(gpt_backward(model, ready, NULL, NULL), DDP_OK);
	assert_null(dk_failure());
	dk_use(NULL);
	*total = 0;
	for (int i = 0; i < count; i++)
		*total += elements(&params[i]);
	*grad = floats(*total);
	for (int64_t i = 0, at = 0; i < count; at += elements(&params[i]), i++)
		memcpy(*grad + at, grads[i], (size_t)elements(&params[i]) * sizeof(float));
	gpt_free(model);
	return loss;
}

/* The norm of the difference over that of `b`. */
static double apart(const float *a, const float *b, int64_t n)
{
	double difference = 0, norm = 0;

	for (int64_t i = 0; i < n; i++) {
		difference += (double)(a[i] - b[i]) * (a[i] - b[i]);
		norm += (double)b[i] * b[i];
	}
	return sqrt(difference / norm);
}

/* Of DK_MIXED, what bf16's 8 bits leave. */
void try_model_case(void)
{
	const bool mixed = place.type == DK_MIXED;
	float *there, *want;
	int64_t total;

	if ((place.type != DK_F32 && !mixed) || !place.host_memory)
		return;
	const double loss = pass(NULL, false, &want, &total);
	const double loss_there = pass(place.queue, mixed, &there, &total);
	assert_true(fabs(loss - loss_there) < (mixed ? 2e-3 * loss : 1e-4));
	if (mixed) {
		assert_true(apart(there, want, total) < 0.05);
		return;
	}
	for (int64_t i = 0; i < total; i++)
		if (!(fabsf(there[i] - want[i]) <= 1e-4f * (fabsf(want[i]) + 1)))
			fail_msg("gradient %ld is %.8g, on the host %.8g", (long)i, there[i], want[i]);
}
