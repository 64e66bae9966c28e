/* SPDX-License-Identifier: Apache-2.0 */
/* Such memory is made by all ranks, and freed by each. */
#include "comm/allocate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/pages.h"
#include "base/signals.h"
#include "comm/agree.h"
#include "comm/core/comm.h"
#include "comm/request.h"
#include "comm/shm/memory.h"
#include "comm/shm/node.h"

/* Each rank tells the others this of the current allocation. */
typedef struct offer {
	uint64_t bytes;
	uint64_t id;
	int64_t pid;
	int32_t fd;
	int32_t status;
} offer;

/* Reserves this rank's part, so that a lack of memory is an error here and
   not a SIGBUS at first use, and fills the page tables. */
static ddp_status populate(const ddp_allocation *a, int fd, size_t begin)
{
	ddp_held_signals held;

	if (a->late)
		return DDP_OK;
	ddp_signals_hold(&held);
	int error = fallocate(fd, 0, (off_t)begin, (off_t)a->stride) == 0 ? 0 : errno;
	ddp_signals_release(&held);
	if (error != 0 && error != EOPNOTSUPP)
		return ddp_fail_errno(error == ENOSPC || error == ENOMEM || error == EFBIG ? DDP_ERR_NOMEM
		                                                                          : DDP_ERR_IO,
		                      error, "cannot reserve %zu bytes of shared memory%s", a->bytes,
		                      ddp_segment_remedy(error));
#ifdef MADV_POPULATE_WRITE
	/* An optimisation; kernels before 5.14 do not know it. */
	(void)madvise(a->own, a->stride, MADV_POPULATE_WRITE);
#endif
	return DDP_OK;
}

static ddp_status map(ddp_allocation *a, int fd)
{
	char *base = mmap(NULL, a->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (base == MAP_FAILED)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot map %zu bytes of shared memory", a->mapped);
	a->base = base;
	return DDP_OK;
}

static ddp_status map_offer(ddp_comm *comm, ddp_allocation *a, const offer *leader, int own_fd)
{
	ddp_node *node = &comm->node;
	int fd = node->self == 0 ? own_fd : ddp_segment_open(leader->pid, leader->fd);

	if (fd < 0)
		return ddp_segment_not_opened(comm, node->ranks[0], errno);
	ddp_status status = map(a, fd);
	if (status == DDP_OK) {
		a->id = leader->id;
		a->own = a->base + (size_t)node->self * a->stride;
		status = populate(a, fd, (size_t)node->self * a->stride);
	}
	if (node->self != 0)
		close(fd);
	return status;
}

static ddp_allocation *new_allocation(const ddp_comm *comm, size_t bytes)
{
	ddp_allocation *a = calloc(1, sizeof(*a));

	if (a == NULL)
		return NULL;
	a->part_of = malloc((size_t)comm->roster->size * sizeof(int));
	if (a->part_of == NULL) {
		free(a);
		return NULL;
	}
	a->bytes = bytes;
	a->stride = ddp_whole_pages(bytes > 0 ? bytes : 1);
	a->parts = (size_t)comm->node.size;
	a->mapped = a->stride * a->parts;
	a->fd = -1;
	for (int r = 0; r < comm->roster->size; r++)
		a->part_of[r] = DDP_NOBODY;
	for (int i = 0; i < comm->node.size; i++)
		a->part_of[comm->topology.world_ranks[comm->node.ranks[i]]] = i;
	return a;
}

static bool same_bytes(const void *offers, int a, int b)
{
	const offer *of = offers;

	return of[a].bytes == of[b].bytes;
}

/* All ranks' offers are compared before anything is mapped. */
static ddp_status check_offers(const ddp_comm *comm, const offer *offers)
{
	char odd[DDP_OUTLIER_TEXT], usual[DDP_OUTLIER_TEXT];

	for (int r = 0; r < comm->size; r++) {
		if (offers[r].bytes == offers[0].bytes)
			continue;
		const ddp_outlier o = ddp_outlier_find(comm->size, same_bytes, offers);
		ddp_comm_outlier_names(comm, &o, odd, usual);
		return ddp_fail(DDP_ERR_MISMATCH, "ddp_mem_alloc(): %s asked for %llu bytes, %s for %llu", odd,
		                (unsigned long long)offers[o.odd].bytes, usual, (unsigned long long)offers[o.usual].bytes);
	}
	return DDP_OK;
}

static ddp_status allocate(ddp_comm *comm, ddp_allocation *a, int fd, int error, offer *offers)
{
	const offer mine = {
		.bytes = a->bytes, .pid = getpid(), .fd = fd, .status = error,
		.id = (uint64_t)getpid() << 32 | (atomic_fetch_add(&comm->roster->memory.count, 1) + 1),
	};
	const offer *leader = &offers[comm->node.ranks[0]];
	ddp_status status = ddp_comm_run(comm, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = &mine,
	                                                          .recv = offers, .count = sizeof(mine),
	                                                          .type = DDP_U8 });

	if (status == DDP_OK)
		status = check_offers(comm, offers);
	if (status != DDP_OK)
		return status;
	if (leader->fd < 0)
		status = ddp_fail_errno(DDP_ERR_NOMEM, leader->status, "%s cannot make a shared memory segment%s",
		                        ddp_rank_text(comm, comm->node.ranks[0]), ddp_segment_remedy(leader->status));
	else
		status = map_offer(comm, a, leader, fd);
	return ddp_comm_agree(comm, status, "get its shared memory");
}

