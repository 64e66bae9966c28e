/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; needs: UCX; takes: 13 */
/* The network between nodes: what it never touches, and whose end it must not overlook, also while ranks connect. */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/net/net.h"
#include "comm/net/ucx.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1 }, three_nodes[] = { 0, 1, 2 };

static void run(int timeout_ms, int (*body)(ddp_comm *, void *), void *argument)
{
	RUN_WORLD(.ranks = 2, .node_of = two_nodes, .timeout_ms = timeout_ms, .body = body, .argument = argument,
	          .expect_deaths = true);
}

static pid_t pid_of(const ddp_comm *comm, int rank)
{
	return (pid_t)comm->roster->peers[comm->topology.world_ranks[rank]].pid;
}

/* ---- memory after an error -------------------------------------------------------- */

enum {
	LARGE = 32 << 20, /* many times what sockets hold */
	TRIES = 100,      /* until a message is caught under way */
};

static unsigned char *map_large(void)
{
	unsigned char *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

/* Until one fails. The receiver may look too late at some of them. */
static void send_large(ddp_comm *comm)
{
	unsigned char *memory = map_large();
	ddp_status status = DDP_OK;

	memset(memory, 1, LARGE);
	for (int i = 0; i < TRIES && status == DDP_OK; i++)
		status = ddp_send(comm, memory, LARGE, DDP_U8, 0, 0);
	munmap(memory, LARGE); /* UCX has let go of it */
	if (status == DDP_OK)
		status = ddp_barrier(comm);
	CHECK(status != DDP_OK);
}

/* Looks into a buffer that a message comes into: a race, and meant to be one. */
__attribute__((no_sanitize("thread"))) static bool wait_for_first_byte(const volatile unsigned char *memory,
                                                                      ddp_request *request)
{
	bool done = false;

	while (*memory == 0 && !done)
		CHECK_OK(ddp_test(request, &done));
	return !done;
}

/* A message that is under way. */
typedef struct large {
	unsigned char *memory; /* [LARGE] */
	ddp_request *request;
} large;

/* Rank 1's, of which the first byte is there; then its sender is stopped. */
static large receive_and_stop(ddp_comm *comm, pid_t sender)
{
	large l = { .memory = map_large() };
	const ddp_operation receive = { .kind = DDP_RECV, .recv = l.memory, .count = LARGE,
	                                 .type = DDP_U8, .root = 1 };

	for (int i = 0; i < TRIES; i++) {
		CHECK_OK(ddp_issue(comm, &receive, &l.request));
		if (wait_for_first_byte(l.memory, l.request)) {
			kill(sender, SIGSTOP);
			return l;
		}
		l.memory[0] = 0;
	}
	test_check_failed(__FILE__, __LINE__, "a message was caught under way");
	return l;
}

static void end_large(large l)
{
	(void)ddp_wait(l.request);
	munmap(l.memory, LARGE);
}

/* Aborts in the middle of a message whose sender is stopped; what that sends
   when it goes on must not come to the buffer any more. */
static int abandon_large(ddp_comm *comm, void *argument)
{
	ddp_comm *rest = NULL;

	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 1) {
		send_large(comm);
		if (ddp_comm_shrink(comm, &rest) == DDP_OK)
			CHECK_OK(ddp_comm_free(rest));
		return 0;
	}
	const large l = receive_and_stop(comm, pid_of(comm, 1));
	CHECK_OK(ddp_comm_abort(comm, "the test wants it"));
	uint64_t start = ddp_now_ns();
	(void)ddp_wait(l.request);
	CHECK(ddp_seconds_since(start) < 10);
	memset(l.memory, 0x55, LARGE);
	kill(pid_of(comm, 1), SIGCONT);
	if (ddp_comm_shrink(comm, &rest) == DDP_OK)
		CHECK_OK(ddp_comm_free(rest));
	for (size_t i = 0; i < LARGE; i++)
		CHECK(l.memory[i] == 0x55);
	munmap(l.memory, LARGE);
	return 0;
}

TEST(memory_is_left_alone_after_an_error)
{
	for (int i = 0; i < 3; i++)
		run(0, abandon_large, NULL);
}

enum { STOPPED_MS = 6000 };

static void *go_on_later(void *pid)
{
	usleep(STOPPED_MS * 1000);
	kill(*(pid_t *)pid, SIGCONT);
	return NULL;
}

/* The same in a group, while the sender is stopped for a while: the world still waits for
   it, and so does not lose it. */
