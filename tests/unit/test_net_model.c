/* examples/models/net: gradients by finite differences through every kind of layer, dropout
   that is the same for the same counter, evaluation by running statistics. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels.h"
#include "models/net.h"
#include "tests/support/kernel_values.h"

enum { BATCH = 3, SIDE = 8, CHANNELS = 2, CLASSES = 4, PARAMS_MAX = 16 };

/* A network over plain memory. */
struct rig {
	net *net;
	int count;
	const ddp_param *params;
	float *data[PARAMS_MAX], *grad[PARAMS_MAX], images[BATCH * SIDE * SIDE * CHANNELS];
	int told[PARAMS_MAX]; /* how often each parameter was announced */
	int32_t labels[BATCH];
};

static int64_t elements(const ddp_param *p)
{
	int64_t n = 1;

	for (int i = 0; i < p->ndim; i++)
		n *= p->shape[i];
	return n;
}

/* A block with a shortcut, as ResNet has them: what it reads is read twice. */
static void build(net *n)
{
	int x = net_relu(n, net_batch_norm(n, net_convolution(n, NET_IMAGES, "conv1", 4, 3, 1, 1, false), "bn1"));
	int y = net_relu(n, net_convolution(n, x, "conv2", 5, 3, 2, 1, true));

	y = net_batch_norm(n, net_convolution(n, y, "conv3", 5, 3, 1, 1, false), "bn2");
	int shortcut = net_convolution(n, x, "down", 5, 1, 2, 0, false);
	x = net_dropout(n, net_relu(n, net_add(n, y, shortcut)), 0.25);
	x = net_average_pool(n, net_max_pool(n, x, 3, 1, 1));
	net_linear(n, x, "fc", CLASSES);
}

static void make_rig(struct rig *r)
{
	const ddp_image_shape shape = {CHANNELS, SIDE, SIDE};

	*r = (struct rig){.net = net_create(BATCH, &shape)};
	assert_non_null(r->net);
	build(r->net);
	assert_true(net_finish(r->net));
	r->params = net_params(r->net, &r->count);
	assert_in_range(r->count, 1, PARAMS_MAX);
	for (int i = 0; i < r->count; i++) {
		r->data[i] = make((size_t)elements(&r->params[i]), sizeof(float));
		r->grad[i] = make((size_t)elements(&r->params[i]), sizeof(float));
	}
	net_bind(r->net, r->data, r->grad);
	net_initialise(r->net, 5);
	random_state = 3;
	for (size_t i = 0; i < sizeof(r->images) / sizeof(r->images[0]); i++)
		r->images[i] = (float)uniform();
	for (int i = 0; i < BATCH; i++)
		r->labels[i] = i % CLASSES;
}

static void free_rig(struct rig *r)
{
	for (int i = 0; i < r->count; i++) {
		free(r->data[i]);
		free(r->grad[i]);
	}
	net_free(r->net);
}

static double loss_of(struct rig *r)
{
	net_random random = {.seed = 9, .counter = 100};

	return net_forward(r->net, r->images, r->labels, BATCH, &random).loss;
}

static ddp_status count_ready(void *user, int param)
{
	((struct rig *)user)->told[param]++;
	return DDP_OK;
}

/* In single precision, and across the corners of ReLU and of maxima, a difference is rough:
   the gradient of a whole parameter along itself, which has few corners, is compared. */
static void check_param(struct rig *r, int param, const float *random)
{
	const int64_t n = elements(&r->params[param]);
	const float h = 1e-4f;
	double slope = 0, loss[2];

	for (int64_t i = 0; i < n; i++)
		slope += (double)r->grad[param][i] * random[i];
	for (int side = 0; side < 2; side++) {
		for (int64_t i = 0; i < n; i++)
			r->data[param][i] += (side == 0 ? h : -2 * h) * random[i];
		loss[side] = loss_of(r);
	}
	for (int64_t i = 0; i < n; i++)
		r->data[param][i] += h * random[i];
	const double differences = (loss[0] - loss[1]) / (2 * (double)h);
	if (!(fabs(differences - slope) < 0.03 * (fabs(slope) + 0.3)))
		fail_msg("%s: gradient %g, by differences %g", r->params[param].name, slope, differences);
}

static void gradients_are_those_of_the_loss(void **state)
{
	struct rig r;
	float random[512];

	(void)state;
	make_rig(&r);
	loss_of(&r);
	assert_int_equal(net_backward(r.net, count_ready, &r), DDP_OK);
	for (int i = 0; i < r.count; i++) {
		assert_int_equal(r.told[i], 1);
		assert_true(elements(&r.params[i]) <= 512);
		for (int round = 0; round < 3; round++) {
			for (int64_t k = 0; k < elements(&r.params[i]); k++)
				random[k] = (float)uniform();
			check_param(&r, i, random);
		}
	}
	free_rig(&r);
}

static void dropout_hangs_on_its_counter(void **state)
{
	struct rig r;
	net_random random = {.seed = 9, .counter = 100};

	(void)state;
	make_rig(&r);
	const double first = loss_of(&r);
	assert_true(loss_of(&r) == first);
	assert_true(net_forward(r.net, r.images, r.labels, BATCH, &random).loss == first);
	assert_true(random.counter == 100 + BATCH * 4 * 4 * 5 / 4);
	assert_true(net_forward(r.net, r.images, r.labels, BATCH, &random).loss != first);
	free_rig(&r);
}

static void evaluation_changes_nothing(void **state)
{
	struct rig r;
	int64_t count;
	float before[64];

	(void)state;
	make_rig(&r);
	for (int i = 0; i < 200; i++)
		loss_of(&r);
	float *buffers = net_buffers(r.net, &count);
	assert_int_equal(count, 2 * (4 + 5));
	memcpy(before, buffers, (size_t)count * sizeof(float));
	/* The statistics have become the batch's, so that an image by itself gives its part. */
	const net_result all = net_forward(r.net, r.images, r.labels, BATCH, NULL);
	double sum = 0;
	for (int i = 0; i < BATCH; i++)
		sum += net_forward(r.net, r.images + i * SIDE * SIDE * CHANNELS, r.labels + i, 1, NULL).loss;
	assert_true(fabs(sum - all.loss) < 1e-4);
	assert_memory_equal(before, buffers, (size_t)count * sizeof(float));
	free_rig(&r);
}

static void images_smaller_than_a_window_are_refused(void **state)
{
	(void)state;
	for (int side = 1; side <= 6; side++) {
		net *n = net_create(BATCH, &(ddp_image_shape){CHANNELS, side, side});
		assert_non_null(n);
		int x = net_max_pool(n, net_convolution(n, NET_IMAGES, "conv1", 4, 5, 1, 1, true), 2, 2, 0);
		net_linear(n, x, "fc", CLASSES);
		/* Of 4 x 4 the convolution leaves 2 x 2. */
		assert_int_equal(net_is_too_small(n), side < 4);
		assert_int_equal(net_finish(n), side >= 4);
		net_free(n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gradients_are_those_of_the_loss),
		cmocka_unit_test(dropout_hangs_on_its_counter),
		cmocka_unit_test(evaluation_changes_nothing),
		cmocka_unit_test(images_smaller_than_a_window_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
