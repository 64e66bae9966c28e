/* What net.c puts together and net_pass.c works on. */
#ifndef EXAMPLES_MODELS_NET_INSIDE_H
#define EXAMPLES_MODELS_NET_INSIDE_H

#include "kernels.h"
#include "models/net.h"

enum { NET_LAYERS_MAX = 128, NET_NAME_MAX = 48 };

typedef enum net_kind {
	NET_CONVOLUTION, NET_LINEAR, NET_MAX_POOL, NET_AVERAGE_POOL, NET_BATCH_NORM, NET_RELU,
	NET_DROPOUT, NET_ADD
} net_kind;

struct net_value {
	int64_t height, width, channels;
	float *data, *grad; /* [batch, height, width, channels] */
	bool has_grad;      /* backward has set it */
};

struct net_layer {
	net_kind kind;
	int from, other, to;  /* values */
	int param;            /* the weight; a bias is behind it */
	bool bias;
	dk_window window;     /* its batch is set by each pass */
	int64_t inputs, outputs;
	double probability;
	int32_t *which;       /* of a maximum */
	float *mean, *rstd;   /* [channels] */
	float *running;       /* [2, channels] */
	uint64_t counter;     /* of dropout in this pass */
};

struct net {
	int capacity, batch;
	int layers_count, values_count, params_count;
	bool failed;          /* memory was short, layers too many, or images too small */
	bool too_small;       /* for a window */
	struct net_layer layers[NET_LAYERS_MAX];
	struct net_value values[NET_LAYERS_MAX + 1];
	ddp_param params[2 * NET_LAYERS_MAX];
	char names[2 * NET_LAYERS_MAX][NET_NAME_MAX];
	float *data[2 * NET_LAYERS_MAX], *grad[2 * NET_LAYERS_MAX];
	float *work;          /* of the layer at hand */
	float *scratch;       /* a second gradient of a value, before it is added */
	float *running;       /* of all layers */
	int64_t running_count;
	uint64_t seed;        /* of dropout in this pass */
	void *arena;
	size_t arena_bytes;
};

/* Numbers of one image, or of one value. */
static inline int64_t net_value_size(const struct net_value *v)
{
	return v->height * v->width * v->channels;
}

#endif
