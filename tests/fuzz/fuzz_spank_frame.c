/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of the link between a node and srun, the openings of links, and notes for slow=: as they come, and with a right
 * tag, as only who knows the step's secret can make it.
 * fuzz-sources: spank/wire/channel.c spank/wire/relay.c spank/srun/pace_step.c spank/base/text.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spank/base/bytes.h"
#include "spank/base/release.h"
#include "spank/srun/pace_step.h"
#include "spank/wire/channel.h"

/* The build makes the plugin's own. */
const char *release_own(void)
{
	return "0";
}

static const unsigned char secret[SIPHASH_KEY_BYTES] = "secret", nonce[FRAME_NONCE_BYTES] = "nonce";

static size_t take(struct frame_reader *reader)
{
	struct frame frame;
	size_t taken = 0;
	volatile unsigned char sum = 0;

	while (frame_next(reader, &frame)) {
		if (frame.bytes > FRAME_PAYLOAD_MAX)
			abort();
		for (size_t i = 0; i < frame.bytes; i++)
			sum = (unsigned char)(sum + frame.payload[i]);
		taken++;
	}
	return taken;
}

static void read_raw(const uint8_t *data, size_t size, size_t at_once)
{
	struct frame_reader reader = { .bytes = NULL };

	frame_begin(&reader.stream, secret, nonce, FRAME_OF_NODE);
	for (size_t used = 0; used < size; used += at_once) {
		frame_add(&reader, data + used, size - used < at_once ? size - used : at_once);
		take(&reader);
	}
	frame_end(&reader);
}

/* The input cut into frames, each by its first byte: all of them come. */
static void read_signed(const uint8_t *data, size_t size)
{
	struct frame_reader reader = { .bytes = NULL };
	struct frame_stream stream;
	unsigned char bytes[FRAME_HEADER_BYTES + UINT8_MAX + SIPHASH_BYTES];
	size_t written = 0, taken = 0;

	frame_begin(&stream, secret, nonce, FRAME_OF_NODE);
	frame_begin(&reader.stream, secret, nonce, FRAME_OF_NODE);
	while (size > 0) {
		struct frame frame = { .type = data[0], .number = size, .payload = data + 1, .bytes = data[0] };
		if (frame.bytes > size - 1)
			frame.bytes = size - 1;
		frame_write(&stream, &frame, bytes);
		written++;
		frame_add(&reader, bytes, frame_size(frame.bytes));
		if (written % 3 == 0)
			taken += take(&reader);
		data += 1 + frame.bytes;
		size -= 1 + frame.bytes;
	}
	taken += take(&reader);
	if (taken != written || reader.broken)
		abort();
	frame_end(&reader);
}

static void read_notes(const uint8_t *data, size_t size)
{
	struct pace_step step = { .percent = 150 };
	char line[1024];
	struct pace_note note, again;
	unsigned char packed[PACE_NOTE_BYTES];

	for (; size >= PACE_NOTE_BYTES; data += PACE_NOTE_BYTES, size -= PACE_NOTE_BYTES) {
		struct sink sink = sink_on(line, sizeof(line));
		if (!pace_unpack(data, &note))
			continue;
		pace_pack(&note, packed);
		if (!pace_unpack(packed, &again) || memcmp(&note, &again, sizeof(again)) != 0)
			abort();
		if (note.world_size <= 4096 && pace_step_take(&step, data))
			while (pace_step_say(&step, &sink))
				sink = sink_on(line, sizeof(line));
	}
	pace_step_end(&step);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct link_opening opening, again;
	unsigned char packed[OPENING_BYTES];

	if (size == 0)
		return 0;
	read_raw(data + 1, size - 1, 1 + data[0] % 64u);
	read_signed(data, size);
	read_notes(data, size);
	if (size >= OPENING_BYTES && opening_unpack(data, &opening)) {
		opening_pack(&opening, packed);
		if (!opening_unpack(packed, &again) || memcmp(&opening, &again, sizeof(again)) != 0)
			abort();
	}
	return 0;
}
