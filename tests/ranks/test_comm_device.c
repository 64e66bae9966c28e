/* Operations on memory that the host cannot touch: that of the asynchronous test device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/follow.h"
#include "comm/p2p/p2p.h"
#include "comm/request.h"
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

static void run_cases(int ranks, const int *node_of)
{
	test_cases cases = { .seed = 7000u + (unsigned int)ranks, .batches = BATCHES, .most = 200000,
	                     .device = "test" };
	const char *seed = getenv("DDP_TEST_SEED"), *batches = getenv("DDP_TEST_BATCHES");
	const test_world world = { .ranks = ranks, .node_of = node_of, .body = test_run_cases,
	                           .argument = &cases };

	cases.seed += seed != NULL ? 1000u * (unsigned int)atoi(seed) : 0;
	cases.batches = batches != NULL ? atoi(batches) : BATCHES;
	if (test_world_run(&world) != 0)
		fail_msg("seed %u, %d ranks", cases.seed, ranks);
}

static void operations_agree_with_the_reference(void **state)
{
	static const int nodes[] = { 0, 1, 0 };

	(void)state;
	for (int ranks = 1; ranks <= 4; ranks++)
		run_cases(ranks, NULL);
	run_cases(3, nodes);
}

/* ---- a rank with a device ------------------------------------------------------------------ */

typedef struct on_device {
	ddp_comm *comm;
	ddp_device *device;
	ddp_device_queue *stream, *other;
	float *memory;
	float host[4]; /* what was read back */
} on_device;

static bool by_nccl; /* its stand-in, not by way of the host's memory */

static void set_up_with(on_device *d, ddp_comm *comm, const ddp_device_options *options)
{
	void *memory;

	*d = (on_device){ .comm = comm };
	CHECK_OK(ddp_device_open("test", options, &d->device));
	if (by_nccl)
		test_nccl_standin(d->device)->polls = 1;
	ddp_comm_use_device(comm, d->device);
	CHECK_OK(ddp_device_queue_create(d->device, DDP_DEVICE_NORMAL, &d->stream));
	CHECK_OK(ddp_device_queue_create(d->device, DDP_DEVICE_NORMAL, &d->other));
	CHECK_OK(ddp_mem_alloc_on(comm, DDP_MEMORY_DEVICE, sizeof(d->host), &memory));
	d->memory = memory;
}

static void set_up(on_device *d, ddp_comm *comm)
{
	set_up_with(d, comm, NULL);
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

static void run_with(int (*body)(ddp_comm *, void *), bool nccl)
{
	for (int layout = 0; layout < 2; layout++) {
		const test_world world = { .ranks = 3, .node_of = layout == 1 ? two_nodes : NULL,
		                           .timeout_ms = 20000, .body = body };
		by_nccl = nccl;
		assert_int_equal(test_world_run(&world), 0);
	}
	by_nccl = false;
}

static void run_staged(int (*body)(ddp_comm *, void *))
{
	run_with(body, false);
}

static void run_both(int (*body)(ddp_comm *, void *))
{
	run_with(body, false);
	run_with(body, true);
}

/* ---- the host waits for nothing ------------------------------------------------------------ */

static void count_call(void *user, ddp_status status)
{
	CHECK_OK(status);
	atomic_fetch_add((atomic_int *)user, 1);
}

/* Rank 1 comes when rank 0 has enqueued all that is to follow. */
static int enqueue_ahead(ddp_comm *comm, void *argument)
{
	static const float ones[4] = { 1, 1, 1, 1 };
	const int size = ddp_comm_size(comm);
	atomic_int calls = 0;
	on_device d;
	ddp_request *requests[2];
	char word = 'w';
	bool done;

	(void)argument;
	set_up(&d, comm);
	read_back(&d);
	for (int i = 0; i < 4; i++)
		CHECK(d.host[i] == 0);
	if (ddp_comm_rank(comm) == 1)
		CHECK_OK(ddp_recv(comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_device_copy(d.device, d.stream, d.memory, ones, sizeof(ones)));
	for (int i = 0; i < 2; i++) {
		ddp_collective c = sum(&d, 4);
		c.on_complete = count_call;
		c.user = &calls;
		CHECK_OK(ddp_issue(comm, &c, &requests[i]));
		CHECK_OK(ddp_wait_on(requests[i], d.stream));
	}
	CHECK_OK(ddp_wait_on(requests[1], d.other));
	CHECK_OK(ddp_device_copy(d.device, d.other, d.host, d.memory, sizeof(d.host)));
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_test(requests[0], &done));
		CHECK(!done && atomic_load(&calls) == 0);
		CHECK_OK(ddp_send(comm, &word, 1, DDP_U8, 1, 0));
	}
	CHECK_OK(ddp_device_queue_sync(d.device, d.other));
	for (int i = 0; i < 4; i++)
		CHECK(d.host[i] == (float)(size * size));
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_wait(requests[i]));
	CHECK(atomic_load(&calls) == 2);
	CHECK_OK(ddp_mem_free(comm, d.memory));
	return 0;
}

