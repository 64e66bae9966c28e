/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; takes: 5 */
/* The backend for GPUs, over the stand-in for NCCL and the fake GPU; what needs no more than
   two ranks and no switch of the stand-in's, on a GPU, too (make check-gpu). */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/nccl/abi.h"
#include "comm/nccl/lane.h"
#include "comm/request.h"
#include "tests/device/fake_gpu.h"
#include "tests/support/comm_cases.h"
#include "tests/support/hung.h"
#include "tests/support/device_ranks.h"
#include "tests/support/test.h"

/* ---- against the reference ---------------------------------------------------------------- */

enum { BATCHES = 6 };

/* NCCL itself, by `make check-gpu`. */
static int run_on_gpu(ddp_comm *comm, void *argument)
{
	test_nccl_share_gpu(comm);
	return test_run_cases(comm, argument);
}

static test_cases cases(int polls)
{
	return (test_cases){ .seed = 9000, .batches = BATCHES, .most = 60000, .on_device = true, .nccl_polls = polls };
}

TEST(operations_agree_with_the_reference)
{
	static const int nodes[] = { 0, 1, 0 };

	for (int ranks = 1; ranks <= (test_on_gpu() ? 2 : 4); ranks++)
		assert_int_equal(test_run_world(cases(0), ranks, NULL, test_on_gpu() ? run_on_gpu : test_run_cases), 0);
	if (!test_on_gpu())
		assert_int_equal(test_run_world(cases(3), 3, nodes, test_run_cases), 0);
}

/* ---- which library -------------------------------------------------------------------------- */

