/* SPDX-License-Identifier: Apache-2.0 */
/* net.c builds this structure, and net_pass.c works on it. */
#pragma once

#include "cpu/convolution_onednn.h"
#include "kernels.h"
#include "models/graphs.h"
#include "models/net.h"

/* A ResNet-50 has 174 layers, 161 parameters and 106 buffers. Backward is cut into parts with about
   as many gradients each: of fewer, ready ones would wait longer. */
enum { NET_LAYERS_MAX = 192, NET_PARAMS_MAX = 320, NET_NAME_MAX = 48, NET_PARTS = 8 };

typedef enum net_kind {
	NET_CONVOLUTION, NET_LINEAR, NET_MAX_POOL, NET_AVERAGE_POOL, NET_BATCH_NORM, NET_RELU,
	NET_DROPOUT, NET_ADD
} net_kind;

struct net_value {
	int64_t height, width, channels;
	float *data, *grad; /* [batch, height, width, channels] */
};

struct net_layer {
	net_kind kind;
	int from, other, to;  /* values */
	int param;            /* the weight; a bias is behind it, and running statistics behind that */
	bool bias;
	bool with_next;       /* a normalisation and the ReLU behind it, in one; see net_is_fused() */
	bool adds, other_adds; /* a later layer has set the gradient of `from`, or `other`, before */
	dk_window window;     /* its batch is set by each pass */
	int64_t inputs, outputs;
	double probability;
	int32_t *which;       /* of a maximum */
	float *mean, *rstd;   /* [channels] */
	uint64_t ahead;       /* of dropout: counters that earlier layers take of this pass's */
};

struct net {
	int capacity, batch;
	int layers_count, values_count, params_count;
	bool failed;          /* memory was short, layers too many, or images too small */
	bool too_small;       /* for a window */
	bool normal;          /* convolutions start so */
	struct net_layer layers[NET_LAYERS_MAX];
	struct net_value values[NET_LAYERS_MAX + 1];
	ddp_param params[NET_PARAMS_MAX];
	char names[NET_PARAMS_MAX][NET_NAME_MAX];
	float *data[NET_PARAMS_MAX], *grad[NET_PARAMS_MAX];
	struct dk_onednn *onednn; /* NULL: convolutions do without */
	float *work;          /* of the layer at hand */
	net_sum_fn sum;       /* over all ranks; NULL: each normalises by its own images */
	void *sum_user;
	int64_t all_images;   /* of all ranks, in the pass at hand */
	double *sums;         /* [2 * channels]: what is summed, where the network is */
	float *scratch;       /* a second gradient of a value, before it is added */
	dk_random drawn;      /* what dropout draws from in the pass at hand */
	dk_random *random;    /* the same, where the network is */
	const int32_t *targets; /* labels of the pass at hand */
	bool trains;          /* the pass at hand */
	ddp_status status;    /* of `sum` in it */
	graphs graphs;        /* of forward, and of backward's parts */
	int parts, first[NET_PARTS + 1]; /* backward's part i has layers first[i] - 1 down to first[i + 1] */
	double *loss;         /* where the network is; NULL: passes return it */
	/* On a device: */
	net_memory memory;    /* alloc NULL: the host's */
	float *images;        /* [capacity] images of the pass at hand */
	int32_t *labels;
	float *staged;        /* [slots][capacity] images, and labels, on the host, of passes that
	                         may not have begun */
	int32_t *staged_labels;
	dk_random *staged_random; /* [slots] */
	int slots, slot;      /* slot: of the next pass */
	float *logits;        /* [capacity, classes], on the host */
	void *arena;
	size_t arena_bytes;
};

static inline bool net_is_on_device(const net *n)
{
	return n->memory.alloc != NULL;
}

/* Whether the layer does the work of the next, too, in a pass to train: not if ranks normalise together. */
static inline bool net_is_fused(const net *n, const struct net_layer *l)
{
	return l->with_next && n->sum == NULL;
}

static inline bool net_has_params(const struct net_layer *l)
{
	return l->kind == NET_CONVOLUTION || l->kind == NET_LINEAR || l->kind == NET_BATCH_NORM;
}

/* Numbers of one image, or of one value. */
static inline int64_t net_value_size(const struct net_value *v)
{
	return v->height * v->width * v->channels;
}
