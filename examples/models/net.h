/* SPDX-License-Identifier: Apache-2.0 */
/* net: networks for images, put together layer by layer, over parameters and gradients that
   the caller owns. Images lie channels last. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddp.h"

typedef struct net net;

/* Layers give values, which are named by a number; 0 is the images. */
enum { NET_IMAGES = 0 };

/* For up to `batch` images. NULL if there is not enough memory. */
net *net_create(int batch, const ddp_image_shape *shape);

/* Memory of a device, zeroed; NULL if there is not enough. */
typedef struct net_memory {
	void *(*alloc)(void *user, size_t bytes);
	void (*release)(void *user, void *memory);
	void *user;
} net_memory;

/* The same on a device. All functions but this and net_free() are then called by a thread that
   uses a queue of kernels there (dk_use()). Passes to train enqueue and return; before one,
   what `passes` passes ago was enqueued must be done. */
net *net_create_on(const net_memory *memory, int batch, const ddp_image_shape *shape, int passes);
void net_free(net *n);

/* Each adds a layer behind value `from` and returns the value that it gives. Parameters are
   NAME.weight and NAME.bias, of a convolution [outputs, size, size, channels] and [outputs],
   of a linear layer, which flattens its input, [inputs, outputs] and [outputs]. */
int net_convolution(net *n, int from, const char *name, int outputs, int size, int stride,
                    int padding, bool bias);
int net_linear(net *n, int from, const char *name, int outputs);
int net_max_pool(net *n, int from, int size, int stride, int padding);
/* The mean of each channel over the whole image. */
int net_average_pool(net *n, int from);
/* NAME.weight, NAME.bias, and the buffers NAME.running_mean and NAME.running_var [channels],
   which forward moves when it trains. */
int net_batch_norm(net *n, int from, const char *name);
/* These work in place: they return `from`, as which their result is known from now on. */
int net_relu(net *n, int from);
int net_dropout(net *n, int from, double probability);
int net_add(net *n, int from, int other);

/* A window is larger than what it is to see: net_finish() fails. */
bool net_is_too_small(const net *n);

/* Adds up `sums` [count] over all ranks, in place. In a device's memory, it is the queue that has
   to wait for them. */
typedef ddp_status (*net_sum_fn)(void *user, double *sums, int64_t count, ddp_memory memory);

/* Batches are normalised by the statistics of all ranks' images from now on: each pass forward to
   train calls `sum` once with a number of the host's, and it and backward do once of each
   normalisation, where the network is. All ranks do, so one that has no images makes its passes
   with a batch of 0. There are no graphs, then. */
void net_sync_batch_norm(net *n, net_sum_fn sum, void *user);

/* Dropout drops nothing from now on. */
void net_drop_nothing(net *n);

/* Weights of convolutions start normal, of variance 2 / (outputs * size * size): He et al.,
   ICCV 2015, as torchvision's ResNets; otherwise as net_initialise() says. */
void net_start_normal(net *n);

/* The last layer added gives the logits. Allocates what the layers need. False if there is
   not enough memory. */
bool net_finish(net *n);

/* The parameters, and buffers, which are of DDP_BUFFER_BROADCAST, in the order in which
   forward uses them. */
const ddp_param *net_params(const net *n, int *count);
/* Where parameter i and its gradient lie, a buffer's being NULL; the arrays are copied. */
void net_bind(net *n, float *const *params, float *const *grads);
/* PyTorch's: uniform within the root of 1 / inputs; the same for the same seed. False: out of
   memory. */
bool net_initialise(net *n, uint64_t seed);

/* Dropout draws from a seed and a counter, which each forward pass moves on. */
typedef struct net_random {
	uint64_t seed, counter;
} net_random;

/* Sums over the images of a pass. */
typedef struct net_result {
	double loss; /* cross-entropy, in nats */
	int64_t right;
	ddp_status status; /* of net_sync_batch_norm()'s `sum` */
} net_result;

/* Passes to train add their losses to *loss, which is where the network is, and return none. */
void net_bind_loss(net *n, double *loss);

/* `random` NULL: to evaluate; no dropout, and normalisation by running statistics. Labels
   are below the number of logits. */
net_result net_forward(net *n, const float *images, const int32_t *labels, int batch, net_random *random);

/* On a device: from now on passes are captured as graphs and launched as such, as gpt_use_graphs()
   (gpt.h) says: forward is one, backward several, behind each of which its gradients are told
   ready together. Free the network before the queue. */
void net_use_graphs(net *n, bool wanted);
/* Why capturing was given up, or NULL. */
const char *net_graph_failure(const net *n);

/* Called when backward is done with a parameter's gradient; never for a buffer. */
typedef ddp_status (*net_ready_fn)(void *user, int param);

/* Adds the gradient of the summed loss. Once after each net_forward() to train. */
ddp_status net_backward(net *n, net_ready_fn ready, void *user);
