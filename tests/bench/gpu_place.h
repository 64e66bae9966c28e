/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_place: where gpu_kernels measures: a GPU, with the modules of this build, or, to try the
   benchmark, the host. What enqueues is called with `queue` in use (dk_use()). */
#pragma once

#include "kernels.h"

typedef struct bench_place {
	dk_queue *queue;
	dk_type type;
	char name[256]; /* of the machine's part that computes */
	/* Ends the program if there is none. */
	void *(*alloc)(size_t bytes);
	void (*free)(void *memory);
	/* Enqueues a copy within the place. */
	void (*copy)(void *to, const void *from, size_t bytes);
	/* Enqueues what the function of kernels.h would, but by another library; beta is 0. */
	void (*product)(const dk_gemm_args *args);
	/* Of each of so many calls, which enqueue; seconds. */
	double (*time)(void (*work)(const void *argument), const void *argument, int times);
	void (*close)(void);
} bench_place;

/* False: it cannot be, and *why says why. One is open at a time. */
bool bench_place_open_host(dk_type type, bench_place *place, const char **why);
bool bench_place_open_gpu(dk_type type, bench_place *place, const char **why);
