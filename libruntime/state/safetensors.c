/* SPDX-License-Identifier: Apache-2.0 */
#include "state/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/crc32c.h"

static const char metadata_key[] = "__metadata__";
static const char header_sum_field[] = "\"crc32c\":\"";

/* The size of one of the format's types; 0 if it is not known, or less than a byte. */
static int64_t dtype_bytes(const char *dtype)
{
	static const struct { const char *name; int bytes; } types[] = {
		{ "F32", 4 }, { "F16", 2 }, { "BF16", 2 }, { "F64", 8 }, { "I64", 8 }, { "I32", 4 },
		{ "I16", 2 }, { "I8", 1 }, { "U8", 1 }, { "U16", 2 }, { "U32", 4 }, { "U64", 8 },
		{ "BOOL", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 },
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(dtype, types[i].name) == 0)
			return types[i].bytes;
	return 0;
}

/* ---- header ------------------------------------------------------------------ */

static ddp_status parse_shape(const char *path, const json_t *shape, ddp_safetensor *tensor,
                              int64_t *bytes)
{
	if (!json_is_array(shape) || json_array_size(shape) > DDP_MAX_DIMS)
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s: \"shape\" is no list of up to %d numbers",
		                path, tensor->name, DDP_MAX_DIMS);
	*bytes = dtype_bytes(tensor->dtype);
	tensor->ndim = (int)json_array_size(shape);
	for (int i = 0; i < tensor->ndim; i++) {
		const json_t *size = json_array_get(shape, (size_t)i);
		tensor->shape[i] = json_integer_value(size);
		if (!json_is_integer(size) || tensor->shape[i] < 0 ||
		    __builtin_mul_overflow(*bytes, tensor->shape[i], bytes))
			return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s: dimension %d is no size, or too large",
			                path, tensor->name, i);
	}
	return DDP_OK;
}

static ddp_status parse_tensor(const char *path, const char *name, const json_t *about,
                               int64_t data_bytes, ddp_safetensor *tensor)
{
	int64_t bytes = 0;
	const json_t *offsets = json_object_get(about, "data_offsets");
	const json_t *begin = json_array_get(offsets, 0);
	const json_t *end = json_array_get(offsets, 1);

	tensor->name = name;
	tensor->dtype = json_string_value(json_object_get(about, "dtype"));
	if (tensor->dtype == NULL)
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s: dtype (missing)", path, name);
	ddp_status status = parse_shape(path, json_object_get(about, "shape"), tensor, &bytes);
	if (status != DDP_OK)
		return status;
	if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s: \"data_offsets\" is no pair of numbers",
		                path, name);
	tensor->begin = json_integer_value(begin);
	tensor->end = json_integer_value(end);
	if (tensor->begin < 0 || tensor->end < tensor->begin)
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s: data_offsets %" PRId64 " to %" PRId64
		                " are no range", path, name, tensor->begin, tensor->end);
	if (tensor->end > data_bytes)
		return ddp_fail(DDP_ERR_FORMAT, "%s: cut short: tensor %s ends at byte %" PRId64
		                " of the data, but there are %" PRId64, path, name, tensor->end, data_bytes);
	/* Whoever wants a tensor of a type that is not known refuses it. */
	if (dtype_bytes(tensor->dtype) != 0 && tensor->end - tensor->begin != bytes)
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s: dtype and shape take %" PRId64
		                " bytes, data_offsets span %" PRId64, path, name, bytes,
		                tensor->end - tensor->begin);
	return DDP_OK;
}

static int by_offset(const void *a, const void *b)
{
	const ddp_safetensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	/* Empty ones first, so that each begins where the one before ends. */
	return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
	const ddp_safetensor *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static ddp_status check_layout(const ddp_safetensors *file, int64_t data_bytes)
{
	int64_t at = 0;

	for (int i = 0; i < file->count; i++) {
		const ddp_safetensor *tensor = &file->tensors[i];
		if (tensor->begin < at)
			return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s overlaps tensor %s", file->path,
			                tensor->name, file->tensors[i - 1].name);
		if (tensor->begin > at)
			return ddp_fail(DDP_ERR_FORMAT, "%s: a gap of %" PRId64 " bytes before tensor %s",
			                file->path, tensor->begin - at, tensor->name);
		at = tensor->end;
	}
	if (at != data_bytes)
		return ddp_fail(DDP_ERR_FORMAT, "%s: %" PRId64 " bytes behind the last tensor",
		                file->path, data_bytes - at);
	return DDP_OK;
}

