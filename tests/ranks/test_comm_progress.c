/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* What goes on beside an operation: the progress thread, other lanes, and the thread that follows the operations of a
   backend which does not compare what ranks issue. */
#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/follow.h"
#include "comm/request.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/hung.h"
#include "tests/support/test.h"

enum { OPERATIONS = 2000, DOZE_MS = 10, COUNT = 1 << 20 };

static const int two_nodes[] = { 0, 1, 1 };

static void run_both(int (*body)(ddp_comm *, void *))
{
	for (int layout = 0; layout < 2; layout++)
		RUN_WORLD(.ranks = 3, .node_of = layout == 0 ? NULL : two_nodes, .timeout_ms = 20000, .body = body);
}

/* ---- the progress thread ------------------------------------------------------------------ */

static long switches_of(const char *thread)
{
	char path[300], line[128];
	long sum = 0, number;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", thread);
	FILE *file = fopen(path, "r");
	while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
		const char *colon = strstr(line, "voluntary_ctxt_switches:");
		if (colon != NULL && sscanf(colon, "voluntary_ctxt_switches: %ld", &number) == 1)
			sum += number;
	}
	if (file != NULL)
		fclose(file);
	return sum;
}

/* How often all threads but the calling one were put on a core. */
static long switches_of_others(void)
{
	DIR *threads = opendir("/proc/self/task");
	const struct dirent *entry;
	long sum = 0;

	CHECK(threads != NULL);
	while ((entry = readdir(threads)) != NULL) {
		if (entry->d_name[0] != '.' && atol(entry->d_name) != syscall(SYS_gettid))
			sum += switches_of(entry->d_name);
	}
	closedir(threads);
	return sum;
}

static int reduce_often(ddp_comm *comm, void *argument)
{
	float x = 1;

	for (int i = 0; i < 10; i++)
		CHECK_OK(ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_MAX));
	long before = switches_of_others();
	uint64_t start = ddp_now_ns();
	for (int i = 0; i < OPERATIONS; i++)
		CHECK_OK(ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_MAX));
	long dozes = (long)(ddp_seconds_since(start) * 1000) / DOZE_MS + 1;
	long switches = switches_of_others() - before;
	if (switches > OPERATIONS / 4 + 4 * dozes)
		fprintf(stderr, "# %ld switches in %d operations, %ld dozes\n", switches, OPERATIONS, dozes);
	CHECK(switches <= OPERATIONS / 4 + 4 * dozes);
	return 0;
}

TEST_RUNS(messages_that_a_caller_waits_for_wake_no_other_thread,
          RUN_WORLD(.ranks = 2, .node_of = two_nodes, .body = reduce_often));

/* The link is taken for a slow one, so messages are coalesced although
   they have long come. */
static int reduce_over_slow_link(ddp_comm *comm, void *argument)
{
	const ddp_operation c = { .kind = DDP_ALL_REDUCE, .count = COUNT, .type = DDP_F32, .op = DDP_SUM };
	float *x = malloc(COUNT * sizeof(*x));

	CHECK(x != NULL);
	comm->hier.link = (ddp_link){ .measured = true, .byte_seconds = 1e-8, .chunk_bytes = 60 * 1024 };
	for (int round = 0; round < 5; round++) {
		ddp_operation operation = c;
		ddp_request *request;
		operation.recv = x;
		for (int i = 0; i < COUNT; i++)
			x[i] = (float)((i + round) % 1000 * (1 + ddp_comm_rank(comm)));
		CHECK_OK(ddp_issue(comm, &operation, &request));
		CHECK_OK(ddp_wait(request));
		for (int i = 0; i < COUNT; i++)
			CHECK(x[i] == (float)((i + round) % 1000 * 3));
	}
	free(x);
	return 0;
}

TEST_RUNS(messages_that_are_coalesced_come_right,
          RUN_WORLD(.ranks = 2, .node_of = two_nodes, .body = reduce_over_slow_link));

static atomic_bool coalesces;

/* Aborts when the main thread sleeps while it coalesces. */
static void *abort_coalescing(void *comm)
{
	while (!atomic_load(&coalesces))
		usleep(1000);
	test_await_state(getpid(), 'S');
	ddp_comm_abort(comm, "enough");
	return NULL;
}

