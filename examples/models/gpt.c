/* SPDX-License-Identifier: Apache-2.0 */
/* gpt: sizes, names, memory and initialisation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels.h"
#include "models/gpt_inside.h"
#include "models/random.h"

bool gpt_config_valid(const gpt_config *c, char *why, size_t bytes)
{
	if (c->layers < 1 || c->heads < 1 || c->width < 1 || c->vocab < 1 || c->length < 1) {
		snprintf(why, bytes, "layers, heads, width, vocab and length must be at least 1");
		return false;
	}
	if (c->width % c->heads != 0) {
		snprintf(why, bytes, "width %d is not a multiple of the %d heads", c->width, c->heads);
		return false;
	}
	if (c->width / c->heads > DK_HEAD_MAX) {
		snprintf(why, bytes, "a head is %d wide, at most %d are possible; give more heads",
		         c->width / c->heads, DK_HEAD_MAX);
		return false;
	}
	return true;
}

/* ---- parameters ------------------------------------------------------------------ */

static void name_param(gpt *g, int index, int layer, const char *name, int64_t rows,
                       int64_t columns)
{
	ddp_param *p = &g->params[index];

	if (layer >= 0)
		snprintf(g->names[index], sizeof(g->names[index]), "h.%d.%s", layer, name);
	else
		snprintf(g->names[index], sizeof(g->names[index]), "%s", name);
	*p = (ddp_param){.name = g->names[index], .ndim = columns > 0 ? 2 : 1,
		.shape = {rows, columns}, .no_decay = columns == 0};
}

static void list_params(gpt *g)
{
	const gpt_config *c = &g->config;
	int64_t width = c->width;

	name_param(g, WTE, -1, "wte.weight", c->vocab, width);
	g->params[WTE].sparse_rows = (int64_t)g->capacity * c->length * g->passes;
	g->params[WTE].rows_only = c->untied;
	name_param(g, WPE, -1, "wpe.weight", c->length, width);
	for (int i = 0; i < c->layers; i++) {
		int first = LAYER_0 + i * PER_LAYER;
		name_param(g, first + LN_1_WEIGHT, i, "ln_1.weight", width, 0);
		name_param(g, first + LN_1_BIAS, i, "ln_1.bias", width, 0);
		name_param(g, first + ATTN_WEIGHT, i, "attn.c_attn.weight", width, 3 * width);
		name_param(g, first + ATTN_BIAS, i, "attn.c_attn.bias", 3 * width, 0);
		name_param(g, first + ATTN_PROJ_WEIGHT, i, "attn.c_proj.weight", width, width);
		name_param(g, first + ATTN_PROJ_BIAS, i, "attn.c_proj.bias", width, 0);
		name_param(g, first + LN_2_WEIGHT, i, "ln_2.weight", width, 0);
		name_param(g, first + LN_2_BIAS, i, "ln_2.bias", width, 0);
		name_param(g, first + FC_WEIGHT, i, "mlp.c_fc.weight", width, 4 * width);
		name_param(g, first + FC_BIAS, i, "mlp.c_fc.bias", 4 * width, 0);
		name_param(g, first + FC_PROJ_WEIGHT, i, "mlp.c_proj.weight", 4 * width, width);
		name_param(g, first + FC_PROJ_BIAS, i, "mlp.c_proj.bias", width, 0);
	}
	int last = LAYER_0 + c->layers * PER_LAYER;
	name_param(g, last + LN_F_WEIGHT, -1, "ln_f.weight", width, 0);
	name_param(g, last + LN_F_BIAS, -1, "ln_f.bias", width, 0);
	if (c->untied)
		name_param(g, last + LM_HEAD, -1, "lm_head.weight", c->vocab, width);
}

const ddp_param *gpt_params(const gpt *g, int *count)
{
	*count = g->count;
	return g->params;
}

void gpt_bind_loss(gpt *g, double *loss)
{
	g->loss = loss;
}

void gpt_use_graphs(gpt *g, bool wanted)
{
	graphs_want(&g->graphs, wanted);
}

void gpt_scale_loss(gpt *g, double scale)
{
	g->loss_scale = scale;
}

const char *gpt_graph_failure(const gpt *g)
{
	return g->graphs.failure[0] != '\0' ? g->graphs.failure : NULL;
}

void gpt_bind_reads(gpt *g, gpt_reads_fn reads, void *user)
{
	g->reads = reads;
	g->reads_user = user;
}

