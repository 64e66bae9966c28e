/* SPDX-License-Identifier: Apache-2.0 */
/* net: layers, memory and initialisation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels.h"
#include "models/net_inside.h"
#include "models/random.h"

net *net_create(int batch, const ddp_image_shape *shape)
{
	return net_create_on(NULL, batch, shape, 1);
}

net *net_create_on(const net_memory *memory, int batch, const ddp_image_shape *shape, int passes)
{
	net *n = calloc(1, sizeof(*n));

	if (n == NULL)
		return NULL;
	n->onednn = dk_onednn_create();
	if (memory != NULL)
		n->memory = *memory;
	n->slots = passes;
	n->capacity = batch;
	n->values_count = 1;
	n->values[NET_IMAGES] = (struct net_value){.height = shape->height, .width = shape->width,
		.channels = shape->channels};
	return n;
}

void net_free(net *n)
{
	if (n == NULL)
		return;
	graphs_close(&n->graphs);
	if (n->arena != NULL && net_is_on_device(n))
		n->memory.release(n->memory.user, n->arena);
	else if (n->arena != NULL)
		munmap(n->arena, n->arena_bytes);
	dk_onednn_free(n->onednn);
	free(n->staged);
	free(n->staged_labels);
	free(n->staged_random);
	free(n->logits);
	free(n);
}

/* ---- layers -------------------------------------------------------------------------- */

/* A layer whose value has this shape; in place, if that is 0. */
static struct net_layer *add_layer(net *n, net_kind kind, int from, int64_t height, int64_t width,
                                   int64_t channels)
{
	static struct net_layer none; /* of a network that is failed */
	struct net_layer *l = &none;

	if (n->layers_count == NET_LAYERS_MAX || from < 0 || from >= n->values_count) {
		n->failed = true;
		none = (struct net_layer){0};
		return l;
	}
	l = &n->layers[n->layers_count++];
	*l = (struct net_layer){.kind = kind, .from = from, .to = from};
	if (height > 0) {
		l->to = n->values_count++;
		n->values[l->to] = (struct net_value){.height = height, .width = width, .channels = channels};
	}
	return l;
}

static int add_param(net *n, const char *name, const char *part, int ndim, const int64_t *shape)
{
	n->failed |= n->params_count == NET_PARAMS_MAX;
	if (n->failed)
		return 0;
	const int index = n->params_count++;
	ddp_param *p = &n->params[index];

	snprintf(n->names[index], sizeof(n->names[index]), "%s.%s", name, part);
	*p = (ddp_param){.name = n->names[index], .ndim = ndim, .no_decay = ndim == 1};
	memcpy(p->shape, shape, (size_t)ndim * sizeof(*shape));
	return index;
}

static void add_buffer(net *n, const char *name, const char *part, int64_t count)
{
	const int index = add_param(n, name, part, 1, &count);

	if (!n->failed)
		n->params[index].kind = DDP_BUFFER_BROADCAST;
}

static dk_window window_over(const net *n, int from, int size, int stride, int padding)
{
	const struct net_value *v = &n->values[from];

	return (dk_window){.batch = n->capacity, .height = v->height, .width = v->width, .channels = v->channels,
		.size = size, .stride = stride, .padding = padding};
}

static bool fits(net *n, const dk_window *w)
{
	if (w->size <= w->height + 2 * w->padding && w->size <= w->width + 2 * w->padding)
		return true;
	n->failed = n->too_small = true;
	return false;
}

bool net_is_too_small(const net *n)
{
	return n->too_small;
}

int net_convolution(net *n, int from, const char *name, int outputs, int size, int stride, int padding, bool bias)
{
	const dk_window w = window_over(n, from, size, stride, padding);

	if (!fits(n, &w))
		return from;
	struct net_layer *l = add_layer(n, NET_CONVOLUTION, from, dk_window_places(&w, w.height),
	                                dk_window_places(&w, w.width), outputs);

	l->window = w;
	l->outputs = outputs;
	l->bias = bias;
	l->param = add_param(n, name, "weight", 4, (const int64_t[]){outputs, size, size, w.channels});
	if (bias)
		add_param(n, name, "bias", 1, (const int64_t[]){outputs});
	return l->to;
}

