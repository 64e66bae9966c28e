/* SPDX-License-Identifier: Apache-2.0 */
/* cifar_net: the network of PyTorch's first tutorial, a LeNet for CIFAR-10. */
#include "vision/vision.h"

static void build(net *n, const vision_options *options)
{
	(void)options;
	int x = net_relu(n, net_convolution(n, NET_IMAGES, "conv1", 6, 5, 1, 0, true));

	x = net_max_pool(n, x, 2, 2, 0);
	x = net_relu(n, net_convolution(n, x, "conv2", 16, 5, 1, 0, true));
	x = net_max_pool(n, x, 2, 2, 0);
	x = net_relu(n, net_linear(n, x, "fc1", 120));
	x = net_relu(n, net_linear(n, x, "fc2", 84));
	net_linear(n, x, "fc3", 10);
}

int main(int argc, char **argv)
{
	return vision_main(argc, argv, &(vision_example){.name = "cifar_net",
		.about = "Trains convolutions of 6 and 16 and layers of 120, 84 and 10 on CIFAR-10.",
		.data = VISION_CIFAR10, .augment = true, .batch = 64, .learning_rate = 0.01, .momentum = 0.9,
		.build = build});
}
