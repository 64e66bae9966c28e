/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* Messages from and to memory that the host cannot touch: that of the asynchronous test device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/p2p/p2p.h"
#include "tests/support/device_ranks.h"

static void send_from_device(device_rank *d, int tag)
{
	const float value = (float)tag;
	const ddp_operation c = test_device_message(d, DDP_SEND, 1, tag);

	CHECK_OK(ddp_device_copy(d->device, d->stream, d->memory, &value, sizeof(value)));
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
	CHECK_OK(ddp_run(d->comm, &c));
}

static bool by_queue; /* rank 1 waits, not the host */

/* Rank 1 waits for the second of two messages, and only then is the first one sent, and does
   rank 0 come to the collective that was issued before both. */
static void receive_as_it_comes(device_rank *d)
{
	const int rank = d->rank;
	ddp_request *requests[3];
	atomic_int calls = 0;
	char word = 'w';

	const ddp_operation all = test_device_sum(d, 1);
	if (rank == 0) {
		send_from_device(d, 2);
		CHECK_OK(ddp_recv(d->comm, &word, 1, DDP_U8, 1, 0));
		send_from_device(d, 1);
	}
	if (rank != 1) {
		CHECK_OK(ddp_run(d->comm, &all));
		return;
	}
	CHECK_OK(ddp_issue(d->comm, &all, &requests[0]));
	for (int tag = 1; tag <= 2; tag++) {
		ddp_operation c = test_device_message(d, DDP_RECV, 0, tag);
		c.on_complete = test_device_count;
		c.user = &calls;
		CHECK_OK(ddp_issue(d->comm, &c, &requests[tag]));
	}
	if (by_queue) {
		CHECK_OK(ddp_wait_on(requests[1], d->stream));
		CHECK_OK(ddp_wait_on(requests[2], d->other));
		CHECK_OK(ddp_device_copy(d->device, d->other, d->host, d->memory + 2, sizeof(float)));
		CHECK_OK(ddp_device_queue_sync(d->device, d->other));
		CHECK(d->host[0] == 2);
		CHECK_OK(ddp_send(d->comm, &word, 1, DDP_U8, 0, 0));
	}
	CHECK_OK(ddp_wait(requests[2]));
	CHECK(by_queue || atomic_load(&calls) == 1);
	if (!by_queue)
		CHECK_OK(ddp_send(d->comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_wait(requests[1]));
	CHECK_OK(ddp_wait(requests[0]));
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
	test_device_read(d);
	CHECK(d->host[1] == 1 && d->host[2] == 2);
}

static void receives_end_as_messages_come(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		by_queue = i == 1;
		test_device_run_staged(receive_as_it_comes);
	}
}

/* The receive comes behind what its own queue does to that memory, though another queue waits
   for the message, which is not sent before both are enqueued. */
static void receive_behind_its_queue(device_rank *d)
{
	ddp_request *request;
	char word = 'w';

	if (d->rank == 0) {
		CHECK_OK(ddp_recv(d->comm, &word, 1, DDP_U8, 1, 0));
		send_from_device(d, 1);
	}
	if (d->rank != 1)
		return;
	const ddp_operation c = test_device_message(d, DDP_RECV, 0, 1);
	CHECK_OK(ddp_device_fill(d->device, d->stream, d->memory + 1, 0xff, sizeof(float)));
	CHECK_OK(ddp_issue(d->comm, &c, &request));
	CHECK_OK(ddp_wait_on(request, d->other));
	CHECK_OK(ddp_device_copy(d->device, d->other, d->host, d->memory + 1, sizeof(float)));
	CHECK_OK(ddp_send(d->comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_device_queue_sync(d->device, d->other));
	CHECK(d->host[0] == 1);
	CHECK_OK(ddp_wait(request));
}

static void a_receive_waits_for_its_queue_whoever_copies_it(void **state)
{
	(void)state;
	test_device_run_staged(receive_behind_its_queue);
}

/* On a GPU without NCCL: a queue waits for the message while the send has not begun. */
static int send_to_itself(ddp_comm *comm, void *argument)
{
	const ddp_device_options options = { .seed = 1, .delay_us = 200, .check_order = true, .one_function = true };
	const float seven = 7;
	ddp_request *requests[2];
	device_rank d;

	(void)argument;
	test_device_set_up(&d, comm, &options);
	CHECK(!ddp_device_describe(d.device)->functions_may_wait);
	ddp_operation c = test_device_message(&d, DDP_RECV, 0, 1);
	CHECK_OK(ddp_issue(comm, &c, &requests[0]));
	c = test_device_message(&d, DDP_SEND, 0, 1);
	for (int i = 0; i < 20; i++)
		CHECK_OK(ddp_device_copy(d.device, d.stream, d.memory, &seven, sizeof(seven)));
	CHECK_OK(ddp_issue(comm, &c, &requests[1]));
	CHECK_OK(ddp_wait_on(requests[0], d.other));
	CHECK_OK(ddp_device_copy(d.device, d.other, d.host, d.memory + 1, sizeof(float)));
	CHECK_OK(ddp_device_queue_sync(d.device, d.other));
	CHECK(d.host[0] == 7);
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_wait(requests[i]));
	return 0;
}

