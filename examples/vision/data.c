/* SPDX-License-Identifier: Apache-2.0 */
#include "vision/data.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

ddp_image_transform vision_transform(vision_data data, bool augment, uint64_t seed)
{
	static const float means[][3] = {[VISION_MNIST] = {0.1307f}, [VISION_CIFAR10] = {0.4914f, 0.4822f, 0.4465f}};
	static const float deviations[][3] = {[VISION_MNIST] = {0.3081f, 1, 1},
		[VISION_CIFAR10] = {0.2470f, 0.2435f, 0.2616f}};
	ddp_image_transform t = DDP_IMAGE_TRANSFORM;

	memcpy(t.mean, means[data], sizeof(means[data]));
	memcpy(t.deviation, deviations[data], sizeof(deviations[data]));
	if (augment) {
		t.crop_padding = 4;
		t.flip = data == VISION_CIFAR10; /* a mirrored digit is none */
		t.seed = seed;
	}
	return t;
}

/* The names that files are published by. */
static const char *const mnist[][2] = {
	{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
	{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
};
static const char *const cifar[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
	"data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
enum { CIFAR_PARTS = 5 };

typedef char path[PATH_MAX];

static void name_file(path file, const char *folder, bool synthetic, const char *name)
{
	snprintf(file, sizeof(path), "%s/%s%s", folder, synthetic ? "synthetic-" : "", name);
}

static ddp_status open_cifar(const char *folder, bool test, bool synthetic, ddp_image_shape *shape,
                             ddp_dataset *dataset)
{
	path files[CIFAR_PARTS];
	const char *paths[CIFAR_PARTS];
	/* Synthetic data are one file. */
	const int count = test || synthetic ? 1 : CIFAR_PARTS;

	for (int i = 0; i < count; i++) {
		name_file(files[i], folder, synthetic, cifar[test ? CIFAR_PARTS : i]);
		paths[i] = files[i];
	}
	return ddp_cifar10_open(paths, count, shape, dataset);
}

ddp_status vision_open(vision_data data, const char *folder, bool test, ddp_image_shape *shape,
                       ddp_dataset *dataset, bool *synthetic)
{
	path images, labels;

	name_file(images, folder, false, data == VISION_MNIST ? mnist[test][0] : cifar[test ? CIFAR_PARTS : 0]);
	*synthetic = false;
	if (access(images, F_OK) != 0) {
		path other;
		name_file(other, folder, true, data == VISION_MNIST ? mnist[test][0] : cifar[test ? CIFAR_PARTS : 0]);
		*synthetic = access(other, F_OK) == 0;
	}
	if (data == VISION_CIFAR10)
		return open_cifar(folder, test, *synthetic, shape, dataset);
	name_file(images, folder, *synthetic, mnist[test][0]);
	name_file(labels, folder, *synthetic, mnist[test][1]);
	return ddp_idx_open(images, labels, shape, dataset);
}
