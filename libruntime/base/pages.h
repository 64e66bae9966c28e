/* SPDX-License-Identifier: Apache-2.0 */
/* pages: the system's pages of memory, which are of 4 to 64 KiB. */
#ifndef DDP_BASE_PAGES_H
#define DDP_BASE_PAGES_H

#include <stddef.h>
#include <stdint.h>
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

#endif
