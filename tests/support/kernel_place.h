/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_place: where kernels are tried: on the host (kernel_place_host.c), on CUDA's
   kernels over the emulation (cuda_place.cc), or on a GPU, which may be the fake one
   (kernel_place_device.c). A program is linked with one of them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

typedef struct kernel_place kernel_place;

/* Whether a matrix product comes with GELU. */
enum kernel_gelu {
	GELU_FUSED,
	GELU_REFUSED, /* cuBLASLt finds no algorithm */
	GELU_FAILS,   /* it refuses the product */
	GELU_SLOW     /* on such a GPU */
};

struct kernel_place {
	dk_queue *queue;  /* NULL: the host */
	dk_type type;
	int64_t most;     /* numbers in a case: more would take too long. 0: any */
	bool host_memory; /* what is allocated anywhere on the host will do */
	bool host_kernels; /* its kernels are the host's: they give the same bits */

	void (*close)(kernel_place *place);
	/* Memory of the place. Ends the program if there is none. */
	void *(*alloc)(size_t bytes);
	void (*free)(void *memory);
	/* Draws anew in which order threads run, where the test can. */
	void (*shuffle)(uint64_t seed);
	/* From the host to the place, or back; waits. */
	void (*copy)(void *to, const void *from, size_t bytes);
	/* Leaves kernels so many numbers of memory for sums and panels, or, of 0, as many as there
	   are. NULL: a test cannot. */
	void (*leave_scratch)(kernel_place *place, int64_t numbers);
	/* The so-manieth call that captures or launches graphs fails, from now on; 0: none. NULL: a
	   test cannot. */
	void (*fail_graph)(int call);
	/* Has it so from now on, and returns how many products came with it so far. NULL: a test cannot. */
	int (*have_gelu)(kernel_place *place, enum kernel_gelu how);
};

/* Opens the next place: *place. False: there are no more, and *why, unless it is NULL,
   says why there was none at all. `round` counts from 0. */
#ifdef __cplusplus
extern "C"
#endif
bool kernel_place_open(int round, kernel_place *place, const char **why);

/* What a number of this type takes. */
size_t type_bytes(dk_type type);
/* Numbers of the host to the place, in its type, and back; waits. */
void kernel_place_give(const kernel_place *place, float *to, const float *from, int64_t n);
void kernel_place_take(const kernel_place *place, float *to, const float *from, int64_t n);
