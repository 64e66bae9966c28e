/* SPDX-License-Identifier: Apache-2.0 */
#include "models/resnet.h"

#include <stdio.h>

enum { STAGES = 4, EXPANSION = 4 /* of a bottleneck's outputs */, NAME_MAX_BYTES = 40 };

/* A convolution that keeps the size, but for its stride, and what normalises its outputs. */
static int add_normed(net *n, int from, const char *block, const char *convolution, const char *norm, int outputs,
                      int size, int stride)
{
	char name[NAME_MAX_BYTES];

	snprintf(name, sizeof(name), "%s%s", block, convolution);
	const int x = net_convolution(n, from, name, outputs, size, stride, size / 2, false);
	snprintf(name, sizeof(name), "%s%s", block, norm);
	return net_batch_norm(n, x, name);
}

/* Two windows of 3, or one between two of 1; and a shortcut beside them. */
static int add_block(net *n, int from, const char *block, int inputs, int width, int stride, bool bottleneck)
{
	const int outputs = bottleneck ? EXPANSION * width : width;
	int x, shortcut = from;

	if (bottleneck) {
		x = net_relu(n, add_normed(n, from, block, "conv1", "bn1", width, 1, 1));
		x = net_relu(n, add_normed(n, x, block, "conv2", "bn2", width, 3, stride));
		x = add_normed(n, x, block, "conv3", "bn3", outputs, 1, 1);
	} else {
		x = net_relu(n, add_normed(n, from, block, "conv1", "bn1", width, 3, stride));
		x = add_normed(n, x, block, "conv2", "bn2", outputs, 3, 1);
	}
	if (stride != 1 || inputs != outputs)
		shortcut = add_normed(n, from, block, "downsample.0", "downsample.1", outputs, 1, stride);
	return net_relu(n, net_add(n, x, shortcut));
}

int net_resnet(net *n, const net_resnet_shape *shape)
{
	static const int blocks[][STAGES] = {{2, 2, 2, 2}, {3, 4, 6, 3}};
	const bool bottleneck = shape->depth == 50, large = shape->imagenet_stem;
	int inputs = shape->width;

	net_start_normal(n);
	int x = net_relu(n, add_normed(n, NET_IMAGES, "", "conv1", "bn1", inputs, large ? 7 : 3, large ? 2 : 1));
	if (large)
		x = net_max_pool(n, x, 3, 2, 1);
	for (int stage = 0; stage < STAGES; stage++) {
		const int width = shape->width << stage;
		for (int i = 0; i < blocks[bottleneck][stage]; i++) {
			char block[NAME_MAX_BYTES];
			snprintf(block, sizeof(block), "layer%d.%d.", stage + 1, i);
			x = add_block(n, x, block, inputs, width, stage > 0 && i == 0 ? 2 : 1, bottleneck);
			inputs = bottleneck ? EXPANSION * width : width;
		}
	}
	return net_linear(n, net_average_pool(n, x), "fc", shape->classes);
}
