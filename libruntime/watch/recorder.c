/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/recorder.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pages.h"

_Static_assert(sizeof(struct ddp_record_entry) == DDP_RECORD_ENTRY_BYTES, "an entry is two lines of the cache");
_Static_assert(offsetof(struct ddp_record_entry, name) == 64, "an operation of libddp is one line of the cache");
_Static_assert(sizeof(struct ddp_record_head) * DDP_PROGRESS_SLOTS <= DDP_RECORD_HEADS_BYTES, "heads are one page");
_Static_assert(DDP_RECORD_AREA_BYTES % 4096 == 0 && DDP_RECORD_RING_BYTES % 4096 == 0, "areas and rings are pages");

/* How many tasks the file is for; 0: it has no rings, or rings of another version. */
static uint32_t tasks_of(int file)
{
	struct ddp_record_place place;
	struct stat info;

	if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < DDP_RECORD_PLACE_BYTES ||
	    pread(file, &place, sizeof(place), info.st_size - DDP_RECORD_PLACE_BYTES) != (ssize_t)sizeof(place))
		return 0;
	if (place.magic != DDP_RECORD_MAGIC || place.version != DDP_RECORD_VERSION ||
	    (uint64_t)info.st_size != DDP_RECORD_FILE_BYTES(place.tasks))
		return 0;
	return place.tasks;
}

/* A page of the system may be larger than the offset's. */
static void *map(int file, uint64_t offset, size_t bytes)
{
	const size_t before = (size_t)(offset % ddp_system_page_bytes());
	char *pages = mmap(NULL, before + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)(offset - before));

	return pages != MAP_FAILED ? pages + before : NULL;
}

static void unmap(void *memory, size_t bytes)
{
	const size_t before = (uintptr_t)memory % ddp_system_page_bytes();

	if (memory != NULL)
		munmap((char *)memory - before, before + bytes);
}

ddp_recorder ddp_recorder_map(int file, int task, int slot)
{
	const uint32_t tasks = file >= 0 ? tasks_of(file) : 0;
	ddp_recorder none = { NULL, NULL };

	if (task < 0 || (uint32_t)task >= tasks || slot < 0 || slot >= DDP_PROGRESS_SLOTS)
		return none;
	const uint64_t area = DDP_RECORD_AREA_OFFSET(tasks, task);
	const uint64_t ring = area + DDP_RECORD_HEADS_BYTES + (uint64_t)slot * DDP_RECORD_RING_BYTES;
	struct ddp_record_head *heads = map(file, area, DDP_RECORD_HEADS_BYTES);
	struct ddp_record_entry *entries = map(file, ring, DDP_RECORD_RING_BYTES);
	if (heads == NULL || entries == NULL) {
		unmap(heads, DDP_RECORD_HEADS_BYTES);
		unmap(entries, DDP_RECORD_RING_BYTES);
		return none;
	}
	struct ddp_record_head *head = &heads[slot];
	/* A context before this one may have had the slot. */
	if (DDP_RECORD_GET(head->next) != 0)
		memset(entries, 0, DDP_RECORD_RING_BYTES);
	DDP_RECORD_SET(head->next, 0);
	head->version = DDP_RECORD_VERSION;
	__atomic_store_n(&head->magic, DDP_RECORD_MAGIC, __ATOMIC_RELEASE);
	return (ddp_recorder){ head, entries };
}

void ddp_recorder_unmap(ddp_recorder *recorder)
{
	struct ddp_record_head *head = recorder->head;

	if (head == NULL)
		return;
	/* Heads lie at multiples of their size from the start of their page of 4096 bytes. */
	unmap((char *)head - (uintptr_t)head % DDP_RECORD_HEADS_BYTES, DDP_RECORD_HEADS_BYTES);
	unmap(recorder->entries, DDP_RECORD_RING_BYTES);
	*recorder = (ddp_recorder){ NULL, NULL };
}
