/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; takes: 7 */
/* Operations on memory that the host cannot touch: a GPU's. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/comm_cases.h"
#include "tests/support/device_ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

#ifdef __SANITIZE_THREAD__ /* as in test_comm_random */
enum { BATCHES = 12 };
#else
enum { BATCHES = 24 };
#endif

/* ---- one rank without NCCL ------------------------------------------------------------------- */

TEST(one_rank_needs_no_nccl)
{
	const test_cases cases = { .seed = 7500, .batches = BATCHES, .most = 200000, .on_device = true, .alone = true };

	assert_int_equal(test_run_world(cases, 1, NULL, test_run_cases), 0);
}

/* The host waits for nothing, and all is done in order. */
static int keep_order(ddp_comm *comm, void *argument)
{
	static const float ones[4] = { 1, 1, 1, 1 };
	static test_lingering lingering;
	ddp_request *request;
	device_rank d;
	bool done;

	test_device_set_up(&d, comm);
	test_device_read(&d);
	CHECK(d.host[0] == 0 && d.host[3] == 0);
	ddp_operation c = test_device_sum(&d, 4);
	c.scaled = true;
	c.scale = 3;
	CHECK_OK(ddp_device_launch(d.device, d.stream, test_device_linger, &lingering));
	CHECK_OK(ddp_device_copy(d.device, d.stream, d.memory, ones, sizeof(ones)));
	CHECK_OK(ddp_issue(comm, &c, &request));
	CHECK_OK(ddp_test(request, &done));
	CHECK(!done);
	CHECK_OK(ddp_wait_on(request, d.other));
	CHECK_OK(ddp_device_copy(d.device, d.other, d.host, d.memory, sizeof(d.host)));
	atomic_store(&lingering.goes_on, true);
	CHECK_OK(ddp_wait(request));
	CHECK(test_device_lingered(&lingering));
	CHECK_OK(ddp_device_queue_sync(d.device, d.other));
	for (int i = 0; i < 4; i++)
		CHECK(d.host[i] == 3);
	CHECK_OK(ddp_mem_free(comm, d.memory));
	return 0;
}

