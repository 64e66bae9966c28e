/* SPDX-License-Identifier: Apache-2.0 */
/* Images and their labels, of two formats: IDX, in which MNIST comes, and the binary form
   of CIFAR-10. A sample is a byte of label and then the image, as CIFAR-10 has it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/file.h"

enum {
	IDX_IMAGES = 3, IDX_LABELS = 1, /* dimensions */
	IDX_BYTES = 0x08,               /* the type of its numbers */
	IDX_SIDE_MAX = 4096,
	CIFAR_SIDE = 32, CIFAR_CHANNELS = 3, CIFAR_CLASSES = 10,
	CIFAR_IMAGE = CIFAR_CHANNELS * CIFAR_SIDE * CIFAR_SIDE,
	CIFAR_SAMPLE = 1 + CIFAR_IMAGE,
	CIFAR_FILES_MAX = 1024
};

/* ---- IDX ------------------------------------------------------------------------------ */

struct idx {
	ddp_file images, labels;
	size_t image_bytes;
};

static int64_t header_bytes(int dimensions)
{
	return 4 + 4 * dimensions;
}

/* Reads a file's header: sizes [dimensions]. */
static ddp_status read_header(const ddp_file *file, int dimensions, int64_t *sizes)
{
	unsigned char header[4 + 4 * IDX_IMAGES];
	int64_t expected = 1;

	ddp_status status = ddp_file_read(file, header, (size_t)header_bytes(dimensions), 0);
	if (status != DDP_OK)
		return status;
	if (header[0] == 0x1f && header[1] == 0x8b)
		return ddp_fail(DDP_ERR_FORMAT, "IDX file %s: bytes 0 and 1 are those of gzip; unpack it "
		                "with gunzip first", file->path);
	for (int i = 0; i < 2; i++)
		if (header[i] != 0)
			return ddp_fail(DDP_ERR_FORMAT, "IDX file %s: byte %d is 0x%02x, not 0: not an IDX file",
			                file->path, i, header[i]);
	if (header[2] != IDX_BYTES)
		return ddp_fail(DDP_ERR_FORMAT, "IDX file %s: byte 2 is 0x%02x, not 0x%02x: its numbers are "
		                "not unsigned bytes", file->path, header[2], IDX_BYTES);
	if (header[3] != dimensions)
		return ddp_fail(DDP_ERR_FORMAT, "IDX file %s: byte 3 says %d dimensions, but %s have %d; were "
		                "the files of images and labels swapped?", file->path, header[3],
		                dimensions == IDX_LABELS ? "labels" : "images", dimensions);
	for (int i = 0; i < dimensions; i++) {
		const unsigned char *at = header + 4 + 4 * i;
		sizes[i] = (int64_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
		if (sizes[i] < 1 || (i > 0 && sizes[i] > IDX_SIDE_MAX))
			return ddp_fail(DDP_ERR_FORMAT, "IDX file %s: bytes %d to %d say a size of %" PRId64
			                ", must be 1 to %" PRId64, file->path, 4 + 4 * i, 7 + 4 * i, sizes[i],
			                i > 0 ? (int64_t)IDX_SIDE_MAX : INT64_C(0xffffffff));
		expected *= sizes[i];
	}
	expected += header_bytes(dimensions);
	if (file->bytes != expected)
		return ddp_fail(DDP_ERR_FORMAT, "IDX file %s: %s at byte %" PRId64 ": its header says %" PRId64
		                " bytes", file->path, file->bytes < expected ? "ends" : "goes on until it ends",
		                file->bytes, expected);
	return DDP_OK;
}

static ddp_status read_idx(void *self, int64_t index, void *sample)
{
	const struct idx *idx = self;
	unsigned char *out = sample;

	ddp_status status = ddp_file_read(&idx->labels, out, 1, header_bytes(IDX_LABELS) + index);
	if (status != DDP_OK)
		return status;
	return ddp_file_read(&idx->images, out + 1, idx->image_bytes,
	                     header_bytes(IDX_IMAGES) + index * (int64_t)idx->image_bytes);
}

static void close_idx(void *self)
{
	struct idx *idx = self;

	ddp_file_close(&idx->images);
	ddp_file_close(&idx->labels);
	free(idx);
}

static ddp_status open_idx(const char *images, const char *labels, struct idx *idx, int64_t *sizes,
                           uint64_t *digest)
{
	int64_t count;

	ddp_status status = ddp_file_open("IDX file", images, &idx->images);
	if (status == DDP_OK)
		status = ddp_file_open("IDX file", labels, &idx->labels);
	if (status == DDP_OK)
		status = read_header(&idx->images, IDX_IMAGES, sizes);
	if (status == DDP_OK)
		status = read_header(&idx->labels, IDX_LABELS, &count);
	if (status == DDP_OK && count != sizes[0])
		status = ddp_fail(DDP_ERR_FORMAT, "IDX file %s has %" PRId64 " labels (bytes 4 to 7), but %s has %"
		                  PRId64 " images", labels, count, images, sizes[0]);
	if (status == DDP_OK)
		status = ddp_file_digest(&idx->images, digest);
	return status == DDP_OK ? ddp_file_digest(&idx->labels, digest) : status;
}

ddp_status ddp_idx_open(const char *images, const char *labels, ddp_image_shape *shape,
                        ddp_dataset *dataset)
{
	int64_t sizes[IDX_IMAGES];
	uint64_t digest = 0;
	if (images == NULL || labels == NULL || shape == NULL || dataset == NULL)
		return ddp_fail_null("ddp_idx_open", images == NULL ? "images" : labels == NULL ? "labels" :
		                     shape == NULL ? "shape" : "dataset");
	struct idx *idx = malloc(sizeof(*idx));
	if (idx == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "IDX file %s: no memory for a dataset of it", images);
	*idx = (struct idx){ .images.fd = -1, .labels.fd = -1 };
	ddp_status status = open_idx(images, labels, idx, sizes, &digest);
	if (status != DDP_OK) {
		close_idx(idx);
		return status;
	}
	idx->image_bytes = (size_t)(sizes[1] * sizes[2]);
	*shape = (ddp_image_shape){ .channels = 1, .height = (int)sizes[1], .width = (int)sizes[2] };
	*dataset = (ddp_dataset){ .size = sizes[0], .sample_bytes = 1 + idx->image_bytes, .read = read_idx,
	                          .close = close_idx, .self = idx, .digest = digest };
	return DDP_OK;
}

/* ---- CIFAR-10 -------------------------------------------------------------------------- */

struct cifar {
	uint64_t digest;
	int count;
	struct {
		ddp_file file;
		int64_t samples;
	} parts[];
};

static ddp_status read_cifar(void *self, int64_t index, void *sample)
{
	const struct cifar *cifar = self;
	const unsigned char *label = sample;
	int part = 0;

	for (; index >= cifar->parts[part].samples; part++)
		index -= cifar->parts[part].samples;
	const ddp_file *file = &cifar->parts[part].file;
	ddp_status status = ddp_file_read(file, sample, CIFAR_SAMPLE, index * CIFAR_SAMPLE);
	if (status == DDP_OK && *label >= CIFAR_CLASSES)
		status = ddp_fail(DDP_ERR_FORMAT, "CIFAR-10 file %s: byte %" PRId64 " is label %d, must be 0 to %d",
		                  file->path, index * CIFAR_SAMPLE, *label, CIFAR_CLASSES - 1);
	return status;
}

static void close_cifar(void *self)
{
	struct cifar *cifar = self;

	for (int i = 0; i < cifar->count; i++)
		ddp_file_close(&cifar->parts[i].file);
	free(cifar);
}

static ddp_status open_part(struct cifar *cifar, const char *path)
{
	ddp_file *file = &cifar->parts[cifar->count].file;

	ddp_status status = ddp_file_open("CIFAR-10 file", path, file);
	if (status != DDP_OK)
		return status;
	cifar->parts[cifar->count++].samples = file->bytes / CIFAR_SAMPLE;
	if (file->bytes == 0)
		return ddp_fail(DDP_ERR_FORMAT, "CIFAR-10 file %s is empty", path);
	if (file->bytes % CIFAR_SAMPLE != 0)
		return ddp_fail(DDP_ERR_FORMAT, "CIFAR-10 file %s: ends at byte %" PRId64 ", within the sample that "
		                "begins at byte %" PRId64 "; samples have %d bytes (the binary version)", path,
		                file->bytes, file->bytes / CIFAR_SAMPLE * CIFAR_SAMPLE, CIFAR_SAMPLE);
	return ddp_file_digest(file, &cifar->digest);
}

ddp_status ddp_cifar10_open(const char *const *paths, int count, ddp_image_shape *shape,
                            ddp_dataset *dataset)
{
	ddp_status status = DDP_OK;
	int64_t samples = 0;

	if (paths == NULL || shape == NULL || dataset == NULL)
		return ddp_fail_null("ddp_cifar10_open", paths == NULL ? "paths" : shape == NULL ? "shape" : "dataset");
	for (int i = 0; i < count; i++) {
		if (paths[i] == NULL)
			return ddp_fail(DDP_ERR_INVALID, "ddp_cifar10_open(): paths[%d] is NULL", i);
	}
	if (count < 1 || count > CIFAR_FILES_MAX)
		return ddp_fail(DDP_ERR_INVALID, "CIFAR-10: %d files, must be 1 to %d", count, CIFAR_FILES_MAX);
	struct cifar *cifar = calloc(1, sizeof(*cifar) + (size_t)count * sizeof(cifar->parts[0]));
	if (cifar == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "CIFAR-10 file %s: no memory for a dataset of %d files", paths[0],
		                count);
	for (int i = 0; i < count && status == DDP_OK; i++) {
		status = open_part(cifar, paths[i]);
		samples += cifar->parts[i].samples;
	}
	if (status != DDP_OK) {
		close_cifar(cifar);
		return status;
	}
	*shape = (ddp_image_shape){ .channels = CIFAR_CHANNELS, .height = CIFAR_SIDE, .width = CIFAR_SIDE };
	*dataset = (ddp_dataset){ .size = samples, .sample_bytes = CIFAR_SAMPLE, .read = read_cifar,
	                          .close = close_cifar, .self = cifar, .digest = cifar->digest };
	return DDP_OK;
}
