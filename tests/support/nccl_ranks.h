/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_ranks: a test's ranks, each with a fake GPU and the stand-in for NCCL, or all
   with one GPU and NCCL itself. */
#pragma once

#include "device/device.h"
#include "tests/device/nccl_standin.h"
#include "tests/support/comm_ranks.h"

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
