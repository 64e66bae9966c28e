/* SPDX-License-Identifier: Apache-2.0 */
/* net: forward and backward. */
#include <string.h>

#include "models/net_inside.h"

static const double momentum = 0.1; /* of running statistics */

static int64_t rows_of(const net *n, const struct net_value *v)
{
	return n->batch * v->height * v->width;
}

static int64_t numbers_of(const net *n, const struct net_value *v)
{
	return n->batch * net_value_size(v);
}

/* ---- forward ------------------------------------------------------------------------- */

static int64_t all_rows_of(const net *n, const struct net_value *v)
{
	return n->all_images * v->height * v->width;
}

static ddp_status sum_over_ranks(net *n, int64_t count)
{
	return n->sum(n->sum_user, n->sums, count, net_is_on_device(n) ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST);
}

/* By the statistics of all ranks' images. */
static ddp_status normalise_together(net *n, struct net_layer *l, const float *in)
{
	const struct net_value *to = &n->values[l->to];
	const int64_t rows = rows_of(n, to), all_rows = all_rows_of(n, to), channels = l->outputs;
	float *const *p = n->data + l->param;

	dk_batch_norm_moments(n->sums, n->work, in, rows, channels);
	const ddp_status status = sum_over_ranks(n, 2 * channels);
	if (status != DDP_OK || all_rows == 0)
		return status;
	dk_batch_norm_statistics(l->mean, l->rstd, p[2], p[3], momentum, n->sums, all_rows, channels);
	dk_batch_norm_apply(to->data, n->work, in, l->mean, l->rstd, p[0], p[1], rows, channels);
	return DDP_OK;
}

static ddp_status normalise(net *n, struct net_layer *l, const float *in)
{
	const struct net_value *to = &n->values[l->to];
	float *const *p = n->data + l->param;

	if (n->trains && n->sum != NULL)
		return normalise_together(n, l, in);
	if (n->trains && net_is_fused(n, l))
		dk_batch_norm_relu_forward(to->data, l->mean, l->rstd, p[2], p[3], momentum, n->work, in, p[0], p[1],
		                           rows_of(n, to), l->outputs);
	else if (n->trains)
		dk_batch_norm_forward(to->data, l->mean, l->rstd, p[2], p[3], momentum, n->work, in, p[0], p[1],
		                      rows_of(n, to), l->outputs);
	else
		dk_batch_norm_eval(to->data, in, p[0], p[1], p[2], p[3], rows_of(n, to), l->outputs);
	return DDP_OK;
}

static ddp_status forward_layer(net *n, struct net_layer *l)
{
	float *const *p = n->data + l->param;
	const float *in = n->values[l->from].data;
	struct net_value *to = &n->values[l->to];

	if (l->kind == NET_BATCH_NORM)
		return normalise(n, l, in);
	if (n->batch == 0)
		return DDP_OK;
	switch (l->kind) {
	case NET_CONVOLUTION:
		dk_onednn_forward(n->onednn, to->data, n->work, in, p[0], l->bias ? p[1] : NULL, &l->window, l->outputs);
		break;
	case NET_LINEAR:
		dk_linear_forward(to->data, in, p[0], p[1], NULL, n->batch, l->inputs, l->outputs);
		break;
	case NET_MAX_POOL: dk_max_pool_forward(to->data, l->which, in, &l->window); break;
	case NET_AVERAGE_POOL: dk_average_pool_forward(to->data, in, &l->window); break;
	case NET_RELU: dk_relu_forward(to->data, in, numbers_of(n, to)); break;
	case NET_DROPOUT:
		if (n->trains)
			dk_dropout(to->data, in, numbers_of(n, to), l->probability, n->random, l->ahead);
		break;
	case NET_ADD: dk_add(to->data, in, n->values[l->other].data, numbers_of(n, to)); break;
	default: break;
	}
	return DDP_OK;
}

static int64_t count_right(const float *logits, const int32_t *labels, int64_t rows, int64_t classes)
{
	int64_t right = 0;

	for (int64_t r = 0; r < rows; r++, logits += classes) {
		int64_t best = 0;
		for (int64_t i = 1; i < classes; i++)
			best = logits[i] > logits[best] ? i : best;
		right += best == labels[r];
	}
	return right;
}

/* Tells layers about the pass, and gives counters to those that drop. */
static void begin_pass(net *n, int batch, net_random *random)
{
	uint64_t ahead = 0;

	n->batch = batch;
	n->trains = random != NULL;
	n->status = DDP_OK;
	n->drawn = n->trains ? (dk_random){random->seed, random->counter} : (dk_random){0};
	for (int i = 0; i < n->layers_count; i++) {
		struct net_layer *l = &n->layers[i];
		l->window.batch = batch;
		l->ahead = ahead;
		if (l->kind == NET_DROPOUT)
			ahead += (uint64_t)(numbers_of(n, &n->values[l->to]) + 3) / 4;
	}
	if (n->trains)
		random->counter += ahead;
}

