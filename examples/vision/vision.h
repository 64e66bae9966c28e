/* SPDX-License-Identifier: Apache-2.0 */
/* vision: what the examples that train on images share: options, data, the loop, and the
   report. An example says what its network is, and what it is trained on. */
#pragma once

#include "models/net.h"

enum { VISION_CLASSES = 10 };

typedef enum vision_data { VISION_MNIST, VISION_CIFAR10 } vision_data;

typedef struct vision_options vision_options;

typedef struct vision_example {
	const char *name, *about;      /* for --help */
	vision_data data;
	bool augment;                  /* cut and mirror images at random */
	int batch;                     /* defaults of the options */
	double learning_rate, momentum, weight_decay;
	bool resnet;                   /* takes the options of a ResNet's shape */
	void (*build)(net *n, const vision_options *options); /* adds the layers, up to ten logits */
} vision_example;

/* All of main(). */
int vision_main(int argc, char **argv, const vision_example *example);
