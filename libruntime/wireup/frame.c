/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/frame.h"

#include <endian.h>
#include <string.h>

#include "base/error.h"

static void put32(unsigned char *to, uint32_t value)
{
	value = htole32(value);
	memcpy(to, &value, sizeof(value));
}

static uint32_t get32(const unsigned char *from)
{
	uint32_t value;

	memcpy(&value, from, sizeof(value));
	return le32toh(value);
}

int64_t ddp_frame_limit(uint32_t kind, int world_size)
{
	switch (kind) {
	case DDP_FRAME_BLOB: return DDP_BLOB_MAX;
	case DDP_FRAME_ALL: return 4 + (int64_t)world_size * (4 + (int64_t)DDP_BLOB_MAX);
	case DDP_FRAME_ERROR: return DDP_FRAME_ERROR_MAX - DDP_FRAME_HEADER_BYTES;
	case DDP_FRAME_ASK: return 0;
	case DDP_FRAME_OFFER: case DDP_FRAME_JOIN: case DDP_FRAME_DONE: case DDP_FRAME_READ:
		return DDP_FRAME_SMALL_MAX - DDP_FRAME_HEADER_BYTES;
	}
	return -1;
}

static ddp_status read_header(ddp_frame_reader *reader)
{
	uint64_t bytes;

	memcpy(&bytes, reader->header + 8, sizeof(bytes));
	reader->kind = get32(reader->header);
	reader->sequence = get32(reader->header + 4);
	reader->bytes = le64toh(bytes);
	const int64_t limit = ddp_frame_limit(reader->kind, reader->world_size);
	if (limit < 0 || reader->bytes > (uint64_t)limit)
		return ddp_fail(DDP_ERR_FORMAT, "a wire-up message of kind %u with %llu bytes is not possible",
		                reader->kind, (unsigned long long)reader->bytes);
	return DDP_OK;
}

static ddp_status grow(ddp_frame_reader *reader)
{
	size_t capacity = reader->capacity == 0 ? 1 << 16 : reader->capacity * 2;

	if (capacity > reader->bytes)
		capacity = (size_t)reader->bytes;
	unsigned char *payload = realloc(reader->payload, capacity);
	if (payload == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a wire-up message of %llu bytes",
		                (unsigned long long)reader->bytes);
	reader->payload = payload;
	reader->capacity = capacity;
	return DDP_OK;
}

ddp_status ddp_frame_room(ddp_frame_reader *reader, void **at, size_t *bytes)
{
	if (reader->header_used < DDP_FRAME_HEADER_BYTES) {
		*at = reader->header + reader->header_used;
		*bytes = DDP_FRAME_HEADER_BYTES - reader->header_used;
		return DDP_OK;
	}
	if (reader->used == reader->capacity) {
		ddp_status status = grow(reader);
		if (status != DDP_OK)
			return status;
	}
	*at = reader->payload + reader->used;
	*bytes = reader->capacity - reader->used;
	return DDP_OK;
}

ddp_status ddp_frame_filled(ddp_frame_reader *reader, size_t bytes, bool *complete)
{
	*complete = false;
	if (reader->header_used < DDP_FRAME_HEADER_BYTES) {
		reader->header_used += bytes;
		if (reader->header_used < DDP_FRAME_HEADER_BYTES)
			return DDP_OK;
		ddp_status status = read_header(reader);
		if (status != DDP_OK)
			return status;
	} else {
		reader->used += bytes;
	}
	*complete = reader->used == reader->bytes;
	return DDP_OK;
}

void ddp_frame_reset(ddp_frame_reader *reader)
{
	free(reader->payload);
	*reader = (ddp_frame_reader){ .world_size = reader->world_size };
}

void ddp_frame_header(unsigned char *header, enum ddp_frame_kind kind, uint32_t sequence, uint64_t bytes)
{
	uint64_t little = htole64(bytes);

	put32(header, (uint32_t)kind);
	put32(header + 4, sequence);
	memcpy(header + 8, &little, sizeof(little));
}

size_t ddp_frame_pack(enum ddp_frame_kind kind, uint32_t sequence, const void *payload, size_t bytes,
                      unsigned char frame[DDP_FRAME_SMALL_MAX])
{
	ddp_frame_header(frame, kind, sequence, bytes);
	if (bytes > 0)
		memcpy(frame + DDP_FRAME_HEADER_BYTES, payload, bytes);
	return DDP_FRAME_HEADER_BYTES + bytes;
}

