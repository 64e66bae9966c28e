#include "comm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/pages.h"
#include "comm/await.h"
#include "comm/group.h"
#include "comm/node.h"

/* What each rank tells of the allocation under way. */
typedef struct offer {
	uint64_t bytes;
	uint64_t id;
	int64_t pid;
	int32_t fd;
	int32_t status;
} offer;

static bool holds(const ddp_allocation *a, const char *memory, size_t bytes)
{
	return memory >= a->own && memory < a->own + a->stride &&
	       bytes <= (size_t)(a->own + a->stride - memory);
}

static bool covers(const ddp_allocation *a, const ddp_comm *comm)
{
	for (int i = 0; i < comm->node.size; i++) {
		if (a->part_of[comm->world_ranks[comm->node.ranks[i]]] == DDP_NOBODY)
			return false;
	}
	return true;
}

/* *changes: what the roster's counter says; until it changes, the allocation
   stays. */
static const ddp_allocation *find_by_address(const ddp_comm *comm, const char *memory, size_t bytes,
                                             uint64_t *changes)
{
	ddp_roster *roster = comm->roster;

	pthread_mutex_lock(&roster->memory_lock);
	const ddp_allocation *a = roster->allocations;
	while (a != NULL && !holds(a, memory, bytes))
		a = a->next;
	if (a != NULL && !covers(a, comm))
		a = NULL;
	*changes = atomic_load(&roster->memory_changes);
	pthread_mutex_unlock(&roster->memory_lock);
	return a;
}

static char *part_at(const ddp_comm *comm, const ddp_allocation *a, int i, uint64_t offset)
{
	int part = a->part_of[comm->world_ranks[comm->node.ranks[i]]];

	return part == DDP_NOBODY ? NULL : a->base + (size_t)part * a->stride + offset;
}

/* The allocation looked up last, if it is still there: operations on one
   buffer after another need no lock. */
static const ddp_allocation *recent(const ddp_comm *comm)
{
	uint64_t changes = atomic_load_explicit(&comm->roster->memory_changes, memory_order_acquire);

	return changes == comm->recent_changes ? comm->recent : NULL;
}

ddp_memory_ref ddp_memory_find(ddp_comm *comm, const void *memory, size_t bytes)
{
	const ddp_allocation *a = recent(comm);

	if (memory == NULL)
		return (ddp_memory_ref){ 0, 0 };
	if (a == NULL || !holds(a, memory, bytes)) {
		a = find_by_address(comm, memory, bytes, &comm->recent_changes);
		comm->recent = a;
	}
	if (a == NULL)
		return (ddp_memory_ref){ 0, 0 };
	return (ddp_memory_ref){ a->id, (uint64_t)((const char *)memory - a->own) };
}

void *ddp_memory_at(ddp_comm *comm, int i, const ddp_memory_ref *ref)
{
	ddp_roster *roster = comm->roster;
	const ddp_allocation *a = recent(comm);
	char *address = NULL;

	if (a != NULL && a->id == ref->allocation)
		return part_at(comm, a, i, ref->offset);
	pthread_mutex_lock(&roster->memory_lock);
	for (a = roster->allocations; a != NULL && a->id != ref->allocation; a = a->next)
		continue;
	if (a != NULL)
		address = part_at(comm, a, i, ref->offset);
	pthread_mutex_unlock(&roster->memory_lock);
	return address;
}

ddp_status ddp_comm_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies)
{
	if (comm->nodes > 1)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "ranks on %d nodes share no memory", comm->nodes);
	uint64_t changes;
	const ddp_allocation *a = find_by_address(comm, memory, bytes, &changes);
	if (a == NULL)
		return ddp_fail(DDP_ERR_INVALID, "%p is not in memory that all ranks share", memory);
	for (int i = 0; i < comm->node.size; i++)
		copies[comm->node.ranks[i]] = part_at(comm, a, i, (uint64_t)((const char *)memory - a->own));
	return DDP_OK;
}

ddp_status ddp_memory_check(ddp_comm *comm)
{
	for (int i = 0; i < comm->node.size; i++) {
		const ddp_header *h = ddp_node_header(comm, i);
		if (((h->flags & DDP_HEADER_SEND_SHARED) == 0 || ddp_memory_at(comm, i, &h->send) != NULL) &&
		    ((h->flags & DDP_HEADER_RECV_SHARED) == 0 || ddp_memory_at(comm, i, &h->recv) != NULL))
			continue;
		char text[128];
		ddp_collective_describe(comm->running, text, sizeof(text));
		return ddp_comm_break(comm, DDP_ERR_STATE, comm->rank,
		                      "%s has freed memory of ddp_mem_alloc() that %s still uses, in %s #%llu: "
		                      "free it on all ranks after the last operation on it",
		                      ddp_rank_text(comm, comm->rank), ddp_rank_text(comm, comm->node.ranks[i]),
		                      text, (unsigned long long)comm->sequence);
	}
	return DDP_OK;
}

/* Reserves this rank's part, so that a lack of memory is an error here and
   not a SIGBUS at first use, and fills the page tables. */
