/* SPDX-License-Identifier: Apache-2.0 */
/* mnist_cnn: the network of PyTorch's example for MNIST. */
#include "vision/vision.h"

static void build(net *n, const vision_options *options)
{
	(void)options;
	int x = net_relu(n, net_convolution(n, NET_IMAGES, "conv1", 32, 3, 1, 0, true));

	x = net_relu(n, net_convolution(n, x, "conv2", 64, 3, 1, 0, true));
	x = net_dropout(n, net_max_pool(n, x, 2, 2, 0), 0.25);
	x = net_relu(n, net_linear(n, x, "fc1", 128));
	net_linear(n, net_dropout(n, x, 0.5), "fc2", 10);
}

int main(int argc, char **argv)
{
	return vision_main(argc, argv, &(vision_example){.name = "mnist_cnn",
		.about = "Trains two convolutions, of 32 and 64, and layers of 128 and 10 on MNIST.",
		.data = VISION_MNIST, .batch = 64, .learning_rate = 0.02, .momentum = 0.9, .build = build});
}