int net_linear(net *n, int from, const char *name, int outputs)
{
	struct net_layer *l = add_layer(n, NET_LINEAR, from, 1, 1, outputs);

	l->inputs = net_value_size(&n->values[from]);
	l->outputs = outputs;
	l->bias = true;
	l->param = add_param(n, name, "weight", 2, (const int64_t[]){l->inputs, outputs});
	add_param(n, name, "bias", 1, (const int64_t[]){outputs});
	return l->to;
}

static int add_pool(net *n, net_kind kind, int from, int size, int stride, int padding)
{
	const dk_window w = window_over(n, from, size, stride, padding);

	if (!fits(n, &w))
		return from;
	struct net_layer *l = add_layer(n, kind, from, dk_window_places(&w, w.height), dk_window_places(&w, w.width),
	                                w.channels);

	l->window = w;
	return l->to;
}

int net_max_pool(net *n, int from, int size, int stride, int padding)
{
	return add_pool(n, NET_MAX_POOL, from, size, stride, padding);
}

int net_average_pool(net *n, int from)
{
	return add_pool(n, NET_AVERAGE_POOL, from, (int)n->values[from].height, 1, 0);
}

int net_batch_norm(net *n, int from, const char *name)
{
	const struct net_value v = n->values[from];
	struct net_layer *l = add_layer(n, NET_BATCH_NORM, from, v.height, v.width, v.channels);

	l->outputs = v.channels;
	l->bias = true;
	l->param = add_param(n, name, "weight", 1, (const int64_t[]){v.channels});
	add_param(n, name, "bias", 1, (const int64_t[]){v.channels});
	add_buffer(n, name, "running_mean", v.channels);
	add_buffer(n, name, "running_var", v.channels);
	return l->to;
}

int net_relu(net *n, int from)
{
	return add_layer(n, NET_RELU, from, 0, 0, 0)->to;
}

int net_dropout(net *n, int from, double probability)
{
	struct net_layer *l = add_layer(n, NET_DROPOUT, from, 0, 0, 0);

	l->probability = probability;
	return l->to;
}

int net_add(net *n, int from, int other)
{
	struct net_layer *l = add_layer(n, NET_ADD, from, 0, 0, 0);

	l->other = other;
	return l->to;
}

void net_sync_batch_norm(net *n, net_sum_fn sum, void *user)
{
	n->sum = sum;
	n->sum_user = user;
	graphs_want(&n->graphs, false);
}

void net_drop_nothing(net *n)
{
	for (int i = 0; i < n->layers_count; i++)
		n->layers[i].probability = 0;
	graphs_forget(&n->graphs);
}

/* ---- what backward does in which order ------------------------------------------------------ */

static int64_t elements(const ddp_param *p)
{
	int64_t count = 1;

	for (int i = 0; i < p->ndim; i++)
		count *= p->shape[i];
	return count;
}

static bool has_gradient_of_input(const struct net_layer *l)
{
	return l->from != NET_IMAGES && l->kind != NET_RELU && l->kind != NET_DROPOUT && l->kind != NET_ADD;
}

/* If several layers read a value, backward sets its gradient first, and then adds to it. */
static void plan_gradients(net *n)
{
	bool set[NET_LAYERS_MAX + 1] = {false};

	set[n->layers[n->layers_count - 1].to] = true; /* by the cross-entropy */
	for (int i = n->layers_count - 1; i >= 0; i--) {
		struct net_layer *l = &n->layers[i];
		if (l->kind == NET_ADD) {
			l->other_adds = set[l->other];
			set[l->other] = true;
		} else if (has_gradient_of_input(l)) {
			l->adds = set[l->from];
			set[l->from] = true;
		}
	}
}

static void join_layers(net *n)
{
	for (int i = 0; i + 1 < n->layers_count; i++) {
		struct net_layer *l = &n->layers[i], *next = l + 1;
		l->with_next = l->kind == NET_BATCH_NORM && next->kind == NET_RELU && next->from == l->to;
	}
}

static int64_t layer_gradients(const net *n, const struct net_layer *l)
{
	const ddp_param *p = &n->params[l->param];

	return net_has_params(l) ? elements(p) + (l->bias ? elements(p + 1) : 0) : 0;
}