/* A queue waits for the message while the send has not begun. */
static int send_to_itself(ddp_comm *comm, void *argument)
{
	const float seven = 7;
	ddp_request *requests[2];
	device_rank d;

	test_device_set_up(&d, comm);
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

/* The copy to a device's memory that is too small cannot be enqueued, but that from it is. */
static int fail_in_part(ddp_comm *comm, void *argument)
{
	static test_lingering lingering;
	ddp_request *request;
	device_rank d;
	void *larger, *smaller;

	test_device_set_up(&d, comm);
	CHECK_OK(ddp_device_alloc(d.device, 4096 * sizeof(float), &larger));
	CHECK_OK(ddp_device_alloc(d.device, sizeof(float), &smaller)); /* behind it */
	CHECK_OK(ddp_device_fill(d.device, d.stream, larger, 0, 4096 * sizeof(float)));
	ddp_operation c = test_device_sum(&d, 4096);
	c.send = larger;
	c.recv = smaller;
	c.scaled = true;
	c.scale = 3;
	CHECK_OK(ddp_device_launch(d.device, d.stream, test_device_linger, &lingering));
	CHECK_OK(ddp_issue(comm, &c, &request));
	CHECK_OK(ddp_wait_on(request, d.other));
	atomic_store(&lingering.goes_on, true);
	CHECK_FAILS(ddp_wait(request), DDP_ERR_INVALID, "not all allocated");
	CHECK(test_device_lingered(&lingering));
	CHECK_OK(ddp_device_free(d.device, larger));
	CHECK_OK(ddp_device_free(d.device, smaller));
	c = test_device_sum(&d, 4);
	CHECK_OK(ddp_run(comm, &c));
	CHECK_OK(ddp_mem_free(comm, d.memory));
	return 0;
}

static int give_messages_up(ddp_comm *comm, void *argument)
{
	ddp_request *requests[2];
	ddp_comm *part;
	device_rank d;

	test_device_set_up(&d, comm);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	for (int i = 0; i < 2; i++) {
		const ddp_operation c = test_device_message(&d, DDP_RECV, 0, i);
		CHECK_OK(ddp_issue(part, &c, &requests[i]));
	}
	CHECK_OK(ddp_comm_free(part));
	for (int i = 0; i < 2; i++) {
		CHECK_FAILS(ddp_wait(requests[i]), DDP_ERR_STATE, "recv had not met its counterpart");
	}
	CHECK_OK(ddp_mem_free(comm, d.memory));
	return 0;
}

static int send_more_than_received(ddp_comm *comm, void *argument)
{
	ddp_request *requests[2];
	device_rank d;

	test_device_set_up(&d, comm);
	ddp_operation c = test_device_message(&d, DDP_SEND, 0, 2);
	c.count = 2;
	CHECK_OK(ddp_issue(comm, &c, &requests[0]));
	c = test_device_message(&d, DDP_RECV, 0, 2);
	CHECK_OK(ddp_issue(comm, &c, &requests[1]));
	for (int i = 0; i < 2; i++) {
		CHECK_FAILS(ddp_wait(requests[i]), DDP_ERR_MISMATCH,
		            "sent 2 elements of f32 to itself by tag 2, but receives 1 of f32");
	}
	return 0;
}

TEST(one_rank_keeps_the_order_of_queues)
{
	int (*const bodies[])(ddp_comm *, void *) = { keep_order, send_to_itself, fail_in_part, give_messages_up,
	                                                   send_more_than_received };

	test_device_alone = true;
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
		RUN_WORLD(.ranks = 1, .timeout_ms = 20000, .body = bodies[i]);
	test_device_alone = false;
}

/* ---- the host waits for nothing ------------------------------------------------------------ */

/* Rank 1 comes when rank 0 has enqueued all that is to follow. */
static void enqueue_ahead(device_rank *d)
{
	static const float ones[4] = { 1, 1, 1, 1 };
	atomic_int calls = 0;
	ddp_request *requests[2];
	char word = 'w';
	bool done;

	test_device_read(d);
	for (int i = 0; i < 4; i++)
		CHECK(d->host[i] == 0);
	if (d->rank == 1)
		CHECK_OK(ddp_recv(d->comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_device_copy(d->device, d->stream, d->memory, ones, sizeof(ones)));
	for (int i = 0; i < 2; i++) {
		ddp_operation c = test_device_sum(d, 4);
		c.on_complete = test_device_count;
		c.user = &calls;
		CHECK_OK(ddp_issue(d->comm, &c, &requests[i]));
		CHECK_OK(ddp_wait_on(requests[i], d->stream));
	}
	CHECK_OK(ddp_wait_on(requests[1], d->other));
	CHECK_OK(ddp_device_copy(d->device, d->other, d->host, d->memory, sizeof(d->host)));
	if (d->rank == 0) {
		CHECK_OK(ddp_test(requests[0], &done));
		CHECK(!done && atomic_load(&calls) == 0);
		CHECK_OK(ddp_send(d->comm, &word, 1, DDP_U8, 1, 0));
	}
	CHECK_OK(ddp_device_queue_sync(d->device, d->other));
	for (int i = 0; i < 4; i++)
		CHECK(d->host[i] == (float)(d->size * d->size));
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_wait(requests[i]));
	CHECK(atomic_load(&calls) == 2);
	CHECK_OK(ddp_mem_free(d->comm, d->memory));
}

TEST_RUNS(queues_wait_for_operations_and_the_host_for_nothing, test_device_run(enqueue_ahead));

/* A large operation, for which a rank comes late. */
/* Sanitizers move it slowly. */
enum { MANY = (SANITIZER ? 1 : 12) << 17 };

static void come_late(device_rank *d)
{
	float *values = malloc(MANY * sizeof(*values));
	ddp_request *request;
	char word = 'w';
	void *memory;

	CHECK(values != NULL);
	for (size_t i = 0; i < MANY; i++)
		values[i] = (float)(i >> 10);
	CHECK_OK(ddp_device_alloc(d->device, MANY * sizeof(*values), &memory));
	CHECK_OK(ddp_device_copy(d->device, d->stream, memory, values, MANY * sizeof(*values)));
	ddp_operation c = test_device_sum(d, MANY);
	c.recv = memory;
	if (d->rank == 1)
		CHECK_OK(ddp_recv(d->comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_issue(d->comm, &c, &request));
	if (d->rank == 0) {
		/* Time enough for a queue that runs ahead to do harm; a right one needs none. */
		usleep(30000);
		CHECK_OK(ddp_send(d->comm, &word, 1, DDP_U8, 1, 0));
	}
	CHECK_OK(ddp_wait_on(request, d->other));
	CHECK_OK(ddp_device_copy(d->device, d->other, values, memory, MANY * sizeof(*values)));
	CHECK_OK(ddp_device_queue_sync(d->device, d->other));
	for (size_t i = 0; i < MANY; i++)
		CHECK(values[i] == (float)((int)(i >> 10) * d->size));
	CHECK_OK(ddp_wait(request));
	free(values);
}

TEST_RUNS(a_late_rank_finds_all, test_device_run(come_late));

/* ---- messages ------------------------------------------------------------------------------ */

static void send_from_device(device_rank *d, int tag)
{
	const float value = (float)tag;
	const ddp_operation c = test_device_message(d, DDP_SEND, 1, tag);

	CHECK_OK(ddp_device_copy(d->device, d->stream, d->memory, &value, sizeof(value)));
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
	CHECK_OK(ddp_run(d->comm, &c));
}

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
	CHECK_OK(ddp_wait(requests[2]));
	CHECK(atomic_load(&calls) == 1);
	CHECK_OK(ddp_send(d->comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_wait(requests[1]));
	CHECK_OK(ddp_wait(requests[0]));
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
	test_device_read(d);
	CHECK(d->host[1] == 1 && d->host[2] == 2);
}

TEST_RUNS(receives_end_as_messages_come, test_device_run(receive_as_it_comes));

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

TEST_RUNS(messages_pass_collectives, test_device_run(send_behind_a_collective));

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
	CHECK_FAILS(ddp_wait(request), DDP_ERR_STATE, "recv");
}

/* Two queues write the same bytes, and no event orders them. */
static void break_device(device_rank *d)
{
	CHECK_OK(ddp_device_fill(d->device, d->stream, d->memory + 3, 1, sizeof(float)));
	CHECK(ddp_device_fill(d->device, d->other, d->memory + 3, 2, sizeof(float)) == DDP_ERR_IO);
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
		CHECK(ddp_barrier(d->comm) == DDP_ERR_IO);
		CHECK(strstr(ddp_last_error(), "rank 1") != NULL && strstr(ddp_last_error(), "is broken") != NULL);
		return;
	}
	for (int i = 0; i < 2; i++) {
		c = test_device_message(d, DDP_RECV, 0, 1 + i);
		CHECK_OK(ddp_issue(d->comm, &c, &requests[i]));
	}
	CHECK_OK(ddp_device_launch(d->device, d->stream, test_device_hold, &let_go));
	c = test_device_message(d, DDP_SEND, 0, 3);
	CHECK_OK(ddp_issue(d->comm, &c, &requests[2]));
	break_device(d);
	atomic_store(&let_go, true);
	for (int i = 0; i < 3; i++) {
		CHECK_FAILS(ddp_wait(requests[i]), DDP_ERR_IO, "is broken");
	}
	CHECK_OK(ddp_device_queue_free(d->device, d->other));
}

