/* SPDX-License-Identifier: Apache-2.0 */
/* resnet: residual networks on CIFAR-10. */
#include "models/resnet.h"
#include "vision/options.h"

static void build(net *n, const vision_options *options)
{
	net_resnet(n, &options->resnet);
}

int main(int argc, char **argv)
{
	return vision_main(argc, argv, &(vision_example){.name = "resnet",
		.about = "Trains a residual network on CIFAR-10.",
		.data = VISION_CIFAR10, .augment = true, .batch = 64, .learning_rate = 0.05, .momentum = 0.9,
		.weight_decay = 5e-4, .resnet = true, .build = build});
}