/* Each part but the last has at least an equal share of the gradients. */
static void cut_backward(net *n)
{
	int64_t all = 0, come = 0;

	for (int i = 0; i < n->layers_count; i++)
		all += layer_gradients(n, &n->layers[i]);
	n->parts = 0;
	n->first[0] = n->layers_count;
	for (int i = n->layers_count - 1; i >= 0; i--) {
		come += layer_gradients(n, &n->layers[i]);
		if (i > 0 && (come * NET_PARTS < all || n->parts == NET_PARTS - 1))
			continue;
		n->first[++n->parts] = i;
		come = 0;
	}
}

/* ---- memory ---------------------------------------------------------------------------- */

/* Gives out the arena's next `floats`; with no arena, only counts. */
static float *carve(net *n, size_t *used, int64_t floats)
{
	float *here = n->arena != NULL ? (float *)n->arena + *used : NULL;

	*used += ((size_t)floats + 15) / 16 * 16;
	return here;
}

static size_t lay_out(net *n)
{
	size_t used = 0, work = 0;
	int64_t largest = 0, channels = 0;

	for (int i = 1; i < n->values_count; i++) {
		const int64_t size = n->capacity * net_value_size(&n->values[i]);
		n->values[i].data = carve(n, &used, size);
		n->values[i].grad = carve(n, &used, size);
		largest = size > largest ? size : largest;
	}
	for (int i = 0; i < n->layers_count; i++) {
		struct net_layer *l = &n->layers[i];
		const struct net_value *to = &n->values[l->to];
		size_t need = 0;
		if (l->kind == NET_MAX_POOL)
			l->which = (int32_t *)carve(n, &used, n->capacity * net_value_size(to));
		if (l->kind == NET_CONVOLUTION)
			need = dk_convolution_work(&l->window, l->outputs);
		if (l->kind == NET_BATCH_NORM) {
			need = dk_batch_norm_work(n->capacity * to->height * to->width, to->channels);
			l->mean = carve(n, &used, to->channels);
			l->rstd = carve(n, &used, to->channels);
			channels = to->channels > channels ? to->channels : channels;
		}
		work = need > work ? need : work;
	}
	n->work = carve(n, &used, (int64_t)work);
	n->scratch = carve(n, &used, largest);
	/* f64 */
	n->sums = (double *)(void *)carve(n, &used, 2 * 2 * channels);
	n->random = (dk_random *)(void *)carve(n, &used, sizeof(*n->random) / sizeof(float));
	if (net_is_on_device(n)) {
		n->images = carve(n, &used, n->capacity * net_value_size(&n->values[NET_IMAGES]));
		n->labels = (int32_t *)carve(n, &used, n->capacity);
	}
	return used * sizeof(float);
}

/* Memory of the device, and what of the host's stands before it. */
static bool finish_on_device(net *n)
{
	const size_t images = (size_t)n->slots * (size_t)n->capacity;
	const struct net_value *logits = &n->values[n->layers[n->layers_count - 1].to];

	n->staged = calloc(images * (size_t)net_value_size(&n->values[NET_IMAGES]), sizeof(*n->staged));
	n->staged_labels = calloc(images, sizeof(*n->staged_labels));
	n->staged_random = calloc((size_t)n->slots, sizeof(*n->staged_random));
	n->logits = calloc((size_t)n->capacity * (size_t)logits->channels, sizeof(*n->logits));
	if (n->staged == NULL || n->staged_labels == NULL || n->staged_random == NULL || n->logits == NULL)
		return false;
	n->arena = n->memory.alloc(n->memory.user, n->arena_bytes);
	lay_out(n);
	return n->arena != NULL;
}

/* One mapping, of huge pages where there are some, touched now: page faults would cost much
   of every step's time if they came in between. */
bool net_finish(net *n)
{
	if (n->failed)
		return false;
	plan_gradients(n);
	join_layers(n);
	cut_backward(n);
	if (!graphs_open(&n->graphs, 1 + n->parts, n->params_count))
		return false;
	n->arena_bytes = lay_out(n);
	if (net_is_on_device(n))
		return finish_on_device(n);
	void *arena = mmap(NULL, n->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena == MAP_FAILED)
		return false;
	madvise(arena, n->arena_bytes, MADV_HUGEPAGE);
	memset(arena, 0, n->arena_bytes);
	n->arena = arena;
	lay_out(n);
	return true;
}

