/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task's page and its rings, in which the task may have written anything, put into a line of JSON.
 * fuzz-sources: spank/witness/rings.c spank/wire/progress_page.c spank/base/text.c
 * fuzz-libs: -ljansson
 */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spank/witness/rings.h"

/* The input is laid over the file at these places, in turn, so that small inputs reach all of them. */
enum { TASKS = 2, TASK = 1 };
static const uint64_t places[] = {
	TASK * DDP_PROGRESS_BYTES,
	DDP_RECORD_PLACE_OFFSET(TASKS),
	DDP_RECORD_AREA_OFFSET(TASKS, TASK),
	DDP_RECORD_AREA_OFFSET(TASKS, TASK) + DDP_RECORD_HEADS_BYTES + 3 * DDP_RECORD_ENTRY_BYTES,
};

static void lay(unsigned char *file, uint64_t bytes, const uint8_t *data, size_t size)
{
	const size_t part = size / (sizeof(places) / sizeof(places[0])) + 1;

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && i * part < size; i++) {
		const size_t length = size - i * part < part ? size - i * part : part;
		memcpy(file + places[i], data + i * part, length < bytes - places[i] ? length : bytes - places[i]);
	}
}

static void tell(const struct rings_source *source, const char *threads)
{
	static char text[RECORD_TEXT_MAX];
	struct sink sink = sink_on(text, sizeof(text));
	struct rings rings;
	json_t *json;

	if (!rings_copy(&rings, source, TASK))
		return;
	record_text(&sink, &(struct record_rank){ .reason = "end", .node = "n1", .now_ns = 1, .real_ns = 2, .threads = threads,
	                                          .rings = &rings });
	rings_free(&rings);
	if (sink.full || text[sink.used - 1] != '\n')
		abort();
	for (size_t i = 0; i + 1 < sink.used; i++)
		if (text[i] < ' ' || text[i] > '~')
			abort();
	json = json_loads(text, 0, NULL);
	if (json == NULL)
		abort();
	json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint64_t bytes = DDP_RECORD_FILE_BYTES(TASKS);
	unsigned char *file = calloc(1, bytes);
	char threads[64] = "";

	if (file == NULL)
		return 0;
	memcpy(threads, data, size < sizeof(threads) - 1 ? size : sizeof(threads) - 1);
	lay(file, bytes, data, size);
	tell(&(struct rings_source){ .file = -1, .memory = file, .bytes = bytes }, threads);
	/* What the plugin knows itself, with the ring in use. */
	struct ddp_record_head *head = (struct ddp_record_head *)(file + DDP_RECORD_AREA_OFFSET(TASKS, TASK));
	*head = (struct ddp_record_head){ .magic = DDP_RECORD_MAGIC, .version = DDP_RECORD_VERSION, .next = 4 };
	struct ddp_record_entry *entries = (struct ddp_record_entry *)(file + DDP_RECORD_AREA_OFFSET(TASKS, TASK) + DDP_RECORD_HEADS_BYTES);
	for (uint64_t i = 1; i < DDP_RECORD_ENTRIES; i++)
		entries[i].sequence = entries[i].sequence / DDP_RECORD_ENTRIES * DDP_RECORD_ENTRIES + i;
	((struct ddp_progress *)(file + TASK * DDP_PROGRESS_BYTES))->magic = DDP_PROGRESS_MAGIC;
	tell(&(struct rings_source){ .file = -1, .memory = file, .bytes = bytes, .tasks = TASKS }, threads);
	free(file);
	return 0;
}