TEST(messages_fail_with_the_communicator_or_the_device)
{
	test_device_run(break_under_messages);
	test_device_run(close_under_a_receive);
}

/* ---- when an operation ran ----------------------------------------------------------------- */

static void note_time(void *argument)
{
	*(uint64_t *)argument = ddp_now_ns();
}

/* It begins when the program's queue has come to it, not when it is issued. */
static void check_times(device_rank *d, const ddp_operation *c)
{
	uint64_t reached_ns = 0, start_ns = 0, end_ns = 0;
	ddp_request *request;

	CHECK_OK(ddp_device_launch(d->device, d->stream, note_time, &reached_ns));
	CHECK_OK(ddp_issue(d->comm, c, &request));
	CHECK_OK(ddp_wait_timed(request, &start_ns, &end_ns));
	CHECK(reached_ns > 0 && start_ns >= reached_ns);
	CHECK(end_ns >= start_ns && end_ns <= ddp_now_ns());
}

static void take_times(device_rank *d)
{
	ddp_operation c = test_device_sum(d, 4);
	check_times(d, &c);
	c.kind = DDP_BARRIER;
	check_times(d, &c);
	/* From each rank to the next. */
	if (d->rank < 2) {
		c.kind = DDP_SEND;
		c.send = d->memory;
		c.recv = NULL;
		c.root = d->rank + 1;
		check_times(d, &c);
	}
	if (d->rank > 0) {
		c.kind = DDP_RECV;
		c.send = NULL;
		c.recv = d->memory;
		c.root = d->rank - 1;
		check_times(d, &c);
	}
	CHECK_OK(ddp_mem_free(d->comm, d->memory));
}

