/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/device_ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/device/fake_gpu.h"
#include "tests/device/nccl_standin.h"
#include "tests/support/test.h"

const int test_device_nodes[] = { 0, 1, 1 };
bool test_device_alone;

void test_device_set_up(device_rank *d, ddp_comm *comm)
{
	ddp_comm_info info;
	void *memory;

	*d = (device_rank){ .comm = comm, .rank = ddp_comm_rank(comm), .size = ddp_comm_size(comm) };
	CHECK_OK(ddp_device_open("cuda", &d->device));
	if (test_device_alone)
		test_nccl_hide();
	else
		test_nccl_standin()->polls = 1;
	ddp_comm_use_device(comm, d->device);
	CHECK_OK(ddp_device_queue_create(d->device, DDP_DEVICE_NORMAL, &d->stream));
	CHECK_OK(ddp_device_queue_create(d->device, DDP_DEVICE_NORMAL, &d->other));
	CHECK_OK(ddp_mem_alloc_on(comm, DDP_MEMORY_DEVICE, sizeof(d->host), &memory));
	d->memory = memory;
	CHECK_OK(ddp_comm_describe(comm, &info));
	CHECK(strcmp(info.device_backend, test_device_alone ? "self" : "nccl") == 0);
	test_ranks_together(); /* one that still allocated would hear there of what fails next */
}

void test_device_read(device_rank *d)
{
	CHECK_OK(ddp_device_copy(d->device, d->other, d->host, d->memory, sizeof(d->host)));
	CHECK_OK(ddp_device_queue_sync(d->device, d->other));
}

ddp_operation test_device_sum(const device_rank *d, size_t count)
{
	return (ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = d->memory, .count = count,
	                         .memory = DDP_MEMORY_DEVICE, .stream = d->stream };
}

ddp_operation test_device_message(const device_rank *d, ddp_operation_kind kind, int peer, int tag)
{
	ddp_operation c = test_device_sum(d, 1);

	c.kind = kind;
	c.root = peer;
	c.tag = tag;
	if (kind == DDP_SEND)
		c.send = c.recv;
	else
		c.recv = d->memory + tag;
	return c;
}

static int run_body(ddp_comm *comm, void *argument)
{
	device_rank d;

	test_device_set_up(&d, comm);
	(*(const test_device_body *)argument)(&d);
	return 0;
}

void test_device_run(test_device_body of_rank)
{
	const int *const nodes[] = { NULL, test_device_nodes };

	for (int i = 0; i < 2; i++)
		RUN_WORLD(.ranks = 3, .node_of = nodes[i], .timeout_ms = 20000, .body = run_body, .argument = &of_rank);
}

void test_device_count(void *user, ddp_status status)
{
	CHECK_OK(status);
	atomic_fetch_add((atomic_int *)user, 1);
}

void test_device_hold(void *flag)
{
	while (!atomic_load((atomic_bool *)flag))
		usleep(100);
}

void test_device_linger(void *lingering)
{
	test_lingering *l = lingering;

	while (!atomic_load(&l->goes_on))
		usleep(100);
	for (int i = 0; i < 100 && !atomic_load(&l->asked); i++)
		usleep(1000);
	atomic_store(&l->ended, true);
}

bool test_device_lingered(test_lingering *lingering)
{
	const bool ended = atomic_load(&lingering->ended);

	atomic_store(&lingering->asked, true);
	return ended;
}

/* ---- with NCCL ----------------------------------------------------------------------------- */

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
