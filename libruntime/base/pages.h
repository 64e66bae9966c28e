/* SPDX-License-Identifier: Apache-2.0 */
/* pages: the system's pages of memory, which are of 4 to 64 KiB, or huge. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static inline size_t ddp_system_page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* So many bytes, and what is left of their last page. */
static inline size_t ddp_whole_pages(size_t bytes)
{
	const size_t page = ddp_system_page_bytes();

	return (bytes + page - 1) / page * page;
}

/* Private memory of zeros, in huge pages where the system has them: passes over large arrays are quicker then.
   A page comes when it is first written. NULL with errno: there is none. */
static inline void *ddp_pages_alloc(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	(void)madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

static inline void ddp_pages_free(void *memory, size_t bytes)
{
	if (memory != NULL)
		munmap(memory, bytes);
}
