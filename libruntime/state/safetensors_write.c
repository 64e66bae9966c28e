/* SPDX-License-Identifier: Apache-2.0 */
#include "state/safetensors_write.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/signals.h"
#include "base/crc32c.h"

#if __BYTE_ORDER != __LITTLE_ENDIAN
#error "safetensors are little-endian; tensors are written as they lie in memory"
#endif

enum {
	DATA_ALIGNMENT = 64,
	SLICE_BYTES = 1 << 20, /* what is summed up is still in a cache of the processor when it is written */
	SYNC_BYTES = 8 << 20,
};

static ddp_status no_memory(const char *path)
{
	return ddp_fail(DDP_ERR_NOMEM, "%s: no memory for its header", path);
}

static int64_t tensor_bytes(const ddp_safetensors_tensor *tensor)
{
	int64_t bytes = tensor->bytes ? 1 : sizeof(float);

	for (int i = 0; i < tensor->ndim; i++)
		bytes *= tensor->shape[i];
	return bytes;
}

static int set_text(json_t *object, const char *key, const char *value)
{
	return json_object_set_new(object, key, json_string(value));
}

/* 0, or -1 if memory ran out (or a name is not UTF-8). */
static int describe(json_t *header, json_t *metadata, const ddp_safetensors_tensor *tensor, uint32_t sum_of,
                    int64_t *offset)
{
	char key[512], sum[9];
	int64_t bytes = tensor_bytes(tensor);
	json_t *shape = json_array();

	for (int i = 0; i < tensor->ndim; i++)
		json_array_append_new(shape, json_integer(tensor->shape[i]));
	json_t *about = json_pack("{s:s, s:o, s:[I,I]}", "dtype", tensor->bytes ? "U8" : "F32", "shape", shape,
	                          "data_offsets", (json_int_t)*offset, (json_int_t)(*offset + bytes));
	*offset += bytes;
	snprintf(key, sizeof(key), "crc32c.%s", tensor->name);
	snprintf(sum, sizeof(sum), "%08" PRIx32, sum_of);
	if (set_text(metadata, key, sum) != 0) {
		json_decref(about);
		return -1;
	}
	return json_object_set_new(header, tensor->name, about);
}

/* The header with its own checksum in place, padded so that the data begin at
   a multiple of 64; malloc'd. */
static char *render(json_t *header, size_t *bytes)
{
	static const char field[] = "\"crc32c\":\"";
	char digits[9];

	char *text = json_dumps(header, JSON_COMPACT);
	if (text == NULL)
		return NULL;
	size_t length = strlen(text);
	*bytes = (length + 8 + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT - 8;
	char *padded = realloc(text, *bytes + 1);
	if (padded == NULL) {
		free(text);
		return NULL;
	}
	memset(padded + length, ' ', *bytes - length);
	padded[*bytes] = '\0';
	/* It comes first in the metadata, and those come first in the header, so
	   this finds no tensor's name instead. */
	char *at = strstr(padded, field);
	if (at != NULL) {
		snprintf(digits, sizeof(digits), "%08" PRIx32, ddp_crc32c(0, padded, *bytes));
		memcpy(at + strlen(field), digits, 8);
	}
	return padded;
}

/* Its length does not depend on the sums. */
static ddp_status make_header(const char *path, const ddp_safetensors_tensor *tensors, const uint32_t *sums, int count,
                              const ddp_safetensors_pair *metadata, int pairs,
                              char **text, size_t *bytes)
{
	int64_t offset = 0;
	json_t *header = json_object();
	json_t *about = json_object();
	int failed = set_text(about, "crc32c", "00000000");

	for (int i = 0; i < pairs; i++)
		failed |= set_text(about, metadata[i].key, metadata[i].value);
	failed |= json_object_set(header, "__metadata__", about);
	for (int i = 0; i < count; i++)
		failed |= describe(header, about, &tensors[i], sums[i], &offset);
	*text = failed == 0 ? render(header, bytes) : NULL;
	json_decref(about);
	json_decref(header);
	if (*text == NULL)
		return no_memory(path);
	if (*bytes > DDP_SAFETENSORS_HEADER_MAX) {
		free(*text);
		return ddp_fail(DDP_ERR_INVALID, "%s: %d tensors make a header of %zu bytes, over the "
		                "format's limit of %d", path, count, *bytes, DDP_SAFETENSORS_HEADER_MAX);
	}
	return DDP_OK;
}

struct output {
	const char *path;
	int fd;
	off_t at;
	off_t begun; /* the kernel was told to bring what is before it to the disk */
};

/* The disk then works while the rest is written, and the sync at the end has little left to wait for. Where the kernel
   cannot do that, the sync does it all. */
static void begin_to_sync(struct output *out)
{
	if (out->at - out->begun < SYNC_BYTES)
		return;
	(void)sync_file_range(out->fd, out->begun, out->at - out->begun, SYNC_FILE_RANGE_WRITE);
	out->begun = out->at;
}

static ddp_status write_fully(struct output *out, const void *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t wrote = ddp_write(out->fd, (const char *)data + done, bytes - done);
		if (wrote < 0)
			return ddp_fail_errno(DDP_ERR_IO, errno, "cannot write %s", out->path);
		done += (size_t)wrote;
		out->at += wrote;
	}
	return DDP_OK;
}