static void queues_wait_for_operations_and_the_host_for_nothing(void **state)
{
	(void)state;
	run_both(enqueue_ahead);
}

/* An operation of many chunks, for which a rank comes late: what is staged for the first of
   them stays until they have been combined. */
enum { MANY = 12 << 17 };

static int come_late(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	float *values = malloc(MANY * sizeof(*values));
	ddp_request *request;
	char word = 'w';
	void *memory;
	on_device d;

	(void)argument;
	set_up(&d, comm);
	CHECK(values != NULL);
	for (size_t i = 0; i < MANY; i++)
		values[i] = (float)(i >> 10);
	CHECK_OK(ddp_device_alloc(d.device, MANY * sizeof(*values), &memory));
	CHECK_OK(ddp_device_copy(d.device, d.stream, memory, values, MANY * sizeof(*values)));
	ddp_collective c = sum(&d, MANY);
	c.recv = memory;
	if (rank == 1)
		CHECK_OK(ddp_recv(comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_issue(comm, &c, &request));
	if (rank == 0) {
		/* Time enough for a queue that runs ahead to do harm; a right one needs none. */
		usleep(30000);
		CHECK_OK(ddp_send(comm, &word, 1, DDP_U8, 1, 0));
	}
	CHECK_OK(ddp_wait_on(request, d.other));
	CHECK_OK(ddp_device_copy(d.device, d.other, values, memory, MANY * sizeof(*values)));
	CHECK_OK(ddp_device_queue_sync(d.device, d.other));
	for (size_t i = 0; i < MANY; i++)
		CHECK(values[i] == (float)((int)(i >> 10) * size));
	CHECK_OK(ddp_wait(request));
	free(values);
	return 0;
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

/* Rank 1 waits for the second of two messages, and only then is the first one sent, and does
   rank 0 come to the collective that was issued before both. */
static int receive_as_it_comes(ddp_comm *comm, void *argument)
{
	const bool by_queue = *(const bool *)argument;
	const int rank = ddp_comm_rank(comm);
	ddp_request *requests[3];
	atomic_int calls = 0;
	char word = 'w';
	on_device d;

	set_up(&d, comm);
	const ddp_collective all = sum(&d, 1);
	if (rank == 0) {
		send_from_device(&d, 2);
		CHECK_OK(ddp_recv(comm, &word, 1, DDP_U8, 1, 0));
		send_from_device(&d, 1);
	}
	if (rank != 1) {
		CHECK_OK(ddp_run(comm, &all));
		return 0;
	}
	CHECK_OK(ddp_issue(comm, &all, &requests[0]));
	for (int tag = 1; tag <= 2; tag++) {
		ddp_collective c = message(&d, DDP_RECV, 0, tag);
		c.on_complete = count_call;
		c.user = &calls;
		CHECK_OK(ddp_issue(comm, &c, &requests[tag]));
	}
	if (by_queue) {
		CHECK_OK(ddp_wait_on(requests[1], d.stream));
		CHECK_OK(ddp_wait_on(requests[2], d.other));
		CHECK_OK(ddp_device_copy(d.device, d.other, d.host, d.memory + 2, sizeof(float)));
		CHECK_OK(ddp_device_queue_sync(d.device, d.other));
		CHECK(d.host[0] == 2);
		CHECK_OK(ddp_send(comm, &word, 1, DDP_U8, 0, 0));
	}
	CHECK_OK(ddp_wait(requests[2]));
	CHECK(by_queue || atomic_load(&calls) == 1);
	if (!by_queue)
		CHECK_OK(ddp_send(comm, &word, 1, DDP_U8, 0, 0));
	CHECK_OK(ddp_wait(requests[1]));
	CHECK_OK(ddp_wait(requests[0]));
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	read_back(&d);
	CHECK(d.host[1] == 1 && d.host[2] == 2);
	return 0;
}

static void receives_end_as_messages_come(void **state)
{
	static bool by_queue[] = { false, true };

	(void)state;
	for (int i = 0; i < 4; i++) {
		const test_world world = { .ranks = 3, .node_of = i < 2 ? NULL : two_nodes, .timeout_ms = 20000,
		                           .body = receive_as_it_comes, .argument = &by_queue[i % 2] };
		assert_int_equal(test_world_run(&world), 0);
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
	set_up_with(&d, comm, &options);
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
static int send_behind_a_collective(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm);
	ddp_request *request;
	on_device d;

	(void)argument;
	set_up(&d, comm);
	const ddp_collective all = sum(&d, 1);
	ddp_collective one = sum(&d, 1);
	one.kind = rank == 0 ? DDP_SEND : DDP_RECV;
	one.send = one.recv = d.memory + 1;
	one.root = 1 - rank;
	if (rank == 1)
		CHECK_OK(ddp_run(comm, &one));
	CHECK_OK(ddp_issue(comm, &all, &request));
	if (rank == 0)
		CHECK_OK(ddp_run(comm, &one));
	CHECK_OK(ddp_wait(request));
	return 0;
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

static int take_times(ddp_comm *comm, void *argument)
{
	on_device d;

	(void)argument;
	set_up(&d, comm);
	ddp_collective c = sum(&d, 4);
	check_times(&d, &c);
	c.kind = DDP_BARRIER;
	check_times(&d, &c);
	/* From each rank to the next. */
	if (ddp_comm_rank(comm) < 2) {
		c.kind = DDP_SEND;
		c.send = d.memory;
		c.recv = NULL;
		c.root = ddp_comm_rank(comm) + 1;
		check_times(&d, &c);
	}
	if (ddp_comm_rank(comm) > 0) {
		c.kind = DDP_RECV;
		c.send = NULL;
		c.recv = d.memory;
		c.root = ddp_comm_rank(comm) - 1;
		check_times(&d, &c);
	}
	CHECK_OK(ddp_mem_free(comm, d.memory));
	return 0;
}

static void an_operation_begins_behind_its_queue(void **state)
{
	(void)state;
	run_both(take_times);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static int abort_on_device(ddp_comm *comm, void *argument)
{
	on_device d;
	ddp_request *request;
	char word = 'w';

	(void)argument;
	set_up(&d, comm);
	const ddp_collective c = sum(&d, 4);
	CHECK_OK(ddp_run(comm, &c));
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_recv(comm, &word, 1, DDP_U8, 1, 0));
		CHECK_OK(ddp_comm_abort(comm, "enough"));
		return 0;
	}
	CHECK_OK(ddp_issue(comm, &c, &request));
	CHECK_OK(ddp_wait_on(request, d.stream));
	/* Between nodes, rank 0 may have it, and abort, before the send is complete here. */
	if (ddp_comm_rank(comm) == 1) {
		const ddp_status sent = ddp_send(comm, &word, 1, DDP_U8, 0, 0);
		CHECK(sent == DDP_OK || sent == DDP_ERR_ABORTED);
	}
	CHECK(ddp_wait(request) == DDP_ERR_ABORTED);
	CHECK(strstr(ddp_last_error(), "enough") != NULL);
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	return 0;
}

static int differ_on_device(ddp_comm *comm, void *argument)
{
	on_device d;

	(void)argument;
	set_up(&d, comm);
	const ddp_collective c = sum(&d, ddp_comm_rank(comm) == 0 ? 1 : 2);
	CHECK(ddp_run(comm, &c) == DDP_ERR_MISMATCH);
	CHECK(ddp_barrier(comm) == DDP_ERR_MISMATCH);
	return 0;
}

/* A message that nobody sends ends with the communicator. */
static int close_under_a_receive(ddp_comm *comm, void *argument)
{
	ddp_request *request;
	ddp_comm *part;
	on_device d;

	(void)argument;
	set_up(&d, comm);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	ddp_collective c = sum(&d, 4);
	CHECK_OK(ddp_run(part, &c));
	c.kind = DDP_RECV;
	c.root = ddp_comm_rank(comm);
	c.tag = 3;
	CHECK_OK(ddp_issue(part, &c, &request));
	CHECK_OK(ddp_barrier(comm));
	CHECK_OK(ddp_comm_free(part));
	CHECK(ddp_wait(request) == DDP_ERR_STATE);
	CHECK(strstr(ddp_last_error(), "recv") != NULL);
	return 0;
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
static int break_under_messages(ddp_comm *comm, void *argument)
{
	atomic_bool let_go = false;
	ddp_request *requests[3];
	on_device d;

	(void)argument;
	set_up(&d, comm);
	ddp_collective c = sum(&d, 1);
	CHECK_OK(ddp_run(comm, &c));
	test_ranks_together();
	if (ddp_comm_rank(comm) != 1) {
		CHECK(ddp_barrier(comm) == DDP_ERR_STATE);
		CHECK(strstr(ddp_last_error(), "rank 1") != NULL && strstr(ddp_last_error(), "is broken") != NULL);
		return 0;
	}
	for (int i = 0; i < 2; i++) {
		c = message(&d, DDP_RECV, 0, 1 + i);
		CHECK_OK(ddp_issue(comm, &c, &requests[i]));
	}
	CHECK_OK(ddp_wait_on(requests[1], d.other));
	CHECK_OK(ddp_device_launch(d.device, d.stream, hold, &let_go));
	c = message(&d, DDP_SEND, 0, 3);
	CHECK_OK(ddp_issue(comm, &c, &requests[2]));
	break_device(&d);
	atomic_store(&let_go, true);
	for (int i = 0; i < 3; i++) {
		CHECK(ddp_wait(requests[i]) == DDP_ERR_STATE);
		CHECK(strstr(ddp_last_error(), "is broken") != NULL);
	}
	CHECK_OK(ddp_device_queue_free(d.device, d.other));
	return 0;
}

/* Its last chunk is beyond the memory. What was enqueued before that has ended when the
   operation has. */
static int issue_in_part(ddp_comm *comm, void *argument)
{
	enum { CHUNK = 1 << 17, CHUNKS = 3 };
	atomic_bool let_go = false;
	ddp_request *request;
	void *memory;
	on_device d;

	(void)argument;
	set_up(&d, comm);
	test_ranks_together();
	CHECK_OK(ddp_device_alloc(d.device, CHUNKS * CHUNK * sizeof(float), &memory));
	CHECK_OK(ddp_device_fill(d.device, d.stream, memory, 0, CHUNKS * CHUNK * sizeof(float)));
	CHECK_OK(ddp_device_launch(d.device, d.stream, hold, &let_go));
	ddp_collective c = sum(&d, (CHUNKS + 1) * CHUNK);
	c.recv = memory;
	ddp_status status = ddp_issue(comm, &c, &request);
	if (status == DDP_OK) {
		atomic_store(&let_go, true);
		status = ddp_wait(request);
	}
	CHECK(status == DDP_ERR_INVALID);
	CHECK(strstr(ddp_last_error(), "not all allocated") != NULL);
	CHECK_OK(ddp_device_free(d.device, memory));
	CHECK(ddp_barrier(comm) == DDP_ERR_INVALID);
	atomic_store(&let_go, true);
	return 0;
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
static int close_under_a_send(ddp_comm *comm, void *argument)
{
	ddp_request *request;
	ddp_comm *part;
	void *memory;
	on_device d;

	(void)argument;
	set_up(&d, comm);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	ddp_collective c = sum(&d, 4);
	CHECK_OK(ddp_run(part, &c));
	CHECK_OK(ddp_device_alloc(d.device, LARGE, &memory));
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_device_fill(d.device, d.stream, memory, 1, LARGE));
		c = message(&d, DDP_SEND, 1, 0);
		c.send = memory;
		c.count = LARGE;
		c.type = DDP_U8;
		CHECK_OK(ddp_issue(part, &c, &request));
		while (!has_message(part))
			usleep(1000);
	}
	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) != 0)
		usleep(LONG_MS * 1000);
	CHECK_OK(ddp_comm_free(part));
	/* UCX calls a send complete whose receiver, which may be through with closing before
	   this rank is, drops it. */
	if (ddp_comm_rank(comm) == 0) {
		const ddp_status status = ddp_wait(request);
		CHECK(status == DDP_ERR_STATE || status == DDP_OK);
	}
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

static void closing_leaves_connections_to_others(void **state)
{
	const test_world world = { .ranks = 3, .node_of = two_nodes, .timeout_ms = 20000,
	                           .body = close_under_a_send };

	(void)state;
	assert_int_equal(test_world_run(&world), 0);
}

static int give_wrong_memory(ddp_comm *comm, void *argument)
{
	float x = 1;
	ddp_collective c = { .kind = DDP_ALL_REDUCE, .recv = &x, .count = 1, .memory = DDP_MEMORY_DEVICE };
	on_device d;

	(void)argument;
	CHECK(ddp_run(comm, &c) == DDP_ERR_STATE);
	CHECK(strstr(ddp_last_error(), "ddp_options") != NULL);
	set_up(&d, comm);
	CHECK(ddp_run(comm, &c) == DDP_ERR_INVALID);
	CHECK(strstr(ddp_last_error(), "is not in the memory of the device test:0") != NULL);
	CHECK_OK(ddp_mem_free(comm, d.memory));
	return 0;
}

static void memory_of_the_host_is_refused(void **state)
{
	(void)state;
	run_both(give_wrong_memory);
}

/* ---- a backend that does not compare ------------------------------------------------------- */

/* As a GPU's library is: its operations begin, and if ranks issue different ones they never
   end, until they are aborted. */
typedef struct endless {
	int issued, aborted;
	bool ends; /* or each ends at once */
} endless;

static ddp_status begin(void *self, ddp_request *request)
{
	(void)request;
	((endless *)self)->issued++;
	return DDP_OK;
}

static ddp_status ask(void *self, ddp_request *request, bool *done)
{
	const endless *e = self;

	(void)request;
	*done = e->aborted > 0 || e->ends;
	return e->aborted > 0 ? ddp_fail(DDP_ERR_INTERNAL, "aborted") : DDP_OK;
}

static void end_all(void *self)
{
	((endless *)self)->aborted++;
}

static const ddp_backend endless_backend = { .name = "endless", .issue = begin, .poll = ask, .abort = end_all };

/* Different operations are found out beside them, and what never ends is late. */
static int follow_an_endless_backend(ddp_comm *comm, void *argument)
{
	const int *by_deadline = argument;
	const int rank = ddp_comm_rank(comm);
	endless e = { .ends = true };
	const ddp_lane lane = { .backend = &endless_backend, .self = &e };
	struct ddp_follower *follower;
	ddp_request *requests[3];
	const uint64_t before_ns = ddp_now_ns();
	uint64_t start_ns = 0, end_ns = 0;
	float x[2];

	CHECK_OK(ddp_follower_open(comm, &lane, &follower));
	for (int i = 0; i < 3; i++) {
		const ddp_collective c = { .kind = DDP_ALL_REDUCE, .recv = x,
		                           .count = rank == 0 && i == 2 && !*by_deadline ? 2 : 1 };
		CHECK_OK(ddp_request_make(comm, &c, false, &requests[i]));
		CHECK_OK(ddp_follower_issue(follower, requests[i]));
		if (i > 0)
			continue;
		CHECK_OK(ddp_wait_timed(requests[i], &start_ns, &end_ns));
		CHECK(start_ns >= before_ns && end_ns >= start_ns);
		e.ends = false;
	}
	CHECK(e.issued == 3);
	const ddp_status expected = *by_deadline ? DDP_ERR_TIMEOUT : DDP_ERR_MISMATCH;
	for (int i = 1; i < 3; i++) {
		CHECK(ddp_wait(requests[i]) == expected);
		CHECK(strstr(ddp_last_error(), *by_deadline ? "all_reduce f32[1] sum was issued by all ranks, but did not end"
		                                            : "all_reduce f32[2] sum") != NULL);
	}
	ddp_follower_close(follower);
	CHECK(e.aborted == 1);
	CHECK(ddp_barrier(comm) == expected);
	return 0;
}

static void operations_of_a_backend_that_does_not_compare_are_compared(void **state)
{
	(void)state;
	for (int by_deadline = 0; by_deadline < 2; by_deadline++) {
		const test_world world = { .ranks = 3, .timeout_ms = 1000, .body = follow_an_endless_backend,
		                           .argument = &by_deadline };
		assert_int_equal(test_world_run(&world), 0);
	}
}

/* No thread starts with a stack that is larger than the address space. */
static void refuse_threads(bool refuse)
{
	static size_t usual;
	pthread_attr_t attributes;

	CHECK(pthread_getattr_default_np(&attributes) == 0);
	if (refuse)
		CHECK(pthread_attr_getstacksize(&attributes, &usual) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, refuse ? (size_t)1 << 50 : usual) == 0);
	CHECK(pthread_setattr_default_np(&attributes) == 0);
	CHECK(pthread_attr_destroy(&attributes) == 0);
}

/* If a rank cannot follow, none does; then all can. */
static int follow_without_a_thread(ddp_comm *comm, void *argument)
{
	endless e = { .ends = true };
	const ddp_lane lane = { .backend = &endless_backend, .self = &e };
	const bool refused = ddp_comm_rank(comm) == 1;
	struct ddp_follower *follower;

	(void)argument;
	if (refused)
		refuse_threads(true);
	CHECK(ddp_follower_open(comm, &lane, &follower) == DDP_ERR_NOMEM);
	CHECK(strstr(ddp_last_error(), "rank 1") != NULL);
	CHECK(strstr(ddp_last_error(), "start the thread that follows operations") != NULL);
	if (refused)
		refuse_threads(false);
	CHECK_OK(ddp_follower_open(comm, &lane, &follower));
	ddp_follower_close(follower);
	return 0;
}

static void followers_start_on_all_ranks_or_on_none(void **state)
{
	(void)state;
	run_both(follow_without_a_thread);
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
		cmocka_unit_test(operations_of_a_backend_that_does_not_compare_are_compared),
		cmocka_unit_test(followers_start_on_all_ranks_or_on_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