static ddp_status alloc(ddp_comm *comm, size_t bytes, bool late, void **memory)
{
	const size_t most = SIZE_MAX / 2 / (size_t)comm->node.size;
	if (bytes > most)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_alloc(): %zu bytes; each of the node's %d ranks can have %zu at most",
		                bytes, comm->node.size, most);
	ddp_allocation *a = new_allocation(comm, bytes);
	offer *offers = malloc((size_t)comm->size * sizeof(*offers));
	ddp_status status = DDP_OK;
	int fd = -1, error = 0;

	if (a == NULL || offers == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory to share %zu bytes among %d ranks",
		                  bytes, comm->size);
	status = ddp_comm_agree(comm, status, "get its shared memory");
	if (status != DDP_OK)
		goto out;
	a->late = late;
	if (comm->node.self == 0) {
		fd = ddp_segment_create(a->stride * a->parts);
		error = fd < 0 ? errno : 0;
	}
	status = allocate(comm, a, fd, error, offers);
	if (fd >= 0)
		close(fd);
out:
	free(offers);
	if (status != DDP_OK) {
		if (a != NULL)
			ddp_allocation_free(a);
		return status;
	}
	ddp_allocations_add(&comm->roster->memory, a);
	*memory = a->own;
	return DDP_OK;
}

ddp_status ddp_host_alloc(ddp_comm *comm, size_t bytes, void **memory)
{
	if (comm == NULL || memory == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_alloc(): a NULL argument");
	return alloc(comm, bytes, false, memory);
}

ddp_status ddp_host_alloc_late(ddp_comm *comm, size_t bytes, void **memory)
{
	return alloc(comm, bytes, true, memory);
}

ddp_status ddp_host_detach(ddp_comm *comm, void *memory)
{
	ddp_allocation *a = ddp_allocations_take(&comm->roster->memory, memory);

	if (a == NULL)
		return ddp_fail(DDP_ERR_INVALID, "%p was not given by ddp_mem_alloc()", memory);
	if (mmap(a->own, a->stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
		const int error = errno;
		ddp_allocations_add(&comm->roster->memory, a);
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "cannot map %zu bytes of private memory", a->bytes);
	}
	char *behind = a->own + a->stride;
	if (a->own > a->base)
		munmap(a->base, (size_t)(a->own - a->base));
	if (behind < a->base + a->mapped)
		munmap(behind, (size_t)(a->base + a->mapped - behind));
	a->base = NULL;
	ddp_allocation_free(a);
	return DDP_OK;
}

/* Populates the program's part only; the page before it is libddp's. */
static ddp_status make_local(ddp_comm *comm, ddp_allocation *a)
{
	const size_t page = a->mapped - a->stride;

	a->fd = ddp_segment_create(a->mapped);
	if (a->fd < 0)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make a shared memory segment%s", ddp_segment_remedy(errno));
	ddp_status status = map(a, a->fd);
	if (status != DDP_OK)
		return status;
	a->own = a->base + page;
	a->id = DDP_LOCAL_MEMORY | (uint64_t)(atomic_fetch_add(&comm->roster->memory.count, 1) & 0x7fffffff) << 32 |
		(uint32_t)a->fd;
	((ddp_local_page *)(void *)a->base)->id = a->id;
	return populate(a, a->fd, page);
}

ddp_status ddp_mem_alloc_local(ddp_comm *comm, size_t bytes, void **memory)
{
	if (comm == NULL || memory == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_alloc_local(): a NULL argument");
	if (bytes > SIZE_MAX / 2)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_alloc_local(): %zu bytes; %zu are the most", bytes, SIZE_MAX / 2);
	ddp_allocation *a = calloc(1, sizeof(*a));
	if (a == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to share %zu bytes", bytes);
	a->bytes = bytes;
	a->stride = ddp_whole_pages(bytes > 0 ? bytes : 1);
	a->mapped = ddp_whole_pages(1) + a->stride;
	a->parts = 1;
	const ddp_status status = make_local(comm, a);
	if (status != DDP_OK) {
		ddp_allocation_free(a);
		return status;
	}
	ddp_allocations_add(&comm->roster->memory, a);
	*memory = a->own;
	return DDP_OK;
}

ddp_status ddp_mem_keep(ddp_comm *comm, void *memory)
{
	if (comm == NULL || memory == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_keep(): a NULL argument");
	if (!ddp_allocations_keep(&comm->roster->memory, memory))
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_keep(): %p was not given by ddp_mem_alloc_local()", memory);
	return DDP_OK;
}

ddp_status ddp_host_free(ddp_comm *comm, void *memory)
{
	if (memory == NULL)
		return DDP_OK;
	ddp_allocation *found = ddp_allocations_take(&comm->roster->memory, memory);
	if (found == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_free(): %p was not given by ddp_mem_alloc()", memory);
	ddp_allocation_free(found);
	return DDP_OK;
}

ddp_status ddp_host_share(ddp_comm *comm, size_t bytes, void **copies)
{
	void *memory;
	ddp_status status = ddp_host_alloc(comm, bytes, &memory);

	if (status != DDP_OK)
		return status;
	status = ddp_memory_copies(comm, memory, bytes, copies);
	if (status != DDP_OK)
		(void)ddp_host_free(comm, memory);
	return status;
}