static ddp_status check_metadata(const ddp_safetensors *file)
{
	json_t *metadata = json_object_get(file->header, metadata_key);
	const char *key;
	json_t *value;

	if (metadata == NULL)
		return DDP_OK;
	if (!json_is_object(metadata))
		return ddp_fail(DDP_ERR_FORMAT, "%s: \"%s\" is no object", file->path, metadata_key);
	json_object_foreach (metadata, key, value)
		if (!json_is_string(value))
			return ddp_fail(DDP_ERR_FORMAT, "%s: metadata \"%s\" is no text", file->path, key);
	return DDP_OK;
}

/* A file of others has no sums; one of ours has them all. */
static ddp_status check_no_sums(const ddp_safetensors *file)
{
	const char *key;
	json_t *value;

	json_object_foreach (json_object_get(file->header, metadata_key), key, value)
		if (strncmp(key, "crc32c.", 7) == 0)
			return ddp_fail(DDP_ERR_FORMAT, "%s: the header's checksum is missing; "
			                "was the file edited?", file->path);
	return DDP_OK;
}

/* The sum was taken with zeros where it stands itself. */
static ddp_status check_header_sum(const ddp_safetensors *file, const char *header, size_t bytes)
{
	const char *said = ddp_safetensors_metadata(file, "crc32c");
	const char *field = memmem(header, bytes, header_sum_field, strlen(header_sum_field));

	if (said == NULL)
		return check_no_sums(file);
	size_t at = field != NULL ? (size_t)(field - header) + strlen(header_sum_field) : 0;
	if (field == NULL || strlen(said) != 8 || bytes - at < 8 || memcmp(header + at, said, 8) != 0)
		return ddp_fail(DDP_ERR_FORMAT, "%s: the header's checksum is not where it belongs; "
		                "was the file edited?", file->path);
	uint32_t sum = ddp_crc32c(0, header, at);
	sum = ddp_crc32c(sum, "00000000", 8);
	sum = ddp_crc32c(sum, header + at + 8, bytes - at - 8);
	if (strtoul(said, NULL, 16) != sum)
		return ddp_fail(DDP_ERR_FORMAT, "%s: the header is damaged: checksum %08" PRIx32
		                ", should be %s", file->path, sum, said);
	return DDP_OK;
}

static ddp_status parse_header(const char *header, size_t header_bytes, int64_t data_bytes,
                               ddp_safetensors *file)
{
	json_error_t error;
	const char *name;
	json_t *about;

	file->header = json_loadb(header, header_bytes, JSON_REJECT_DUPLICATES, &error);
	if (file->header == NULL)
		return ddp_fail(DDP_ERR_FORMAT, "%s: header is not JSON: %s at byte %d", file->path,
		                error.text, error.position);
	if (!json_is_object(file->header))
		return ddp_fail(DDP_ERR_FORMAT, "%s: header is no JSON object", file->path);
	ddp_status status = check_metadata(file);
	if (status == DDP_OK)
		status = check_header_sum(file, header, header_bytes);
	if (status != DDP_OK)
		return status;

	file->tensors = calloc(json_object_size(file->header) + 1, sizeof(*file->tensors));
	file->by_name = calloc(json_object_size(file->header) + 1, sizeof(*file->by_name));
	if (file->tensors == NULL || file->by_name == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "%s: no memory for its header", file->path);
	json_object_foreach (file->header, name, about) {
		if (strcmp(name, metadata_key) == 0)
			continue;
		status = parse_tensor(file->path, name, about, data_bytes, &file->tensors[file->count]);
		if (status != DDP_OK)
			return status;
		file->count++;
	}
	qsort(file->tensors, (size_t)file->count, sizeof(*file->tensors), by_offset);
	for (int i = 0; i < file->count; i++)
		file->by_name[i] = &file->tensors[i];
	qsort(file->by_name, (size_t)file->count, sizeof(*file->by_name), by_name);
	return check_layout(file, data_bytes);
}

ddp_status ddp_safetensors_parse(const char *path, const char *header, size_t header_bytes,
                                 int64_t data_bytes, ddp_safetensors *file)
{
	*file = (ddp_safetensors){ .path = strdup(path), .fd = -1,
	                           .data_start = 8 + (int64_t)header_bytes };
	if (file->path == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "%s: no memory for its name", path);
	ddp_status status = parse_header(header, header_bytes, data_bytes, file);
	if (status != DDP_OK)
		ddp_safetensors_close(file);
	return status;
}

/* ---- file ---------------------------------------------------------------------- */

static ddp_status read_fully(const char *path, int fd, void *buffer, size_t bytes, int64_t at)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = pread(fd, (char *)buffer + done, bytes - done, at + (int64_t)done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return ddp_fail_errno(DDP_ERR_IO, errno, "%s: cannot read at byte %" PRId64, path,
			                      at + (int64_t)done);
		if (got == 0)
			return ddp_fail(DDP_ERR_FORMAT, "%s: cut short: ends at byte %" PRId64, path,
			                at + (int64_t)done);
		done += (size_t)got;
	}
	return DDP_OK;
}