/* Nothing else sums between ranks. */
static int go_without(ddp_comm *comm, void *argument)
{
	const char *const *words = argument;
	on_device d;

	test_nccl_set_up(&d, comm);
	if (words[0] != NULL)
		setenv("DDP_NCCL", words[0], 1);
	else if (d.rank == 1)
		d.nccl->version = 21703;
	CHECK_FAILS(test_nccl_sum(&d), DDP_ERR_UNSUPPORTED, "(cuda:0) need NCCL: ");
	CHECK_SAYS(words[0] == NULL && d.rank == 0 ? "rank 1 on" : words[1]);
	CHECK(d.nccl->inits == 0);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_IF(!test_on_gpu(), a_library_that_will_not_do_is_named)
{
	static const char *cases[][2] = {
		{ "/nowhere/libnccl.so.2", "NCCL does not load: /nowhere/libnccl.so.2" },
		{ "tests/support/.libs/module_of_another_version.so", "lacks ncclGetVersion" },
		{ NULL, "is NCCL 2.17.3, and libddp needs 2.27.3 or later" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		test_nccl_run(2, go_without, cases[i]);
}

static int compare_versions(ddp_comm *comm, void *argument)
{
	on_device d;

	test_nccl_set_up(&d, comm);
	d.nccl->version = d.rank == 0 ? 22809 : 22703;
	CHECK_FAILS(test_nccl_sum(&d), DDP_ERR_UNSUPPORTED, "from 2.27.3 to 2.28.9");
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), ranks_with_different_libraries_do_not_use_them, test_nccl_run(2, compare_versions, NULL));

/* ---- making communicators -------------------------------------------------------------------- */

static int be_late(ddp_comm *comm, void *argument)
{
	const test_world *world = argument;
	char words[80];
	on_device d;

	snprintf(words, sizeof(words), "NCCL made no communicator of 3 ranks within %d ms: rank 1 on", world->timeout_ms);
	test_nccl_set_up(&d, comm);
	d.nccl->polls = d.rank == 1 ? 1000000 : 0;
	CHECK_FAILS(test_nccl_sum(&d), DDP_ERR_TIMEOUT, words);
	CHECK(d.nccl->aborts == 1);
	/* The communicator goes on, and the lane may be opened again. */
	d.nccl->polls = 2;
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_IF(!test_on_gpu(), a_deadline_names_who_is_missing)
{
	/* Less, and another that a busy machine keeps waiting would be missing, too. */
	test_world world = { .ranks = 3, .timeout_ms = 700 * test_slowness(), .body = be_late };

	world.argument = &world;
	assert_int_equal(test_world_run(&world), 0);
}

static int limit_ctas(ddp_comm *comm, void *argument)
{
	ddp_comm *part;
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK_OK(test_nccl_sum(&d));
	CHECK(d.nccl->max_ctas == DDP_NCCL_UNSET && d.nccl->inits == 1);
	ddp_comm_limit_ctas(comm, 4);
	CHECK_OK(ddp_comm_split(comm, d.rank % 2, 0, &part));
	const ddp_operation c = test_nccl_operation(&d, DDP_ALL_REDUCE);
	CHECK_OK(ddp_run(part, &c));
	CHECK(d.nccl->max_ctas == 4 && d.nccl->inits == 2);
	CHECK_OK(ddp_comm_free(part));
	CHECK(d.nccl->ends == 1 && d.nccl->aborts == 0);
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), groups_have_communicators_of_their_own, test_nccl_run(3, limit_ctas, NULL));

/* ---- memory ------------------------------------------------------------------------------------ */

static _Thread_local bool fell_back;

static void note_fall_back(void *user, ddp_log_level level, const char *message)
{
	if (strstr(message, "memory is the device's instead") == NULL && strstr(message, "memory take a copy") == NULL)
		return;
	if (test_on_gpu())
		fprintf(stderr, "# %s\n", message);
	fell_back = true;
}

static int use_memory(ddp_comm *comm, void *argument)
{
	static const char *const failing[] = { NULL, "ncclCommRegister", "ncclMemAlloc" };
	float host[TEST_NCCL_COUNT];
	void *memory;
	on_device d;

	test_nccl_set_up(&d, comm);
	ddp_set_log(note_fall_back, NULL, DDP_LOG_DEBUG);
	for (int i = 0; i < (d.nccl != NULL ? 3 : 1); i++) {
		fell_back = false;
		if (d.nccl != NULL) {
			d.nccl->failing = d.rank == 0 ? failing[i] : NULL;
			d.nccl->result = DDP_NCCL_SYSTEM_ERROR;
		}
		CHECK_OK(ddp_mem_alloc_on(comm, DDP_MEMORY_DEVICE, sizeof(host), &memory));
		CHECK(fell_back == (d.rank == 0 && i > 0));
		CHECK(d.nccl == NULL || d.nccl->registered == (d.rank == 0 && i == 1 ? 0 : 1));
		CHECK(d.nccl == NULL || d.nccl->allocated == (d.rank == 0 && i == 2 ? 0 : 1));
		CHECK_OK(ddp_device_copy(d.device, d.stream, host, memory, sizeof(host)));
		CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
		for (int k = 0; k < TEST_NCCL_COUNT; k++)
			CHECK(host[k] == 0);
		test_nccl_check_sum(&d, comm, memory, d.size == 1 ? 1 : 3);
		CHECK_OK(ddp_mem_free(comm, memory));
		CHECK(d.nccl == NULL || (d.nccl->registered == 0 && d.nccl->allocated == 0));
	}
	if (d.nccl == NULL)
		return 0;
	d.nccl->failing = NULL;
	CHECK_OK(ddp_mem_alloc_on(comm, DDP_MEMORY_DEVICE, sizeof(host), &memory));
	d.nccl->failing = d.rank == 0 ? "ncclMemFree" : NULL;
	CHECK(ddp_mem_free(comm, memory) == (d.rank == 0 ? DDP_ERR_IO : DDP_OK));
	CHECK(d.rank != 0 || test_says("ncclMemFree()"));
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST(memory_is_registered_or_does_without)
{
	for (int ranks = 1; ranks <= 2; ranks++)
		test_nccl_run(ranks, use_memory, NULL);
}

/* ---- errors ------------------------------------------------------------------------------------------ */

typedef struct failure {
	const char *call;
	ddp_operation_kind kind;
	bool by_counts, scaled, at_opening;
	int other; /* the rank whose call does not fail */
} failure;

/* A rank's call fails: all ranks get the error, with the call. */
static int fail_a_call(ddp_comm *comm, void *argument)
{
	static const size_t counts[] = { 1, 1 };
	const failure *f = argument;
	on_device d;

	test_nccl_set_up(&d, comm);
	const bool fails = d.rank != f->other;
	if (!f->at_opening)
		test_nccl_sum_once(&d);
	d.nccl->result = DDP_NCCL_INVALID_USAGE;
	d.nccl->failing = fails ? f->call : NULL;
	ddp_operation c = test_nccl_operation(&d, f->kind);
	c.count = f->by_counts ? 0 : 1;
	c.counts = f->by_counts ? counts : NULL;
	c.scaled = f->scaled;
	c.scale = f->scaled ? 2 : 0;
	if (f->kind == DDP_SEND || f->kind == DDP_RECV) {
		c.kind = fails ? f->kind : f->kind == DDP_SEND ? DDP_RECV : DDP_SEND;
		c.send = d.memory;
		c.root = 1 - d.rank;
	}
	if (f->kind == DDP_ALL_TO_ALL) {
		c.send = d.memory + 2;
		c.counts = NULL;
		c.count = 1;
	}
	const ddp_status status = ddp_run(comm, &c);
	/* The other one may have done its part: what comes next fails, then. */
	CHECK(status == DDP_ERR_INVALID || (!fails && !f->at_opening && status == DDP_OK));
	if (!f->at_opening)
		CHECK(ddp_barrier(comm) == DDP_ERR_INVALID);
	if (fails || !f->at_opening)
		CHECK_SAYS(f->call);
	CHECK_SAYS(fails && f->at_opening ? "NCCL_DEBUG" : f->other == 0 ? "rank 1 on" : "rank 0 on");
	if (fails)
		CHECK_SAYS("what the stand-in says");
	if (f->at_opening)
		CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_IF(!test_on_gpu(), each_call_that_fails_is_named)
{
	static const failure cases[] = {
		{ "ncclGetUniqueId", DDP_ALL_REDUCE, false, false, true, 1 },
		{ "ncclCommInitRankConfig", DDP_ALL_REDUCE, false, false, true, 0 },
		{ "ncclAllReduce", DDP_ALL_REDUCE, false, false, false, 0 },
		{ "ncclRedOpCreatePreMulSum", DDP_ALL_REDUCE, false, true, false, 0 },
		{ "ncclReduce", DDP_REDUCE_SCATTER, true, false, false, 0 },
		{ "ncclReduceScatter", DDP_REDUCE_SCATTER, false, false, false, 0 },
		{ "ncclBroadcast", DDP_BROADCAST, false, false, false, 0 },
		{ "ncclAllGather", DDP_ALL_GATHER, false, false, false, 0 },
		{ "ncclGroupStart", DDP_ALL_GATHER, true, false, false, 0 },
		{ "ncclGroupEnd", DDP_ALL_TO_ALL, false, false, false, 0 },
		{ "ncclCommGetAsyncError", DDP_ALL_REDUCE, false, false, false, 0 },
		{ "ncclSend", DDP_SEND, false, false, false, 0 },
		{ "ncclRecv", DDP_RECV, false, false, false, 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		test_nccl_run(2, fail_a_call, (void *)(uintptr_t)&cases[i]);
}

/* NCCL sees only that somebody is gone; who it is, the communicator knows. */
static int lose_a_rank(ddp_comm *comm, void *argument)
{
	ddp_comm *survivors;
	ddp_request *request;
	on_device d;

	test_nccl_set_up(&d, comm);
	test_nccl_sum_once(&d);
	if (d.rank == 1)
		kill(getpid(), SIGKILL);
	const ddp_operation c = test_nccl_operation(&d, DDP_ALL_REDUCE);
	CHECK_OK(ddp_issue(comm, &c, &request));
	if (d.nccl != NULL)
		atomic_store(&d.nccl->async, DDP_NCCL_REMOTE_ERROR);
	CHECK_FAILS(ddp_wait(request), DDP_ERR_PEER, "rank 1 on");
	if (d.nccl != NULL)
		atomic_store(&d.nccl->async, DDP_NCCL_SUCCESS);
	CHECK_OK(ddp_comm_shrink(comm, &survivors));
	test_nccl_check_sum(&d, survivors, d.memory, d.size == 3 ? 1 + 3 : 1);
	CHECK_OK(ddp_comm_free(survivors));
	return 0;
}

TEST_RUNS(a_rank_that_died_is_named_and_left_out,
          RUN_WORLD(.ranks = test_on_gpu() ? 2 : 3, .timeout_ms = 20000, .body = lose_a_rank, .expect_deaths = true));

/* All ranks have issued what never ends then. */
static int lose_a_rank_of_an_operation(ddp_comm *comm, void *argument)
{
	ddp_request *request;
	on_device d;

	test_nccl_set_up(&d, comm);
	test_nccl_sum_once(&d);
	atomic_store(&d.nccl->stuck, true);
	const ddp_operation c = test_nccl_operation(&d, DDP_ALL_REDUCE);
	CHECK_OK(ddp_issue(comm, &c, &request));
	if (d.rank == 1) {
		usleep(200000);
		kill(getpid(), SIGKILL);
	}
	CHECK_FAILS(ddp_wait(request), DDP_ERR_PEER, "rank 1 on");
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), a_rank_that_died_in_an_operation_is_named,
             RUN_WORLD(.ranks = 3, .timeout_ms = 20000, .body = lose_a_rank_of_an_operation, .expect_deaths = true));

static int lose_the_network(ddp_comm *comm, void *argument)
{
	on_device d;

	test_nccl_set_up(&d, comm);
	test_nccl_sum_once(&d);
	atomic_store(&d.nccl->stuck, true);
	atomic_store(&d.nccl->async, DDP_NCCL_SYSTEM_ERROR);
	CHECK_FAILS(test_nccl_sum(&d), DDP_ERR_IO, "NCCL: its communicator has failed: unhandled system error");
	CHECK(d.nccl->aborts == 1);
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), what_nccl_tells_later_is_told, test_nccl_run(2, lose_the_network, NULL));

static void *abort_soon(void *comm)
{
	CHECK_OK(ddp_comm_abort(comm, "enough"));
	return NULL;
}

/* Rank 1 never issues it, so it stays on rank 0's queue. A communicator of NCCL's that is made
   after that works. */
static int abort_what_hangs(ddp_comm *comm, void *argument)
{
	const int who = *(const int *)argument;
	ddp_request *request;
	ddp_comm *again;
	pthread_t thread;
	on_device d;

	test_nccl_set_up(&d, comm);
	test_nccl_sum_once(&d);
	const ddp_operation c = test_nccl_operation(&d, DDP_ALL_REDUCE);
	if (d.rank == 0) {
		CHECK_OK(ddp_issue(comm, &c, &request));
		CHECK_OK(ddp_wait_on(request, d.stream));
	}
	test_ranks_together();
	if (d.rank == who) {
		CHECK(pthread_create(&thread, NULL, abort_soon, comm) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK_FAILS((d.rank == 0 ? ddp_wait(request) : ddp_barrier(comm)), DDP_ERR_ABORTED, "enough");
	CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
	CHECK(d.rank != 0 || d.nccl == NULL || d.nccl->aborts == 1);
	CHECK_OK(ddp_comm_shrink(comm, &again));
	test_nccl_check_sum(&d, again, d.memory, 1 + 2);
	CHECK_OK(ddp_comm_free(again));
	return 0;
}

TEST(what_hangs_ends_when_it_is_aborted)
{
	for (int who = 0; who < 2; who++)
		test_nccl_run(2, abort_what_hangs, &who);
}

static int hang(ddp_comm *comm, void *argument)
{
	on_device d;

	test_nccl_set_up(&d, comm);
	test_nccl_sum_once(&d);
	atomic_store(&d.nccl->stuck, true);
	CHECK_FAILS(test_nccl_sum(&d), DDP_ERR_TIMEOUT, "was issued by all ranks, but did not end within");
	return 0;
}

TEST_IF(!test_on_gpu(), what_hangs_is_late)
{
	/* What is to end before has as long. */
	RUN_WORLD(.ranks = 2, .timeout_ms = 1000 * test_slowness(), .body = hang);
}

/* ---- a device that is gone -------------------------------------------------------------------- */

/* As after a cudaDeviceReset(): NCCL is asked for nothing any more, also not to free. */
static int lose_its_device(ddp_comm *comm, void *argument)
{
	void *memory, *none = NULL;
	ddp_comm *part;
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	const ddp_operation all = test_nccl_operation(&d, DDP_ALL_REDUCE);
	CHECK_OK(ddp_run(part, &all));
	CHECK_OK(ddp_mem_alloc_on(part, DDP_MEMORY_DEVICE, sizeof(float), &memory));
	const int allocated = d.nccl->allocated;
	const ddp_nccl_lane *lane = part->lanes.of[DDP_MEMORY_DEVICE][0].self;
	const ddp_nccl *nccl = lane->nccl;
	ddp_nccl_handle *handle = lane->handle;
	test_fake_gpu()->failing = "cuCtxPushCurrent";
	CHECK_FAILS(ddp_mem_alloc_on(part, DDP_MEMORY_DEVICE, sizeof(float), &none), DDP_ERR_IO, "its context is gone");
	CHECK_FAILS(ddp_run(part, &all), DDP_ERR_IO, "its context is gone");
	CHECK(none == NULL && d.nccl->allocated == allocated && d.nccl->registered == 1);
	CHECK_OK(ddp_comm_free(part));
	CHECK(d.nccl->ends == 0 && d.nccl->aborts == 0);
	test_fake_gpu()->failing = NULL;
	(void)nccl->abort(handle); /* a reset takes it along; the stand-in's has to be freed */
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), nccl_is_not_called_for_a_device_that_is_gone, test_nccl_run(1, lose_its_device, NULL));

/* ---- how long --------------------------------------------------------------------------------- */

/* The first of two sums waits for rank 1, and the second one for the first. */
static int take_time(ddp_comm *comm, void *argument)
{
	ddp_request *requests[2];
	uint64_t start_ns[2], end_ns[2];
	on_device d;

	test_nccl_set_up(&d, comm);
	test_nccl_sum_once(&d);
	if (d.rank == 1)
		usleep((unsigned)test_slowness() * 300000);
	const uint64_t before_ns = ddp_now_ns();
	const ddp_operation sum = test_nccl_operation(&d, DDP_ALL_REDUCE);
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_issue(comm, &sum, &requests[i]));
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_wait_timed(requests[i], &start_ns[i], &end_ns[i]));
	for (int i = 0; i < 2; i++)
		CHECK(before_ns <= start_ns[i] && start_ns[i] <= end_ns[i] && end_ns[i] <= ddp_now_ns());
	if (d.rank == 0) {
		CHECK(end_ns[0] - start_ns[0] > 200000000);
		CHECK(end_ns[1] - start_ns[1] < (end_ns[0] - start_ns[0]) / 2);
	}
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), an_operation_lasts_as_long_as_on_the_device, test_nccl_run(2, take_time, NULL));
