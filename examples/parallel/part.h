/* SPDX-License-Identifier: Apache-2.0 */
/* part: what one rank has of a GPT that is split over several ranks. The layers are divided into stages
   (pipeline parallelism), and the matrices of a stage into slices (tensor parallelism: Shoeybi et al.,
   "Megatron-LM", 2019): each slice has some heads of the attention, and some columns of the first
   and rows of the second matrix of the MLP. What is not split stands on all slices of its stage,
   where it gets the same gradients. */
#pragma once

#include <stdint.h>

#include <ddp.h>

typedef struct part_config {
	int layers, heads, width, length; /* of the whole network */
	int stages, slices;               /* into which it is split */
	int micro_batches, batch;         /* of one copy in a step, and sequences in each of them */
	int stage, slice;                 /* that this rank has */
	ddp_comm *slice_comm;             /* the slices of this stage, in this copy */
} part_config;

enum { PART_VOCAB = 256 };

typedef struct part part;

/* NULL: no memory. */
part *part_make(const part_config *config);
void part_free(part *p);

/* The tensors of this part, for ddp_model_create(). */
const ddp_param *part_params(const part *p, int *count);

/* Sets the parameters of a model of them to the part's share of what the whole network starts from. */
void part_begin(part *p, ddp_model *model);

static inline int part_is_first(const part_config *config)
{
	return config->stage == 0;
}

static inline int part_is_last(const part_config *config)
{
	return config->stage == config->stages - 1;
}

/* Elements of what goes from stage to stage: [batch, length, width]. */
size_t part_elements(const part_config *config);

/* Forward of micro-batch m. tokens and targets [batch, length], of which the first stage reads the former
   and the last one the latter. `in`: what the stage before has sent; NULL on the first. *out: what the
   next stage needs, valid until the step's end. On the last stage *loss is the sum of the losses. */
ddp_status part_forward(part *p, int m, const int32_t *tokens, const int32_t *targets, const float *in,
                        const float **out, double *loss);

/* Backward of micro-batch m. `dout`: the gradient of *out, from the next stage; NULL on the last.
   *din: that of `in`, valid until the next call. `last`: this is the step's last backward, in which
   each gradient is announced when it is complete. */
ddp_status part_backward(part *p, int m, const int32_t *tokens, const int32_t *targets, const float *dout, bool last,
                         const float **din);
