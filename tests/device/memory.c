/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "tests/device/runtime.h"

struct gpu_block {
	size_t at, span;      /* whole pages of the range, with one behind that stays closed */
	unsigned char *start; /* in these pages, as near to the closed one as it may be */
	size_t bytes;
	gpu_block *next;
};

static void *reserve(size_t bytes)
{
	void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return range != MAP_FAILED ? range : NULL;
}

cudaError_t fake_gpu_memory_open(gpu_memory *memory)
{
	*memory = (gpu_memory){ .bytes = (size_t)FAKE_GPU_MEMORY_GIB << 30 };
	memory->range = reserve(memory->bytes);
	unsigned char *own = memory->range != NULL ? reserve(memory->bytes) : NULL;
	if (own == NULL) {
		fake_gpu_memory_close(memory);
		return fake_gpu_fail(cudaErrorMemoryAllocation, "no %d GiB of addresses, twice (ulimit -v)", FAKE_GPU_MEMORY_GIB);
	}
	memory->distance = own - memory->range;
	return cudaSuccess;
}

void fake_gpu_memory_close(gpu_memory *memory)
{
	while (memory->blocks != NULL) {
		gpu_block *block = memory->blocks;
		memory->blocks = block->next;
		free(block);
	}
	if (memory->distance != 0)
		munmap(memory->range + memory->distance, memory->bytes);
	if (memory->range != NULL)
		munmap(memory->range, memory->bytes);
}

/* The link where a block of `span` bytes goes, with its place; NULL: no gap from `from` on. */
static gpu_block **find_gap(gpu_memory *memory, size_t from, size_t span, size_t *at)
{
	gpu_block **link = &memory->blocks;

	for (*at = from; *link != NULL && (*link)->at < *at + span; link = &(*link)->next) {
		if ((*link)->at + (*link)->span > *at)
			*at = (*link)->at + (*link)->span;
	}
	return *at + span <= memory->bytes ? link : NULL;
}

cudaError_t fake_gpu_memory_alloc(gpu_memory *memory, size_t bytes, void **address)
{
	const size_t page = ddp_system_page_bytes();
	size_t at = 0;

	if (bytes > memory->bytes - 2 * page)
		return fake_gpu_fail(cudaErrorMemoryAllocation, "the GPU has %d GiB, not %zu bytes", FAKE_GPU_MEMORY_GIB,
		                bytes);
	const size_t aligned = (bytes + FAKE_GPU_ALIGNMENT - 1) / FAKE_GPU_ALIGNMENT * FAKE_GPU_ALIGNMENT;
	const size_t open = ddp_whole_pages(aligned);
	gpu_block **link = find_gap(memory, memory->next, open + page, &at);
	if (link == NULL)
		link = find_gap(memory, 0, open + page, &at);
	if (link == NULL)
		return fake_gpu_fail(cudaErrorMemoryAllocation, "the GPU has no %zu bytes left", bytes);
	gpu_block *block = malloc(sizeof(*block));
	unsigned char *own = memory->range + memory->distance + at;
	if (block == NULL || mprotect(own, open, PROT_READ | PROT_WRITE) != 0) {
		free(block);
		return fake_gpu_fail(cudaErrorMemoryAllocation, "the host is out of memory for %zu bytes", bytes);
	}
	memset(own, 0xff, open);
	*block = (gpu_block){
		.at = at, .span = open + page, .bytes = bytes, .next = *link,
		.start = memory->range + at + open - aligned,
	};
	*link = block;
	memory->next = at + block->span;
	*address = block->start;
	return cudaSuccess;
}

static gpu_block *const *find_block(gpu_block *const *link, const void *address)
{
	while (*link != NULL && (*link)->start != address)
		link = &(*link)->next;
	return link;
}

size_t fake_gpu_memory_size(const gpu_memory *memory, const void *address)
{
	const gpu_block *block = *find_block(&memory->blocks, address);

	return block != NULL ? block->bytes : 0;
}

bool fake_gpu_memory_free(gpu_memory *memory, void *address)
{
	gpu_block **link = (gpu_block **)find_block(&memory->blocks, address);
	gpu_block *block = *link;

	if (block == NULL)
		return false;
	unsigned char *own = memory->range + memory->distance + block->at;
	madvise(own, block->span, MADV_DONTNEED);
	mprotect(own, block->span, PROT_NONE);
	*link = block->next;
	free(block);
	return true;
}

bool fake_gpu_memory_owns(const gpu_memory *memory, const void *address)
{
	return (uintptr_t)address - (uintptr_t)memory->range < memory->bytes;
}

bool fake_gpu_memory_holds(const gpu_memory *memory, const void *address, size_t bytes)
{
	for (const gpu_block *block = memory->blocks; block != NULL; block = block->next) {
		const size_t offset = (uintptr_t)address - (uintptr_t)block->start;
		if (offset < block->bytes)
			return bytes <= block->bytes - offset;
	}
	return false;
}

void *fake_gpu_memory_view(const gpu_memory *memory, const void *address)
{
	if (!fake_gpu_memory_owns(memory, address))
		return (void *)address;
	return (unsigned char *)address + memory->distance;
}
