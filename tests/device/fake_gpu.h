/* SPDX-License-Identifier: Apache-2.0 */
/* The fake GPU: shows on a machine without one what would go wrong on one. One module stands for all
   that libddp loads of a GPU: device/cuda itself, over CUDA's runtime and driver as functions of the
   host (runtime.c); the host's kernels on its streams (host_task.h); and NCCL (nccl_standin.h).
   DDP_CUDA_MODULE, DDP_CUDA_KERNELS and DDP_NCCL name it.

   Each stream is a thread. Each piece of work starts after a random delay, and a copy has another in
   its middle; so who reads too early reads something else. An address of its memory cannot be read or
   written, by nobody: kernels find their bytes by fake_gpu_view(), whoever else touches them dies of
   SIGSEGV. Memory begins as 0xff and is not given again soon.

   Moreover, with `check_order`, it refuses two pieces of work that use the same bytes, one of them for
   writing, from two streams, if neither event nor the host's waiting puts one before the other, whether
   or not it went well this time: cudaErrorLaunchFailure, with a sentence that names both, and the GPU is
   broken. Copies and fills are checked when they are enqueued, functions at fake_gpu_view().

   A function that asks for a view stands for a kernel: the host knows that it ended by an event or a
   sync. One that does not may tell the host that the work before it is done.

   What breaks it: work that is not ordered, and a view of what is not its memory. It refuses to free
   memory that work under way uses, a call from a function that a stream runs, handles of another GPU
   than the thread's, and what would end a capture or be missing in its graph.

   A GPU that is broken, or of which the process has nothing, is a new one for who opens it next. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddp.h"

enum { FAKE_GPU_NONE = -1 };

/* Of one process; the module's symbol `fake_gpu`. */
typedef struct fake_gpu_switches {
	/* Of the next GPU that is opened: */
	uint64_t seed;       /* of the delays */
	unsigned delay_us;   /* at most so long before each piece of work, and amid a copy */
	bool check_order;
	/* At any time: */
	int count, capability, driver; /* of GPUs; 80 for compute capability 8.0; CUDA's version */
	const char *failing; /* the call that fails, */
	int error;           /* in this way, of cudaError_t */
	bool broken;         /* each call fails */
	/* Functions: */
	int *(*current)(void);           /* the GPU of the calling thread's context, or FAKE_GPU_NONE */
	int (*last)(void);               /* what cudaGetLastError() would give, and forget */
	int (*view)(const void *address, size_t bytes, bool writes, void **view);
	/* What was done: */
	atomic_int priority; /* of the last stream */
	atomic_int objects;  /* memory, streams and events that are there */
} fake_gpu_switches;

DDP_API extern fake_gpu_switches fake_gpu;

/* In a test, which has the module built. */
fake_gpu_switches *test_fake_gpu(void);
/* Is it a real GPU that tests run on (make check-gpu)? */
bool test_on_gpu(void);
