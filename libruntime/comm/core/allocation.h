/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/allocation: shared memory of ddp_mem_alloc(), which all ranks of a node allocate together, and local
   memory of ddp_mem_alloc_local(), which one rank allocates and the node's other ranks map when they first need
   it. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ddp.h"

typedef struct ddp_allocation {
	struct ddp_allocation *next;
	uint64_t id;        /* the same on all ranks of the node; or of this rank's own memory */
	size_t stride;      /* bytes from one rank's part to the next */
	size_t bytes;       /* of one part, as asked for */
	char *base;         /* all parts */
	char *own;
	size_t mapped;      /* bytes from `base` on */
	int fd;             /* of this rank's own memory, which others open; else -1 */
	size_t parts;
	bool kept;          /* the memory outlives its context */
	bool late;          /* no page is reserved: each comes when it is first used */
	int *part_of;       /* [world size]: world rank's part, or DDP_NOBODY; NULL: it is this rank's own */
} ddp_allocation;

/* The first page of a rank's own memory, before what the program gets. */
typedef struct ddp_local_page {
	uint64_t id;
	atomic_bool freed;  /* nobody needs its mapping of it any more */
} ddp_local_page;

/* An allocation's id has this bit if it is local memory. The lower half of the id is then the owner's
   descriptor of the memory. */
#define DDP_LOCAL_MEMORY (1ull << 63)

/* A process has these allocations. */
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
/* Marks this rank's own memory as kept; false: there is no such memory. */
bool ddp_allocations_keep(ddp_allocations *all, const void *memory);
/* Frees all memory of the context, except what is kept. */
void ddp_allocations_free(ddp_allocations *all);
/* Frees memory that was kept when its context was closed; false: there is no such memory. */
bool ddp_allocation_free_kept(const void *memory);