static int abandon_large_of_a_group(ddp_comm *comm, void *argument)
{
	ddp_comm *group;
	pthread_t thread;

	CHECK_OK(ddp_comm_split(comm, 0, ddp_comm_rank(comm), &group));
	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 1) {
		send_large(group);
	} else {
		pid_t sender = pid_of(comm, 1);
		const large l = receive_and_stop(group, sender);
		CHECK(pthread_create(&thread, NULL, go_on_later, &sender) == 0);
		CHECK_OK(ddp_comm_abort(group, "the test wants it"));
		end_large(l);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK_OK(ddp_barrier(comm));
	CHECK_OK(ddp_comm_free(group));
	return 0;
}

TEST_RUNS(rank_that_is_stopped_for_a_while_is_not_cut_off, run(0, abandon_large_of_a_group, NULL));

enum { PAUSED_TIMEOUT_MS = 8000 };

/* Rank 0 waits for the end of a message that was under way, and is stopped itself for longer
   than it may wait: as long as it did not run, it did not wait. */
static int drain_with_a_pause(ddp_comm *comm, void *argument)
{
	ddp_comm *group;
	char byte = 0;
	const int rank = ddp_comm_rank(comm);

	CHECK_OK(ddp_comm_split(comm, rank == 2, rank, &group));
	CHECK_OK(ddp_barrier(comm));
	if (rank == 0) {
		const large l = receive_and_stop(group, pid_of(comm, 1));
		CHECK_OK(ddp_comm_abort(group, "the test wants it"));
		CHECK_OK(ddp_send(comm, &byte, 1, DDP_U8, 2, 0));
		end_large(l);
	} else if (rank == 1) {
		send_large(group);
	} else {
		CHECK_OK(ddp_recv(comm, &byte, 1, DDP_U8, 0, 0));
		usleep(200 * 1000); /* so that it waits by now */
		kill(pid_of(comm, 0), SIGSTOP);
		usleep((PAUSED_TIMEOUT_MS / 2 + 500) * 1000);
		kill(pid_of(comm, 0), SIGCONT);
		kill(pid_of(comm, 1), SIGCONT);
	}
	CHECK_OK(ddp_barrier(comm));
	CHECK_OK(ddp_comm_free(group));
	return 0;
}

TEST_RUNS(rank_does_not_wait_while_it_is_stopped,
          RUN_WORLD(.ranks = 3, .node_of = three_nodes, .timeout_ms = PAUSED_TIMEOUT_MS, .body = drain_with_a_pause));

/* Rank 1 is stopped amid a message to rank 0, which waits for it on behalf of the group of
   both. Rank 2 waits for neither in the meantime. */
static int shrink_with_one_stopped(ddp_comm *comm, void *argument)
{
	ddp_comm *group, *rest;
	large l = { .memory = NULL };
	char byte = 0;
	const int rank = ddp_comm_rank(comm);

	CHECK_OK(ddp_comm_split(comm, rank == 2, rank, &group));
	CHECK_OK(ddp_barrier(comm));
	if (rank == 1) {
		send_large(comm);
		(void)ddp_comm_free(group);
		return 0;
	}
	const pid_t stopped = pid_of(comm, 1);
	if (rank == 0) {
		l = receive_and_stop(comm, stopped);
		/* Rank 2 may have it, and abort, before the send is complete here. */
		const ddp_status sent = ddp_send(comm, &byte, 1, DDP_U8, 2, 0);
		CHECK(sent == DDP_OK || sent == DDP_ERR_ABORTED);
		CHECK(ddp_wait(l.request) == DDP_ERR_ABORTED);
	} else {
		CHECK_OK(ddp_recv(comm, &byte, 1, DDP_U8, 0, 0));
		CHECK_OK(ddp_comm_abort(comm, "the test wants it"));
	}
	CHECK_OK(ddp_comm_shrink(comm, &rest));
	CHECK(ddp_comm_size(rest) == 2);
	CHECK_OK(ddp_barrier(rest));
	if (rank == 0)
		kill(stopped, SIGCONT);
	CHECK_OK(ddp_comm_free(rest));
	(void)ddp_comm_free(group);
	if (rank == 0)
		munmap(l.memory, LARGE);
	return 0;
}

TEST_RUNS(rank_that_waits_for_a_stopped_one_is_not_left_out,
          RUN_WORLD(.ranks = 3, .node_of = three_nodes, .timeout_ms = 5000, .body = shrink_with_one_stopped,
                    .expect_deaths = true));

static bool has_tickets(const ddp_comm *comm)
{
	pthread_mutex_lock(&comm->net->worker->lock);
	bool some = comm->net->tickets != NULL;
	pthread_mutex_unlock(&comm->net->worker->lock);
	return some;
}

