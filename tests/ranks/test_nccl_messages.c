/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* Messages on a GPU's memory, and how communicators of NCCL's end, over the stand-in for NCCL
   and the fake GPU; what needs no switch of the stand-in's, on a GPU, too (make check-gpu). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/nccl/abi.h"
#include "comm/nccl/handle.h"
#include "tests/device/fake_gpu.h"
#include "tests/support/device_ranks.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1 };

static void run_with(int (*body)(ddp_comm *, void *), void *argument)
{
	for (int nodes = 1; nodes <= 2; nodes++) {
		RUN_WORLD(.ranks = 2, .node_of = nodes == 2 ? two_nodes : NULL, .timeout_ms = 20000, .body = body,
		          .argument = argument);
	}
}

static void run_on_nodes(int (*body)(ddp_comm *, void *))
{
	run_with(body, NULL);
}

/* From rank 0 to rank 1. */
static ddp_operation message(const on_device *d, int tag)
{
	ddp_operation c = test_nccl_operation(d, d->rank == 0 ? DDP_SEND : DDP_RECV);

	c.send = c.recv;
	c.root = 1 - d->rank;
	c.tag = tag;
	return c;
}

/* Tags match in any order, as on the host, and queues wait for messages. */
static int exchange_by_tags(ddp_comm *comm, void *argument)
{
	ddp_request *requests[2];
	float host[TEST_NCCL_COUNT] = { 1, 2, 3, 4 };
	on_device d;

	test_nccl_set_up(&d, comm);
	if (d.nccl != NULL)
		d.nccl->polls = 2;
	if (d.rank == 0)
		CHECK_OK(ddp_device_copy(d.device, d.stream, d.memory, host, sizeof(host)));
	for (int i = 0; i < 2; i++) {
		ddp_operation c = test_nccl_operation(&d, d.rank == 0 ? DDP_SEND : DDP_RECV);
		c.send = c.recv = d.memory + i;
		c.root = 1 - d.rank;
		c.tag = d.rank == 0 ? i : 1 - i;
		CHECK_OK(ddp_issue(comm, &c, &requests[i]));
	}
	CHECK_OK(ddp_wait_on(requests[1], d.stream));
	CHECK_OK(ddp_wait_on(requests[0], d.stream));
	CHECK_OK(ddp_device_copy(d.device, d.stream, host, d.memory, sizeof(host)));
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	CHECK(d.rank == 0 || (host[0] == 2 && host[1] == 1));
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_wait(requests[i]));
	return 0;
}

static int differ_in_a_message(ddp_comm *comm, void *argument)
{
	on_device d;

	test_nccl_set_up(&d, comm);
	ddp_operation c = test_nccl_operation(&d, d.rank == 0 ? DDP_SEND : DDP_RECV);
	c.send = d.memory;
	c.root = 1 - d.rank;
	c.count = 1 + (size_t)d.rank;
	CHECK_FAILS(ddp_run(comm, &c), DDP_ERR_MISMATCH, "rank 0 on");
	return 0;
}

TEST(messages_match_by_tag)
{
	run_on_nodes(exchange_by_tags);
	run_on_nodes(differ_in_a_message);
}

/* Nobody has heard of it yet, so that it can be sent again. */
static int send_without_an_id(ddp_comm *comm, void *argument)
{
	on_device d;

	test_nccl_set_up(&d, comm);
	test_nccl_sum_once(&d);
	const ddp_operation c = message(&d, 0);
	if (d.rank == 0) {
		d.nccl->result = DDP_NCCL_INVALID_USAGE;
		d.nccl->failing = "ncclGetUniqueId";
		CHECK_FAILS(ddp_run(comm, &c), DDP_ERR_INVALID, "ncclGetUniqueId()");
		d.nccl->failing = NULL;
	}
	CHECK_OK(ddp_run(comm, &c));
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), a_message_that_gets_no_id_can_be_sent_again, run_on_nodes(send_without_an_id));

