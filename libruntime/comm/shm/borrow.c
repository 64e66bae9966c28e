/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/shm/borrow.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/pages.h"
#include "base/segment.h"
#include "comm/core/comm.h"

struct ddp_borrowed {
	struct ddp_borrowed *next;
	uint64_t id;
	int owner;           /* which of the node's ranks */
	char *base, *memory; /* the mapping, and what the owner has of it */
	size_t mapped;
};

static const ddp_local_page *page_of(const struct ddp_borrowed *b)
{
	return (const ddp_local_page *)(const void *)b->base;
}

static void release(struct ddp_borrowed *b)
{
	munmap(b->base, b->mapped);
	free(b);
}

void ddp_borrow_begin(ddp_comm *comm)
{
	if (!comm->memory.has_grown)
		return;
	comm->memory.has_grown = false;
	for (struct ddp_borrowed **link = &comm->memory.borrowed; *link != NULL;) {
		struct ddp_borrowed *b = *link;
		if (!atomic_load(&page_of(b)->freed)) {
			link = &b->next;
			continue;
		}
		*link = b->next;
		release(b);
	}
}

static ddp_status is_freed(const char *owner)
{
	return ddp_fail(DDP_ERR_STATE, "%s has freed memory of ddp_mem_alloc_local() or allocate_tensor() that it gives to an "
	                "operation", owner);
}

/* A descriptor that was closed meanwhile may be another segment's. */
static ddp_status map(struct ddp_borrowed *b, int fd, const char *owner)
{
	struct stat about;

	if (fstat(fd, &about) != 0 || about.st_size < (off_t)(2 * ddp_whole_pages(1)))
		return is_freed(owner);
	b->mapped = (size_t)about.st_size;
	b->base = mmap(NULL, b->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (b->base == MAP_FAILED)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot map %zu bytes of %s", b->mapped, owner);
	if (page_of(b)->id != b->id) {
		munmap(b->base, b->mapped);
		return is_freed(owner);
	}
	b->memory = b->base + ddp_whole_pages(1);
	return DDP_OK;
}

static struct ddp_borrowed *borrow(ddp_comm *comm, int i, uint64_t id)
{
	const int rank = comm->node.ranks[i];
	struct ddp_borrowed *b = calloc(1, sizeof(*b));

	if (b == NULL) {
		ddp_fail(DDP_ERR_NOMEM, "no memory to map what %s shares", ddp_rank_text(comm, rank));
		return NULL;
	}
	b->id = id;
	b->owner = i;
	const int fd = ddp_segment_open(comm->roster->peers[comm->topology.world_ranks[rank]].pid, (int)(uint32_t)id);
	ddp_status status = fd < 0 && errno == ESTALE
		? is_freed(ddp_rank_text(comm, rank))
		: fd < 0
		? ddp_fail_errno(DDP_ERR_IO, errno, "cannot open the memory of ddp_mem_alloc_local() or allocate_tensor() of %s%s",
		                 ddp_rank_text(comm, rank), ddp_segment_remedy(errno))
		: map(b, fd, ddp_rank_text(comm, rank));
	if (fd >= 0)
		close(fd);
	if (status == DDP_OK)
		return b;
	free(b);
	return NULL;
}

void *ddp_borrow(ddp_comm *comm, int i, const ddp_memory_ref *ref)
{
	struct ddp_borrowed *b = comm->memory.borrowed;

	while (b != NULL && (b->id != ref->allocation || b->owner != i))
		b = b->next;
	if (b == NULL) {
		b = borrow(comm, i, ref->allocation);
		if (b == NULL)
			return NULL;
		b->next = comm->memory.borrowed;
		comm->memory.borrowed = b;
		comm->memory.has_grown = true;
	}
	return b->memory + ref->offset;
}

void ddp_borrow_end(ddp_comm *comm)
{
	while (comm->memory.borrowed != NULL) {
		struct ddp_borrowed *b = comm->memory.borrowed;
		comm->memory.borrowed = b->next;
		release(b);
	}
}