/* A message that its receiver never asks for. */
static int abandon_unasked(ddp_comm *comm, void *argument)
{
	ddp_request *request;

	CHECK_OK(ddp_barrier(comm));
	test_ranks_together(); /* one that is still in it would hear of the abort there */
	if (ddp_comm_rank(comm) == 1) {
		unsigned char *memory = map_large();
		const ddp_operation send = { .kind = DDP_SEND, .send = memory, .count = LARGE,
		                              .type = DDP_U8, .root = 0 };
		CHECK_OK(ddp_issue(comm, &send, &request));
		usleep(100000);
		CHECK_OK(ddp_comm_abort(comm, "the test wants it"));
		CHECK(ddp_wait(request) == DDP_ERR_ABORTED);
		CHECK(!has_tickets(comm));
		munmap(memory, LARGE);
		return 0;
	}
	CHECK(ddp_barrier(comm) == DDP_ERR_ABORTED);
	return 0;
}

TEST_RUNS(message_nobody_asked_for_ends_with_the_failure, run(0, abandon_unasked, NULL));

/* ---- a death while both send -------------------------------------------------------- */

/* For the caller, which dies: the other goes on once all of the caller's sockets are closed. */
static void wake_after_own_end(pid_t stopped)
{
	char script[128], *shell[] = { (char *)"sh", (char *)"-c", script, NULL };
	posix_spawn_file_actions_t quiet;
	pid_t pid;

	snprintf(script, sizeof(script), "while ls /proc/%d/fd/0; do sleep 0.01; done; kill -CONT %d", (int)getpid(),
	         (int)stopped);
	CHECK(posix_spawn_file_actions_init(&quiet) == 0);
	for (int fd = 0; fd < 3; fd++)
		CHECK(posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_RDWR, 0) == 0);
	CHECK(posix_spawnp(&pid, shell[0], &quiet, NULL, shell, environ) == 0);
}

/* Rank 0 is stopped while rank 1 goes on and dies: it then finds data to read and a socket that
   takes no more. */
static int die_while_both_send(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm), other = 1 - rank;
	unsigned char *in = map_large(), *out = map_large();
	const ddp_operation receive = { .kind = DDP_RECV, .recv = in, .count = LARGE, .type = DDP_U8, .root = other },
	                     send = { .kind = DDP_SEND, .send = out, .count = LARGE, .type = DDP_U8, .root = other };
	ddp_request *receiving, *sending;
	atomic_int *under_way = argument;

	memset(out, 1, LARGE);
	CHECK_OK(ddp_barrier(comm));
	CHECK_OK(ddp_issue(comm, &receive, &receiving));
	CHECK_OK(ddp_issue(comm, &send, &sending));
	bool comes = wait_for_first_byte(in, receiving);
	atomic_fetch_add(under_way, 1);
	if (rank == 1) {
		while (atomic_load(under_way) < 2)
			usleep(10);
		kill(pid_of(comm, 0), SIGSTOP);
		usleep(100000);
		wake_after_own_end(pid_of(comm, 0));
		kill(getpid(), SIGKILL);
	}
	(void)ddp_wait(sending);
	if (comes)
		(void)ddp_wait(receiving);
	CHECK(ddp_barrier(comm) == DDP_ERR_PEER);
	munmap(in, LARGE);
	munmap(out, LARGE);
	return 0;
}

/* UCX's own ucs_socket_sendv_nb() ended rank 0 in one of ten cases. */
TEST(death_while_both_send_is_outlived)
{
	atomic_int *under_way = test_share(sizeof(*under_way));

	for (int i = 0; i < 5; i++) {
		atomic_store(under_way, 0);
		run(0, die_while_both_send, under_way);
	}
	test_unshare(under_way, sizeof(*under_way));
}

/* ---- children -------------------------------------------------------------------------- */

static void leave_children(void)
{
	static char *sleeper[] = { (char *)"sleep", (char *)"20", NULL };
	posix_spawn_file_actions_t quiet;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		for (int fd = 0; fd < 3; fd++)
			close(fd);
		sleep(20);
		_exit(0);
	}
	CHECK(posix_spawn_file_actions_init(&quiet) == 0);
	for (int fd = 0; fd < 3; fd++)
		CHECK(posix_spawn_file_actions_addclose(&quiet, fd) == 0);
	CHECK(posix_spawnp(&pid, sleeper[0], &quiet, NULL, sleeper, environ) == 0);
}

static int die_before_children(ddp_comm *comm, void *argument)
{
	ddp_status status = DDP_OK;
	float x = 0;

	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 1) {
		leave_children();
		/* It can still be talked to. */
		(void)ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_SUM);
		kill(getpid(), SIGKILL);
	}
	uint64_t start = ddp_now_ns();
	while (status == DDP_OK)
		status = ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_SUM);
	CHECK(status == DDP_ERR_PEER);
	/* Not when the children end, nor at the deadline. */
	CHECK(ddp_seconds_since(start) < 12);
	return 0;
}