/* One side's queue has yet to come to the message: nothing is copied before. */
static int send_to_itself(ddp_comm *comm, void *argument)
{
	const bool late_send = argument != NULL;
	uint32_t got, want = late_send ? 0x11111111 : 0;
	atomic_bool go = false;
	ddp_device_queue *late;
	ddp_request *requests[2];
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK_OK(ddp_device_queue_create(d.device, DDP_DEVICE_NORMAL, &late));
	test_nccl_sum_once(&d);
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	CHECK_OK(ddp_device_launch(d.device, late, test_device_hold, &go));
	CHECK_OK(ddp_device_fill(d.device, late, d.memory + (late_send ? 0 : 1), 0x11, sizeof(float)));
	for (int i = 0; i < 2; i++) {
		ddp_operation c = test_nccl_operation(&d, i == 0 ? DDP_RECV : DDP_SEND);
		c.send = d.memory;
		c.recv = d.memory + 1;
		if ((i == 1) == late_send)
			c.stream = late;
		CHECK_OK(ddp_issue(comm, &c, &requests[i]));
	}
	usleep(20000);
	atomic_store(&go, true);
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_wait(requests[i]));
	CHECK_OK(ddp_device_copy(d.device, d.stream, &got, d.memory + 1, sizeof(got)));
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	CHECK(got == want);
	CHECK_OK(ddp_device_queue_free(d.device, late));
	return 0;
}

TEST(a_message_to_oneself_waits_for_both_sides)
{
	test_nccl_run(1, send_to_itself, NULL);
	test_nccl_run(1, send_to_itself, "late send");
}

/* ---- the end of a communicator ---------------------------------------------------------------- */

/* A collective and a message are on queues of the GPU, and stay there. */
static void hang_in_both(on_device *d, ddp_request *requests[static 2])
{
	const ddp_operation all = test_nccl_operation(d, DDP_ALL_REDUCE);
	ddp_operation one = message(d, 0);

	one.recv = d->memory + 1;
	one.send = one.recv;
	test_nccl_sum_once(d);
	atomic_store(&d->nccl->stuck, true);
	CHECK_OK(ddp_issue(d->comm, &all, &requests[0]));
	CHECK_OK(ddp_issue(d->comm, &one, &requests[1]));
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_wait_on(requests[i], d->stream));
	CHECK_OK(ddp_barrier(d->comm));
	test_ranks_together(); /* what follows ends what another may still be in */
}

static int abort_both(ddp_comm *comm, void *argument)
{
	ddp_request *requests[2];
	on_device d;

	test_nccl_set_up(&d, comm);
	hang_in_both(&d, requests);
	if (d.rank == 0)
		CHECK_OK(ddp_comm_abort(comm, "enough"));
	for (int i = 0; i < 2; i++)
		CHECK(ddp_wait(requests[i]) == DDP_ERR_ABORTED);
	CHECK(d.nccl->aborts == 2);
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), what_hangs_is_aborted_all_at_once, run_on_nodes(abort_both));

/* What an aborted operation has on queues may still wait for the program's: it ends behind that. */
static int abort_behind_a_queue(ddp_comm *comm, void *sends)
{
	static test_lingering lingering;
	ddp_request *request;
	on_device d;

	test_nccl_set_up(&d, comm);
	const ddp_operation c = *(const bool *)sends ? message(&d, 0) : test_nccl_operation(&d, DDP_ALL_REDUCE);
	test_nccl_sum_once(&d);
	atomic_store(&d.nccl->hasty, true);
	if (d.rank == 0)
		CHECK_OK(ddp_device_launch(d.device, d.stream, test_device_linger, &lingering));
	CHECK_OK(ddp_issue(comm, &c, &request));
	CHECK_OK(ddp_wait_on(request, d.stream));
	test_ranks_together();
	atomic_store(&lingering.goes_on, true);
	if (d.rank == 0)
		CHECK_OK(ddp_comm_abort(comm, "enough"));
	CHECK(ddp_wait(request) == DDP_ERR_ABORTED);
	CHECK(d.rank != 0 || test_device_lingered(&lingering));
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	return 0;
}

TEST_IF(!test_on_gpu(), what_is_aborted_ends_behind_the_programs_queue)
{
	for (int sends = 0; sends < 2; sends++)
		run_with(abort_behind_a_queue, &(bool){ sends == 1 });
}

