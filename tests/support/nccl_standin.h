/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_standin: a library that a program takes for NCCL's. It really moves data between
 * processes, through shared memory, on the queues of a device that a test gives it; and it
 * does what NCCL may do, such as to be in progress, to fail, or to hang until it is aborted;
 * its ncclCommAbort() and ncclCommDestroy() wait for the works of all communicators, if a test
 * does not want the first one hasty.
 */
#ifndef TESTS_NCCL_STANDIN_H
#define TESTS_NCCL_STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "device/device.h"

enum { STANDIN_VERSION = 22809 };

/* Of one process; the library's symbol `nccl_standin`. */
typedef struct nccl_standin_switches {
	/* To be set before use: */
	ddp_device *device;
	ddp_status (*launch)(ddp_device *, ddp_device_queue *, ddp_device_function, void *);
	ddp_status (*view)(ddp_device *, const void *, size_t, ddp_device_access, void **);
	ddp_status (*alloc)(ddp_device *, size_t, void **);
	ddp_status (*free)(ddp_device *, void *);
	bool (*within)(void); /* is the device the calling thread's? NULL: always */
	/* At any time: */
	int version;
	int polls;           /* of ncclCommGetAsyncError(), until a call is no more in progress */
	const char *failing; /* the call that fails, with `result` */
	int result;
	atomic_int async;    /* what ncclCommGetAsyncError() tells; 0: the state as it is */
	atomic_int async_of; /* of the communicator that was made as number ..; 0: of all */
	atomic_bool stuck;   /* operations do not end until their communicator is aborted */
	atomic_bool hasty;   /* ncclCommAbort() waits for nothing */
	/* What was called, how often: */
	atomic_int made, inits, inits_by_ids, ends, aborts, registered, allocated, max_ctas;
} nccl_standin_switches;

/* In a test: the library at `path`, with `device` as its device; DDP_NCCL names it, then. */
nccl_standin_switches *test_nccl_standin(ddp_device *device);
/* Before any device is open. */
nccl_standin_switches *test_nccl_load(void);

#endif