static ddp_status move_to(struct output *out, off_t at)
{
	if (lseek(out->fd, at, SEEK_SET) < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot write %s", out->path);
	out->at = at;
	return DDP_OK;
}

static ddp_status write_tensor(struct output *out, const ddp_safetensors_tensor *tensor, uint32_t *sum)
{
	const char *data = tensor->data;
	size_t bytes = (size_t)tensor_bytes(tensor);
	ddp_status status = DDP_OK;

	while (bytes > 0 && status == DDP_OK) {
		const size_t slice = bytes < SLICE_BYTES ? bytes : SLICE_BYTES;
		*sum = ddp_crc32c(*sum, data, slice);
		status = write_fully(out, data, slice);
		begin_to_sync(out);
		data += slice;
		bytes -= slice;
	}
	return status;
}

static ddp_status write_header(struct output *out, const char *header, size_t bytes)
{
	const uint64_t length = htole64(bytes);
	ddp_status status = move_to(out, 0);

	if (status == DDP_OK)
		status = write_fully(out, &length, sizeof(length));
	return status == DDP_OK ? write_fully(out, header, bytes) : status;
}

/* The header comes last, when the sums are known. */
static ddp_status write_with(struct output *out, const ddp_safetensors_tensor *tensors, uint32_t *sums, int count,
                             const ddp_safetensors_pair *metadata, int pairs)
{
	char *header = NULL;
	size_t bytes = 0;
	ddp_status status = make_header(out->path, tensors, sums, count, metadata, pairs, &header, &bytes);

	if (status != DDP_OK)
		return status;
	free(header);
	status = move_to(out, (off_t)(sizeof(uint64_t) + bytes));
	out->begun = out->at;
	for (int i = 0; i < count && status == DDP_OK; i++)
		status = write_tensor(out, &tensors[i], &sums[i]);
	if (status == DDP_OK)
		status = make_header(out->path, tensors, sums, count, metadata, pairs, &header, &bytes);
	if (status != DDP_OK)
		return status;
	status = write_header(out, header, bytes);
	free(header);
	return status;
}

ddp_status ddp_safetensors_write(const char *path, int fd,
                                 const ddp_safetensors_tensor *tensors, int count,
                                 const ddp_safetensors_pair *metadata, int pairs)
{
	struct output out = { .path = path, .fd = fd };
	uint32_t *sums = calloc((size_t)count + 1, sizeof(*sums));

	if (sums == NULL)
		return no_memory(path);
	ddp_status status = write_with(&out, tensors, sums, count, metadata, pairs);
	free(sums);
	return status;
}
