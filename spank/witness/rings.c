/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/rings.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(sizeof(struct ddp_record_entry) == DDP_RECORD_ENTRY_BYTES, "an entry has its size");

enum { TASKS_MAX = 65536 };

static bool read_all(const struct rings_source *source, void *memory, size_t bytes, uint64_t offset)
{
	if (offset > source->bytes || bytes > source->bytes - offset)
		return false;
	if (source->file >= 0)
		return pread(source->file, memory, bytes, (off_t)offset) == (ssize_t)bytes;
	memcpy(memory, source->memory + offset, bytes);
	return true;
}

/* The slots whose rings have entries, as a mask. */
static unsigned int used_rings(const struct rings_source *source, uint64_t area)
{
	struct ddp_record_head heads[DDP_PROGRESS_SLOTS];
	unsigned int used = 0;

	if (!read_all(source, heads, sizeof(heads), area))
		return 0;
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
		if (heads[i].magic == DDP_RECORD_MAGIC && heads[i].version == DDP_RECORD_VERSION && heads[i].next != 0)
			used |= 1u << i;
	return used;
}

static void copy_rings(struct rings *rings, const struct rings_source *source, uint64_t area)
{
	const unsigned int used = used_rings(source, area);
	char *memory;

	rings->bytes = (size_t)__builtin_popcount(used) * 2 * DDP_RECORD_RING_BYTES;
	if (rings->bytes == 0)
		return;
	memory = mmap(NULL, rings->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		rings->bytes = 0;
		return;
	}
	rings->memory = memory;
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++) {
		const uint64_t offset = area + DDP_RECORD_HEADS_BYTES + (uint64_t)i * DDP_RECORD_RING_BYTES;
		if ((used >> i & 1) == 0)
			continue;
		if (read_all(source, memory, DDP_RECORD_RING_BYTES, offset) &&
		    read_all(source, memory + DDP_RECORD_RING_BYTES, DDP_RECORD_RING_BYTES, offset))
			rings->ring[rings->count++] = (struct ring){ .slot = i, .first = (const void *)memory,
				.second = (const void *)(memory + DDP_RECORD_RING_BYTES) };
		memory += (ptrdiff_t)2 * DDP_RECORD_RING_BYTES;
	}
}

/* An older plugin's file has pages only. */
static uint32_t tasks_of(const struct rings_source *source)
{
	struct ddp_record_place place;

	if (source->tasks != 0)
		return source->tasks;
	if (source->bytes < DDP_RECORD_PLACE_BYTES ||
	    !read_all(source, &place, sizeof(place), source->bytes - DDP_RECORD_PLACE_BYTES) ||
	    place.magic != DDP_RECORD_MAGIC || place.version != DDP_RECORD_VERSION)
		return 0;
	return place.tasks;
}

bool rings_copy(struct rings *rings, const struct rings_source *source, uint32_t task)
{
	const uint32_t tasks = tasks_of(source);

	*rings = (struct rings){ .count = 0 };
	if (task >= TASKS_MAX ||
	    !read_all(source, rings->slots, sizeof(rings->slots), (uint64_t)task * DDP_PROGRESS_BYTES))
		return false;
	if (task < tasks && tasks <= TASKS_MAX && source->bytes == DDP_RECORD_FILE_BYTES(tasks))
		copy_rings(rings, source, DDP_RECORD_AREA_OFFSET(tasks, task));
	return true;
}

void rings_free(struct rings *rings)
{
	if (rings->memory != NULL)
		munmap(rings->memory, rings->bytes);
	*rings = (struct rings){ .count = 0 };
}

static bool is_same(const struct ddp_record_entry *a, const struct ddp_record_entry *b)
{
	struct ddp_record_entry ended = *a;

	ended.end_ns = b->end_ns;
	ended.state = b->state;
	return a->end_ns == b->end_ns ? memcmp(a, b, sizeof(*a)) == 0
	                              : a->end_ns == 0 && memcmp(&ended, b, sizeof(ended)) == 0;
}

bool rings_entry(const struct ring *ring, uint32_t index, struct ddp_record_entry *entry)
{
	const struct ddp_record_entry *first = &ring->first[index % DDP_RECORD_ENTRIES],
	                              *second = &ring->second[index % DDP_RECORD_ENTRIES];

	if (first->sequence == 0 || first->sequence % DDP_RECORD_ENTRIES != index % DDP_RECORD_ENTRIES ||
	    !is_same(first, second))
		return false;
	*entry = *second;
	entry->name[sizeof(entry->name) - 1] = '\0';
	entry->where[sizeof(entry->where) - 1] = '\0';
	return true;
}
