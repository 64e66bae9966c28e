/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "models/random.h"

enum { NAME_BYTES = 32 };

/* Parameters of a layer, and how each is split. */
enum layer_param { LN_1_WEIGHT, LN_1_BIAS, QKV_WEIGHT, QKV_BIAS, PROJ_WEIGHT, PROJ_BIAS, LN_2_WEIGHT, LN_2_BIAS,
	FC_WEIGHT, FC_BIAS, FC_PROJ_WEIGHT, FC_PROJ_BIAS, PER_LAYER };
enum { WTE, WPE, EMBEDDINGS };              /* in front of the first stage's layers */
enum { LN_F_WEIGHT, LN_F_BIAS, HEAD, HEADS }; /* behind the last stage's */

typedef enum start { ZERO, ONE, RANDOM } start;
typedef enum split { WHOLE, COLUMNS, ROWS } split;

/* The whole tensor is [rows, blocks * columns]; rows 0: a vector. Of QKV, each block is split. */
typedef struct tensor {
	const char *name;
	int rows, blocks, columns; /* in widths */
	split split;
	start start;
	bool no_decay;
} tensor;

static const tensor of_layer[PER_LAYER] = {
	[LN_1_WEIGHT] = {"ln_1.weight", 0, 1, 1, WHOLE, ONE, true},
	[LN_1_BIAS] = {"ln_1.bias", 0, 1, 1, WHOLE, ZERO, true},
	[QKV_WEIGHT] = {"attn.qkv.weight", 1, 3, 1, COLUMNS, RANDOM, false},
	[QKV_BIAS] = {"attn.qkv.bias", 0, 3, 1, COLUMNS, ZERO, true},
	[PROJ_WEIGHT] = {"attn.proj.weight", 1, 1, 1, ROWS, RANDOM, false},
	[PROJ_BIAS] = {"attn.proj.bias", 0, 1, 1, WHOLE, ZERO, true},
	[LN_2_WEIGHT] = {"ln_2.weight", 0, 1, 1, WHOLE, ONE, true},
	[LN_2_BIAS] = {"ln_2.bias", 0, 1, 1, WHOLE, ZERO, true},
	[FC_WEIGHT] = {"mlp.fc.weight", 1, 1, 4, COLUMNS, RANDOM, false},
	[FC_BIAS] = {"mlp.fc.bias", 0, 1, 4, COLUMNS, ZERO, true},
	[FC_PROJ_WEIGHT] = {"mlp.proj.weight", 4, 1, 1, ROWS, RANDOM, false},
	[FC_PROJ_BIAS] = {"mlp.proj.bias", 0, 1, 1, WHOLE, ZERO, true},
};

/* Forward of one layer and micro-batch keeps these activations for backward. */
typedef struct kept {
	float *ln_1, *ln_1_mean, *ln_1_rstd, *qkv, *lse, *attended, *middle, *ln_2, *ln_2_mean, *ln_2_rstd;
	float *fc, *fc_gelu, *out;
} kept;

/* Forward of a whole micro-batch keeps these. */
typedef struct micro_batch {
	float *in;                   /* of the first layer */
	kept *layers;
	float *ln_f, *ln_f_mean, *ln_f_rstd, *classifier;
} micro_batch;

struct part {
	part_config config;
	int layers, first_layer, count;
	ddp_param *params;
	char (*names)[NAME_BYTES];
	float **data, **grad;
	ddp_model *model;
	micro_batch *micro;
	float *memory, *zeros;                        /* a bias of the slices that add none */
	float *dstream, *dnorm, *dwide, *dattended;   /* for backward */
};

/* ---- sizes ---------------------------------------------------------------------------- */

static int64_t rows_of(const part_config *c)
{
	return (int64_t)c->batch * c->length;
}

size_t part_elements(const part_config *config)
{
	return (size_t)rows_of(config) * (size_t)config->width;
}

/* The share that a slice has of a width. */
static int64_t narrow(const part_config *c)
{
	return c->width / c->slices;
}

/* ---- parameters -------------------------------------------------------------------------- */