ddp_status ddp_frame_pack_all(uint32_t sequence, void *const *blobs, const size_t *sizes,
                              int count, unsigned char **frame, size_t *bytes)
{
	size_t total = DDP_FRAME_HEADER_BYTES + 4 + 4 * (size_t)count;

	for (int r = 0; r < count; r++)
		total += sizes[r];
	unsigned char *packed = malloc(total);
	if (packed == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the blobs of %d ranks (%zu bytes)", count,
		                total);

	unsigned char *at = packed + DDP_FRAME_HEADER_BYTES;
	ddp_frame_header(packed, DDP_FRAME_ALL, sequence, total - DDP_FRAME_HEADER_BYTES);
	put32(at, (uint32_t)count);
	at += 4;
	for (int r = 0; r < count; r++, at += 4)
		put32(at, (uint32_t)sizes[r]);
	for (int r = 0; r < count; r++) {
		if (sizes[r] > 0)
			memcpy(at, blobs[r], sizes[r]);
		at += sizes[r];
	}
	*frame = packed;
	*bytes = total;
	return DDP_OK;
}

/* Whether count and sizes account for each byte of the payload. */
static bool sizes_fit(const unsigned char *payload, size_t bytes, int count)
{
	size_t sum = 4 + 4 * (size_t)count;

	if (bytes < sum || get32(payload) != (uint32_t)count)
		return false;
	for (int r = 0; r < count; r++) {
		uint32_t size = get32(payload + 4 + 4 * (size_t)r);
		if (size > DDP_BLOB_MAX)
			return false;
		sum += size;
	}
	return sum == bytes;
}

ddp_status ddp_frame_unpack_all(const unsigned char *payload, size_t bytes, int count,
                                void **blobs, size_t *sizes)
{
	if (!sizes_fit(payload, bytes, count))
		return ddp_fail(DDP_ERR_FORMAT, "the blobs of %d ranks do not fit their message of %zu bytes",
		                count, bytes);
	const unsigned char *at = payload + 4 + 4 * (size_t)count;
	for (int r = 0; r < count; r++) {
		size_t size = get32(payload + 4 + 4 * (size_t)r);
		blobs[r] = malloc(size > 0 ? size : 1);
		if (blobs[r] == NULL) {
			ddp_blobs_free(blobs, r);
			return ddp_fail(DDP_ERR_NOMEM, "no memory for a blob of %zu bytes", size);
		}
		memcpy(blobs[r], at, size);
		sizes[r] = size;
		at += size;
	}
	return DDP_OK;
}

size_t ddp_frame_pack_error(uint32_t sequence, ddp_status status,
                            unsigned char frame[DDP_FRAME_ERROR_MAX])
{
	size_t length = strnlen(ddp_last_error(), DDP_FRAME_TEXT_MAX), bytes = 4 + length;
	unsigned char *text = frame + DDP_FRAME_HEADER_BYTES + 4;
	int rank = ddp_error_rank();

	put32(frame + DDP_FRAME_HEADER_BYTES, (uint32_t)status);
	memcpy(text, ddp_last_error(), length);
	if (rank >= 0) {
		text[length] = '\0';
		put32(text + length + 1, (uint32_t)rank);
		bytes += 5;
	}
	ddp_frame_header(frame, DDP_FRAME_ERROR, sequence, bytes);
	return DDP_FRAME_HEADER_BYTES + bytes;
}

ddp_status ddp_frame_raise_error(const unsigned char *payload, size_t bytes)
{
	uint32_t status = bytes >= 4 ? get32(payload) : DDP_OK;

	/* An empty message has no payload at all. */
	if (status == DDP_OK || status > DDP_ERR_INTERNAL)
		return ddp_fail(DDP_ERR_FORMAT, "a wire-up message with an error is malformed");
	const char *text = (const char *)payload + 4;
	const size_t length = strnlen(text, bytes - 4);
	ddp_fail((ddp_status)status, "%.*s", (int)length, text);
	if (bytes - 4 == length + 5 && get32(payload + 4 + length + 1) <= INT32_MAX)
		return ddp_error_about((ddp_status)status, (int)get32(payload + 4 + length + 1));
	return (ddp_status)status;
}