TEST_RUNS(death_is_noticed_though_children_live, run(0, die_before_children, NULL));

/* ---- a rank that looks late --------------------------------------------------------- */

bool __real_ddp_net_lost(const ddp_comm *comm, int peer);
bool __wrap_ddp_net_lost(const ddp_comm *comm, int peer);

static ddp_comm *late;       /* the next look at a peer of this communicator takes long, */
static atomic_bool *looking; /* and begins now */

/* As if the rank lost its core behind the look, and another of its threads went on with the network meanwhile. */
bool __wrap_ddp_net_lost(const ddp_comm *comm, int peer)
{
	const bool lost = __real_ddp_net_lost(comm, peer);

	if (late != NULL && comm == late) {
		atomic_store(looking, true);
		while (!__real_ddp_net_lost(comm, peer))
			(void)ddp_net_progress(late);
		late = NULL;
	}
	return lost;
}

static int close_while_looking(ddp_comm *comm, void *argument)
{
	ddp_comm *part;

	looking = argument;
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	if (ddp_comm_rank(comm) == 0)
		late = part;
	while (ddp_comm_rank(comm) == 1 && !atomic_load(looking))
		usleep(1000);
	CHECK_OK(ddp_comm_free(part));
	CHECK(late == NULL);
	return 0;
}

TEST(what_a_rank_sent_before_it_closed_counts)
{
	atomic_bool *shared = test_share(sizeof(*shared));

	RUN_WORLD(.ranks = 2, .node_of = two_nodes, .body = close_while_looking, .argument = shared);
	test_unshare(shared, sizeof(*shared));
}

/* The last one says when it begins to close. */
static int meet_once(ddp_comm *comm, void *argument)
{
	CHECK_OK(ddp_barrier(comm));
	test_ranks_together();
	atomic_store((_Atomic uint64_t *)argument, ddp_now_ns());
	return 0;
}

/* A rank that gets no answer to its last message waits 2 s (comm/net/close). The machine may
   be busy, so that the quickest of some communicators counts. */
TEST(rank_that_closes_is_answered)
{
	_Atomic uint64_t *closing_ns = test_share(sizeof(*closing_ns));
	double least = 60;

	for (int i = 0; i < 5 && least >= 1; i++) {
		run(0, meet_once, (void *)(uintptr_t)closing_ns);
		const double took = ddp_seconds_since(atomic_load(closing_ns));
		least = took < least ? took : least;
	}
	test_unshare((void *)(uintptr_t)closing_ns, sizeof(*closing_ns));
	assert_true(least < 2);
}

/* ---- a death while ranks connect with each other ------------------------------------------- */

#if ADDRESS_SANITIZER
/* UCX loses memory of its own where the other end dies so early. */
const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void) { return "leak:libucs.so"; }
#endif

enum { CONNECTING = 6, ROUNDS = SANITIZER ? 12 : 50, LATEST_US = 25000 };

static int victim = DDP_NOBODY, delay_us; /* of the round */

ddp_status __real_ddp_net_connect(ddp_comm *comm, int peer);
ddp_status __wrap_ddp_net_connect(ddp_comm *comm, int peer);

static void die(int number)
{
	kill(getpid(), SIGKILL);
}

/* A while after it has begun to connect. */
ddp_status __wrap_ddp_net_connect(ddp_comm *comm, int peer)
{
	const struct itimerval death = { .it_value.tv_usec = delay_us };
	struct itimerval now;

	CHECK(getitimer(ITIMER_REAL, &now) == 0);
	if (comm->rank == victim && now.it_value.tv_usec == 0) {
		CHECK(signal(SIGALRM, die) != SIG_ERR);
		CHECK(setitimer(ITIMER_REAL, &death, NULL) == 0);
	}
	return __real_ddp_net_connect(comm, peer);
}

static int reduce_until_it_fails(ddp_comm *comm, void *argument)
{
	ddp_status status = DDP_OK;
	float x[64] = { 0 };

	while (status == DDP_OK)
		status = ddp_all_reduce(comm, NULL, x, 64, DDP_F32, DDP_SUM);
	CHECK(status == DDP_ERR_PEER);
	return 0;
}

TEST(death_of_a_rank_that_connects_ends_no_other)
{
	static const int apart[CONNECTING] = { 0, 1, 2, 3, 4, 5 };

	srandom(1);
	for (int i = 0; i < ROUNDS; i++) {
		victim = (int)(random() % CONNECTING);
		delay_us = 1 + (int)(random() % LATEST_US);
		RUN_WORLD(.ranks = CONNECTING, .node_of = apart, .body = reduce_until_it_fails, .expect_deaths = true,
		          .may_fail_to_open = true);
	}
	victim = DDP_NOBODY;
}
