/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/nccl_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/device/fake_gpu.h"
#include "tests/support/test.h"

void test_nccl_share_gpu(ddp_comm *comm)
{
	char host[32];

	snprintf(host, sizeof(host), "rank%d", ddp_comm_rank(comm));
	setenv("NCCL_HOSTID", host, 1);
	setenv("NCCL_SOCKET_IFNAME", "lo", 0);
	ddp_comm_limit_ctas(comm, 2);
}

void test_nccl_set_up(on_device *d, ddp_comm *comm)
{
	void *memory;

	*d = (on_device){ .comm = comm, .rank = ddp_comm_rank(comm), .size = ddp_comm_size(comm) };
	if (test_on_gpu())
		test_nccl_share_gpu(comm);
	else
		d->nccl = test_nccl_standin();
	CHECK_OK(ddp_device_open("cuda", &d->device));
	ddp_comm_use_device(comm, d->device);
	CHECK_OK(ddp_device_queue_create(d->device, DDP_DEVICE_NORMAL, &d->stream));
	CHECK_OK(ddp_device_alloc(d->device, TEST_NCCL_COUNT * sizeof(float), &memory));
	CHECK_OK(ddp_device_fill(d->device, d->stream, memory, 0, TEST_NCCL_COUNT * sizeof(float)));
	d->memory = memory;
}

ddp_operation test_nccl_operation(const on_device *d, ddp_operation_kind kind)
{
	return (ddp_operation){ .kind = kind, .recv = d->memory, .count = kind == DDP_BARRIER ? 0 : 1,
	                         .memory = DDP_MEMORY_DEVICE, .stream = d->stream };
}

ddp_status test_nccl_sum(const on_device *d)
{
	const ddp_operation c = test_nccl_operation(d, DDP_ALL_REDUCE);

	return ddp_run(d->comm, &c);
}

void test_nccl_sum_once(const on_device *d)
{
	CHECK_OK(test_nccl_sum(d));
	test_ranks_together();
}

void test_nccl_check_sum(const on_device *d, ddp_comm *comm, void *memory, float sum)
{
	float host = (float)(d->rank + 1);
	ddp_operation c = test_nccl_operation(d, DDP_ALL_REDUCE);
	ddp_comm_info info;

	CHECK_OK(ddp_device_copy(d->device, d->stream, memory, &host, sizeof(host)));
	c.recv = memory;
	CHECK_OK(ddp_run(comm, &c));
	CHECK_OK(ddp_comm_describe(comm, &info));
	CHECK(strcmp(info.device_backend, "nccl") == 0);
	CHECK_OK(ddp_device_copy(d->device, d->stream, &host, memory, sizeof(host)));
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
	CHECK(host == sum);
}

void test_nccl_run(int ranks, int (*body)(ddp_comm *, void *), void *argument)
{
	RUN_WORLD(.ranks = ranks, .timeout_ms = 20000, .body = body, .argument = argument);
}
