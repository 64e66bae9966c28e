/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The openers of images: any files either are refused or give samples of which each can be
 * read, or is refused for its label.
 * fuzz-sources: libruntime/data/images.c libruntime/data/file.c libruntime/data/tokens.c
 * fuzz-sources: libruntime/base/error.c libruntime/base/c_locale.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ddp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int give(const uint8_t *data, size_t bytes, char *path, size_t room)
{
	int fd = memfd_create("images", MFD_CLOEXEC);

	if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
		abort();
	snprintf(path, room, "/proc/self/fd/%d", fd);
	return fd;
}

/* Three bytes say which format, and how long the first file is. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char paths[2][64];
	ddp_image_shape shape;
	ddp_dataset dataset;

	if (bytes < 3)
		return 0;
	size_t first = (size_t)data[1] << 8 | data[2];
	if (first > bytes - 3)
		first = bytes - 3;
	const int one = give(data + 3, first, paths[0], sizeof(paths[0]));
	const int other = give(data + 3 + first, bytes - 3 - first, paths[1], sizeof(paths[1]));
	const char *const both[] = {paths[0], paths[1]};
	ddp_status status = data[0] % 2 == 0 ? ddp_idx_open(paths[0], paths[1], &shape, &dataset)
	                                     : ddp_cifar10_open(both, 1 + data[0] / 2 % 2, &shape, &dataset);
	if (status == DDP_OK) {
		if (dataset.sample_bytes != 1 + (size_t)shape.channels * (size_t)shape.height * (size_t)shape.width)
			abort();
		unsigned char *sample = malloc(dataset.sample_bytes);
		if (sample == NULL)
			abort();
		for (int64_t i = 0; i < dataset.size; i++) {
			const ddp_status got = dataset.read(dataset.self, i, sample);
			if (got != DDP_OK && (got != DDP_ERR_FORMAT || sample[0] < 10))
				abort();
		}
		free(sample);
		ddp_dataset_close(&dataset);
	}
	close(one);
	close(other);
	return 0;
}
