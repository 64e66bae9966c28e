/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/allocation.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Memory of contexts that are closed. */
static ddp_allocations kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The others' mappings hold no memory any more, until they end. */
static void tell_freed(const ddp_allocation *a)
{
	ddp_local_page *page = (ddp_local_page *)(void *)a->base;
	const off_t begin = (off_t)(a->mapped - a->stride);

	if (a->base != NULL)
		atomic_store(&page->freed, true);
	(void)fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, (off_t)a->stride);
	close(a->fd);
}

void ddp_allocation_free(ddp_allocation *a)
{
	if (a->fd >= 0)
		tell_freed(a);
	if (a->base != NULL)
		munmap(a->base, a->mapped);
	free(a->part_of);
	free(a);
}

void ddp_allocations_add(ddp_allocations *all, ddp_allocation *a)
{
	pthread_mutex_lock(&all->lock);
	a->next = all->list;
	all->list = a;
	atomic_fetch_add(&all->changes, 1);
	pthread_mutex_unlock(&all->lock);
}

ddp_allocation *ddp_allocations_take(ddp_allocations *all, const void *memory)
{
	ddp_allocation *found = NULL;

	pthread_mutex_lock(&all->lock);
	for (ddp_allocation **link = &all->list; *link != NULL; link = &(*link)->next) {
		if ((*link)->own == memory) {
			found = *link;
			*link = found->next;
			atomic_fetch_add(&all->changes, 1);
			break;
		}
	}
	pthread_mutex_unlock(&all->lock);
	return found;
}

bool ddp_allocations_keep(ddp_allocations *all, const void *memory)
{
	ddp_allocation *a;

	pthread_mutex_lock(&all->lock);
	for (a = all->list; a != NULL && (a->own != memory || a->part_of != NULL);)
		a = a->next;
	if (a != NULL)
		a->kept = true;
	pthread_mutex_unlock(&all->lock);
	return a != NULL;
}

/* The others may drop their mappings, and this rank's memory stays. */
static void detach(ddp_allocation *a)
{
	atomic_store(&((ddp_local_page *)(void *)a->base)->freed, true);
	close(a->fd);
	a->fd = -1;
	ddp_allocations_add(&kept, a);
}

void ddp_allocations_free(ddp_allocations *all)
{
	while (all->list != NULL) {
		ddp_allocation *a = all->list;
		all->list = a->next;
		if (a->kept)
			detach(a);
		else
			ddp_allocation_free(a);
	}
}

bool ddp_allocation_free_kept(const void *memory)
{
	ddp_allocation *a = ddp_allocations_take(&kept, memory);

	if (a != NULL)
		ddp_allocation_free(a);
	return a != NULL;
}
