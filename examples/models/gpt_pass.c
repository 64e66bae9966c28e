/* SPDX-License-Identifier: Apache-2.0 */
/* gpt: forward and backward. */
#include <string.h>

#include "kernels.h"
#include "models/gpt_inside.h"

static int layer_param(int layer, enum gpt_part part)
{
	return LAYER_0 + layer * PER_LAYER + (int)part;
}

static int final_param(const gpt *g, int part)
{
	return LAYER_0 + g->config.layers * PER_LAYER + part;
}

static int classifier_param(const gpt *g)
{
	return g->config.untied ? final_param(g, LM_HEAD) : WTE;
}

/* Parameters [first, end) are read next. */
static void read_params(const gpt *g, int first, int end)
{
	for (int i = first; i < end && g->reads != NULL; i++)
		g->reads(g->reads_user, i);
}

/* ---- dropout: of the embedding, then of each layer's two halves ------------------------- */

enum { EMBEDDING_DROP, LAYER_DROPS };

static int64_t stream_elements(const gpt *g)
{
	return (int64_t)g->batch * g->length * g->config.width;
}

static int drop_of(int layer, int half)
{
	return LAYER_DROPS + 2 * layer + half;
}

/* How many counters one use takes at most. */
static uint64_t drop_counters(const gpt *g)
{
	return ((uint64_t)g->capacity * (uint64_t)g->config.length * (uint64_t)g->config.width + 3) / 4;
}

void gpt_set_dropout(gpt *g, double probability, uint64_t seed, uint64_t pass)
{
	g->dropout = probability;
	g->drawn = (dk_random){seed, pass * drop_counters(g) * (uint64_t)drop_of(g->config.layers, 0)};
}

static void drop(const gpt *g, int which, float *out, const float *in)
{
	dk_dropout(out, in, stream_elements(g), g->dropout, g->random, (uint64_t)which * drop_counters(g));
}

/* out [rows, width] = in [rows, inputs] times the weight, plus the stream. */
static void add_to_stream(const gpt *g, int which, float *out, const float *in, const float *weight,
                          const float *bias, const float *stream, int64_t inputs)
{
	const int64_t rows = (int64_t)g->batch * g->length;

	dk_linear_forward(out, in, weight, bias, g->dropout > 0 ? NULL : stream, rows, inputs, g->config.width);
	if (g->dropout == 0)
		return;
	drop(g, which, out, out);
	dk_add(out, out, stream, stream_elements(g));
}

/* The gradient of what was added to the stream; in dnorm, which is free then. */
static const float *added_gradient(const gpt *g, int which)
{
	if (g->dropout == 0)
		return g->dstream;
	drop(g, which, g->dnorm, g->dstream);
	return g->dnorm;
}

/* ---- forward ------------------------------------------------------------------------------ */

static const float *layer_input(const gpt *g, int layer)
{
	return layer > 0 ? g->layers[layer - 1].out : g->embedded;
}

/* Up to the layer's last product, whose result backward does not read. */
static void compute_kept(const gpt *g, int layer)
{
	const float *in = layer_input(g, layer);
	float *const *p = g->data + layer_param(layer, 0);
	struct gpt_layer *l = &g->layers[layer];
	int64_t width = g->config.width, rows = (int64_t)g->batch * g->length;

	dk_layernorm_forward(l->ln_1, l->ln_1_mean, l->ln_1_rstd, in, p[LN_1_WEIGHT],
	                     p[LN_1_BIAS], rows, width);
	dk_linear_forward(l->qkv, l->ln_1, p[ATTN_WEIGHT], p[ATTN_BIAS], NULL, rows, width,
	                  3 * width);
	dk_attention_forward(l->attended, l->lse, l->qkv, g->batch, g->length, g->config.heads,
	                     width);
	add_to_stream(g, drop_of(layer, 0), l->middle, l->attended, p[ATTN_PROJ_WEIGHT], p[ATTN_PROJ_BIAS], in,
	              width);
	dk_layernorm_forward(l->ln_2, l->ln_2_mean, l->ln_2_rstd, l->middle, p[LN_2_WEIGHT],
	                     p[LN_2_BIAS], rows, width);
	dk_linear_gelu_forward(l->fc_gelu, l->fc, l->ln_2, p[FC_WEIGHT], p[FC_BIAS], rows, width,
	                       4 * width);
}