static ddp_status open_checked(const char *path, int fd, ddp_safetensors *file)
{
	uint64_t length;
	struct stat about;

	if (fstat(fd, &about) != 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "%s: cannot stat", path);
	if (!S_ISREG(about.st_mode))
		return ddp_fail(DDP_ERR_INVALID, "%s is not a regular file", path);
	ddp_status status = read_fully(path, fd, &length, sizeof(length), 0);
	if (status != DDP_OK)
		return status;
	length = le64toh(length);
	if (length > DDP_SAFETENSORS_HEADER_MAX)
		return ddp_fail(DDP_ERR_FORMAT, "%s: header of %" PRIu64 " bytes is too long (limit %d): "
		                "not a safetensors file?", path, length, DDP_SAFETENSORS_HEADER_MAX);
	if ((int64_t)length > about.st_size - 8)
		return ddp_fail(DDP_ERR_FORMAT, "%s: cut short: header of %" PRIu64 " bytes, file of %"
		                PRId64, path, length, (int64_t)about.st_size);

	char *header = malloc(length + 1);
	if (header == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "%s: no memory for its header", path);
	status = read_fully(path, fd, header, length, 8);
	if (status == DDP_OK)
		status = ddp_safetensors_parse(path, header, length,
		                               about.st_size - 8 - (int64_t)length, file);
	free(header);
	return status;
}

ddp_status ddp_safetensors_open(const char *path, ddp_safetensors *file)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 && errno == ENXIO)
		return ddp_fail(DDP_ERR_INVALID, "%s is a socket, or a device that is not there, not a regular file", path);
	if (fd < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open %s", path);
	ddp_status status = open_checked(path, fd, file);
	if (status != DDP_OK) {
		close(fd);
		return status;
	}
	file->fd = fd;
	return DDP_OK;
}

void ddp_safetensors_close(ddp_safetensors *file)
{
	if (file->fd >= 0)
		close(file->fd);
	json_decref(file->header);
	free(file->tensors);
	free(file->by_name);
	free(file->path);
	*file = (ddp_safetensors){ .fd = -1 };
}

const ddp_safetensor *ddp_safetensors_find(const ddp_safetensors *file, const char *name)
{
	const ddp_safetensor wanted = { .name = name }, *key = &wanted;
	ddp_safetensor *const *found = bsearch(&key, file->by_name, (size_t)file->count,
	                                       sizeof(*file->by_name), by_name);

	return found != NULL ? *found : NULL;
}

const char *ddp_safetensors_metadata(const ddp_safetensors *file, const char *key)
{
	return json_string_value(json_object_get(json_object_get(file->header, metadata_key), key));
}

static ddp_status check_sum(const ddp_safetensors *file, const ddp_safetensor *tensor, uint32_t sum)
{
	char key[512];

	snprintf(key, sizeof(key), "crc32c.%s", tensor->name);
	const char *said = ddp_safetensors_metadata(file, key);
	if (said == NULL || strtoul(said, NULL, 16) == sum)
		return DDP_OK;
	return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s is damaged: checksum %08" PRIx32
	                ", should be %s", file->path, tensor->name, sum, said);
}

ddp_status ddp_safetensors_read_part(const ddp_safetensors *file, const ddp_safetensor *tensor,
                                     int64_t from, size_t bytes, void *data, uint32_t *sum)
{
	int64_t at = tensor->begin + from;
	ddp_status status = read_fully(file->path, file->fd, data, bytes, file->data_start + at);

	if (status != DDP_OK)
		return status;
	*sum = ddp_crc32c(*sum, data, bytes);
	return at + (int64_t)bytes < tensor->end ? DDP_OK : check_sum(file, tensor, *sum);
}

ddp_status ddp_safetensors_read(const ddp_safetensors *file, const ddp_safetensor *tensor,
                                void *data)
{
	uint32_t sum = 0;

	return ddp_safetensors_read_part(file, tensor, 0, (size_t)(tensor->end - tensor->begin), data,
	                                 &sum);
}

ddp_status ddp_safetensors_verify(const ddp_safetensors *file)
{
	const int64_t piece = 1 << 20;
	ddp_status status = DDP_OK;
	char *buffer = malloc((size_t)piece);

	if (buffer == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "%s: no memory to verify it", file->path);
	for (int i = 0; i < file->count && status == DDP_OK; i++) {
		const ddp_safetensor *tensor = &file->tensors[i];
		uint32_t sum = 0;
		for (int64_t at = tensor->begin; at < tensor->end && status == DDP_OK; at += piece) {
			size_t bytes = (size_t)(tensor->end - at < piece ? tensor->end - at : piece);
			status = ddp_safetensors_read_part(file, tensor, at - tensor->begin, bytes, buffer, &sum);
		}
	}
	free(buffer);
	return status;
}