static ddp_status count_images(net *n)
{
	double images = n->batch;

	if (!n->trains || n->sum == NULL)
		return DDP_OK;
	const ddp_status status = n->sum(n->sum_user, &images, 1, DDP_MEMORY_HOST);
	n->all_images = (int64_t)images;
	return status;
}

/* Copies the caller's arrays, because the caller may change them before the queue reads them. */
static void stage(net *n, const float *images, const int32_t *labels)
{
	const size_t size = (size_t)net_value_size(&n->values[NET_IMAGES]), slot = (size_t)n->slot * (size_t)n->capacity;
	const size_t bytes = (size_t)n->batch * size * sizeof(float), label_bytes = (size_t)n->batch * sizeof(*labels);

	memcpy(n->staged + slot * size, images, bytes);
	memcpy(n->staged_labels + slot, labels, label_bytes);
	dk_copy(n->images, n->staged + slot * size, bytes);
	dk_copy(n->labels, n->staged_labels + slot, label_bytes);
	n->staged_random[n->slot] = n->drawn;
	dk_copy(n->random, &n->staged_random[n->slot], sizeof(*n->random));
	n->slot = (n->slot + 1) % n->slots;
}

/* Loss and right ones of logits that are a device's; waits. */
static void judge_on_device(net *n, struct net_value *logits, const int32_t *labels, net_result *result)
{
	dk_copy(n->logits, logits->data, (size_t)(n->batch * logits->channels) * sizeof(float));
	result->loss = dk_cross_entropy(logits->data, n->labels, n->batch, logits->channels);
	result->right = count_right(n->logits, labels, n->batch, logits->channels);
}

static void take(net *n, const float *images, const int32_t *labels)
{
	if (net_is_on_device(n)) {
		if (n->batch > 0)
			stage(n, images, labels);
		images = n->images;
		labels = n->labels;
	} else {
		*n->random = n->drawn;
	}
	/* They are only read: no layer works in place on the images. */
	n->values[NET_IMAGES].data = (float *)(uintptr_t)images;
	n->targets = labels;
}

static struct net_value *logits_of(net *n)
{
	return &n->values[n->layers[n->layers_count - 1].to];
}

/* Up to the logits, or to a loss that stays where the network is. */
static void forward(void *model, int part)
{
	net *n = model;
	const struct net_value *logits = logits_of(n);

	(void)part;
	for (int i = 0; i < n->layers_count && n->status == DDP_OK; i++)
		if (!n->trains || i == 0 || !net_is_fused(n, &n->layers[i - 1]))
			n->status = forward_layer(n, &n->layers[i]);
	if (n->status == DDP_OK && n->batch > 0 && n->trains && n->loss != NULL)
		dk_cross_entropy_loss(n->loss, logits->data, n->targets, n->batch, logits->channels);
}

net_result net_forward(net *n, const float *images, const int32_t *labels, int batch, net_random *random)
{
	struct net_value *logits = logits_of(n);
	net_result result = {.status = DDP_OK};

	begin_pass(n, batch, random);
	n->status = count_images(n);
	take(n, images, labels);
	graphs_begin(&n->graphs, &(pass_shape){.batch = batch, .trains = n->trains});
	graphs_run(&n->graphs, 0, forward, n);
	result.status = n->status;
	if (n->status != DDP_OK || batch == 0 || (n->trains && n->loss != NULL))
		return result;
	if (net_is_on_device(n)) {
		judge_on_device(n, logits, labels, &result);
		return result;
	}
	result.right = count_right(logits->data, labels, batch, logits->channels);
	result.loss = dk_cross_entropy(logits->data, labels, batch, logits->channels);
	return result;
}

/* ---- backward ------------------------------------------------------------------------ */

/* Where a layer shall leave the gradient of what it reads. */
static float *place_of(const net *n, int value, bool adds)
{
	return adds ? n->scratch : n->values[value].grad;
}

/* It is there now. */
static void has_come(const net *n, int value, bool adds)
{
	const struct net_value *v = &n->values[value];

	if (adds)
		dk_add(v->grad, v->grad, n->scratch, numbers_of(n, v));
}

