/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/test_memory.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/pages.h"
#include "device/device.h"

struct ddp_test_block {
	size_t at, span;      /* whole pages of the range, with one behind that stays closed */
	unsigned char *start; /* in these pages, as near to the closed one as it may be */
	size_t bytes;
	ddp_test_block *next;
};

static void *reserve(size_t bytes)
{
	void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return range != MAP_FAILED ? range : NULL;
}

ddp_status ddp_test_memory_open(ddp_test_memory *memory)
{
	*memory = (ddp_test_memory){ .bytes = (size_t)DDP_TEST_MEMORY_GIB << 30 };
	memory->range = reserve(memory->bytes);
	unsigned char *own = memory->range != NULL ? reserve(memory->bytes) : NULL;
	if (own == NULL) {
		const int error = errno;
		ddp_test_memory_close(memory);
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "device test: no %d GiB of addresses, twice "
		                      "(ulimit -v)", DDP_TEST_MEMORY_GIB);
	}
	memory->distance = own - memory->range;
	return DDP_OK;
}

void ddp_test_memory_close(ddp_test_memory *memory)
{
	while (memory->blocks != NULL) {
		ddp_test_block *block = memory->blocks;
		memory->blocks = block->next;
		free(block);
	}
	if (memory->distance != 0)
		munmap(memory->range + memory->distance, memory->bytes);
	if (memory->range != NULL)
		munmap(memory->range, memory->bytes);
}

/* The link where a block of `span` bytes goes, with its place; NULL: no gap from `from` on. */
static ddp_test_block **find_gap(ddp_test_memory *memory, size_t from, size_t span, size_t *at)
{
	ddp_test_block **link = &memory->blocks;

	for (*at = from; *link != NULL && (*link)->at < *at + span; link = &(*link)->next) {
		if ((*link)->at + (*link)->span > *at)
			*at = (*link)->at + (*link)->span;
	}
	return *at + span <= memory->bytes ? link : NULL;
}

ddp_status ddp_test_memory_alloc(ddp_test_memory *memory, size_t bytes, void **address)
{
	const size_t page = ddp_system_page_bytes();
	size_t at = 0;

	if (bytes > memory->bytes - 2 * page)
		return ddp_fail(DDP_ERR_NOMEM, "device test has %d GiB, not %zu bytes", DDP_TEST_MEMORY_GIB,
		                bytes);
	const size_t aligned = (bytes + DDP_DEVICE_ALIGNMENT - 1) / DDP_DEVICE_ALIGNMENT * DDP_DEVICE_ALIGNMENT;
	const size_t open = ddp_whole_pages(aligned);
	ddp_test_block **link = find_gap(memory, memory->next, open + page, &at);
	if (link == NULL)
		link = find_gap(memory, 0, open + page, &at);
	if (link == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "device test has no %zu bytes left", bytes);
	ddp_test_block *block = malloc(sizeof(*block));
	unsigned char *own = memory->range + memory->distance + at;
	if (block == NULL || mprotect(own, open, PROT_READ | PROT_WRITE) != 0) {
		free(block);
		return ddp_fail(DDP_ERR_NOMEM, "device test: the host is out of memory for %zu bytes", bytes);
	}
	memset(own, 0xff, open);
	*block = (ddp_test_block){
		.at = at, .span = open + page, .bytes = bytes, .next = *link,
		.start = memory->range + at + open - aligned,
	};
	*link = block;
	memory->next = at + block->span;
	*address = block->start;
	return DDP_OK;
}

static ddp_test_block *const *find_block(ddp_test_block *const *link, const void *address)
{
	while (*link != NULL && (*link)->start != address)
		link = &(*link)->next;
	return link;
}

size_t ddp_test_memory_size(const ddp_test_memory *memory, const void *address)
{
	const ddp_test_block *block = *find_block(&memory->blocks, address);

	return block != NULL ? block->bytes : 0;
}

bool ddp_test_memory_free(ddp_test_memory *memory, void *address)
{
	ddp_test_block **link = (ddp_test_block **)find_block(&memory->blocks, address);
	ddp_test_block *block = *link;

	if (block == NULL)
		return false;
	unsigned char *own = memory->range + memory->distance + block->at;
	madvise(own, block->span, MADV_DONTNEED);
	mprotect(own, block->span, PROT_NONE);
	*link = block->next;
	free(block);
	return true;
}

bool ddp_test_memory_owns(const ddp_test_memory *memory, const void *address)
{
	return (uintptr_t)address - (uintptr_t)memory->range < memory->bytes;
}

bool ddp_test_memory_holds(const ddp_test_memory *memory, const void *address, size_t bytes)
{
	for (const ddp_test_block *block = memory->blocks; block != NULL; block = block->next) {
		const size_t offset = (uintptr_t)address - (uintptr_t)block->start;
		if (offset < block->bytes)
			return bytes <= block->bytes - offset;
	}
	return false;
}

void *ddp_test_memory_view(const ddp_test_memory *memory, const void *address)
{
	if (!ddp_test_memory_owns(memory, address))
		return (void *)address;
	return (unsigned char *)address + memory->distance;
}
