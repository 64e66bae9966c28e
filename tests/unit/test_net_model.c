/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* examples/models/net: gradients by finite differences through every kind of layer and through
   ResNets, dropout that is the same for the same counter, evaluation by running statistics. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "models/resnet.h"
#include "tests/support/kernel_values.h"
#include "tests/support/small_net.h"
#include "tests/support/test.h"

enum { PARAMS_MAX = 320 };

/* A network over plain memory. */
struct rig {
	net *net;
	int count, batch;
	const ddp_param *params;
	float *data[PARAMS_MAX], *grad[PARAMS_MAX], *images;
	int told[PARAMS_MAX]; /* how often each parameter was announced */
	int32_t *labels;
};

static int64_t elements(const ddp_param *p)
{
	int64_t n = 1;

	for (int i = 0; i < p->ndim; i++)
		n *= p->shape[i];
	return n;
}

/* A ResNet, or, without its shape, the small network. */
static void make_rig(struct rig *r, const net_resnet_shape *shape, int batch, int side)
{
	const size_t numbers = (size_t)(batch * side * side * CHANNELS);

	*r = (struct rig){.net = net_create(batch, &(ddp_image_shape){CHANNELS, side, side}), .batch = batch,
		.images = make(numbers, sizeof(float)), .labels = make((size_t)batch, sizeof(int32_t))};
	assert_non_null(r->net);
	if (shape != NULL)
		net_resnet(r->net, shape);
	else
		build_small_net(r->net);
	assert_true(net_finish(r->net));
	r->params = net_params(r->net, &r->count);
	assert_true(r->count >= 1 && r->count <= PARAMS_MAX);
	for (int i = 0; i < r->count; i++) {
		r->data[i] = make((size_t)elements(&r->params[i]), sizeof(float));
		if (r->params[i].kind == DDP_PARAM_TRAINED)
			r->grad[i] = make((size_t)elements(&r->params[i]), sizeof(float));
	}
	net_bind(r->net, r->data, r->grad);
	net_initialise(r->net, 5);
	random_state = 3;
	for (size_t i = 0; i < numbers; i++)
		r->images[i] = (float)uniform();
	for (int i = 0; i < batch; i++)
		r->labels[i] = i % CLASSES;
}

static void free_rig(struct rig *r)
{
	for (int i = 0; i < r->count; i++) {
		free(r->data[i]);
		free(r->grad[i]);
	}
	free(r->images);
	free(r->labels);
	net_free(r->net);
}

static double loss_of(struct rig *r)
{
	net_random random = {.seed = 9, .counter = 100};

	return net_forward(r->net, r->images, r->labels, r->batch, &random).loss;
}

static ddp_status count_ready(void *user, int param)
{
	((struct rig *)user)->told[param]++;
	return DDP_OK;
}

static double length_of(const float *x, int64_t n)
{
	double squares = 0;

	for (int64_t i = 0; i < n; i++)
		squares += (double)x[i] * x[i];
	return sqrt(squares);
}

/* In single precision, and across the corners of ReLU and of maxima, a difference is rough: a
   whole parameter is moved, halfway between its gradient's direction, along which the loss
   changes most, and a random one. */
static void check_param(struct rig *r, int param, double h, double tolerance)
{
	const int64_t n = elements(&r->params[param]);
	const double length = length_of(r->grad[param], n) + 1e-30;
	float *before = make((size_t)n, sizeof(float)), *random = make((size_t)n, sizeof(float));
	double slope = 0, loss[2];

	memcpy(before, r->data[param], (size_t)n * sizeof(float));
	for (int64_t i = 0; i < n; i++)
		random[i] = (float)uniform();
	const double random_length = length_of(random, n);
	for (int64_t i = 0; i < n; i++) {
		random[i] = (float)(r->grad[param][i] / length + random[i] / random_length);
		slope += (double)r->grad[param][i] * random[i];
	}
	for (int side = 0; side < 2; side++) {
		for (int64_t i = 0; i < n; i++)
			r->data[param][i] = (float)(before[i] + (side == 0 ? h : -h) * random[i]);
		loss[side] = loss_of(r);
	}
	memcpy(r->data[param], before, (size_t)n * sizeof(float));
	free(before);
	free(random);
	const double differences = (loss[0] - loss[1]) / (2 * h);
	if (!(fabs(differences - slope) < tolerance * (fabs(slope) + 0.3)))
		fail_msg("%s: gradient %g, by differences %g", r->params[param].name, slope, differences);
}

/* Of each parameter, so many times. */
static void check_gradients(struct rig *r, int times, double h, double tolerance)
{
	loss_of(r);
	assert_int_equal(net_backward(r->net, count_ready, r), DDP_OK);
	for (int i = 0; i < r->count; i++) {
		assert_int_equal(r->told[i], r->params[i].kind == DDP_PARAM_TRAINED);
		for (int k = 0; k < times && r->grad[i] != NULL; k++)
			check_param(r, i, h, tolerance);
	}
}

TEST(gradients_are_those_of_the_loss)
{
	struct rig r;

	make_rig(&r, NULL, BATCH, SIDE);
	check_gradients(&r, 3, 1e-3, 0.03);
	free_rig(&r);
}