static void a_message_to_oneself_needs_one_function_at_a_time(void **state)
{
	const test_world world = { .ranks = 1, .timeout_ms = 5000, .body = send_to_itself };

	(void)state;
	assert_int_equal(test_world_run(&world), 0);
}

/* A message is not kept back by a collective that a rank begins only when it has come. */
static void send_behind_a_collective(device_rank *d)
{
	const int rank = d->rank;
	ddp_request *request;

	const ddp_operation all = test_device_sum(d, 1);
	ddp_operation one = test_device_sum(d, 1);
	one.kind = rank == 0 ? DDP_SEND : DDP_RECV;
	one.send = one.recv = d->memory + 1;
	one.root = 1 - rank;
	if (rank == 1)
		CHECK_OK(ddp_run(d->comm, &one));
	CHECK_OK(ddp_issue(d->comm, &all, &request));
	if (rank == 0)
		CHECK_OK(ddp_run(d->comm, &one));
	CHECK_OK(ddp_wait(request));
}

static void messages_pass_collectives(void **state)
{
	(void)state;
	test_device_run_both(send_behind_a_collective);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* For longer than what is open may take to end where other communicators use its connection
   (comm/net). */
enum { LONG_MS = 6000, LARGE = 8 << 20 };

/* A message that nobody sends ends with the communicator. */
static void close_under_a_receive(device_rank *d)
{
	ddp_request *request;
	ddp_comm *part;

	CHECK_OK(ddp_comm_split(d->comm, 0, 0, &part));
	ddp_operation c = test_device_sum(d, 4);
	CHECK_OK(ddp_run(part, &c));
	c.kind = DDP_RECV;
	c.root = d->rank;
	c.tag = 3;
	CHECK_OK(ddp_issue(part, &c, &request));
	CHECK_OK(ddp_barrier(d->comm));
	CHECK_OK(ddp_comm_free(part));
	CHECK(ddp_wait(request) == DDP_ERR_STATE);
	CHECK(strstr(ddp_last_error(), "recv") != NULL);
}

/* Two queues write the same bytes, and no event orders them. */
static void break_device(device_rank *d)
{
	CHECK_OK(ddp_device_fill(d->device, d->stream, d->memory + 3, 1, sizeof(float)));
	CHECK(ddp_device_fill(d->device, d->other, d->memory + 3, 2, sizeof(float)) == DDP_ERR_STATE);
}

/* Rank 1 has receives that nobody sends to, and a send that has not begun. */
static void break_under_messages(device_rank *d)
{
	static atomic_bool let_go; /* the function may look at it when this one has returned */
	ddp_request *requests[3];

	ddp_operation c = test_device_sum(d, 1);
	CHECK_OK(ddp_run(d->comm, &c));
	test_ranks_together();
	if (d->rank != 1) {
		CHECK(ddp_barrier(d->comm) == DDP_ERR_STATE);
		CHECK(strstr(ddp_last_error(), "rank 1") != NULL && strstr(ddp_last_error(), "is broken") != NULL);
		return;
	}
	for (int i = 0; i < 2; i++) {
		c = test_device_message(d, DDP_RECV, 0, 1 + i);
		CHECK_OK(ddp_issue(d->comm, &c, &requests[i]));
	}
	CHECK_OK(ddp_wait_on(requests[1], d->other));
	CHECK_OK(ddp_device_launch(d->device, d->stream, test_device_hold, &let_go));
	c = test_device_message(d, DDP_SEND, 0, 3);
	CHECK_OK(ddp_issue(d->comm, &c, &requests[2]));
	break_device(d);
	atomic_store(&let_go, true);
	for (int i = 0; i < 3; i++) {
		CHECK(ddp_wait(requests[i]) == DDP_ERR_STATE);
		CHECK(strstr(ddp_last_error(), "is broken") != NULL);
	}
	CHECK_OK(ddp_device_queue_free(d->device, d->other));
}

/* A message's place is not all memory. What was enqueued for it on the program's queue, or on its own,
   has ended when it has. */
static void receive_in_part(device_rank *d)
{
	static test_lingering lingering;
	ddp_request *request;
	void *memory;

	if (d->rank != 1) {
		CHECK(ddp_barrier(d->comm) == DDP_ERR_INVALID);
		return;
	}
	CHECK_OK(ddp_device_alloc(d->device, LARGE, &memory));
	ddp_operation c = test_device_message(d, DDP_RECV, 0, 1);
	c.recv = memory;
	c.count = LARGE;
	CHECK_OK(ddp_device_launch(d->device, d->other, test_device_linger, &lingering));
	CHECK_OK(ddp_issue(d->comm, &c, &request));
	CHECK(ddp_wait_on(request, d->other) == DDP_ERR_INVALID);
	CHECK(strstr(ddp_last_error(), "not all allocated") != NULL);
	atomic_store(&lingering.goes_on, true);
	CHECK(ddp_wait(request) == DDP_ERR_INVALID);
	CHECK(test_device_lingered(&lingering));
	CHECK_OK(ddp_device_free(d->device, memory));
}

static void send_in_part(device_rank *d)
{
	if (d->rank != 1) {
		CHECK(ddp_barrier(d->comm) == DDP_ERR_INVALID);
		return;
	}
	ddp_operation c = test_device_message(d, DDP_SEND, 0, 1);
	c.count = LARGE;
	CHECK(ddp_run(d->comm, &c) == DDP_ERR_INVALID);
	CHECK(strstr(ddp_last_error(), "not all allocated") != NULL);
}

static void messages_fail_with_the_communicator_or_the_device(void **state)
{
	(void)state;
	test_device_run_staged(break_under_messages);
	test_device_run_staged(receive_in_part);
	test_device_run_staged(send_in_part);
	test_device_run_both(close_under_a_receive);
}

static bool has_message(const ddp_comm *comm)
{
	bool found = false;

	for (int i = 0; i < DDP_TWINS; i++)
		found = found || (comm->twins.list[i] != NULL && ddp_p2p_pending(comm->twins.list[i]));
	return found;
}

/* Rank 0 closes a communicator with a message under way that nobody takes, the others much
   later. */
static void close_under_a_send(device_rank *d)
{
	ddp_request *request;
	ddp_comm *part;
	void *memory;

	CHECK_OK(ddp_comm_split(d->comm, 0, 0, &part));
	ddp_operation c = test_device_sum(d, 4);
	CHECK_OK(ddp_run(part, &c));
	CHECK_OK(ddp_device_alloc(d->device, LARGE, &memory));
	if (d->rank == 0) {
		CHECK_OK(ddp_device_fill(d->device, d->stream, memory, 1, LARGE));
		c = test_device_message(d, DDP_SEND, 1, 0);
		c.send = memory;
		c.count = LARGE;
		c.type = DDP_U8;
		CHECK_OK(ddp_issue(part, &c, &request));
		while (!has_message(part))
			usleep(1000);
	}
	CHECK_OK(ddp_barrier(d->comm));
	if (d->rank != 0)
		usleep(LONG_MS * 1000);
	CHECK_OK(ddp_comm_free(part));
	/* UCX calls a send complete whose receiver, which may be through with closing before
	   this rank is, drops it. */
	if (d->rank == 0) {
		const ddp_status status = ddp_wait(request);
		CHECK(status == DDP_ERR_STATE || status == DDP_OK);
	}
	CHECK_OK(ddp_barrier(d->comm));
}

static void closing_leaves_connections_to_others(void **state)
{
	(void)state;
	test_device_run(test_device_nodes, close_under_a_send);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(receives_end_as_messages_come),
		cmocka_unit_test(a_receive_waits_for_its_queue_whoever_copies_it),
		cmocka_unit_test(a_message_to_oneself_needs_one_function_at_a_time),
		cmocka_unit_test(messages_pass_collectives),
		cmocka_unit_test(messages_fail_with_the_communicator_or_the_device),
		cmocka_unit_test(closing_leaves_connections_to_others),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