/* NCCL tells an error of the message's communicator alone, while it is on its queue. */
static int fail_under_a_message(ddp_comm *comm, void *argument)
{
	ddp_request *requests[2];
	on_device d;

	test_nccl_set_up(&d, comm);
	hang_in_both(&d, requests);
	CHECK(d.nccl->made == 2);
	if (d.rank == 1) {
		atomic_store(&d.nccl->async_of, 2);
		atomic_store(&d.nccl->async, DDP_NCCL_INVALID_USAGE);
	}
	for (int i = 0; i < 2; i++) {
		CHECK_FAILS(ddp_wait(requests[i]), DDP_ERR_INVALID, "its communicator has failed");
	}
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), an_error_during_a_message_is_told, run_on_nodes(fail_under_a_message));

static void *go_on_later(void *stuck)
{
	usleep(1300000);
	atomic_store((atomic_bool *)stuck, false);
	return NULL;
}

/* Closing waits for a message of which both ranks know, however long it takes. */
static int close_under_a_slow_message(ddp_comm *comm, void *argument)
{
	const float seven = 7;
	float host = 0;
	ddp_request *request;
	pthread_t thread;
	ddp_comm *part;
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	const ddp_operation all = test_nccl_operation(&d, DDP_ALL_REDUCE), one = message(&d, 0);
	CHECK_OK(ddp_run(part, &all));
	if (d.rank == 0)
		CHECK_OK(ddp_device_copy(d.device, d.stream, d.memory, &seven, sizeof(seven)));
	atomic_store(&d.nccl->stuck, true);
	CHECK_OK(ddp_issue(part, &one, &request));
	CHECK_OK(ddp_wait_on(request, d.stream));
	CHECK_OK(ddp_barrier(comm));
	CHECK(pthread_create(&thread, NULL, go_on_later, &d.nccl->stuck) == 0);
	CHECK_OK(ddp_comm_free(part));
	CHECK_OK(ddp_wait(request));
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(d.nccl->aborts == 0);
	CHECK_OK(ddp_device_copy(d.device, d.stream, &host, d.memory, sizeof(host)));
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	CHECK(host == 7);
	return 0;
}

enum { MESSAGES = 12 };

static ddp_status (*ends)[MESSAGES]; /* [2], shared */

/* Ranks close while messages are matched, of which some never are. */
static int close_amid_messages(ddp_comm *comm, void *argument)
{
	const int received = *(const int *)argument;
	ddp_request *requests[MESSAGES];
	ddp_comm *part;
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	const ddp_operation all = test_nccl_operation(&d, DDP_ALL_REDUCE);
	const int count = d.rank == 0 ? MESSAGES : received;
	CHECK_OK(ddp_run(part, &all));
	for (int i = 0; i < count; i++) {
		ddp_operation c = message(&d, i);
		c.recv = d.memory + i % TEST_NCCL_COUNT;
		CHECK_OK(ddp_issue(part, &c, &requests[i]));
	}
	const uint64_t before_ns = ddp_now_ns();
	CHECK_OK(ddp_comm_free(part));
	CHECK(ddp_now_ns() - before_ns < 10000000000u); /* half the deadline */
	for (int i = 0; i < count; i++) {
		ends[d.rank][i] = ddp_wait(requests[i]);
		CHECK(ends[d.rank][i] == DDP_OK || test_says("had not met its counterpart"));
	}
	CHECK(d.nccl == NULL || d.nccl->aborts == 0);
	CHECK_OK(ddp_barrier(comm));
	for (int i = 0; i < MESSAGES; i++)
		CHECK(ends[0][i] == (i < received ? ends[1][i] : DDP_ERR_STATE));
	return 0;
}

static void note_end(void *argument, ddp_status status)
{
	*(ddp_status *)argument = status;
}

/* Rank 0 closes at once, and rank 1 when it has received all: of messages that rank 0 need
   not wait for, one has met its counterpart, and nobody looks after the other one but the
   closing. */
