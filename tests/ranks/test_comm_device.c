/* Operations on memory that the host cannot touch: that of the asynchronous test device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/p2p/p2p.h"
#include "device/device.h"
#include "tests/support/comm_cases.h"
#include "tests/support/nccl_standin.h"

static const int two_nodes[] = { 0, 1, 1 };

/* ---- against the reference ---------------------------------------------------------------- */

#ifdef __SANITIZE_THREAD__ /* as in test_comm_random */
enum { BATCHES = 3 };
#else
enum { BATCHES = 6 };
#endif

static void operations_agree_with_the_reference(void **state)
{
	static const int nodes[] = { 0, 1, 0 };
	const test_cases cases = { .seed = 7000, .batches = BATCHES, .most = 200000, .device = "test" };

	(void)state;
	for (int ranks = 1; ranks <= 4; ranks++)
		assert_int_equal(test_run_world(cases, ranks, NULL, test_run_cases), 0);
	assert_int_equal(test_run_world(cases, 3, nodes, test_run_cases), 0);
}

/* ---- a rank with a device ------------------------------------------------------------------ */

typedef struct on_device {
	ddp_comm *comm;
	int rank, size;
	ddp_device *device;
	ddp_device_queue *stream, *other;
	float *memory;
	float host[4]; /* what was read back */
} on_device;

static bool by_nccl; /* its stand-in, not by way of the host's memory */

static void set_up(on_device *d, ddp_comm *comm, const ddp_device_options *options)
{
	void *memory;

	*d = (on_device){ .comm = comm, .rank = ddp_comm_rank(comm), .size = ddp_comm_size(comm) };
	CHECK_OK(ddp_device_open("test", options, &d->device));
	if (by_nccl)
		test_nccl_standin(d->device)->polls = 1;
	ddp_comm_use_device(comm, d->device);
	CHECK_OK(ddp_device_queue_create(d->device, DDP_DEVICE_NORMAL, &d->stream));
	CHECK_OK(ddp_device_queue_create(d->device, DDP_DEVICE_NORMAL, &d->other));
	CHECK_OK(ddp_mem_alloc_on(comm, DDP_MEMORY_DEVICE, sizeof(d->host), &memory));
	d->memory = memory;
}

static void read_back(on_device *d)
{
	CHECK_OK(ddp_device_copy(d->device, d->other, d->host, d->memory, sizeof(d->host)));
	CHECK_OK(ddp_device_queue_sync(d->device, d->other));
}

static ddp_collective sum(const on_device *d, size_t count)
{
	return (ddp_collective){ .kind = DDP_ALL_REDUCE, .recv = d->memory, .count = count,
	                         .memory = DDP_MEMORY_DEVICE, .stream = d->stream };
}

typedef void (*body)(on_device *d);

static int run_body(ddp_comm *comm, void *argument)
{
	on_device d;

	set_up(&d, comm, NULL);
	(*(const body *)argument)(&d);
	return 0;
}

static void run_on(const int *node_of, body of_rank)
{
	const test_world world = { .ranks = 3, .node_of = node_of, .timeout_ms = 20000, .body = run_body,
	                           .argument = &of_rank };

	assert_int_equal(test_world_run(&world), 0);
}

static void run_staged(body of_rank)
{
	run_on(NULL, of_rank);
	run_on(two_nodes, of_rank);
}

static void run_both(body of_rank)
{
	run_staged(of_rank);
	by_nccl = true;
	run_staged(of_rank);
	by_nccl = false;
}

/* ---- the host waits for nothing ------------------------------------------------------------ */

static void count_call(void *user, ddp_status status)
{
	CHECK_OK(status);
	atomic_fetch_add((atomic_int *)user, 1);
}