void gpt_bind(gpt *g, float *const *params, float *const *grads)
{
	graphs_forget(&g->graphs);
	memcpy(g->data, params, (size_t)g->count * sizeof(float *));
	memcpy(g->grad, grads, (size_t)g->count * sizeof(float *));
}

/* ---- memory ---------------------------------------------------------------------- */

/* Gives out the arena's next `floats`; with no arena, only counts. */
static float *carve(gpt *g, size_t *used, size_t floats)
{
	float *here = g->arena != NULL ? (float *)g->arena + *used : NULL;

	*used += (floats + 15) / 16 * 16;
	return here;
}

/* This carves what has 16 bits in a mixed model. */
static float *carve_tensor(gpt *g, size_t *used, size_t elements)
{
	return carve(g, used, g->config.mixed ? (elements + 1) / 2 : elements);
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

static void lay_out_layer(gpt *g, struct gpt_layer *layer, size_t *used)
{
	size_t rows = (size_t)g->capacity * (size_t)g->config.length;
	size_t stream = rows * (size_t)g->config.width;

	*layer = (struct gpt_layer){
		.ln_1 = carve_tensor(g, used, stream),
		.ln_1_mean = carve(g, used, rows),
		.ln_1_rstd = carve(g, used, rows),
		.qkv = carve_tensor(g, used, 3 * stream),
		.attended = carve_tensor(g, used, stream),
		.lse = carve(g, used, rows * (size_t)g->config.heads),
		.middle = carve_tensor(g, used, stream),
		.ln_2 = carve_tensor(g, used, stream),
		.ln_2_mean = carve(g, used, rows),
		.ln_2_rstd = carve(g, used, rows),
		.fc = carve_tensor(g, used, 4 * stream),
		.fc_gelu = carve_tensor(g, used, 4 * stream),
	};
}

static size_t lay_out(gpt *g)
{
	size_t rows = (size_t)g->capacity * (size_t)g->config.length;
	size_t stream = rows * (size_t)g->config.width, used = 0;

	g->embedded = carve_tensor(g, &used, stream);
	for (int i = 0; i < g->config.layers; i++) {
		if (i > 0 && g->config.recompute)
			g->layers[i] = g->layers[0];
		else
			lay_out_layer(g, &g->layers[i], &used);
		g->layers[i].out = carve_tensor(g, &used, stream);
	}
	g->ln_f = carve_tensor(g, &used, stream);
	g->ln_f_mean = carve(g, &used, rows);
	g->ln_f_rstd = carve(g, &used, rows);
	g->classifier = carve(g, &used, dk_classifier_work((int64_t)rows, g->config.vocab));
	g->dstream = carve_tensor(g, &used, stream);
	g->dnorm = carve_tensor(g, &used, stream);
	g->dattended = carve_tensor(g, &used, stream);
	g->dwide = carve_tensor(g, &used, 4 * stream);
	g->widened = carve(g, &used, g->config.mixed ? larger(stream, (size_t)g->config.vocab) : 0);
	g->tokens = (int32_t *)carve(g, &used, rows);
	g->targets = (int32_t *)carve(g, &used, rows);
	g->random = (dk_random *)(void *)carve(g, &used, sizeof(*g->random) / sizeof(float));
	return used * sizeof(float);
}

/* One mapping, of huge pages where there are some, touched now: page faults
   would cost much of every step's time if they came in between. */
static bool map_arena(gpt *g)
{
	const gpt_config *c = &g->config;

	/* An upper bound of lay_out() that cannot overflow itself. */
	if ((double)g->capacity * c->length * (20.0 * c->width + c->vocab + c->heads + 8) *
	    (c->layers + 2) > 0x1p48)
		return false;
	g->arena_bytes = lay_out(g);
	if (g->memory.alloc != NULL) {
		g->arena = g->memory.alloc(g->memory.user, g->arena_bytes);
		lay_out(g);
		return g->arena != NULL;
	}
	void *arena = mmap(NULL, g->arena_bytes, PROT_READ | PROT_WRITE,
	                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena == MAP_FAILED)
		return false;
	madvise(arena, g->arena_bytes, MADV_HUGEPAGE);
	memset(arena, 0, g->arena_bytes);
	g->arena = arena;
	lay_out(g);
	return true;
}

gpt *gpt_create(const gpt_config *config, int batch, int passes)
{
	return gpt_create_on(NULL, config, batch, passes);
}

gpt *gpt_create_on(const gpt_memory *memory, const gpt_config *config, int batch, int passes)
{
	gpt *g = calloc(1, sizeof(*g));

	if (g == NULL)
		return NULL;
	if (memory != NULL)
		g->memory = *memory;
	g->slots = memory != NULL ? passes : 1;
	g->config = *config;
	g->loss_scale = 1;
	g->capacity = batch;
	g->passes = passes;
	g->count = LAYER_0 + config->layers * PER_LAYER + (config->untied ? 3 : 2);
	g->params = calloc((size_t)g->count, sizeof(*g->params));
	g->names = calloc((size_t)g->count, sizeof(*g->names));
	g->data = calloc((size_t)g->count, sizeof(*g->data));
	g->grad = calloc((size_t)g->count, sizeof(*g->grad));
	g->layers = calloc((size_t)config->layers, sizeof(*g->layers));
	g->staged_random = calloc((size_t)g->slots, sizeof(*g->staged_random));
	g->staged = calloc((size_t)g->slots * 2 * (size_t)batch * (size_t)config->length, sizeof(*g->staged));
	if (g->params == NULL || g->names == NULL || g->data == NULL || g->grad == NULL ||
	    g->layers == NULL || g->staged_random == NULL || g->staged == NULL ||
	    !graphs_open(&g->graphs, 2 * config->layers, PER_LAYER) || !map_arena(g)) {
		gpt_free(g);
		return NULL;
	}
	list_params(g);
	return g;
}

size_t gpt_activation_bytes(const gpt *g)
{
	return g->arena_bytes;
}

void gpt_free(gpt *g)
{
	if (g == NULL)
		return;
	graphs_close(&g->graphs);
	if (g->arena != NULL && g->memory.alloc != NULL)
		g->memory.release(g->memory.user, g->arena);
	else if (g->arena != NULL)
		munmap(g->arena, g->arena_bytes);
	free(g->staged);
	free(g->params);
	free(g->names);
	free(g->data);
	free(g->grad);
	free(g->layers);
	free(g->staged_random);
	free(g);
}

/* ---- initialisation ---------------------------------------------------------------- */

/* Normal numbers in pairs, by Box and Muller's transformation. */
static void fill_normal(float *x, int64_t n, float deviation, uint64_t seed)
{
	uint64_t state = seed;

	for (int64_t i = 0; i < n; i += 2) {
		uint64_t bits = next_random(&state);
		float u = (float)((bits >> 40) + 1) * 0x1p-24f; /* in (0, 1] */
		float angle = (float)(bits & 0xffffff) * (0x1p-24f * 6.2831853f);
		float radius = deviation * sqrtf(-2 * logf(u));
		x[i] = radius * cosf(angle);
		if (i + 1 < n)
			x[i + 1] = radius * sinf(angle);
	}
}

static bool ends_with(const char *name, const char *end)
{
	size_t n = strlen(name), m = strlen(end);

	return n >= m && strcmp(name + n - m, end) == 0;
}

/* Layernorm's weights are one, biases zero, the rest normal; what is added to
   the residual stream is smaller, by the root of how often that happens. */
static void fill_param(const gpt *g, int i, float *x, int64_t n, uint64_t seed)
{
	const ddp_param *p = &g->params[i];
	float deviation = 0.02f;

	if (ends_with(p->name, "c_proj.weight"))
		deviation /= sqrtf(2 * (float)g->config.layers);
	uint64_t state = seed + (uint64_t)i;
	if (p->ndim == 2)
		fill_normal(x, n, deviation, next_random(&state));
	else
		for (int64_t k = 0; k < n; k++)
			x[k] = ends_with(p->name, "weight") ? 1 : 0;
}

bool gpt_initialise(gpt *g, uint64_t seed)
{
	for (int i = 0; i < g->count; i++) {
		const ddp_param *p = &g->params[i];
		int64_t n = p->ndim == 2 ? p->shape[0] * p->shape[1] : p->shape[0];
		float *x = malloc((size_t)n * sizeof(*x));
		if (x == NULL)
			return false;
		fill_param(g, i, x, n, seed);
		dk_copy(g->data[i], x, (size_t)n * sizeof(*x));
		dk_largest(g->data[i], 1); /* waits until x is read */
		free(x);
	}
	return true;
}

int64_t gpt_stray_token(const gpt *g, const int32_t *tokens, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (tokens[i] < 0 || tokens[i] >= g->config.vocab)
			return i;
	return -1;
}