static int first_of_layer(const part *p, int layer)
{
	return (part_is_first(&p->config) ? EMBEDDINGS : 0) + layer * PER_LAYER;
}

static int behind_layers(const part *p, int i)
{
	return first_of_layer(p, p->layers) + i;
}

static void add_param(part *p, const char *name, int64_t rows, int64_t columns, bool no_decay)
{
	ddp_param *param = &p->params[p->count];

	snprintf(p->names[p->count], NAME_BYTES, "%s", name);
	*param = (ddp_param){.name = p->names[p->count], .ndim = rows > 0 ? 2 : 1,
		.shape = {rows > 0 ? rows : columns, rows > 0 ? columns : 0}, .no_decay = no_decay};
	p->count++;
}

static void list_params(part *p)
{
	const part_config *c = &p->config;
	char name[NAME_BYTES];

	if (part_is_first(c)) {
		add_param(p, "wte", PART_VOCAB, c->width, false);
		add_param(p, "wpe", c->length, c->width, false);
	}
	for (int i = 0; i < p->layers * PER_LAYER; i++) {
		const tensor *t = &of_layer[i % PER_LAYER];
		const int64_t rows = t->rows * (t->split == ROWS ? narrow(c) : c->width);
		const int64_t columns = t->blocks * t->columns * (t->split == COLUMNS ? narrow(c) : c->width);
		snprintf(name, sizeof(name), "h.%d.%s", p->first_layer + i / PER_LAYER, t->name);
		add_param(p, name, rows, columns, t->no_decay);
	}
	if (part_is_last(c)) {
		add_param(p, "ln_f.weight", 0, c->width, true);
		add_param(p, "ln_f.bias", 0, c->width, true);
		add_param(p, "head", PART_VOCAB, c->width, false);
	}
}

const ddp_param *part_params(const part *p, int *count)
{
	*count = p->count;
	return p->params;
}

/* An element of the whole network's tensor `id`: the same number however it is split. */
static float random_element(uint64_t id, int64_t index)
{
	uint64_t state = (id + 1) << 40 ^ (uint64_t)index;
	double sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (double)(next_random(&state) >> 11) * 0x1p-53 - 0.5;
	return (float)(0.035 * sum); /* a standard deviation of 0.02 */
}

static void begin_random(float *data, uint64_t id, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		data[i] = random_element(id, i);
}

/* The share of a slice in a tensor of a layer. */
static void begin_tensor(const part_config *c, const tensor *t, uint64_t id, float *data)
{
	const int64_t rows = t->rows > 0 ? t->rows * (t->split == ROWS ? narrow(c) : c->width) : 1;
	const int64_t block = t->columns * c->width, own = t->split == COLUMNS ? block / c->slices : block;
	const int64_t first_row = t->split == ROWS ? c->slice * rows : 0;
	const int64_t first_column = t->split == COLUMNS ? c->slice * own : 0;

	for (int64_t r = 0; r < rows; r++) {
		for (int64_t b = 0; b < t->blocks; b++) {
			for (int64_t i = 0; i < own; i++)
				*data++ = t->start != RANDOM ? (float)t->start : random_element(id,
					((first_row + r) * t->blocks + b) * block + first_column + i);
		}
	}
}

