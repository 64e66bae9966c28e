/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_standin: what a program takes for NCCL. It really moves data between processes, through
   shared memory, on the streams of the fake GPU, whose module it is a part of; and it
   does what NCCL may do, such as to be in progress, to fail, or to hang until it is aborted;
   its ncclCommAbort() and ncclCommDestroy() wait for the works of all communicators, if a test
   does not want the first one hasty. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

enum { STANDIN_VERSION = 22809 };

/* Of one process; the module's symbol `nccl_standin`. To be changed at any time: */
typedef struct nccl_standin_switches {
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

/* In a test: those of the fake GPU's module. */
nccl_standin_switches *test_nccl_standin(void);
/* From now on there is no NCCL. */
void test_nccl_hide(void);