/* Does the backward work that needs no gradient of the layer's input, or that happens in place. */
static void backward_params(net *n, struct net_layer *l)
{
	float **g = n->grad + l->param;
	const struct net_value *to = &n->values[l->to], *from = &n->values[l->from];

	switch (l->kind) {
	case NET_CONVOLUTION:
		dk_onednn_backward_params(n->onednn, g[0], l->bias ? g[1] : NULL, n->work, to->grad, from->data,
		                          &l->window, l->outputs);
		break;
	case NET_LINEAR:
		dk_linear_backward_params(g[0], g[1], to->grad, from->data, n->batch, l->inputs, l->outputs);
		break;
	case NET_RELU: dk_relu_backward(to->grad, to->data, numbers_of(n, to)); break;
	case NET_DROPOUT:
		dk_dropout(to->grad, to->grad, numbers_of(n, to), l->probability, n->random, l->ahead);
		break;
	case NET_ADD:
		dk_copy(place_of(n, l->other, l->other_adds), to->grad, (size_t)numbers_of(n, to) * sizeof(float));
		has_come(n, l->other, l->other_adds);
		break;
	default: break;
	}
}

/* The gradient of what is normalised, and of gain and bias. */
static ddp_status backward_norm(net *n, struct net_layer *l, float *din)
{
	float *const *p = n->data + l->param, **g = n->grad + l->param;
	const struct net_value *to = &n->values[l->to];
	const float *dout = to->grad, *in = n->values[l->from].data;
	const int64_t rows = rows_of(n, to), channels = l->outputs;

	if (net_is_fused(n, l)) {
		dk_batch_norm_relu_backward(din, g[0], g[1], n->work, to->grad, to->data, in, l->mean, l->rstd, p[0], p[1],
		                            rows, channels);
		return DDP_OK;
	}
	if (n->sum == NULL) {
		dk_batch_norm_backward(din, g[0], g[1], n->work, dout, in, l->mean, l->rstd, p[0], rows, channels);
		return DDP_OK;
	}
	dk_batch_norm_sums(n->sums, g[0], g[1], n->work, dout, in, l->mean, l->rstd, rows, channels);
	const ddp_status status = sum_over_ranks(n, 2 * channels);
	if (status == DDP_OK)
		dk_batch_norm_input(din, n->work, dout, in, l->mean, l->rstd, p[0], n->sums,
		                    all_rows_of(n, to), rows, channels);
	return status;
}

static ddp_status backward_input(net *n, struct net_layer *l)
{
	float *const *p = n->data + l->param;
	const struct net_value *to = &n->values[l->to];
	ddp_status status = DDP_OK;
	float *din = place_of(n, l->from, l->adds);

	switch (l->kind) {
	case NET_CONVOLUTION:
		dk_onednn_backward_input(n->onednn, din, n->work, to->grad, p[0], &l->window, l->outputs);
		break;
	case NET_LINEAR: dk_linear_backward_input(din, to->grad, p[0], n->batch, l->inputs, l->outputs); break;
	case NET_MAX_POOL: dk_max_pool_backward(din, to->grad, l->which, &l->window); break;
	case NET_AVERAGE_POOL: dk_average_pool_backward(din, to->grad, &l->window); break;
	case NET_BATCH_NORM: status = backward_norm(n, l, din); break;
	default: return DDP_OK; /* in place */
	}
	has_come(n, l->from, l->adds);
	return status;
}

static void tell(net *n, const struct net_layer *l)
{
	if (l->bias)
		graphs_tell(&n->graphs, l->param + 1);
	graphs_tell(&n->graphs, l->param);
}

static void backward_layer(net *n, struct net_layer *l)
{
	const bool norm = l->kind == NET_BATCH_NORM;

	if (n->batch > 0)
		backward_params(n, l);
	/* Those of a normalisation come with its input's. */
	if (net_has_params(l) && !norm)
		tell(n, l);
	if (l->from != NET_IMAGES && (n->batch > 0 || norm))
		n->status = backward_input(n, l);
	if (norm && n->status == DDP_OK)
		tell(n, l);
}

static bool goes_well(const net *n)
{
	return n->status == DDP_OK && n->graphs.status == DDP_OK;
}

/* Forward is part 0. */
static void backward_part(void *model, int part)
{
	net *n = model;

	for (int i = n->first[part - 1] - 1; i >= n->first[part] && goes_well(n); i--)
		if (i == 0 || !net_is_fused(n, &n->layers[i - 1]))
			backward_layer(n, &n->layers[i]);
}

ddp_status net_backward(net *n, net_ready_fn ready, void *user)
{
	struct net_value *logits = logits_of(n);
	float *const logits_grad = logits->grad;

	/* The cross-entropy has left it where the logits were. */
	logits->grad = logits->data;
	graphs_listen(&n->graphs, ready, user);
	for (int i = 1; i <= n->parts && goes_well(n); i++)
		graphs_run(&n->graphs, i, backward_part, n);
	logits->grad = logits_grad;
	return n->status != DDP_OK ? n->status : n->graphs.status;
}