/* Rank 1 comes when rank 0 has enqueued all that is to follow. */
static void enqueue_ahead(on_device *d)
{
	static const float ones[4] = { 1, 1, 1, 1 };
	atomic_int calls = 0;
	ddp_request *requests[2];
	char word = 'w';
	bool done;

	read_back(d);
	for (int i = 0; i < 4; i++)
		CHECK(d->host[i] == 0);
	if (d->rank == 1)
		CHECK_OK(ddp_recv(d->comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_device_copy(d->device, d->stream, d->memory, ones, sizeof(ones)));
	for (int i = 0; i < 2; i++) {
		ddp_collective c = sum(d, 4);
		c.on_complete = count_call;
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

static void queues_wait_for_operations_and_the_host_for_nothing(void **state)
{
	(void)state;
	run_both(enqueue_ahead);
}

/* An operation of many chunks, for which a rank comes late: what is staged for the first of
   them stays until they have been combined. */
enum { MANY = 12 << 17 };

static void come_late(on_device *d)
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
	ddp_collective c = sum(d, MANY);
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

static void a_late_rank_finds_all_that_was_staged(void **state)
{
	(void)state;
	run_both(come_late);
}

/* ---- messages -------------------------------------------------------------------------------- */

static ddp_collective message(const on_device *d, ddp_kind kind, int peer, int tag)
{
	ddp_collective c = sum(d, 1);

	c.kind = kind;
	c.root = peer;
	c.tag = tag;
	if (kind == DDP_SEND)
		c.send = c.recv;
	else
		c.recv = d->memory + tag;
	return c;
}

static void send_from_device(on_device *d, int tag)
{
	const float value = (float)tag;
	const ddp_collective c = message(d, DDP_SEND, 1, tag);

	CHECK_OK(ddp_device_copy(d->device, d->stream, d->memory, &value, sizeof(value)));
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
	CHECK_OK(ddp_run(d->comm, &c));
}

static bool by_queue; /* rank 1 waits, not the host */

/* Rank 1 waits for the second of two messages, and only then is the first one sent, and does
   rank 0 come to the collective that was issued before both. */
static void receive_as_it_comes(on_device *d)
{
	const int rank = d->rank;
	ddp_request *requests[3];
	atomic_int calls = 0;
	char word = 'w';

	const ddp_collective all = sum(d, 1);
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
		ddp_collective c = message(d, DDP_RECV, 0, tag);
		c.on_complete = count_call;
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
	read_back(d);
	CHECK(d->host[1] == 1 && d->host[2] == 2);
}

static void receives_end_as_messages_come(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		by_queue = i == 1;
		run_staged(receive_as_it_comes);
	}
}

/* On a GPU without NCCL: a queue waits for the message while the send has not begun. */
static int send_to_itself(ddp_comm *comm, void *argument)
{
	const ddp_device_options options = { .seed = 1, .delay_us = 200, .check_order = true, .one_function = true };
	const float seven = 7;
	ddp_request *requests[2];
	on_device d;

	(void)argument;
	set_up(&d, comm, &options);
	CHECK(!ddp_device_describe(d.device)->functions_may_wait);
	ddp_collective c = message(&d, DDP_RECV, 0, 1);
	CHECK_OK(ddp_issue(comm, &c, &requests[0]));
	c = message(&d, DDP_SEND, 0, 1);
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
static void send_behind_a_collective(on_device *d)
{
	const int rank = d->rank;
	ddp_request *request;

	const ddp_collective all = sum(d, 1);
	ddp_collective one = sum(d, 1);
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
	run_both(send_behind_a_collective);
}

/* ---- when an operation ran ----------------------------------------------------------------- */

static void note_time(void *argument)
{
	*(uint64_t *)argument = ddp_now_ns();
}

/* It begins when the program's queue has come to it, not when it is issued. */
static void check_times(on_device *d, const ddp_collective *c)
{
	uint64_t reached_ns = 0, start_ns = 0, end_ns = 0;
	ddp_request *request;

	CHECK_OK(ddp_device_launch(d->device, d->stream, note_time, &reached_ns));
	CHECK_OK(ddp_issue(d->comm, c, &request));
	CHECK_OK(ddp_wait_timed(request, &start_ns, &end_ns));
	CHECK(reached_ns > 0 && start_ns >= reached_ns);
	CHECK(end_ns >= start_ns && end_ns <= ddp_now_ns());
}

static void take_times(on_device *d)
{
	ddp_collective c = sum(d, 4);
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

static void an_operation_begins_behind_its_queue(void **state)
{
	(void)state;
	run_both(take_times);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void abort_on_device(on_device *d)
{
	ddp_request *request;
	char word = 'w';

	const ddp_collective c = sum(d, 4);
	CHECK_OK(ddp_run(d->comm, &c));
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
	CHECK(ddp_wait(request) == DDP_ERR_ABORTED);
	CHECK(strstr(ddp_last_error(), "enough") != NULL);
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
}

static void differ_on_device(on_device *d)
{
	const ddp_collective c = sum(d, d->rank == 0 ? 1 : 2);
	CHECK(ddp_run(d->comm, &c) == DDP_ERR_MISMATCH);
	CHECK(ddp_barrier(d->comm) == DDP_ERR_MISMATCH);
}

/* A message that nobody sends ends with the communicator. */
static void close_under_a_receive(on_device *d)
{
	ddp_request *request;
	ddp_comm *part;

	CHECK_OK(ddp_comm_split(d->comm, 0, 0, &part));
	ddp_collective c = sum(d, 4);
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

/* A function that holds its queue until it is let go. */
static void hold(void *flag)
{
	while (!atomic_load((atomic_bool *)flag))
		usleep(100);
}

/* Two queues write the same bytes, and no event orders them. */
static void break_device(on_device *d)
{
	CHECK_OK(ddp_device_fill(d->device, d->stream, d->memory + 3, 1, sizeof(float)));
	CHECK(ddp_device_fill(d->device, d->other, d->memory + 3, 2, sizeof(float)) == DDP_ERR_STATE);
}

/* Rank 1 has receives that nobody sends to, and a send that has not begun. */
static void break_under_messages(on_device *d)
{
	static atomic_bool let_go; /* the function may look at it when this one has returned */
	ddp_request *requests[3];

	ddp_collective c = sum(d, 1);
	CHECK_OK(ddp_run(d->comm, &c));
	test_ranks_together();
	if (d->rank != 1) {
		CHECK(ddp_barrier(d->comm) == DDP_ERR_STATE);
		CHECK(strstr(ddp_last_error(), "rank 1") != NULL && strstr(ddp_last_error(), "is broken") != NULL);
		return;
	}
	for (int i = 0; i < 2; i++) {
		c = message(d, DDP_RECV, 0, 1 + i);
		CHECK_OK(ddp_issue(d->comm, &c, &requests[i]));
	}
	CHECK_OK(ddp_wait_on(requests[1], d->other));
	CHECK_OK(ddp_device_launch(d->device, d->stream, hold, &let_go));
	c = message(d, DDP_SEND, 0, 3);
	CHECK_OK(ddp_issue(d->comm, &c, &requests[2]));
	break_device(d);
	atomic_store(&let_go, true);
	for (int i = 0; i < 3; i++) {
		CHECK(ddp_wait(requests[i]) == DDP_ERR_STATE);
		CHECK(strstr(ddp_last_error(), "is broken") != NULL);
	}
	CHECK_OK(ddp_device_queue_free(d->device, d->other));
}

/* Its last chunk is beyond the memory. What was enqueued before that has ended when the
   operation has. */
static void issue_in_part(on_device *d)
{
	enum { CHUNK = 1 << 17, CHUNKS = 3 };
	static atomic_bool let_go; /* the function may look at it when this one has returned */
	ddp_request *request;
	void *memory;

	test_ranks_together();
	CHECK_OK(ddp_device_alloc(d->device, CHUNKS * CHUNK * sizeof(float), &memory));
	CHECK_OK(ddp_device_fill(d->device, d->stream, memory, 0, CHUNKS * CHUNK * sizeof(float)));
	CHECK_OK(ddp_device_launch(d->device, d->stream, hold, &let_go));
	ddp_collective c = sum(d, (CHUNKS + 1) * CHUNK);
	c.recv = memory;
	ddp_status status = ddp_issue(d->comm, &c, &request);
	if (status == DDP_OK) {
		atomic_store(&let_go, true);
		status = ddp_wait(request);
	}
	CHECK(status == DDP_ERR_INVALID);
	CHECK(strstr(ddp_last_error(), "not all allocated") != NULL);
	CHECK_OK(ddp_device_free(d->device, memory));
	CHECK(ddp_barrier(d->comm) == DDP_ERR_INVALID);
	atomic_store(&let_go, true);
}

static void operations_on_a_device_fail_as_others_do(void **state)
{
	(void)state;
	run_staged(break_under_messages);
	run_staged(issue_in_part);
	run_both(abort_on_device);
	run_both(differ_on_device);
	run_both(close_under_a_receive);
}

/* For longer than what is open may take to end where other communicators use its connection
   (comm/net). */
enum { LONG_MS = 6000, LARGE = 8 << 20 };

static bool has_message(const ddp_comm *comm)
{
	bool found = false;

	for (int i = 0; i < DDP_TWINS; i++)
		found = found || (comm->twins.list[i] != NULL && ddp_p2p_pending(comm->twins.list[i]));
	return found;
}

/* Rank 0 closes a communicator with a message under way that nobody takes, the others much
   later. */
static void close_under_a_send(on_device *d)
{
	ddp_request *request;
	ddp_comm *part;
	void *memory;

	CHECK_OK(ddp_comm_split(d->comm, 0, 0, &part));
	ddp_collective c = sum(d, 4);
	CHECK_OK(ddp_run(part, &c));
	CHECK_OK(ddp_device_alloc(d->device, LARGE, &memory));
	if (d->rank == 0) {
		CHECK_OK(ddp_device_fill(d->device, d->stream, memory, 1, LARGE));
		c = message(d, DDP_SEND, 1, 0);
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
	run_on(two_nodes, close_under_a_send);
}

static int give_wrong_memory(ddp_comm *comm, void *nccl)
{
	float x = 1;
	ddp_collective c = { .kind = DDP_ALL_REDUCE, .recv = &x, .count = 1, .memory = DDP_MEMORY_DEVICE };
	on_device d;

	CHECK(ddp_run(comm, &c) == DDP_ERR_STATE);
	CHECK(strstr(ddp_last_error(), "ddp_options") != NULL);
	by_nccl = nccl != NULL;
	set_up(&d, comm, NULL);
	CHECK(ddp_run(comm, &c) == DDP_ERR_INVALID);
	CHECK(strstr(ddp_last_error(), "is not in the memory of the device test:0") != NULL);
	CHECK_OK(ddp_mem_free(comm, d.memory));
	return 0;
}

static void memory_of_the_host_is_refused(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++) {
		const test_world world = { .ranks = 3, .node_of = i < 2 ? NULL : two_nodes, .timeout_ms = 20000,
		                           .body = give_wrong_memory, .argument = i % 2 == 0 ? NULL : &by_nccl };
		assert_int_equal(test_world_run(&world), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(operations_agree_with_the_reference),
		cmocka_unit_test(queues_wait_for_operations_and_the_host_for_nothing),
		cmocka_unit_test(a_late_rank_finds_all_that_was_staged),
		cmocka_unit_test(receives_end_as_messages_come),
		cmocka_unit_test(an_operation_begins_behind_its_queue),
		cmocka_unit_test(a_message_to_oneself_needs_one_function_at_a_time),
		cmocka_unit_test(messages_pass_collectives),
		cmocka_unit_test(operations_on_a_device_fail_as_others_do),
		cmocka_unit_test(closing_leaves_connections_to_others),
		cmocka_unit_test(memory_of_the_host_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
