/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory: the test device's memory. An address that the device gives lies in a range
 * that nobody may touch; `distance` further lies the memory itself, which only the
 * device's own queues are told of. The caller locks.
 */
#ifndef TESTS_DEVICE_TEST_MEMORY_H
#define TESTS_DEVICE_TEST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "ddp.h"

enum { DDP_TEST_MEMORY_GIB = 8 }; /* of addresses; what is not used takes no memory */

typedef struct ddp_test_block ddp_test_block;

typedef struct ddp_test_memory {
	unsigned char *range;  /* without access */
	ptrdiff_t distance;    /* from there to the memory */
	size_t bytes;          /* of the range */
	size_t next;           /* where in the range the next block is looked for */
	ddp_test_block *blocks; /* by address */
} ddp_test_memory;

ddp_status ddp_test_memory_open(ddp_test_memory *memory);
void ddp_test_memory_close(ddp_test_memory *memory);

/* Filled with 0xff. Behind its end, but for the alignment, nothing can be touched; nor
   in what was freed, whose addresses are given again as late as possible. */
ddp_status ddp_test_memory_alloc(ddp_test_memory *memory, size_t bytes, void **address);

/* False: no block begins there. */
bool ddp_test_memory_free(ddp_test_memory *memory, void *address);

/* So many bytes of the block that begins there; 0: none does. */
size_t ddp_test_memory_size(const ddp_test_memory *memory, const void *address);

/* Needs no lock. */
bool ddp_test_memory_owns(const ddp_test_memory *memory, const void *address);

/* Are all these bytes in one block? */
bool ddp_test_memory_holds(const ddp_test_memory *memory, const void *address, size_t bytes);

/* Where queues find what the program has at this address. Needs no lock. */
void *ddp_test_memory_view(const ddp_test_memory *memory, const void *address);

#endif