static ddp_status populate(const ddp_allocation *a, int fd, size_t part)
{
	int error = fallocate(fd, 0, (off_t)(part * a->stride), (off_t)a->stride) == 0 ? 0 : errno;

	if (error != 0 && error != EOPNOTSUPP)
		return ddp_fail_errno(error == ENOSPC || error == ENOMEM ? DDP_ERR_NOMEM : DDP_ERR_IO, error,
		                      "cannot reserve %zu bytes of shared memory", a->bytes);
#ifdef MADV_POPULATE_WRITE
	/* An optimisation; kernels before 5.14 do not know it. */
	(void)madvise(a->own, a->stride, MADV_POPULATE_WRITE);
#endif
	return DDP_OK;
}

static ddp_status map_offer(ddp_comm *comm, ddp_allocation *a, const offer *leader, int own_fd)
{
	ddp_node *node = &comm->node;
	int fd = node->self == 0 ? own_fd : ddp_segment_open(leader->pid, leader->fd);

	if (fd < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open the shared memory of %s",
		                      ddp_rank_text(comm, node->ranks[0]));
	a->base = mmap(NULL, a->stride * a->parts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ddp_status status = DDP_OK;
	if (a->base == MAP_FAILED) {
		a->base = NULL;
		status = ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot map %zu bytes of shared memory",
		                        a->stride * a->parts);
	} else {
		a->id = leader->id;
		a->own = a->base + (size_t)node->self * a->stride;
		status = populate(a, fd, (size_t)node->self);
	}
	if (node->self != 0)
		close(fd);
	return status;
}

static void release(ddp_allocation *a)
{
	if (a->base != NULL)
		munmap(a->base, a->stride * a->parts);
	free(a->part_of);
	free(a);
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
	for (int r = 0; r < comm->roster->size; r++)
		a->part_of[r] = DDP_NOBODY;
	for (int i = 0; i < comm->node.size; i++)
		a->part_of[comm->world_ranks[comm->node.ranks[i]]] = i;
	return a;
}

/* All ranks' offers are compared before anything is mapped. */
static ddp_status check_offers(ddp_comm *comm, const offer *offers)
{
	for (int r = 0; r < comm->size; r++) {
		if (offers[r].bytes != offers[0].bytes)
			return ddp_fail(DDP_ERR_MISMATCH, "ddp_mem_alloc(): %s asked for %llu bytes, %s for %llu",
			                ddp_rank_text(comm, 0), (unsigned long long)offers[0].bytes,
			                ddp_rank_text(comm, r), (unsigned long long)offers[r].bytes);
	}
	return DDP_OK;
}

static ddp_status allocate(ddp_comm *comm, ddp_allocation *a, int fd, int error, offer *offers)
{
	const offer mine = {
		.bytes = a->bytes, .pid = getpid(), .fd = fd, .status = error,
		.id = (uint64_t)getpid() << 32 | (atomic_fetch_add(&comm->roster->allocation_count, 1) + 1),
	};
	const offer *leader = &offers[comm->node.ranks[0]];
	ddp_status status = ddp_all_gather(comm, &mine, offers, sizeof(mine), DDP_U8);

	if (status == DDP_OK)
		status = check_offers(comm, offers);
	if (status != DDP_OK)
		return status;
	if (leader->fd < 0)
		status = ddp_fail_errno(DDP_ERR_NOMEM, leader->status, "%s cannot make a shared memory segment",
		                        ddp_rank_text(comm, comm->node.ranks[0]));
	else
		status = map_offer(comm, a, leader, fd);
	return ddp_comm_agree(comm, status, "get its shared memory");
}

ddp_status ddp_mem_alloc(ddp_comm *comm, size_t bytes, void **memory)
{
	if (comm == NULL || memory == NULL || bytes > SIZE_MAX / 2 / (size_t)comm->node.size)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_alloc(): %s",
		                comm == NULL || memory == NULL ? "a NULL argument" : "too many bytes");
	ddp_allocation *a = new_allocation(comm, bytes);
	offer *offers = malloc((size_t)comm->size * sizeof(*offers));
	ddp_status status = DDP_OK;
	int fd = -1, error = 0;

	if (a == NULL || offers == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "out of memory");
	status = ddp_comm_agree(comm, status, "get its shared memory");
	if (status != DDP_OK)
		goto out;
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
			release(a);
		return status;
	}
	pthread_mutex_lock(&comm->roster->memory_lock);
	a->next = comm->roster->allocations;
	comm->roster->allocations = a;
	atomic_fetch_add(&comm->roster->memory_changes, 1);
	pthread_mutex_unlock(&comm->roster->memory_lock);
	*memory = a->own;
	return DDP_OK;
}

ddp_status ddp_mem_free(ddp_comm *comm, void *memory)
{
	ddp_allocation *found = NULL;

	if (comm == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_free(): comm is NULL");
	if (memory == NULL)
		return DDP_OK;
	pthread_mutex_lock(&comm->roster->memory_lock);
	for (ddp_allocation **link = &comm->roster->allocations; *link != NULL; link = &(*link)->next) {
		if ((*link)->own == memory) {
			found = *link;
			*link = found->next;
			atomic_fetch_add(&comm->roster->memory_changes, 1);
			break;
		}
	}
	pthread_mutex_unlock(&comm->roster->memory_lock);
	if (found == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_mem_free(): %p was not given by ddp_mem_alloc()", memory);
	release(found);
	return DDP_OK;
}

void ddp_memory_free_all(ddp_roster *roster)
{
	while (roster->allocations != NULL) {
		ddp_allocation *next = roster->allocations->next;
		release(roster->allocations);
		roster->allocations = next;
	}
}