TEST_RUNS(an_operation_begins_behind_its_queue, test_device_run(take_times));

/* ---- errors ---------------------------------------------------------------------------------- */

static void abort_on_device(device_rank *d)
{
	ddp_request *request;
	char word = 'w';

	const ddp_operation c = test_device_sum(d, 4);
	CHECK_OK(ddp_run(d->comm, &c));
	test_ranks_together(); /* rank 2 may still be in it when rank 0 is through, and aborts */
	if (d->rank == 0) {
		CHECK_OK(ddp_recv(d->comm, &word, 1, DDP_U8, 1, 0));
		CHECK_OK(ddp_comm_abort(d->comm, "enough"));
		return;
	}
	CHECK_OK(ddp_issue(d->comm, &c, &request));
	CHECK_OK(ddp_wait_on(request, d->stream));
	/* Between nodes, rank 0 may have it, and abort, before the send is complete here. */
	if (d->rank == 1) {
		const ddp_status sent = ddp_send(d->comm, &word, 1, DDP_U8, 0, 0);
		CHECK(sent == DDP_OK || sent == DDP_ERR_ABORTED);
	}
	CHECK_FAILS(ddp_wait(request), DDP_ERR_ABORTED, "enough");
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
}

static void differ_on_device(device_rank *d)
{
	const ddp_operation c = test_device_sum(d, d->rank == 0 ? 1 : 2);
	CHECK(ddp_run(d->comm, &c) == DDP_ERR_MISMATCH);
	CHECK(ddp_barrier(d->comm) == DDP_ERR_MISMATCH);
}

TEST(operations_on_a_device_fail_as_others_do)
{
	test_device_run(abort_on_device);
	test_device_run(differ_on_device);
}

static atomic_int *through; /* shared: how many ranks, of all worlds, have come so far */

/* Not by the communicator, which one rank's mistake ends while another one's operation returns. */
static void await_others(device_rank *d)
{
	const int size = ddp_comm_size(d->comm), before = atomic_fetch_add(through, 1);

	while (atomic_load(through) < (before / size + 1) * size)
		usleep(100);
}

/* Where NCCL has it: this rank's block is both the input's, or the output's, and the other's. */
static void work_in_place(device_rank *d)
{
	const float ones[4] = { 1, 2, 3, 4 };
	ddp_operation c = test_device_sum(d, 1);

	CHECK_OK(ddp_device_copy(d->device, d->stream, d->memory, ones, sizeof(ones)));
	c.kind = DDP_REDUCE_SCATTER;
	c.send = d->memory;
	c.recv = d->memory + d->rank;
	CHECK_OK(ddp_run(d->comm, &c));
	c.kind = DDP_ALL_GATHER;
	c.send = d->memory + d->rank;
	c.recv = d->memory;
	CHECK_OK(ddp_run(d->comm, &c));
	test_device_read(d);
	CHECK(d->host[0] == 3 && d->host[1] == 6 && d->host[2] == 9 && d->host[3] == 4);
	await_others(d);
	/* On rank 0 this is right. */
	c.send = d->memory;
	CHECK_FAILS(ddp_run(d->comm, &c), DDP_ERR_INVALID, "send and recv overlap");
}

TEST(in_place_is_where_nccl_has_it)
{
	through = test_share(sizeof(*through));
	test_device_run(work_in_place);
}

static int give_wrong_memory(ddp_comm *comm, void *argument)
{
	float x = 1;
	ddp_operation c = { .kind = DDP_ALL_REDUCE, .recv = &x, .count = 1, .memory = DDP_MEMORY_DEVICE };
	device_rank d;

	CHECK_FAILS(ddp_run(comm, &c), DDP_ERR_STATE, "ddp_options");
	test_device_set_up(&d, comm);
	CHECK_FAILS(ddp_run(comm, &c), DDP_ERR_INVALID, "is not in the memory of the device cuda:0");
	CHECK_OK(ddp_mem_free(comm, d.memory));
	return 0;
}

TEST(memory_of_the_host_is_refused)
{
	for (int i = 0; i < 2; i++)
		RUN_WORLD(.ranks = 3, .node_of = i == 0 ? NULL : test_device_nodes, .timeout_ms = 20000, .body = give_wrong_memory);
}
