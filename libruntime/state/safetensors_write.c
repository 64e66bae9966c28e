/* SPDX-License-Identifier: Apache-2.0 */
#include "state/safetensors_write.h"

#include <endian.h>
#include <errno.h>
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

enum { DATA_ALIGNMENT = 64 };

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
static int describe(json_t *header, json_t *metadata, const ddp_safetensors_tensor *tensor,
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
	snprintf(sum, sizeof(sum), "%08" PRIx32, ddp_crc32c(0, tensor->data, (size_t)bytes));
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

static ddp_status make_header(const char *path, const ddp_safetensors_tensor *tensors, int count,
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
		failed |= describe(header, about, &tensors[i], &offset);
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

static ddp_status write_fully(const char *path, int fd, const void *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t wrote = ddp_write(fd, (const char *)data + done, bytes - done);
		if (wrote < 0)
			return ddp_fail_errno(DDP_ERR_IO, errno, "cannot write %s", path);
		done += (size_t)wrote;
	}
	return DDP_OK;
}

ddp_status ddp_safetensors_write(const char *path, int fd,
                                 const ddp_safetensors_tensor *tensors, int count,
                                 const ddp_safetensors_pair *metadata, int pairs)
{
	char *header = NULL;
	size_t bytes = 0;
	ddp_status status = make_header(path, tensors, count, metadata, pairs, &header, &bytes);

	if (status != DDP_OK)
		return status;
	uint64_t length = htole64(bytes);
	status = write_fully(path, fd, &length, sizeof(length));
	if (status == DDP_OK)
		status = write_fully(path, fd, header, bytes);
	free(header);
	for (int i = 0; i < count && status == DDP_OK; i++)
		status = write_fully(path, fd, tensors[i].data, (size_t)tensor_bytes(&tensors[i]));
	return status;
}