static void compute_layer(void *model, int layer)
{
	const gpt *g = model;
	float *const *p = g->data + layer_param(layer, 0);
	const struct gpt_layer *l = &g->layers[layer];

	compute_kept(g, layer);
	add_to_stream(g, drop_of(layer, 1), l->out, l->fc_gelu, p[FC_PROJ_WEIGHT], p[FC_PROJ_BIAS], l->middle,
	              4 * (int64_t)g->config.width);
}

static void forward_layer(gpt *g, int layer)
{
	read_params(g, layer_param(layer, 0), layer_param(layer + 1, 0));
	graphs_run(&g->graphs, layer, compute_layer, g);
}

/* Up to the final layernorm, which is left in g->ln_f. */
static void forward_stream(gpt *g, int batch, int length)
{
	int64_t width = g->config.width;

	g->batch = batch;
	g->length = length;
	graphs_begin(&g->graphs, &(pass_shape){.batch = batch, .length = length, .dropout = g->dropout});
	read_params(g, WTE, LAYER_0);
	dk_embedding_forward(g->embedded, g->tokens, g->data[WTE], g->data[WPE], batch, length,
	                     width);
	if (g->dropout > 0)
		drop(g, EMBEDDING_DROP, g->embedded, g->embedded);
	for (int i = 0; i < g->config.layers; i++)
		forward_layer(g, i);
	read_params(g, final_param(g, LN_F_WEIGHT), g->count);
	dk_layernorm_forward(g->ln_f, g->ln_f_mean, g->ln_f_rstd, layer_input(g, g->config.layers),
	                     g->data[final_param(g, LN_F_WEIGHT)],
	                     g->data[final_param(g, LN_F_BIAS)], (int64_t)batch * length, width);
}

/* The samples are the caller's again, though a queue may not have come to them. */
static void take_samples(gpt *g, const int32_t *samples, int batch, int length)
{
	const size_t rows = (size_t)g->capacity * (size_t)g->config.length, line = (size_t)length;
	int32_t *tokens = g->staged + (size_t)g->slot * 2 * rows, *targets = tokens + rows;

	for (size_t i = 0; i < (size_t)batch; i++) {
		memcpy(tokens + i * line, samples + i * (line + 1), line * sizeof(*tokens));
		memcpy(targets + i * line, samples + i * (line + 1) + 1, line * sizeof(*targets));
	}
	dk_copy(g->tokens, tokens, (size_t)batch * line * sizeof(*tokens));
	dk_copy(g->targets, targets, (size_t)batch * line * sizeof(*targets));
	if (g->dropout > 0) {
		g->staged_random[g->slot] = g->drawn;
		dk_copy(g->random, &g->staged_random[g->slot], sizeof(*g->random));
	}
	g->slot = (g->slot + 1) % g->slots;
}

double gpt_forward(gpt *g, const int32_t *samples, int batch, int length)
{
	take_samples(g, samples, batch, length);
	forward_stream(g, batch, length);
	if (g->loss != NULL) {
		dk_classifier_loss(g->loss, g->classifier, g->ln_f, g->data[classifier_param(g)], g->targets,
		                   (int64_t)batch * length, g->config.width, g->config.vocab);
		return 0;
	}
	return dk_classifier_forward(g->classifier, g->ln_f, g->data[classifier_param(g)],
	                             g->targets, (int64_t)batch * length, g->config.width,
	                             g->config.vocab);
}

