/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/notes.h"

#include <string.h>

#include "spank/base/bytes.h"
#include "spank/base/text.h"

/* A text of up to `bytes` bytes, which comes printable, and with a terminator behind it. */
static void codec_text(struct codec *codec, char *text, size_t bytes)
{
	struct sink sink;

	if (codec->reads) {
		sink = sink_on(text, bytes + 1);
		sink_add_untrusted(&sink, (const char *)codec->at, bytes);
	} else {
		memset(codec->at, 0, bytes);
		memcpy(codec->at, text, strnlen(text, bytes));
	}
	codec->at += bytes;
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

/* False: a value that was read is none of its kind. */
static bool stall_fields(struct codec *codec, struct stall_note *note)
{
	uint32_t stalled = note->stalled, kind = note->kind, cut = note->cut, unseen = note->unseen;
	uint32_t *const numbers[] = { &note->ranks, &note->lowest, &note->world_size, &note->at_work, &note->absent,
		                      &note->quiet_ms, &note->rank, &note->since_ms, &note->range_count, &note->wait_ms };

	codec_8(codec, &stalled);
	codec_8(codec, &kind);
	codec_8(codec, &cut);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		codec_32(codec, numbers[i]);
	codec_64(codec, &note->collective);
	codec_64(codec, &note->wait_collective);
	for (int i = 0; i < STALL_RANGES_MAX; i++) {
		codec_32(codec, &note->ranges[i].first);
		codec_32(codec, &note->ranges[i].last);
	}
	codec_text(codec, note->who, STALL_WHO_MAX);
	codec_text(codec, note->doing, STALL_DOING_MAX);
	codec_text(codec, note->wait, STALL_WAIT_MAX);
	codec_32(codec, &note->odd);
	codec_text(codec, note->odd_wait, STALL_WAIT_MAX);
	codec_8(codec, &unseen);
	codec_32(codec, &note->unseen_ms);
	codec_text(codec, note->program, STALL_PROGRAM_MAX);
	note->stalled = stalled != 0;
	note->kind = (enum stall_kind)kind;
	note->cut = cut != 0;
	note->unseen = (enum stall_unseen)unseen;
	return stalled <= 1 && cut <= 1 && kind < STALL_KINDS && unseen < STALL_UNSEEN_KINDS;
}

void stall_pack(const struct stall_note *note, unsigned char bytes[STALL_NOTE_BYTES])
{
	struct codec codec = { .at = bytes };
	struct stall_note copy = *note;

	(void)stall_fields(&codec, &copy);
}

static bool is_sound(const struct stall_note *note)
{
	if (note->ranks == 0 || note->ranks > note->world_size || note->lowest >= note->world_size ||
	    note->at_work > note->ranks || note->absent > note->at_work ||
	    note->range_count > STALL_RANGES_MAX || note->odd > note->world_size)
		return false;
	for (uint32_t i = 0; i < note->range_count; i++)
		if (note->ranges[i].first > note->ranges[i].last ||
		    note->ranges[i].last >= note->world_size)
			return false;
	return true;
}

bool stall_unpack(const unsigned char bytes[STALL_NOTE_BYTES], struct stall_note *note)
{
	struct codec codec = { .at = (unsigned char *)(uintptr_t)bytes, .reads = true };

	*note = (struct stall_note){ .stalled = false };
	return stall_fields(&codec, note) && is_sound(note);
}

/* False: it is no such note. */
static bool pace_fields(struct codec *codec, struct pace_note *note)
{
	codec_32(codec, &note->world_size);
	codec_32(codec, &note->steps);
	codec_32(codec, &note->count);
	codec_text(codec, note->node, HOST_NAME_MAX_BYTES - 1);
	codec->at++; /* the terminator */
	if (note->steps == 0 || note->count == 0 || note->count > PACE_RANKS_MAX || note->world_size > PACE_WORLD_MAX)
		return false;
	for (uint32_t i = 0; i < note->count; i++) {
		struct pace_rank_note *rank = &note->ranks[i];
		codec_32(codec, &rank->rank);
		codec_32(codec, &rank->host_us);
		codec_32(codec, &rank->own_us);
		if (rank->rank >= note->world_size || rank->own_us > rank->host_us)
			return false;
	}
	return true;
}

void pace_pack(const struct pace_note *note, unsigned char bytes[PACE_NOTE_BYTES])
{
	struct codec codec = { .at = bytes };
	struct pace_note copy = *note;

	memset(bytes, 0, PACE_NOTE_BYTES);
	(void)pace_fields(&codec, &copy);
}

bool pace_unpack(const unsigned char bytes[PACE_NOTE_BYTES], struct pace_note *note)
{
	struct codec codec = { .at = (unsigned char *)(uintptr_t)bytes, .reads = true };

	*note = (struct pace_note){ .count = 0 };
	return pace_fields(&codec, note);
}
