/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_standin: CUDA's runtime, and what device/cuda takes of the driver, as functions whose memory
 * is the host's. They do what they are asked for at once, and fail where a test wants it.
 */
#ifndef TESTS_CUDA_STANDIN_H
#define TESTS_CUDA_STANDIN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

enum { NO_CONTEXT = -1 };

typedef struct cuda_runtime {
	int count, driver;      /* GPUs, version */
	int capability;         /* of the GPUs: 80 for compute capability 8.0 */
	int current;            /* the GPU of the thread's context, or NO_CONTEXT */
	int below[4], depth;    /* those pushed aside */
	int contexts;           /* made by cudaSetDevice() */
	const char *failing;    /* the call that fails, */
	cudaError_t error;      /* in this way */
	bool broken;            /* each call fails */
	cudaError_t last;       /* what cudaGetLastError() gives, and forgets */
	int on_other;           /* calls made for another GPU than number 1 */
	int priority;           /* of the last stream */
	void *objects[64];      /* memory, streams and events; NULL: freed */
} cuda_runtime;

extern cuda_runtime cuda_standin;

/* Begins anew: three GPUs, of which the program has chosen number 2. */
void cuda_standin_reset(void);
/* How many objects there are; and ends them. */
int cuda_standin_left(void);
void cuda_standin_clean(void);

#endif
