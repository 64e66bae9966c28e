/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/pace_note.h"

#include <string.h>

#include "spank/base/bytes.h"
#include "spank/base/error.h"

static unsigned char *put(unsigned char *at, uint32_t number)
{
	bytes_put32(at, number);
	return at + 4;
}

static uint32_t get(const unsigned char **at)
{
	*at += 4;
	return bytes_get32(*at - 4);
}

void pace_pack(const struct pace_note *note, unsigned char bytes[PACE_NOTE_BYTES])
{
	unsigned char *at = bytes;

	memset(bytes, 0, PACE_NOTE_BYTES);
	at = put(at, note->world_size);
	at = put(at, note->steps);
	at = put(at, note->count);
	memcpy(at, note->node, strnlen(note->node, HOST_NAME_MAX_BYTES - 1));
	at += HOST_NAME_MAX_BYTES;
	for (uint32_t i = 0; i < note->count && i < PACE_RANKS_MAX; i++) {
		at = put(at, note->ranks[i].rank);
		at = put(at, note->ranks[i].host_us);
		at = put(at, note->ranks[i].own_us);
	}
}

bool pace_unpack(const unsigned char bytes[PACE_NOTE_BYTES], struct pace_note *note)
{
	const unsigned char *at = bytes;

	*note = (struct pace_note){ .world_size = get(&at) };
	note->steps = get(&at);
	note->count = get(&at);
	memcpy(note->node, at, strnlen((const char *)at, HOST_NAME_MAX_BYTES - 1));
	make_printable(note->node);
	at += HOST_NAME_MAX_BYTES;
	if (note->steps == 0 || note->count == 0 || note->count > PACE_RANKS_MAX || note->world_size > PACE_WORLD_MAX)
		return false;
	for (uint32_t i = 0; i < note->count; i++) {
		struct pace_rank_note *rank = &note->ranks[i];
		rank->rank = get(&at);
		rank->host_us = get(&at);
		rank->own_us = get(&at);
		if (rank->rank >= note->world_size || rank->own_us > rank->host_us)
			return false;
	}
	return true;
}
