/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/pages.h"
#include "comm/adopt.h"
#include "comm/agree.h"
#include "comm/allocate.h"

/* Memory that goes back page by page takes no huge ones. */
static ddp_status map(ddp_arena *arena)
{
	void *memory = arena->gives_back ? mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE,
	                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
	                                 : ddp_pages_alloc(arena->bytes);

	if (memory == MAP_FAILED || memory == NULL)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "no address space for %zu bytes", arena->bytes);
	arena->data = memory;
	return DDP_OK;
}

ddp_status ddp_arena_open(ddp_comm *comm, const ddp_place *place, float *lent, int64_t elements,
                          bool gives_back, ddp_arena *arena)
{
	const size_t bytes = elements > 0 ? (size_t)elements * sizeof(float) : 1;
	ddp_arena made = { .bytes = ddp_whole_pages(bytes), .gives_back = gives_back && place->device == NULL,
	                   .own = place->device == NULL && (gives_back || ddp_comm_size(comm) == 1), .place = place };
	void *memory = NULL;
	ddp_status status;

	if (lent != NULL) {
		*arena = (ddp_arena){ .data = lent, .lent = true, .place = place };
		status = ddp_arena_clear(arena, 0, elements);
		/* A device may fail on this rank alone. */
		return place->device != NULL ? ddp_comm_agree(comm, status, "clear its memory") : status;
	}
	if (made.own)
		status = ddp_comm_agree(comm, map(&made), "map its memory");
	else
		status = ddp_mem_alloc_on(comm, ddp_place_memory(place), made.bytes, &memory);
	if (!made.own && status == DDP_OK)
		made.data = memory;
	if (status == DDP_OK && place->device != NULL) {
		made.comm = comm;
		ddp_comm_hold(comm, 1);
	}
	if (status != DDP_OK) {
		ddp_arena_close(comm, &made);
		return status;
	}
	*arena = made;
	return DDP_OK;
}

void ddp_arena_close(ddp_comm *comm, ddp_arena *arena)
{
	if (arena->home != NULL)
		munmap(arena->home, arena->bytes);
	if (arena->data != NULL && arena->own)
		munmap(arena->data, arena->bytes);
	else if (arena->data != NULL && !arena->lent)
		ddp_mem_free(arena->comm != NULL ? arena->comm : comm, arena->data);
	if (arena->comm != NULL)
		ddp_comm_hold(arena->comm, -1);
	*arena = (ddp_arena){ 0 };
}

float *ddp_arena_home(const ddp_arena *arena)
{
	return arena->home != NULL ? arena->home : arena->data;
}

/* The memory at the program's address becomes this rank's own. Its content is lost. */
static ddp_status leave(ddp_comm *comm, ddp_arena *arena)
{
	ddp_status status = DDP_OK;

	if (arena->home != NULL)
		ddp_mem_free(comm, arena->data);
	else if (!arena->own)
		status = ddp_host_detach(comm, arena->data);
	if (status != DDP_OK)
		return status;
	arena->data = ddp_arena_home(arena);
	arena->home = NULL;
	arena->own = true;
	return DDP_OK;
}

/* Maps the same pages a second time. The system is asked itself: UCX puts a function of its own in the place of
   mremap(), which loses the last argument. */
static ddp_status map_again(ddp_arena *arena, void *shared)
{
	if (syscall(SYS_mremap, shared, 0, arena->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, arena->data) == -1)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot map %zu bytes again", arena->bytes);
	arena->home = arena->data;
	arena->data = shared;
	arena->own = false;
	return DDP_OK;
}

static ddp_status adopt(ddp_comm *to, ddp_arena *arena)
{
	const ddp_status status = ddp_mem_adopt(to, arena->comm, arena->data);

	if (status != DDP_OK)
		return status;
	ddp_comm_hold(arena->comm, -1);
	ddp_comm_hold(to, 1);
	arena->comm = to;
	return DDP_OK;
}

ddp_status ddp_arena_prepare(ddp_comm *to, ddp_arena *arena, float **shared)
{
	void *memory = NULL;
	ddp_status status = DDP_OK;

	if (arena->comm != NULL)
		status = adopt(to, arena);
	else if (arena->data != NULL && !arena->lent && !arena->gives_back)
		status = ddp_host_alloc_late(to, arena->bytes, &memory);
	*shared = memory;
	return status;
}

ddp_status ddp_arena_move(ddp_comm *from, float *shared, ddp_arena *arena)
{
	ddp_status status = shared != NULL ? leave(from, arena) : DDP_OK;

	return status == DDP_OK && shared != NULL ? map_again(arena, shared) : status;
}

ddp_status ddp_arena_clear(const ddp_arena *arena, int64_t begin, int64_t end)
{
	char *from = (char *)(arena->data + begin), *to = (char *)(arena->data + end);
	const size_t page = ddp_system_page_bytes();
	const size_t first = ((size_t)begin * sizeof(float) + page - 1) / page * page;
	const size_t last = (size_t)end * sizeof(float) / page * page;
	char *inner = (char *)arena->data + first;

	if (arena->place->device != NULL)
		return ddp_place_clear(arena->place, from, (size_t)(to - from));

	/* There are no whole pages to give back, or the system does not take them. */
	if (!arena->gives_back || first >= last || madvise(inner, last - first, MADV_DONTNEED) != 0) {
		memset(from, 0, (size_t)(to - from));
		return DDP_OK;
	}
	memset(from, 0, (size_t)(inner - from));
	memset((char *)arena->data + last, 0, (size_t)(to - ((char *)arena->data + last)));
	return DDP_OK;
}
