/* SPDX-License-Identifier: Apache-2.0 */
/* resnet: residual networks (He et al., CVPR 2016), with torchvision's layers, names and start. */
#pragma once

#include "models/net.h"

typedef struct net_resnet_shape {
	int depth;          /* 18, or 50, of bottlenecks */
	int width;          /* channels of the first stage; 64 is the usual one */
	int classes;
	bool imagenet_stem; /* begins with a window of 7 and a pool, each of stride 2; otherwise
	                       with a window of 3, for small images */
} net_resnet_shape;

/* Adds all layers behind the images; returns the logits. */
int net_resnet(net *n, const net_resnet_shape *shape);
