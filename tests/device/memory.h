/* SPDX-License-Identifier: Apache-2.0 */
/* memory: the fake GPU's memory. An address that the GPU gives lies in a range
   that nobody may touch; `distance` further lies the memory itself, which only its
   own streams are told of. The caller locks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "tests/device/include/cuda_runtime_api.h"

enum { FAKE_GPU_MEMORY_GIB = 8 /* of addresses; what is not used takes no memory */, FAKE_GPU_ALIGNMENT = 256 };

typedef struct gpu_block gpu_block;

typedef struct gpu_memory {
	unsigned char *range;  /* without access */
	ptrdiff_t distance;    /* from there to the memory */
	size_t bytes;          /* of the range */
	size_t next;           /* where in the range the next block is looked for */
	gpu_block *blocks;     /* by address */
} gpu_memory;

cudaError_t fake_gpu_memory_open(gpu_memory *memory);
void fake_gpu_memory_close(gpu_memory *memory);

/* Filled with 0xff. Behind its end, but for the alignment, nothing can be touched; nor
   in what was freed, whose addresses are given again as late as possible. */
cudaError_t fake_gpu_memory_alloc(gpu_memory *memory, size_t bytes, void **address);

/* False: no block begins there. */
bool fake_gpu_memory_free(gpu_memory *memory, void *address);

/* So many bytes of the block that begins there; 0: none does. */
size_t fake_gpu_memory_size(const gpu_memory *memory, const void *address);

/* Needs no lock. */
bool fake_gpu_memory_owns(const gpu_memory *memory, const void *address);

/* Are all these bytes in one block? */
bool fake_gpu_memory_holds(const gpu_memory *memory, const void *address, size_t bytes);

/* Where streams find what the program has at this address. Needs no lock. */
void *fake_gpu_memory_view(const gpu_memory *memory, const void *address);
