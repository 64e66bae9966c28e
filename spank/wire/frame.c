/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/frame.h"

#include <stdlib.h>
#include <string.h>

#include "spank/base/bytes.h"

static uint64_t load(const unsigned char *bytes, size_t count)
{
	uint64_t word = 0;

	for (size_t i = 0; i < count; i++)
		word |= (uint64_t)bytes[i] << (8 * i);
	return word;
}

static uint64_t rotate(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static void mix(uint64_t v[4], int rounds)
{
	while (rounds-- > 0) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] = rotate(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] = rotate(v[2], 32);
	}
}

void siphash(const unsigned char key[SIPHASH_KEY_BYTES], const void *data, size_t bytes,
             unsigned char tag[SIPHASH_BYTES])
{
	const uint64_t k0 = load(key, 8), k1 = load(key + 8, 8);
	const unsigned char *p = data, *whole = p + (bytes & ~(size_t)7);
	uint64_t v[4] = { k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du,
	                  k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u };
	uint64_t word;

	for (; p < whole; p += 8) {
		word = load(p, 8);
		v[3] ^= word;
		mix(v, 2);
		v[0] ^= word;
	}
	word = load(p, bytes & 7) | (uint64_t)bytes << 56;
	v[3] ^= word;
	mix(v, 2);
	v[0] ^= word;
	v[2] ^= 0xff;
	mix(v, 4);
	word = v[0] ^ v[1] ^ v[2] ^ v[3];
	for (int i = 0; i < SIPHASH_BYTES; i++)
		tag[i] = (unsigned char)(word >> (8 * i));
}

/* Where the parts of a header are. */
enum { AT_TYPE = 0, AT_LENGTH = 4, AT_SEQUENCE = 8, AT_NUMBER = 16 };

/* The text has another length than every other text that is signed with the secret. */
void frame_begin(struct frame_stream *stream, const unsigned char secret[SIPHASH_KEY_BYTES],
                 const unsigned char nonce[FRAME_NONCE_BYTES], enum frame_side side)
{
	unsigned char text[2 + FRAME_NONCE_BYTES] = { (unsigned char)side };

	memcpy(text + 2, nonce, FRAME_NONCE_BYTES);
	for (unsigned char half = 0; half < 2; half++) {
		text[1] = half;
		siphash(secret, text, sizeof(text), stream->key + half * SIPHASH_BYTES);
	}
	stream->sequence = 0;
}

size_t frame_size(size_t payload_bytes)
{
	return FRAME_HEADER_BYTES + payload_bytes + SIPHASH_BYTES;
}

void frame_write(struct frame_stream *stream, const struct frame *frame, unsigned char *bytes)
{
	bytes_put32(bytes + AT_TYPE, frame->type);
	bytes_put32(bytes + AT_LENGTH, (uint32_t)frame->bytes);
	bytes_put64(bytes + AT_SEQUENCE, ++stream->sequence);
	bytes_put64(bytes + AT_NUMBER, frame->number);
	if (frame->bytes > 0)
		memcpy(bytes + FRAME_HEADER_BYTES, frame->payload, frame->bytes);
	siphash(stream->key, bytes, FRAME_HEADER_BYTES + frame->bytes, bytes + FRAME_HEADER_BYTES + frame->bytes);
}

/* Room grows with what has come, and not with the length that a header claims. */
static bool make_room(struct frame_reader *reader, size_t count)
{
	size_t held = reader->end - reader->begin, room = reader->room > 0 ? reader->room : 512;
	unsigned char *larger;

	if (reader->begin > 0) {
		memmove(reader->bytes, reader->bytes + reader->begin, held);
		reader->begin = 0;
		reader->end = held;
	}
	while (room < held + count)
		room *= 2;
	if (room == reader->room)
		return true;
	larger = realloc(reader->bytes, room);
	if (larger == NULL)
		return false;
	reader->bytes = larger;
	reader->room = room;
	return true;
}

void frame_add(struct frame_reader *reader, const void *bytes, size_t count)
{
	if (reader->broken || count == 0)
		return;
	if (!make_room(reader, count)) {
		reader->broken = true;
		return;
	}
	memcpy(reader->bytes + reader->end, bytes, count);
	reader->end += count;
}

/* Compares in a time that does not depend on where the tags differ. */
static bool is_same(const unsigned char *one, const unsigned char *other)
{
	unsigned char differs = 0;

	for (int i = 0; i < SIPHASH_BYTES; i++)
		differs |= one[i] ^ other[i];
	return differs == 0;
}

bool frame_next(struct frame_reader *reader, struct frame *frame)
{
	size_t held = reader->end - reader->begin, length;
	unsigned char tag[SIPHASH_BYTES];
	const unsigned char *bytes;

	if (reader->broken || held < FRAME_HEADER_BYTES)
		return false;
	bytes = reader->bytes + reader->begin;
	length = bytes_get32(bytes + AT_LENGTH);
	if (length > FRAME_PAYLOAD_MAX) {
		reader->broken = true;
		return false;
	}
	if (held < frame_size(length))
		return false;
	siphash(reader->stream.key, bytes, FRAME_HEADER_BYTES + length, tag);
	if (!is_same(tag, bytes + FRAME_HEADER_BYTES + length) ||
	    bytes_get64(bytes + AT_SEQUENCE) != reader->stream.sequence + 1) {
		reader->broken = true;
		return false;
	}
	reader->stream.sequence++;
	*frame = (struct frame){ .type = bytes_get32(bytes + AT_TYPE), .number = bytes_get64(bytes + AT_NUMBER),
		                 .payload = bytes + FRAME_HEADER_BYTES, .bytes = length };
	reader->begin += frame_size(length);
	return true;
}

uint64_t frame_question(const struct frame *frame)
{
	return frame->bytes == FRAME_QUESTION_BYTES ? bytes_get64(frame->payload) : 0;
}

void frame_end(struct frame_reader *reader)
{
	free(reader->bytes);
	*reader = (struct frame_reader){ .broken = true };
}
