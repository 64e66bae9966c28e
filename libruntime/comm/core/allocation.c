/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/allocation.h"

#include <stdlib.h>
#include <sys/mman.h>

void ddp_allocation_free(ddp_allocation *a)
{
	if (a->base != NULL)
		munmap(a->base, a->stride * a->parts);
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

void ddp_allocations_free(ddp_allocations *all)
{
	while (all->list != NULL) {
		ddp_allocation *next = all->list->next;
		ddp_allocation_free(all->list);
		all->list = next;
	}
}
