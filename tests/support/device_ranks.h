/* SPDX-License-Identifier: Apache-2.0 */
/* device_ranks: a test's ranks, each with memory and queues of the fake GPU. */
#pragma once

#include <stdatomic.h>

#include "comm/core/comm.h"
#include "device/device.h"
#include "tests/device/nccl_standin.h"
#include "tests/support/comm_ranks.h"

typedef struct device_rank {
	ddp_comm *comm;
	int rank, size;
	ddp_device *device;
	ddp_device_queue *stream, *other;
	float *memory;
	float host[4]; /* what was read back */
} device_rank;

typedef void (*test_device_body)(device_rank *d);

/* Whether the stand-in for NCCL does the work, or nothing does: one rank needs none. */
extern bool test_device_alone;

void test_device_set_up(device_rank *d, ddp_comm *comm);

/* Three ranks, on one node and on these. */
extern const int test_device_nodes[3];
void test_device_run(test_device_body of_rank);

/* All of the memory to `host`. */
void test_device_read(device_rank *d);

/* An all-reduce of the first numbers; a message from the first one, or to number `tag`. */
ddp_operation test_device_sum(const device_rank *d, size_t count);
ddp_operation test_device_message(const device_rank *d, ddp_operation_kind kind, int peer, int tag);

/* For on_complete: one call more to the atomic_int at `user`. */
void test_device_count(void *user, ddp_status status);
/* A function that holds its queue until the atomic_bool is set. */
void test_device_hold(void *flag);
/* One that holds its queue while what has to wait for it goes on: until somebody who did not wait asks,
   or long enough for that. It may outlive the function that launched it. */
typedef struct test_lingering {
	atomic_bool goes_on, asked, ended;
} test_lingering;
void test_device_linger(void *lingering);
/* Whether it had ended. */
bool test_device_lingered(test_lingering *lingering);

/* ---- ranks each with a fake GPU and the stand-in for NCCL, or all with one GPU and NCCL itself ---- */

enum { TEST_NCCL_COUNT = 4 };

typedef struct on_device {
	ddp_comm *comm;
	ddp_device *device;
	ddp_device_queue *stream;
	nccl_standin_switches *nccl; /* NULL: NCCL itself */
	float *memory; /* [TEST_NCCL_COUNT], zero */
	int rank, size;
} on_device;

/* In a rank, before it opens the GPU: NCCL takes ranks on one GPU if they are of different hosts. */
void test_nccl_share_gpu(ddp_comm *comm);

void test_nccl_set_up(on_device *d, ddp_comm *comm);
/* Of one element of its memory. */
ddp_operation test_nccl_operation(const on_device *d, ddp_operation_kind kind);
ddp_status test_nccl_sum(const on_device *d);
/* One that works: when it returns, it has ended on all ranks. */
void test_nccl_sum_once(const on_device *d);
/* Of each rank's number, from 1, by `comm`: is it `sum`? In this memory of the device. */
void test_nccl_check_sum(const on_device *d, ddp_comm *comm, void *memory, float sum);
/* Ranks on one node. */
void test_nccl_run(int ranks, int (*body)(ddp_comm *, void *), void *argument);