static int abort_while_coalescing(ddp_comm *comm, void *argument)
{
	static const ddp_operation none = { .kind = DDP_BARRIER };
	uint64_t start = ddp_now_ns();
	ddp_transfer transfer;
	pthread_t thread;
	char byte;

	test_ranks_together(); /* one that still opened would hear of the abort there */
	if (ddp_comm_rank(comm) == 1) {
		CHECK(ddp_barrier(comm) == DDP_ERR_ABORTED);
		return 0;
	}
	CHECK(pthread_create(&thread, NULL, abort_coalescing, comm) == 0);
	pthread_mutex_lock(&comm->run.lock);
	comm->run.in_thread = true;
	comm->run.operation = &none;
	comm->run.deadline_ns = start + 60000000000;
	ddp_message_recv(comm, 1, ddp_message_tag(comm, 1), &byte, 1, &transfer);
	atomic_store(&coalesces, true);
	CHECK(ddp_await_transfers_coalescing(comm, &transfer, 1, 40000000000) == DDP_ERR_ABORTED);
	comm->run.in_thread = false;
	pthread_mutex_unlock(&comm->run.lock);
	CHECK(ddp_seconds_since(start) < 20);
	pthread_join(thread, NULL);
	return 0;
}

TEST_RUNS(abort_ends_coalescing, RUN_WORLD(.ranks = 2, .node_of = two_nodes, .body = abort_while_coalescing));

/* ---- operations that do not wait for each other -------------------------------------------- */

enum { LARGE = 1 << 20 };

static ddp_operation sum(float *x, size_t count, int lane)
{
	return (ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = x, .count = count, .lane = lane };
}

/* Rank 1 joins the large operation when it hears that rank 0 is through with the small ones. */
static int overtake(ddp_comm *comm, void *argument)
{
	float *large = calloc(LARGE, sizeof(*large)), small[DDP_LANES];
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	const ddp_operation slow = sum(large, LARGE, 0);
	ddp_request *request;
	bool done;

	CHECK(large != NULL);
	large[LARGE - 1] = 1;
	for (int lane = 0; lane < DDP_LANES; lane++) {
		small[lane] = (float)lane;
		CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = lane }));
	}
	if (rank != 1)
		CHECK_OK(ddp_issue(comm, &slow, &request));
	for (int lane = 1; lane < DDP_LANES; lane++) {
		const ddp_operation quick = sum(&small[lane], 1, lane);
		ddp_request *other;
		CHECK_OK(ddp_issue(comm, &quick, &other));
		CHECK_OK(ddp_wait(other));
		CHECK(small[lane] == (float)(lane * size));
		CHECK(test_lane_count(comm, lane) == 2); /* and a barrier */
	}
	const ddp_operation told = { .kind = rank == 0 ? DDP_SEND : DDP_RECV, .send = &rank, .recv = &rank,
	                              .count = 1, .type = DDP_I32, .root = rank == 0 ? 1 : 0, .lane = 1 };
	if (rank != 1) {
		CHECK_OK(ddp_test(request, &done));
		CHECK(!done);
	}
	if (rank < 2)
		CHECK_OK(ddp_run(comm, &told));
	if (ddp_comm_rank(comm) != 1)
		CHECK_OK(ddp_wait(request));
	else
		CHECK_OK(ddp_run(comm, &slow));
	CHECK(large[LARGE - 1] == (float)size && large[0] == 0);
	free(large);
	return 0;
}

TEST_RUNS(a_small_operation_overtakes_a_large_one, run_both(overtake));

/* ---- failing together ------------------------------------------------------------------------ */

static int abort_lanes(ddp_comm *comm, void *argument)
{
	float x[2] = { 1, 1 };
	const ddp_operation c[2] = { sum(&x[0], 1, 0), sum(&x[1], 1, 3) };
	ddp_request *requests[2];

	CHECK_OK(ddp_run(comm, &c[1]));
	CHECK(test_lane_count(comm, 3) == 1 && test_lane_count(comm, 1) == 0);
	for (int i = 0; i < 2 && ddp_comm_rank(comm) != 0; i++)
		CHECK_OK(ddp_issue(comm, &c[i], &requests[i]));
	test_ranks_together();
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_comm_abort(comm, "enough"));
		return 0;
	}
	for (int i = 1; i >= 0; i--) {
		CHECK_FAILS(ddp_wait(requests[i]), DDP_ERR_ABORTED, "enough");
	}
	return 0;
}