void part_begin(part *p, ddp_model *model)
{
	const part_config *c = &p->config;
	const uint64_t behind = (uint64_t)(EMBEDDINGS + c->layers * PER_LAYER);

	p->model = model;
	for (int i = 0; i < p->count; i++) {
		p->data[i] = ddp_model_param_data(model, i);
		p->grad[i] = ddp_model_param_grad(model, i);
	}
	for (int i = 0; i < EMBEDDINGS && part_is_first(c); i++)
		begin_random(p->data[i], (uint64_t)i, ddp_model_param_count(model, i));
	for (int i = 0; i < p->layers * PER_LAYER; i++)
		begin_tensor(c, &of_layer[i % PER_LAYER], (uint64_t)(EMBEDDINGS + p->first_layer * PER_LAYER + i),
		             p->data[first_of_layer(p, 0) + i]);
	if (!part_is_last(c))
		return;
	for (int64_t i = 0; i < c->width; i++) {
		p->data[behind_layers(p, LN_F_WEIGHT)][i] = 1;
		p->data[behind_layers(p, LN_F_BIAS)][i] = 0;
	}
	begin_random(p->data[behind_layers(p, HEAD)], behind + HEAD, (int64_t)PART_VOCAB * c->width);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The next n elements, or with `base` NULL only their number. */
static float *take(float *base, size_t *at, int64_t n)
{
	float *taken = base != NULL ? base + *at : NULL;

	*at += ((size_t)n + 15) / 16 * 16;
	return taken;
}

static void place_kept(const part_config *c, float *base, size_t *at, kept *k)
{
	const int64_t rows = rows_of(c), width = c->width, own = narrow(c);

	*k = (kept){
		.ln_1 = take(base, at, rows * width), .ln_1_mean = take(base, at, rows), .ln_1_rstd = take(base, at, rows),
		.qkv = take(base, at, rows * 3 * own), .lse = take(base, at, rows * c->heads / c->slices),
		.attended = take(base, at, rows * own), .middle = take(base, at, rows * width),
		.ln_2 = take(base, at, rows * width), .ln_2_mean = take(base, at, rows), .ln_2_rstd = take(base, at, rows),
		.fc = take(base, at, rows * 4 * own), .fc_gelu = take(base, at, rows * 4 * own),
		.out = take(base, at, rows * width),
	};
}

/* Elements of all memory; with `base` it is given out. */
static size_t place(part *p, float *base)
{
	const part_config *c = &p->config;
	const int64_t rows = rows_of(c), width = c->width;
	size_t at = 0;

	for (int m = 0; m < c->micro_batches; m++) {
		micro_batch *micro = &p->micro[m];
		micro->in = take(base, &at, rows * width);
		for (int i = 0; i < p->layers; i++)
			place_kept(c, base, &at, &micro->layers[i]);
		micro->ln_f = take(base, &at, rows * width);
		micro->ln_f_mean = take(base, &at, rows);
		micro->ln_f_rstd = take(base, &at, rows);
		micro->classifier = take(base, &at, part_is_last(c) ? (int64_t)dk_classifier_work(rows, PART_VOCAB) : 0);
	}
	p->zeros = take(base, &at, width);
	p->dstream = take(base, &at, rows * width);
	p->dnorm = take(base, &at, rows * width);
	p->dwide = take(base, &at, rows * 4 * width);
	p->dattended = take(base, &at, rows * narrow(c));
	return at;
}

part *part_make(const part_config *config)
{
	part *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return NULL;
	p->config = *config;
	p->layers = config->layers / config->stages;
	p->first_layer = config->stage * p->layers;
	const size_t most = (size_t)(EMBEDDINGS + p->layers * PER_LAYER + HEADS);
	p->params = calloc(most, sizeof(*p->params));
	p->names = calloc(most, sizeof(*p->names));
	p->data = calloc(most, sizeof(*p->data));
	p->grad = calloc(most, sizeof(*p->grad));
	p->micro = calloc((size_t)config->micro_batches, sizeof(*p->micro));
	bool made = p->params != NULL && p->names != NULL && p->data != NULL && p->grad != NULL && p->micro != NULL;
	for (int m = 0; m < config->micro_batches && made; m++)
		made = (p->micro[m].layers = calloc((size_t)p->layers, sizeof(kept))) != NULL;
	made = made && (p->memory = calloc(place(p, NULL), sizeof(float))) != NULL;
	if (!made) {
		part_free(p);
		return NULL;
	}
	place(p, p->memory);
	list_params(p);
	return p;
}

void part_free(part *p)
{
	if (p == NULL)
		return;
	for (int m = 0; p->micro != NULL && m < p->config.micro_batches; m++)
		free(p->micro[m].layers);
	free(p->memory);
	free(p->micro);
	free(p->params);
	free(p->names);
	free(p->data);
	free(p->grad);
	free(p);
}

/* ---- forward ------------------------------------------------------------------------------------ */

static ddp_status sum_slices(const part *p, float *x)
{
	if (p->config.slices == 1)
		return DDP_OK;
	return ddp_all_reduce(p->config.slice_comm, NULL, x, part_elements(&p->config), DDP_F32, DDP_SUM);
}

/* out = stream + in weight + bias, where each slice has some rows of the weight. The first one adds what
   is to be added once. */
static ddp_status add_rows(const part *p, float *out, const float *in, const float *weight, const float *bias,
                           const float *stream, int64_t inputs)
{
	const bool adds = p->config.slice == 0;

	dk_linear_forward(out, in, weight, adds ? bias : p->zeros, adds ? stream : NULL, rows_of(&p->config), inputs,
	                  p->config.width);
	return sum_slices(p, out);
}

static ddp_status forward_layer(const part *p, int layer, const float *in, const kept *k)
{
	const part_config *c = &p->config;
	float *const *w = p->data + first_of_layer(p, layer);
	const int64_t rows = rows_of(c), width = c->width, own = narrow(c);

	dk_layernorm_forward(k->ln_1, k->ln_1_mean, k->ln_1_rstd, in, w[LN_1_WEIGHT], w[LN_1_BIAS], rows, width);
	dk_linear_forward(k->qkv, k->ln_1, w[QKV_WEIGHT], w[QKV_BIAS], NULL, rows, width, 3 * own);
	dk_attention_forward(k->attended, k->lse, k->qkv, c->batch, c->length, c->heads / c->slices, own);
	ddp_status status = add_rows(p, k->middle, k->attended, w[PROJ_WEIGHT], w[PROJ_BIAS], in, own);
	if (status != DDP_OK)
		return status;
	dk_layernorm_forward(k->ln_2, k->ln_2_mean, k->ln_2_rstd, k->middle, w[LN_2_WEIGHT], w[LN_2_BIAS], rows, width);
	dk_linear_gelu_forward(k->fc_gelu, k->fc, k->ln_2, w[FC_WEIGHT], w[FC_BIAS], rows, width, 4 * own);
	return add_rows(p, k->out, k->fc_gelu, w[FC_PROJ_WEIGHT], w[FC_PROJ_BIAS], k->middle, 4 * own);
}

static const float *layer_input(const micro_batch *micro, int layer)
{
	return layer > 0 ? micro->layers[layer - 1].out : micro->in;
}

ddp_status part_forward(part *p, int m, const int32_t *tokens, const int32_t *targets, const float *in,
                        const float **out, double *loss)
{
	const part_config *c = &p->config;
	micro_batch *micro = &p->micro[m];
	ddp_status status = DDP_OK;

	if (part_is_first(c))
		dk_embedding_forward(micro->in, tokens, p->data[WTE], p->data[WPE], c->batch, c->length, c->width);
	else
		memcpy(micro->in, in, part_elements(c) * sizeof(float));
	for (int i = 0; i < p->layers && status == DDP_OK; i++)
		status = forward_layer(p, i, layer_input(micro, i), &micro->layers[i]);
	*out = layer_input(micro, p->layers);
	if (status != DDP_OK || !part_is_last(c))
		return status;
	dk_layernorm_forward(micro->ln_f, micro->ln_f_mean, micro->ln_f_rstd, *out, p->data[behind_layers(p, LN_F_WEIGHT)],
	                     p->data[behind_layers(p, LN_F_BIAS)], rows_of(c), c->width);
	*loss = dk_classifier_forward(micro->classifier, micro->ln_f, p->data[behind_layers(p, HEAD)], targets, rows_of(c),
	                              c->width, PART_VOCAB);
	return DDP_OK;
}

/* ---- backward ------------------------------------------------------------------------------------- */

static ddp_status tell(const part *p, bool last, int first, int end)
{
	ddp_status status = DDP_OK;

	for (int i = end - 1; i >= first && last && status == DDP_OK; i--)
		status = ddp_model_grad_ready(p->model, i);
	return status;
}

/* The slices' gradients of what all of them have read; then the layernorm before that. */
static ddp_status backward_norm(const part *p, int weight, const float *in, const float *mean, const float *rstd)
{
	ddp_status status = sum_slices(p, p->dnorm);

	if (status == DDP_OK)
		dk_layernorm_backward(p->dstream, p->grad[weight], p->grad[weight + 1], p->dnorm, in, mean, rstd,
		                      p->data[weight], rows_of(&p->config), p->config.width);
	return status;
}

static ddp_status backward_layer(const part *p, int layer, const float *in, const kept *k, bool last)
{
	const part_config *c = &p->config;
	const int first = first_of_layer(p, layer);
	float *const *w = p->data + first, *const *d = p->grad + first;
	const int64_t rows = rows_of(c), width = c->width, own = narrow(c);

	dk_linear_backward_params(d[FC_PROJ_WEIGHT], d[FC_PROJ_BIAS], p->dstream, k->fc_gelu, rows, 4 * own, width);
	dk_linear_gelu_backward(p->dwide, p->dstream, w[FC_PROJ_WEIGHT], k->fc, rows, 4 * own, width);
	dk_linear_backward_params(d[FC_WEIGHT], d[FC_BIAS], p->dwide, k->ln_2, rows, width, 4 * own);
	dk_linear_backward_input(p->dnorm, p->dwide, w[FC_WEIGHT], rows, width, 4 * own);
	ddp_status status = backward_norm(p, first + LN_2_WEIGHT, k->middle, k->ln_2_mean, k->ln_2_rstd);
	if (status == DDP_OK)
		status = tell(p, last, first + LN_2_WEIGHT, first + PER_LAYER);
	if (status != DDP_OK)
		return status;
	dk_linear_backward_params(d[PROJ_WEIGHT], d[PROJ_BIAS], p->dstream, k->attended, rows, own, width);
	dk_linear_backward_input(p->dattended, p->dstream, w[PROJ_WEIGHT], rows, own, width);
	dk_attention_backward(p->dwide, p->dattended, k->qkv, k->attended, k->lse, c->batch, c->length,
	                      c->heads / c->slices, own);
	dk_linear_backward_params(d[QKV_WEIGHT], d[QKV_BIAS], p->dwide, k->ln_1, rows, width, 3 * own);
	dk_linear_backward_input(p->dnorm, p->dwide, w[QKV_WEIGHT], rows, width, 3 * own);
	status = backward_norm(p, first + LN_1_WEIGHT, in, k->ln_1_mean, k->ln_1_rstd);
	return status == DDP_OK ? tell(p, last, first, first + LN_2_WEIGHT) : status;
}

static ddp_status backward_head(const part *p, const micro_batch *micro, const int32_t *targets, bool last)
{
	const part_config *c = &p->config;
	const int norm = behind_layers(p, LN_F_WEIGHT), head = behind_layers(p, HEAD);

	dk_classifier_backward(p->dnorm, p->grad[head], micro->classifier, micro->ln_f, p->data[head], targets, rows_of(c),
	                       c->width, PART_VOCAB);
	dk_zero(p->dstream, (int64_t)part_elements(c));
	dk_layernorm_backward(p->dstream, p->grad[norm], p->grad[norm + 1], p->dnorm, layer_input(micro, p->layers),
	                      micro->ln_f_mean, micro->ln_f_rstd, p->data[norm], rows_of(c), c->width);
	return tell(p, last, norm, head + 1);
}

ddp_status part_backward(part *p, int m, const int32_t *tokens, const int32_t *targets, const float *dout, bool last,
                         const float **din)
{
	const part_config *c = &p->config;
	const micro_batch *micro = &p->micro[m];
	ddp_status status = DDP_OK;

	if (part_is_last(c))
		status = backward_head(p, micro, targets, last);
	else
		memcpy(p->dstream, dout, part_elements(c) * sizeof(float));
	for (int i = p->layers - 1; i >= 0 && status == DDP_OK; i--)
		status = backward_layer(p, i, layer_input(micro, i), &micro->layers[i], last);
	*din = p->dstream;
	if (status != DDP_OK || !part_is_first(c))
		return status;
	dk_embedding_backward(p->grad[WTE], p->grad[WPE], p->dstream, tokens, c->batch, c->length, c->width);
	return tell(p, last, WTE, EMBEDDINGS);
}