/* ---- parameters ------------------------------------------------------------------------- */

const ddp_param *net_params(const net *n, int *count)
{
	*count = n->params_count;
	return n->params;
}

void net_bind(net *n, float *const *params, float *const *grads)
{
	graphs_forget(&n->graphs);
	memcpy(n->data, params, (size_t)n->params_count * sizeof(float *));
	memcpy(n->grad, grads, (size_t)n->params_count * sizeof(float *));
}

void net_bind_loss(net *n, double *loss)
{
	graphs_forget(&n->graphs);
	n->loss = loss;
}

void net_use_graphs(net *n, bool wanted)
{
	graphs_want(&n->graphs, wanted && net_is_on_device(n) && n->sum == NULL);
}

const char *net_graph_failure(const net *n)
{
	return n->graphs.failure[0] != '\0' ? n->graphs.failure : NULL;
}

void net_start_normal(net *n)
{
	n->normal = true;
}

static void fill_uniform(float *x, int64_t count, float bound, uint64_t *state)
{
	for (int64_t i = 0; i < count; i++)
		x[i] = bound * ((float)(next_random(state) >> 40) * 0x1p-23f - 1);
}

/* Draws normal numbers of this deviation, by Box and Muller. */
static void fill_normal(float *x, int64_t count, double deviation, uint64_t *state)
{
	for (int64_t i = 0; i < count; i++) {
		const double length = (double)((next_random(state) >> 11) + 1) * 0x1p-53;
		const double angle = (double)(next_random(state) >> 11) * 0x1p-53;
		x[i] = (float)(deviation * sqrt(-2 * log(length)) * cos(6.283185307179586 * angle));
	}
}

static void fill_with(float *x, int64_t count, float value)
{
	for (int64_t i = 0; i < count; i++)
		x[i] = value;
}

/* Parameter i is data[i], on the host. */
static void fill_params(const net *n, float *const *data, uint64_t seed)
{
	uint64_t state = seed;

	for (int i = 0; i < n->layers_count; i++) {
		const struct net_layer *l = &n->layers[i];
		if (l->kind == NET_BATCH_NORM) {
			fill_with(data[l->param], l->outputs, 1);
			fill_with(data[l->param + 1], l->outputs, 0);
			fill_with(data[l->param + 2], l->outputs, 0);
			fill_with(data[l->param + 3], l->outputs, 1);
		} else if (l->kind == NET_CONVOLUTION && n->normal) {
			const int64_t area = l->window.size * l->window.size;
			fill_normal(data[l->param], area * l->window.channels * l->outputs,
			            sqrt(2 / (double)(area * l->outputs)), &state);
		} else if (l->kind == NET_CONVOLUTION || l->kind == NET_LINEAR) {
			const int64_t inputs = l->kind == NET_LINEAR ? l->inputs
				: l->window.size * l->window.size * l->window.channels;
			const float bound = 1 / sqrtf((float)inputs);
			fill_uniform(data[l->param], inputs * l->outputs, bound, &state);
			if (l->bias)
				fill_uniform(data[l->param + 1], l->outputs, bound, &state);
		}
	}
}

static bool initialise_on_device(net *n, uint64_t seed)
{
	float *data[NET_PARAMS_MAX];
	size_t all = 0, at = 0;

	for (int i = 0; i < n->params_count; i++)
		all += (size_t)elements(&n->params[i]);
	float *here = malloc(all * sizeof(*here));
	if (here == NULL)
		return false;
	for (int i = 0; i < n->params_count; at += (size_t)elements(&n->params[i++]))
		data[i] = here + at;
	fill_params(n, data, seed);
	for (int i = 0; i < n->params_count; i++)
		dk_copy(n->data[i], data[i], (size_t)elements(&n->params[i]) * sizeof(*here));
	dk_largest(n->data[0], 1); /* waits until all is read */
	free(here);
	return true;
}

bool net_initialise(net *n, uint64_t seed)
{
	if (net_is_on_device(n))
		return initialise_on_device(n, seed);
	fill_params(n, n->data, seed);
	return true;
}
