/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of the TCP wire-up, in pieces of any size: whatever comes is a frame
 * or an error, and what is taken for a frame packs to the same bytes again.
 *
 * fuzz-sources: libruntime/wireup/frame.c libruntime/base/error.c libruntime/base/c_locale.c
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "wireup/frame.h"

enum { WORLD_MAX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_all(const ddp_frame_reader *reader)
{
	void *blobs[WORLD_MAX] = { NULL };
	size_t sizes[WORLD_MAX], bytes;
	unsigned char *frame;
	int count = reader->world_size;

	if (ddp_frame_unpack_all(reader->payload, reader->bytes, count, blobs, sizes) != DDP_OK)
		return;
	if (ddp_frame_pack_all(reader->sequence, blobs, sizes, count, &frame, &bytes) != DDP_OK)
		abort();
	if (bytes != DDP_FRAME_HEADER_BYTES + reader->bytes ||
	    memcmp(frame, reader->header, DDP_FRAME_HEADER_BYTES) != 0 ||
	    memcmp(frame + DDP_FRAME_HEADER_BYTES, reader->payload, reader->bytes) != 0)
		abort();
	free(frame);
	ddp_blobs_free(blobs, count);
}

static void check_error(const ddp_frame_reader *reader)
{
	unsigned char frame[DDP_FRAME_ERROR_MAX];
	ddp_status status = ddp_frame_raise_error(reader->payload, reader->bytes);

	if (status == DDP_OK || strlen(ddp_last_error()) > DDP_FRAME_TEXT_MAX)
		abort();
	size_t bytes = ddp_frame_pack_error(reader->sequence, status, frame);
	if (bytes > sizeof(frame) ||
	    ddp_frame_raise_error(frame + DDP_FRAME_HEADER_BYTES, bytes - DDP_FRAME_HEADER_BYTES) != status)
		abort();
}

/* The first byte is the world size, the second the largest piece. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	ddp_frame_reader reader = { .world_size = 1 + data[0] % WORLD_MAX };
	size_t piece = 1 + data[1];

	data += 2;
	size -= 2;
	while (size > 0) {
		void *at;
		size_t room;
		bool complete;
		if (ddp_frame_room(&reader, &at, &room) != DDP_OK)
			break;
		size_t bytes = room < piece ? room : piece;
		bytes = bytes < size ? bytes : size;
		memcpy(at, data, bytes);
		data += bytes;
		size -= bytes;
		if (ddp_frame_filled(&reader, bytes, &complete) != DDP_OK)
			break;
		if (!complete)
			continue;
		if (reader.kind == DDP_FRAME_ALL)
			check_all(&reader);
		else if (reader.kind == DDP_FRAME_ERROR)
			check_error(&reader);
		ddp_frame_reset(&reader);
	}
	ddp_frame_reset(&reader);
	return 0;
}
