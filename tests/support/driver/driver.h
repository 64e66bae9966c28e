/* SPDX-License-Identifier: Apache-2.0 */
/* driver: stands in for CUDA's driver (libcuda.so.1) and NVML (libnvidia-ml.so.1) where there is no
   GPU, as far as the CUDA modules of UCX 1.22 call them, so that these, and what hands CUDA memory to
   UCX, run in tests. A program loads both before UCX does; their names make the modules take them.

   Memory of its one GPU cannot be touched by the host: the program's addresses are mapped without any
   access, and the driver's own copies go by a second mapping. What takes it for memory of the host dies
   of SIGSEGV. Copies on a stream move nothing before somebody has asked for their end more than once,
   or waits for it: what does not wait sees old bytes. */
#pragma once

#include <cuda.h>
#include <stdbool.h>

/* dlsym() finds it in the library by the name `cuda_driver`. */
typedef struct cuda_driver_switches {
	bool virtual_memory;    /* cuMemAlloc() gives what NCCL has by cuMemCreate() and cuMemMap() */
	int calls;              /* that can fail, since the test set it to 0 */
	int failing;            /* the one of these that fails, from 1 on; 0: none */
	const char *failing_all; /* the name of those that fail; NULL: none */
	const char *failed;     /* the last that did; NULL: none */
	int copies;             /* on streams, that have ended */
	int early;              /* times an event was asked for too early */
} cuda_driver_switches;

extern cuda_driver_switches cuda_driver;

/* For what is in the other file. */
CUcontext cuda_driver_current(void);
