/* SPDX-License-Identifier: Apache-2.0 */
/* small_net: a network with a layer of each kind, for tests whose include path has examples/. */
#pragma once

#include "models/net.h"

enum { BATCH = 3, SIDE = 8, CHANNELS = 2, CLASSES = 4 };

/* With a block that has a shortcut, as ResNet's have: what it reads is read twice. */
static inline void build_small_net(net *n)
{
	int x = net_relu(n, net_batch_norm(n, net_convolution(n, NET_IMAGES, "conv1", 4, 3, 1, 1, false), "bn1"));
	int y = net_relu(n, net_convolution(n, x, "conv2", 5, 3, 2, 1, true));

	y = net_batch_norm(n, net_convolution(n, y, "conv3", 5, 3, 1, 1, false), "bn2");
	int shortcut = net_convolution(n, x, "down", 5, 1, 2, 0, false);
	x = net_dropout(n, net_relu(n, net_add(n, y, shortcut)), 0.25);
	x = net_average_pool(n, net_max_pool(n, x, 3, 1, 1));
	net_linear(n, x, "fc", CLASSES);
}
