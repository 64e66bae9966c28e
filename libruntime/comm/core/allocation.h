/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/allocation: memory of ddp_mem_alloc(), which a node's ranks share. */
#ifndef DDP_COMM_CORE_ALLOCATION_H
#define DDP_COMM_CORE_ALLOCATION_H

#include <pthread.h>
#include <stdatomic.h>

#include "ddp.h"

typedef struct ddp_allocation {
	struct ddp_allocation *next;
	uint64_t id;        /* the same on all ranks of the node */
	size_t stride;      /* bytes from one rank's part to the next */
	size_t bytes;       /* of one part, as asked for */
	char *base;         /* all parts */
	char *own;
	size_t parts;
	int *part_of;       /* [world size]: world rank's part, or DDP_NOBODY */
} ddp_allocation;

/* Those of a process. */
typedef struct ddp_allocations {
	pthread_mutex_t lock;
	ddp_allocation *list;
	_Atomic uint64_t changes; /* of the list; under the lock */
	atomic_uint_least32_t count;
} ddp_allocations;

/* Unmaps and frees one. */
void ddp_allocation_free(ddp_allocation *a);

void ddp_allocations_add(ddp_allocations *all, ddp_allocation *a);
/* Takes the one that this process has at `memory` off the list; NULL: there is none. */
ddp_allocation *ddp_allocations_take(ddp_allocations *all, const void *memory);
void ddp_allocations_free(ddp_allocations *all);

#endif