/* What goes wrong in one lane ends the communicator. */
static int differ_in_a_lane(ddp_comm *comm, void *argument)
{
	float x[4] = { 1 };
	const ddp_operation c = sum(x, ddp_comm_rank(comm) == 0 ? 1 : 2, 2);

	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 1 }));
	CHECK_OK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 2 }));
	CHECK(test_lane_count(comm, 1) == 1 && test_lane_count(comm, 2) == 1);
	test_ranks_together(); /* one that is still in it would hear of the difference there */
	CHECK(ddp_run(comm, &c) == DDP_ERR_MISMATCH);
	CHECK(ddp_barrier(comm) == DDP_ERR_MISMATCH);
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 1 }) == DDP_ERR_MISMATCH);
	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 3 }) == DDP_ERR_MISMATCH);
	return 0;
}

TEST(lanes_fail_together)
{
	run_both(abort_lanes);
	run_both(differ_in_a_lane);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static void use_a_new_lane(void *user, ddp_status status)
{
	ddp_comm *comm = ((void **)user)[0];

	CHECK_OK(status);
	CHECK_FAILS(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 1, .on_complete = use_a_new_lane },
	                      NULL), DDP_ERR_STATE, "the first operation of a lane");
	CHECK(sem_post(((void **)user)[1]) == 0);
}

static int give_wrong_lanes(ddp_comm *comm, void *argument)
{
	sem_t called;
	void *user[2] = { comm, &called };
	ddp_request *request;

	CHECK(ddp_run(comm, &(ddp_operation){ .kind = DDP_BARRIER, .stream = user }) == DDP_ERR_INVALID);
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER }, &request));
	CHECK(ddp_wait_on(request, NULL) == DDP_ERR_UNSUPPORTED);
	CHECK_OK(ddp_wait(request));
	CHECK(sem_init(&called, 0, 0) == 0);
	CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_BARRIER, .on_complete = use_a_new_lane,
	                                            .user = user }, NULL));
	CHECK(sem_wait(&called) == 0);
	return 0;
}

TEST_RUNS(wrong_lanes_are_refused, run_both(give_wrong_lanes));

/* ---- a backend that does not compare what ranks issue -------------------------------------- */

/* As a GPU's library is: its operations begin, and if ranks issue different ones they never
   end, until they are aborted. */
typedef struct endless {
	int issued, aborted;
	bool ends; /* or each ends at once */
} endless;

static ddp_status begin(void *self, ddp_request *request)
{
	((endless *)self)->issued++;
	return DDP_OK;
}

static ddp_status ask(void *self, ddp_request *request, bool *done)
{
	const endless *e = self;

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
		const ddp_operation c = { .kind = DDP_ALL_REDUCE, .recv = x,
		                           .count = rank == 0 && i == 2 && !*by_deadline ? 2 : 1 };
		CHECK_OK(ddp_request_make(comm, &c, false, &requests[i]));
		CHECK_OK(ddp_follower_issue(follower, requests[i]));
		if (i > 0)
			continue;
		CHECK_OK(ddp_wait_timed(requests[i], &start_ns, &end_ns));
		CHECK(start_ns >= before_ns && end_ns >= start_ns);
		e.ends = false;
		test_ranks_together(); /* one that still waits would hear of the difference there */
	}
	CHECK(e.issued == 3);
	const ddp_status expected = *by_deadline ? DDP_ERR_TIMEOUT : DDP_ERR_MISMATCH;
	for (int i = 1; i < 3; i++) {
		CHECK(ddp_wait(requests[i]) == expected);
		CHECK_SAYS(*by_deadline ? "all_reduce f32[1] sum was issued by all ranks, but did not end"
		                                            : "all_reduce f32[2] sum");
	}
	ddp_follower_close(follower);
	CHECK(e.aborted == 1);
	CHECK(ddp_barrier(comm) == expected);
	return 0;
}

TEST(operations_of_a_backend_that_does_not_compare_are_compared)
{
	/* Less, and a rank that a busy machine keeps waiting would be late for what is to end. */
	const int timeout_ms = 1000 * test_slowness();
	for (int by_deadline = 0; by_deadline < 2; by_deadline++)
		RUN_WORLD(.ranks = 3, .timeout_ms = timeout_ms, .body = follow_an_endless_backend, .argument = &by_deadline);
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

	if (refused)
		refuse_threads(true);
	CHECK_FAILS(ddp_follower_open(comm, &lane, &follower), DDP_ERR_NOMEM, "rank 1");
	CHECK_SAYS("start the thread that follows operations");
	if (refused)
		refuse_threads(false);
	CHECK_OK(ddp_follower_open(comm, &lane, &follower));
	ddp_follower_close(follower);
	return 0;
}

TEST_RUNS(followers_start_on_all_ranks_or_on_none, run_both(follow_without_a_thread));