static int receive_from_a_rank_that_closes(ddp_comm *comm, void *argument)
{
	ddp_status status[2] = { DDP_ERR_STATE, DDP_OK };
	ddp_comm *part;
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	const ddp_operation all = test_nccl_operation(&d, DDP_ALL_REDUCE);
	CHECK_OK(ddp_run(part, &all));
	for (int i = 0; i < 2 - d.rank; i++) {
		ddp_operation c = message(&d, i);
		c.on_complete = d.rank == 0 ? note_end : NULL;
		c.user = &status[i];
		if (d.rank == 0)
			CHECK_OK(ddp_issue(part, &c, NULL));
		else if (usleep(100000) == 0) /* rank 0 is most likely closing by then */
			CHECK_OK(ddp_run(part, &c));
	}
	const uint64_t before_ns = ddp_now_ns();
	CHECK_OK(ddp_comm_free(part));
	CHECK(ddp_now_ns() - before_ns < 10000000000u); /* half the deadline */
	CHECK(d.rank == 1 || (status[0] == DDP_OK && status[1] == DDP_ERR_STATE));
	CHECK(d.nccl == NULL || d.nccl->aborts == 0);
	return 0;
}

TEST(closing_ends_messages_alike_on_both_ranks)
{
	if (!test_on_gpu())
		run_on_nodes(close_under_a_slow_message);
	run_on_nodes(receive_from_a_rank_that_closes);
	ends = test_share(2 * sizeof(*ends));
	for (int received = 0; received <= MESSAGES; received += 4)
		run_with(close_amid_messages, &received);
	test_unshare(ends, 2 * sizeof(*ends));
}

/* Closing goes on if calls fail by which NCCL's communicators end. */
static int fail_at_the_end(ddp_comm *comm, void *argument)
{
	static const char *const calls[] = { "ncclCommDeregister", "ncclRedOpDestroy", "ncclCommFinalize",
	                                     "ncclCommDestroy", "ncclCommAbort" };
	on_device d;

	test_nccl_set_up(&d, comm);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *memory;
		ddp_comm *part;
		CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
		CHECK_OK(ddp_mem_alloc_on(part, DDP_MEMORY_DEVICE, sizeof(float), &memory));
		const ddp_operation one = message(&d, 0);
		CHECK_OK(ddp_run(part, &one));
		ddp_operation all = test_nccl_operation(&d, DDP_ALL_REDUCE);
		all.scaled = true;
		all.scale = 2;
		d.nccl->result = DDP_NCCL_SYSTEM_ERROR;
		d.nccl->failing = calls[i];
		CHECK_OK(ddp_run(part, &all));
		CHECK_OK(ddp_mem_free(part, memory));
		CHECK_OK(ddp_barrier(comm)); /* what follows ends what others are in */
		const int aborts = d.nccl->aborts;
		if (i + 1 == sizeof(calls) / sizeof(calls[0]))
			CHECK_OK(ddp_comm_abort(part, "enough"));
		CHECK_OK(ddp_comm_free(part));
		d.nccl->failing = NULL;
		CHECK(d.nccl->aborts - aborts == (i == 2 || i == 4 ? 2 : 0));
	}
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), calls_that_fail_at_the_end_keep_nothing_open, run_on_nodes(fail_at_the_end));

/* ---- many ranks --------------------------------------------------------------------------------- */

/* At most so many ranks to an id. */
static int use_several_ids(ddp_comm *comm, void *argument)
{
	on_device d;

	ddp_nccl_ranks_per_id = *(const int *)argument;
	test_nccl_set_up(&d, comm);
	test_nccl_check_sum(&d, comm, d.memory, (float)(d.size * (d.size + 1) / 2));
	CHECK(d.nccl == NULL || (d.nccl->inits_by_ids == 1 && d.nccl->inits == 0));
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* One each, and two to an id, where the third rank makes a second one. */
TEST(many_ranks_meet_by_several_ids)
{
	for (int ranks = 2; ranks <= (test_on_gpu() ? 2 : 5); ranks++) {
		int to_an_id = ranks == 2 ? 1 : 2;
		test_nccl_run(ranks, use_several_ids, &to_an_id);
	}
}