double gpt_evaluate(gpt *g, const int32_t *samples, int batch, int length)
{
	double before = 0, after = 0; /* if the queue has failed */

	g->dropout = 0;
	if (g->loss == NULL)
		return gpt_forward(g, samples, batch, length);
	dk_copy(&before, g->loss, sizeof(before));
	gpt_forward(g, samples, batch, length);
	dk_copy(&after, g->loss, sizeof(after));
	dk_largest(g->ln_f, 1); /* waits */
	dk_copy(g->loss, &before, sizeof(before));
	dk_largest(g->ln_f, 1); /* `before` is read until then */
	return after - before;
}

/* A mixed model's numbers, in g->widened. */
static const float *widen(const gpt *g, const float *narrow, int64_t n)
{
	const uint16_t *from = (const uint16_t *)narrow;

	if (g->config.f16)
		dk_from_f16(g->widened, from, n, 1);
	else
		dk_from_bf16(g->widened, from, n);
	return g->widened;
}

void gpt_next_logits(gpt *g, const int32_t *tokens, int length, float *logits)
{
	int64_t width = g->config.width, last = (length - 1) * width;

	g->dropout = 0;
	dk_copy(g->tokens, tokens, (size_t)length * sizeof(int32_t));
	forward_stream(g, 1, length);
	dk_gemm(&(dk_gemm_args){.transpose_b = true, .m = 1, .n = g->config.vocab, .k = width,
		.a = g->config.mixed ? (float *)((uint16_t *)g->ln_f + last) : g->ln_f + last, .lda = width,
		.b = g->data[classifier_param(g)], .ldb = width, .c = g->classifier,
		.ldc = g->config.vocab});
	const float *there = g->config.mixed ? widen(g, g->classifier, g->config.vocab) : g->classifier;
	dk_copy(logits, there, (size_t)g->config.vocab * sizeof(*logits));
	dk_largest(there, 1); /* waits */
}

static void tell(gpt *g, int param)
{
	graphs_tell(&g->graphs, param);
}

static void backward_mlp(gpt *g, int layer)
{
	int first = layer_param(layer, 0);
	float *const *p = g->data + first, *const *d = g->grad + first;
	struct gpt_layer *l = &g->layers[layer];
	int64_t width = g->config.width, rows = (int64_t)g->batch * g->length;

	const float *added = added_gradient(g, drop_of(layer, 1));
	dk_linear_backward_params(d[FC_PROJ_WEIGHT], d[FC_PROJ_BIAS], added, l->fc_gelu,
	                          rows, 4 * width, width);
	tell(g, first + FC_PROJ_BIAS);
	tell(g, first + FC_PROJ_WEIGHT);
	dk_linear_gelu_backward(g->dwide, added, p[FC_PROJ_WEIGHT], l->fc, rows, 4 * width, width);
	dk_linear_backward_params(d[FC_WEIGHT], d[FC_BIAS], g->dwide, l->ln_2, rows, width,
	                          4 * width);
	tell(g, first + FC_BIAS);
	tell(g, first + FC_WEIGHT);
	dk_linear_backward_input(g->dnorm, g->dwide, p[FC_WEIGHT], rows, width, 4 * width);
	dk_layernorm_backward(g->dstream, d[LN_2_WEIGHT], d[LN_2_BIAS], g->dnorm, l->middle,
	                      l->ln_2_mean, l->ln_2_rstd, p[LN_2_WEIGHT], rows, width);
	tell(g, first + LN_2_BIAS);
	tell(g, first + LN_2_WEIGHT);
}

