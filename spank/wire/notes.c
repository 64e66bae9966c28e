/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/notes.h"

#include <string.h>

#include "spank/base/bytes.h"
#include "spank/base/text.h"

static unsigned char *put8(unsigned char *at, unsigned int value)
{
	*at = (unsigned char)value;
	return at + 1;
}

static unsigned char *put32(unsigned char *at, uint32_t value)
{
	bytes_put32(at, value);
	return at + 4;
}

static unsigned char *put64(unsigned char *at, uint64_t value)
{
	bytes_put64(at, value);
	return at + 8;
}

static unsigned char *put_text(unsigned char *at, const char *text, size_t bytes)
{
	size_t length = strnlen(text, bytes);

	memcpy(at, text, length);
	memset(at + length, 0, bytes - length);
	return at + bytes;
}

static uint32_t get32(const unsigned char **at)
{
	*at += 4;
	return bytes_get32(*at - 4);
}

static uint64_t get64(const unsigned char **at)
{
	*at += 8;
	return bytes_get64(*at - 8);
}

static void get_text(const unsigned char **at, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes + 1);

	sink_add_untrusted(&sink, (const char *)*at, bytes);
	*at += bytes;
}

const char *stall_operation(const char *wait)
{
	static const char begin[] = "collective #";
	const char *space;

	if (strncmp(wait, begin, strlen(begin)) != 0)
		return NULL;
	space = strchr(wait + strlen(begin), ' ');
	return space != NULL && space[1] != '\0' ? space + 1 : NULL;
}

bool stall_differs(const char *wait, const char *other)
{
	static const char *const same_sizes[] = { "all_reduce ", "NCCL all_reduce ", "broadcast ", "NCCL broadcast " };
	static const char nccl[] = "NCCL ";
	const char *a = stall_operation(wait), *b = stall_operation(other);
	size_t name;

	/* The same number comes first in both. */
	if (a == NULL || b == NULL || a - wait != b - other || memcmp(wait, other, (size_t)(a - wait)) != 0)
		return false;
	for (size_t i = 0; i < sizeof(same_sizes) / sizeof(same_sizes[0]); i++)
		if (strncmp(a, same_sizes[i], strlen(same_sizes[i])) == 0)
			return strcmp(a, b) != 0;
	name = strncmp(a, nccl, strlen(nccl)) == 0 ? strlen(nccl) : 0;
	name += strcspn(a + name, " ");
	return strncmp(a, b, name) != 0 || (b[name] != ' ' && b[name] != '\0');
}

void stall_pack(const struct stall_note *note, unsigned char bytes[STALL_NOTE_BYTES])
{
	const uint32_t numbers[] = { note->ranks, note->lowest, note->world_size, note->at_work,
		                     note->absent, note->quiet_ms, note->rank, note->since_ms,
		                     note->range_count, note->wait_ms };
	unsigned char *at = bytes;

	at = put8(at, note->stalled);
	at = put8(at, note->kind);
	at = put8(at, note->cut);
	for (int i = 0; i < 10; i++)
		at = put32(at, numbers[i]);
	at = put64(at, note->collective);
	at = put64(at, note->wait_collective);
	for (int i = 0; i < STALL_RANGES_MAX; i++) {
		at = put32(at, note->ranges[i].first);
		at = put32(at, note->ranges[i].last);
	}
	at = put_text(at, note->who, STALL_WHO_MAX);
	at = put_text(at, note->doing, STALL_DOING_MAX);
	at = put_text(at, note->wait, STALL_WAIT_MAX);
	at = put32(at, note->odd);
	at = put_text(at, note->odd_wait, STALL_WAIT_MAX);
	at = put8(at, note->unseen);
	at = put32(at, note->unseen_ms);
	put_text(at, note->program, STALL_PROGRAM_MAX);
}

static bool is_sound(const struct stall_note *note)
{
	if (note->ranks == 0 || note->ranks > note->world_size || note->lowest >= note->world_size ||
	    note->at_work > note->ranks || note->absent > note->at_work ||
	    note->range_count > STALL_RANGES_MAX || note->odd > note->world_size || note->unseen >= STALL_UNSEEN_KINDS)
		return false;
	for (uint32_t i = 0; i < note->range_count; i++)
		if (note->ranges[i].first > note->ranges[i].last ||
		    note->ranges[i].last >= note->world_size)
			return false;
	return true;
}

bool stall_unpack(const unsigned char bytes[STALL_NOTE_BYTES], struct stall_note *note)
{
	const unsigned char *at = bytes;
	const unsigned int stalled = *at++, kind = *at++, cut = *at++;

	*note = (struct stall_note){ .stalled = stalled != 0, .kind = (enum stall_kind)kind, .cut = cut != 0 };
	note->ranks = get32(&at);
	note->lowest = get32(&at);
	note->world_size = get32(&at);
	note->at_work = get32(&at);
	note->absent = get32(&at);
	note->quiet_ms = get32(&at);
	note->rank = get32(&at);
	note->since_ms = get32(&at);
	note->range_count = get32(&at);
	note->wait_ms = get32(&at);
	note->collective = get64(&at);
	note->wait_collective = get64(&at);
	for (int i = 0; i < STALL_RANGES_MAX; i++) {
		note->ranges[i].first = get32(&at);
		note->ranges[i].last = get32(&at);
	}
	get_text(&at, note->who, STALL_WHO_MAX);
	get_text(&at, note->doing, STALL_DOING_MAX);
	get_text(&at, note->wait, STALL_WAIT_MAX);
	note->odd = get32(&at);
	get_text(&at, note->odd_wait, STALL_WAIT_MAX);
	note->unseen = (enum stall_unseen)*at++;
	note->unseen_ms = get32(&at);
	get_text(&at, note->program, STALL_PROGRAM_MAX);
	return stalled <= 1 && cut <= 1 && kind < STALL_KINDS && is_sound(note);
}

void pace_pack(const struct pace_note *note, unsigned char bytes[PACE_NOTE_BYTES])
{
	unsigned char *at = bytes;

	memset(bytes, 0, PACE_NOTE_BYTES);
	at = put32(at, note->world_size);
	at = put32(at, note->steps);
	at = put32(at, note->count);
	put_text(at, note->node, HOST_NAME_MAX_BYTES - 1);
	at += HOST_NAME_MAX_BYTES;
	for (uint32_t i = 0; i < note->count && i < PACE_RANKS_MAX; i++) {
		at = put32(at, note->ranks[i].rank);
		at = put32(at, note->ranks[i].host_us);
		at = put32(at, note->ranks[i].own_us);
	}
}

bool pace_unpack(const unsigned char bytes[PACE_NOTE_BYTES], struct pace_note *note)
{
	const unsigned char *at = bytes;

	*note = (struct pace_note){ .world_size = get32(&at) };
	note->steps = get32(&at);
	note->count = get32(&at);
	get_text(&at, note->node, HOST_NAME_MAX_BYTES - 1);
	at++; /* the terminator */
	if (note->steps == 0 || note->count == 0 || note->count > PACE_RANKS_MAX || note->world_size > PACE_WORLD_MAX)
		return false;
	for (uint32_t i = 0; i < note->count; i++) {
		struct pace_rank_note *rank = &note->ranks[i];
		rank->rank = get32(&at);
		rank->host_us = get32(&at);
		rank->own_us = get32(&at);
		if (rank->rank >= note->world_size || rank->own_us > rank->host_us)
			return false;
	}
	return true;
}