TEST(gradients_of_resnets_are_those_of_the_loss)
{
	static const struct {
		net_resnet_shape shape;
		int side;
	} cases[] = {
		{{.depth = 18, .width = 4, .classes = CLASSES}, 16},
		{{.depth = 18, .width = 4, .classes = CLASSES, .imagenet_stem = true}, 48},
		{{.depth = 50, .width = 4, .classes = CLASSES}, 16},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rig r;
		make_rig(&r, &cases[i].shape, 6, cases[i].side);
		/* Above zero most numbers have no corner near by. */
		for (int k = 0; k < r.count; k++)
			for (int64_t c = 0; strstr(r.params[k].name, "bn") != NULL && c < elements(&r.params[k]); c++)
				r.data[k][c] += strstr(r.params[k].name, ".bias") != NULL ? 2 : 0;
		check_gradients(&r, 1, 1e-3, 0.03);
		free_rig(&r);
	}
}

/* Numbers in tensors of a kind. */
static int64_t numbers_of_kind(const net *n, ddp_tensor_kind kind)
{
	int count;
	int64_t sum = 0;
	const ddp_param *params = net_params(n, &count);

	for (int i = 0; i < count; i++)
		sum += params[i].kind == kind ? elements(&params[i]) : 0;
	return sum;
}

static bool has_param(const net *n, const char *name)
{
	int count;
	const ddp_param *params = net_params(n, &count);

	for (int i = 0; i < count; i++)
		if (strcmp(params[i].name, name) == 0)
			return true;
	return false;
}

TEST(resnets_are_torchvisions)
{
	static const struct {
		int depth, side, classes;
		int64_t params, buffers;
	} cases[] = {
		{18, 224, 1000, 11689512, 9600}, {50, 224, 1000, 25557032, 53120},
		{18, 32, 10, 11173962, 9600}, {50, 32, 10, 23520842, 53120},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const int side = cases[i].side;
		net *n = net_create(1, &(ddp_image_shape){3, side, side});
		assert_non_null(n);
		net_resnet(n, &(net_resnet_shape){.depth = cases[i].depth, .width = 64, .classes = cases[i].classes,
			.imagenet_stem = side > 32});
		assert_int_equal(numbers_of_kind(n, DDP_PARAM_TRAINED), cases[i].params);
		assert_int_equal(numbers_of_kind(n, DDP_BUFFER_BROADCAST), cases[i].buffers);
		assert_true(has_param(n, "layer4.1.bn2.running_var") && has_param(n, "layer2.0.downsample.1.bias"));
		assert_int_equal(has_param(n, "layer1.0.downsample.0.weight"), cases[i].depth == 50);
		assert_int_equal(has_param(n, "layer3.5.conv3.weight"), cases[i].depth == 50);
		net_free(n);
	}
}

TEST(convolutions_of_resnets_start_normal)
{
	const net_resnet_shape shape = {.depth = 18, .width = 16, .classes = CLASSES};
	struct rig r;

	make_rig(&r, &shape, 1, SIDE);
	for (int i = 0; i < r.count; i++) {
		const ddp_param *p = &r.params[i];
		const int64_t n = elements(p);
		double sum = 0, fourth = 0;
		if (p->ndim != 4 || n < 4096)
			continue;
		const double deviation = sqrt(2 / (double)(p->shape[0] * p->shape[1] * p->shape[2]));
		for (int64_t k = 0; k < n; k++) {
			const double x = r.data[i][k] / deviation;
			sum += x;
			fourth += x * x * x * x;
		}
		/* Of a normal variable the mean of fourth powers is 3, their deviation is sqrt(96). */
		assert_true(fabs(length_of(r.data[i], n) / deviation - sqrt((double)n)) < 5 / sqrt(2.0));
		assert_true(fabs(sum) < 5 * sqrt((double)n));
		assert_true(fabs(fourth / (double)n - 3) < 5 * sqrt(96 / (double)n));
	}
	free_rig(&r);
}

TEST(dropout_hangs_on_its_counter)
{
	struct rig r;
	net_random random = {.seed = 9, .counter = 100};

	make_rig(&r, NULL, BATCH, SIDE);
	const double first = loss_of(&r);
	assert_true(loss_of(&r) == first);
	assert_true(net_forward(r.net, r.images, r.labels, BATCH, &random).loss == first);
	assert_true(random.counter == 100 + BATCH * 4 * 4 * 5 / 4);
	assert_true(net_forward(r.net, r.images, r.labels, BATCH, &random).loss != first);
	free_rig(&r);
}

TEST(evaluation_changes_nothing)
{
	struct rig r;
	float before[2][4];

	make_rig(&r, NULL, BATCH, SIDE);
	for (int i = 0; i < 200; i++)
		loss_of(&r);
	assert_string_equal(r.params[3].name, "bn1.running_mean");
	assert_string_equal(r.params[4].name, "bn1.running_var");
	for (int i = 0; i < 2; i++)
		memcpy(before[i], r.data[3 + i], sizeof(before[i]));
	/* The statistics have become the batch's, so that an image by itself gives its part. */
	const net_result all = net_forward(r.net, r.images, r.labels, BATCH, NULL);
	double sum = 0;
	for (int i = 0; i < BATCH; i++)
		sum += net_forward(r.net, r.images + i * SIDE * SIDE * CHANNELS, r.labels + i, 1, NULL).loss;
	assert_true(fabs(sum - all.loss) < 1e-4);
	for (int i = 0; i < 2; i++)
		assert_memory_equal(before[i], r.data[3 + i], sizeof(before[i]));
	free_rig(&r);
}

TEST(images_smaller_than_a_window_are_refused)
{
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
	dk_set_threads(1); /* what is this small is slower with more */
	return test_run(NULL, NULL);
}
