/* SPDX-License-Identifier: Apache-2.0 */
/* gpt: the GPT-2 architecture (Radford et al., 2019), forward and backward on
   one host or device, over parameters and gradients that the caller owns. Names and
   shapes are those of the published GPT-2 checkpoints. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddp.h"

typedef struct gpt_config {
	int layers, heads, width, vocab;
	int length;  /* longest sequence */
	bool untied; /* the classifier has a weight of its own, lm_head.weight */
	bool mixed;  /* for a queue of DK_MIXED: parameters and activations are bf16 */
	bool f16;    /* mixed, for a queue of DK_MIXED_F16 */
	bool recompute; /* forward keeps what goes into each layer, and backward computes the layer again (activation
	                   checkpointing: Chen et al., 2016): the same bits in less memory and more time */
} gpt_config;

/* Checks the sizes, and says in `why` what is wrong with them; true if nothing is. */
bool gpt_config_valid(const gpt_config *config, char *why, size_t bytes);

typedef struct gpt gpt;

/* Room for up to `batch` sequences, allocated and touched once; a step has up
   to `passes` forward passes. NULL if there is not enough memory. The
   configuration must be valid. */
gpt *gpt_create(const gpt_config *config, int batch, int passes);

/* Memory of a device, zeroed; NULL if there is not enough. */
typedef struct gpt_memory {
	void *(*alloc)(void *user, size_t bytes);
	void (*release)(void *user, void *memory);
	void *user;
} gpt_memory;

/* The same on a device. All functions but this and gpt_free() are then called by a thread
   that uses a queue of kernels there (dk_use()). They enqueue and return, but for
   gpt_initialise(), gpt_evaluate() and gpt_next_logits(); before a pass, what `passes` passes ago was
   enqueued must be done. */
gpt *gpt_create_on(const gpt_memory *memory, const gpt_config *config, int batch, int passes);
void gpt_free(gpt *model);

/* Returns the bytes that the model has for activations and their gradients. */
size_t gpt_activation_bytes(const gpt *model);

/* The parameters, in the order in which forward uses them. */
const ddp_param *gpt_params(const gpt *model, int *count);

/* From now on layers are captured as graphs and launched as such, where that can be: on a
   queue that captures them, from the second pass of a shape on. A layer's gradients are then told
   ready together. Free the model before the queue. Passes that cannot be captured go as without. */
void gpt_use_graphs(gpt *model, bool wanted);
/* Why capturing was given up, or NULL. */
const char *gpt_graph_failure(const gpt *model);

/* Called when backward is done with a parameter's gradient. */
typedef ddp_status (*gpt_ready_fn)(void *user, int param);

/* Called with the part of a gradient that is rows: values [count, width] are
   to be added to the rows that `index` [count] names. The parameter's dense
   part has been told ready, perhaps long ago. The arrays are the model's. */
typedef ddp_status (*gpt_rows_fn)(void *user, int param, const int32_t *index,
                                  const float *values, int64_t count);

/* Where parameter i and its gradient lie; the arrays are copied. If the model is mixed,
   parameters are the addresses of bf16. */
void gpt_bind(gpt *model, float *const *params, float *const *grads);

/* Forward passes add to *loss, which is where the model is, what they would return, and
   return 0. */
void gpt_bind_loss(gpt *model, double *loss);

/* gpt_forward() drops elements of the embedding, and of what each layer's two halves add to
   the stream, with a probability below 1, and scales the others. Which ones hangs on the seed and
   the pass's number alone: give passes numbers that differ over ranks and micro-batches. Before
   each pass; 0 ends it. */
void gpt_set_dropout(gpt *model, double probability, uint64_t seed, uint64_t pass);

/* Forward passes call it before they read a parameter for the first time, in order. */
typedef void (*gpt_reads_fn)(void *user, int param);
void gpt_bind_reads(gpt *model, gpt_reads_fn reads, void *user);

/* GPT-2's initialisation, the same for the same seed, of bound parameters that
   are f32. False: out of memory. */
bool gpt_initialise(gpt *model, uint64_t seed);

/* Takes `batch` samples of length + 1 tokens: inputs, and targets one ahead.
   Returns the sum of the cross-entropies, in nats, of batch * length tokens.
   All tokens must be below vocab: see gpt_stray_token(). */
double gpt_forward(gpt *model, const int32_t *samples, int batch, int length);

/* The same for a model that is not to learn from the samples: nothing is dropped, and the sum is
   returned wherever the model is. */
double gpt_evaluate(gpt *model, const int32_t *samples, int batch, int length);

/* Backward passes multiply the loss by it; 1 at the start. A model with config.f16 alone. */
void gpt_scale_loss(gpt *model, double scale);

/* Adds the gradient of that sum. Once after each gpt_forward(). If `rows` is
   NULL, no part of a gradient comes as rows. */
ddp_status gpt_backward(gpt *model, gpt_ready_fn ready, gpt_rows_fn rows, void *user);

/* The first of `count` tokens that is not in the vocabulary, or -1 if all are. */
int64_t gpt_stray_token(const gpt *model, const int32_t *tokens, int64_t count);

/* logits [vocab] of what follows `length` tokens. */
void gpt_next_logits(gpt *model, const int32_t *tokens, int length, float *logits);
