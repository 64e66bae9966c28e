/* SPDX-License-Identifier: Apache-2.0 */
/* mnist_mlp: a perceptron of two hidden layers on MNIST. */
#include "vision/vision.h"

static void build(net *n, const vision_options *options)
{
	(void)options;
	int x = net_relu(n, net_linear(n, NET_IMAGES, "fc1", 128));

	x = net_relu(n, net_linear(n, x, "fc2", 64));
	net_linear(n, x, "fc3", 10);
}

int main(int argc, char **argv)
{
	return vision_main(argc, argv, &(vision_example){.name = "mnist_mlp",
		.about = "Trains a perceptron of layers of 128, 64 and 10 on MNIST.", .data = VISION_MNIST, .batch = 64,
		.learning_rate = 0.05, .momentum = 0.9, .build = build});
}