static void backward_attention(gpt *g, int layer, const float *in)
{
	int first = layer_param(layer, 0);
	float *const *p = g->data + first, *const *d = g->grad + first;
	struct gpt_layer *l = &g->layers[layer];
	int64_t width = g->config.width, rows = (int64_t)g->batch * g->length;

	const float *added = added_gradient(g, drop_of(layer, 0));
	dk_linear_backward_params(d[ATTN_PROJ_WEIGHT], d[ATTN_PROJ_BIAS], added,
	                          l->attended, rows, width, width);
	tell(g, first + ATTN_PROJ_BIAS);
	tell(g, first + ATTN_PROJ_WEIGHT);
	dk_linear_backward_input(g->dattended, added, p[ATTN_PROJ_WEIGHT], rows, width,
	                         width);
	dk_attention_backward(g->dwide, g->dattended, l->qkv, l->attended, l->lse, g->batch,
	                      g->length, g->config.heads, width);
	dk_linear_backward_params(d[ATTN_WEIGHT], d[ATTN_BIAS], g->dwide, l->ln_1, rows, width,
	                          3 * width);
	tell(g, first + ATTN_BIAS);
	tell(g, first + ATTN_WEIGHT);
	dk_linear_backward_input(g->dnorm, g->dwide, p[ATTN_WEIGHT], rows, width, 3 * width);
	dk_layernorm_backward(g->dstream, d[LN_1_WEIGHT], d[LN_1_BIAS], g->dnorm, in,
	                      l->ln_1_mean, l->ln_1_rstd, p[LN_1_WEIGHT], rows, width);
	tell(g, first + LN_1_BIAS);
	tell(g, first + LN_1_WEIGHT);
}

/* Graphs of backward are behind those of forward. */
static void backward_layer(void *model, int part)
{
	gpt *g = model;
	const int layer = part - g->config.layers;

	/* The last layer still has what it kept. */
	if (g->config.recompute && layer < g->config.layers - 1)
		compute_kept(g, layer);
	backward_mlp(g, layer);
	backward_attention(g, layer, layer_input(g, layer));
}

static const float *row_gradients(gpt *g)
{
	return g->config.mixed ? widen(g, g->dstream, stream_elements(g)) : g->dstream;
}

/* The embedding's gradient has but few rows. If the classifier shares its
   weight, that part of the gradient, which is dense, is complete at once. */
static void backward_embedding(gpt *g, gpt_rows_fn rows, void *user)
{
	int64_t width = g->config.width, count = (int64_t)g->batch * g->length;

	if (g->dropout > 0)
		drop(g, EMBEDDING_DROP, g->dstream, g->dstream);
	dk_embedding_backward(rows != NULL ? NULL : g->grad[WTE], g->grad[WPE], g->dstream,
	                      g->tokens, g->batch, g->length, width);
	tell(g, WPE);
	if (rows == NULL)
		tell(g, WTE);
	else if (g->graphs.status == DDP_OK)
		g->graphs.status = rows(user, WTE, g->tokens, row_gradients(g), count);
}

ddp_status gpt_backward(gpt *g, gpt_ready_fn ready, gpt_rows_fn rows, void *user)
{
	int64_t width = g->config.width, count = (int64_t)g->batch * g->length;
	int head = classifier_param(g), norm = final_param(g, LN_F_WEIGHT);

	graphs_listen(&g->graphs, ready, user);
	if (g->loss_scale != 1)
		dk_scale(g->classifier, count * g->config.vocab, (float)g->loss_scale);
	dk_classifier_backward(g->dnorm, g->grad[head], g->classifier, g->ln_f, g->data[head],
	                       g->targets, count, width, g->config.vocab);
	if (g->config.untied)
		tell(g, head);
	if (rows != NULL)
		tell(g, WTE);
	dk_zero(g->dstream, count * width);
	dk_layernorm_backward(g->dstream, g->grad[norm], g->grad[norm + 1], g->dnorm,
	                      layer_input(g, g->config.layers), g->ln_f_mean, g->ln_f_rstd,
	                      g->data[norm], count, width);
	tell(g, norm + 1);
	tell(g, norm);
	for (int i = g->config.layers - 1; i >= 0; i--)
		graphs_run(&g->graphs, g->config.layers + i, backward_layer, g);
	backward_embedding(g, rows, user);
	return g->graphs.status;
}
