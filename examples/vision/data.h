/* SPDX-License-Identifier: Apache-2.0 */
/* data: the files of MNIST and of CIFAR-10 in a folder, and of synthetic data in their place. */
#pragma once

#include "vision/vision.h"

/* Returns the usual shift and scale of such images. */
ddp_image_transform vision_transform(vision_data data, bool augment, uint64_t seed);

/* Opens the images to train on, or those to test with, of a folder: under the names that
   they are published by, or, if there are none, with "synthetic-" before them. *synthetic
   tells which. */
ddp_status vision_open(vision_data data, const char *folder, bool test, ddp_image_shape *shape,
                       ddp_dataset *dataset, bool *synthetic);
