/* SPDX-License-Identifier: Apache-2.0 */
/* gpt.c lays this structure out, and gpt_pass.c works on it. */
#pragma once

#include "kernels.h"
#include "models/gpt.h"
#include "models/graphs.h"

/* Parameters of a layer, in order; a layer's first is LAYER_0 + layer * PER_LAYER. */
enum gpt_part {
	LN_1_WEIGHT, LN_1_BIAS,
	ATTN_WEIGHT, ATTN_BIAS, ATTN_PROJ_WEIGHT, ATTN_PROJ_BIAS,
	LN_2_WEIGHT, LN_2_BIAS,
	FC_WEIGHT, FC_BIAS, FC_PROJ_WEIGHT, FC_PROJ_BIAS,
	PER_LAYER
};

/* WTE, WPE, the layers, then, counted from the last layer's end: LN_F_*, LM_HEAD. */
enum { WTE, WPE, LAYER_0 };
enum { LN_F_WEIGHT, LN_F_BIAS, LM_HEAD };

/* Rows below are batch * length. With config.recompute, all layers share all of these but `out`. */
struct gpt_layer {
	float *ln_1, *ln_1_mean, *ln_1_rstd; /* [rows, width], [rows], [rows] */
	float *qkv;                          /* [rows, 3 width] */
	float *attended, *lse;               /* [rows, width], [batch, heads, length] */
	float *middle;                       /* [rows, width]: the stream after attention */
	float *ln_2, *ln_2_mean, *ln_2_rstd;
	float *fc, *fc_gelu;                 /* [rows, 4 width] */
	float *out;                          /* [rows, width]: the stream after the layer */
};

struct gpt {
	gpt_config config;
	int capacity;            /* sequences */
	int passes;              /* of forward in a step */
	int count;
	ddp_param *params;
	char (*names)[64];
	float **data, **grad;    /* [count] */
	struct gpt_layer *layers;
	float *embedded;         /* [rows, width] */
	float *ln_f, *ln_f_mean, *ln_f_rstd;
	float *classifier;       /* dk_classifier_work() */
	float *dstream, *dnorm, *dattended; /* [rows, width] */
	float *dwide;            /* [rows, 4 width] */
	float *widened;          /* [rows, width], or [vocab]: f32 of 16 bits, if the model is mixed */
	int32_t *tokens, *targets; /* [rows] */
	int batch, length;       /* of the forward pass at hand */
	int32_t *staged;         /* [slots][2][rows], on the host: tokens, targets of passes
	                            that may not have begun */
	int slots, slot;         /* slot: of the pass at hand */
	double *loss;            /* where the model is; NULL: it is returned */
	gpt_reads_fn reads;      /* NULL: nobody wants to know */
	void *reads_user;
	double loss_scale;
	double dropout;          /* probability; 0: none */
	dk_random drawn;         /* what dropout draws from in the pass at hand */
	dk_random *random;       /* the same, where the model is */
	dk_random *staged_random; /* [slots], on the host, as `staged` is */
	graphs graphs;           /* of each layer's forward, and behind these of each layer's backward */
	gpt_memory memory;       /* alloc NULL: the host's */
	void *arena;
	size_t arena_bytes;
};
