/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 5 */
/* What ends a wait, and what is taken for a peer's death. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/core/liveness.h"
#include "comm/wait/await.h"
#include "comm/wait/cores.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/hung.h"
#include "tests/support/test.h"

/* ---- messages that keep moving -------------------------------------------------- */

/* Keeps a message from this rank to itself on its way, so that there is always
   something to move, and waits for what never comes. */
static int never_idle(ddp_comm *comm, const void *argument)
{
	static char sent, received;
	static ddp_request *requests[2];
	const ddp_operation c[2] = {
		{ .kind = DDP_SEND, .send = &sent, .count = 1, .type = DDP_U8, .root = 0 },
		{ .kind = DDP_RECV, .recv = &received, .count = 1, .type = DDP_U8, .root = 0 },
	};

	for (int i = 0; i < 2; i++) {
		bool done = requests[i] == NULL;
		if (!done)
			(void)ddp_test(requests[i], &done);
		if (done)
			CHECK_OK(ddp_issue(comm, &c[i], &requests[i]));
	}
	return 0;
}

static int wait_among_messages(ddp_comm *comm, void *argument)
{
	static const ddp_operation none = { .kind = DDP_BARRIER };
	const ddp_condition wait = { .missing = never_idle, .sleeps_for = DDP_SLEEPS_FOR_ANY };

	pthread_mutex_lock(&comm->run.lock);
	comm->run.operation = &none;
	comm->run.deadline_ns = ddp_now_ns() + 300000000;
	CHECK(ddp_comm_await(comm, &wait) == DDP_ERR_TIMEOUT);
	pthread_mutex_unlock(&comm->run.lock);
	return 0;
}

TEST_RUNS(deadline_holds_while_messages_move, RUN_WORLD(.ranks = 1, .body = wait_among_messages));

/* Waits for a message that never comes while there is always another operation
   to run. */
static int wait_among_operations(ddp_comm *comm, void *argument)
{
	static float x;
	const ddp_operation never = { .kind = DDP_RECV, .recv = &x, .count = 1, .root = 1 };
	const ddp_operation barrier = { .kind = DDP_BARRIER };
	ddp_request *message = NULL, *queue[64];
	enum { LENGTH = sizeof(queue) / sizeof(queue[0]) };
	ddp_status status = DDP_OK;
	size_t i = 0;

	if (ddp_comm_rank(comm) == 0)
		CHECK_OK(ddp_issue(comm, &never, &message));
	uint64_t start = ddp_now_ns();
	for (; i < LENGTH; i++)
		CHECK_OK(ddp_issue(comm, &barrier, &queue[i]));
	for (; status == DDP_OK && ddp_seconds_since(start) < 20; i++) {
		status = ddp_wait(queue[i % LENGTH]);
		CHECK_OK(ddp_issue(comm, &barrier, &queue[i % LENGTH]));
	}
	CHECK(status == DDP_ERR_TIMEOUT);
	for (size_t k = 0; k < LENGTH; k++)
		CHECK(ddp_wait(queue[k]) == DDP_ERR_TIMEOUT);
	CHECK(message == NULL || ddp_wait(message) == DDP_ERR_TIMEOUT);
	return 0;
}

TEST(deadline_holds_among_other_operations)
{
	static const int two_nodes[] = { 0, 1 };
	test_world world = { .ranks = 2, .timeout_ms = 700, .body = wait_among_operations };

	assert_int_equal(test_world_run(&world), 0);
	world.node_of = two_nodes;
	assert_int_equal(test_world_run(&world), 0);
}

enum { RING = 4, RING_MS = 300, BEYOND_MS = 200 };

/* In a ring no rank is to blame: each waits for the next one. Otherwise the last rank does not come. */
static int wait_for_the_next(ddp_comm *comm, void *argument)
{
	const bool *ring = argument;
	const ddp_operation never = { .kind = DDP_RECV, .recv = &(float){ 0 }, .count = 1, .timeout_ms = RING_MS,
	                              .root = (ddp_comm_rank(comm) + 1) % RING };

	test_ranks_together();
	const uint64_t start = ddp_now_ns();
	if (*ring || ddp_comm_rank(comm) != RING - 1) {
		CHECK(ddp_run(comm, &never) == DDP_ERR_TIMEOUT);
		const double ms = ddp_seconds_since(start) * 1000;
		/* The first rank that is late ends the wait of all. */
		CHECK(ms >= RING_MS - 50 && ms < RING_MS + (BEYOND_MS + 20) * test_slowness());
		CHECK(*ring || strstr(ddp_last_error(), "rank 3 on ") == ddp_last_error());
	}
	test_ranks_together();
	return 0;
}

TEST(late_messages_end_soon_after_their_timeout)
{
	static const int nodes[] = { 0, 0, 1, 1 };

	for (int i = 0; i < 4; i++) {
		bool ring = i % 2 == 0;

		RUN_WORLD(.ranks = RING, .node_of = i < 2 ? NULL : nodes, .body = wait_for_the_next, .argument = &ring);
	}
}

/* ---- ranks that share a core ------------------------------------------------------ */

/* Such ranks store each result once. Memory that is not shared takes several windows here. */
static void sum_own_memory(ddp_comm *comm)
{
	static float input[3 * DDP_CROWDED_STAGE_BYTES / sizeof(float) + 5], sums[sizeof(input) / sizeof(input[0])];
	const size_t count = sizeof(input) / sizeof(input[0]);
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm), root = size - 1;

	for (size_t i = 0; i < count; i++)
		input[i] = (float)(i % 1000 + (size_t)rank);
	CHECK_OK(ddp_all_reduce(comm, input, sums, count, DDP_F32, DDP_SUM));
	for (size_t i = 0; i < count; i++)
		CHECK(sums[i] == (float)((size_t)size * (i % 1000) + (size_t)(size * (size - 1) / 2)));
	memset(sums, 0, sizeof(sums));
	CHECK_OK(ddp_reduce(comm, input, sums, count, DDP_F32, DDP_SUM, root));
	for (size_t i = 0; i < count && rank == root; i++)
		CHECK(sums[i] == (float)((size_t)size * (i % 1000) + (size_t)(size * (size - 1) / 2)));
}

static int expect_oversubscribed(ddp_comm *comm, void *oversubscribed)
{
	CHECK(comm->node.oversubscribed == *(const bool *)oversubscribed);
	sum_own_memory(comm);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* What counts is where they may run, not how many cores there are. */
TEST(ranks_bound_to_one_core_are_too_many_for_it)
{
	static bool oversubscribed = true, alone = false;
	cpu_set_t allowed, one;
	size_t core = 0;
	test_world world = { .ranks = 3, .body = expect_oversubscribed, .argument = &oversubscribed };

	assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	while (!CPU_ISSET(core, &allowed))
		core++;
	CPU_ZERO(&one);
	CPU_SET(core, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0); /* the ranks inherit it */
	assert_int_equal(test_world_run(&world), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
	world.ranks = 1;
	world.argument = &alone;
	assert_int_equal(test_world_run(&world), 0);
}

/* They have to take turns though the communicator counts on a core for each:
   by yielding, and now and then by sleeping. */
static int reduce_on_one_core(ddp_comm *comm, void *argument)
{
	cpu_set_t allowed, one;
	int core = 0, *turns = argument;

	CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
	while (!CPU_ISSET((size_t)core, &allowed))
		core++;
	CPU_ZERO(&one);
	CPU_SET((size_t)core, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
	for (int i = 0; i < 2000; i++) {
		int32_t sum = i + comm->rank;
		CHECK_OK(ddp_all_reduce(comm, NULL, &sum, 1, DDP_I32, DDP_SUM));
		CHECK(sum == 2 * i + 1);
		if (turns != NULL)
			*turns += comm->run.turns > 0;
	}
	return 0;
}

TEST_RUNS(two_ranks_on_one_core_take_turns, RUN_WORLD(.ranks = 2, .body = reduce_on_one_core));

/* Neither node knows that it shares a core with the other. */
static int spin_less_after_a_while(ddp_comm *comm, void *argument)
{
	CHECK(reduce_on_one_core(comm, argument) == 0);
	CHECK(comm->run.short_spins > 500);
	return 0;
}

static void run_on_two_nodes(int (*body)(ddp_comm *comm, void *argument))
{
	static const int two_nodes[] = { 0, 1 };

	RUN_WORLD(.ranks = 2, .node_of = two_nodes, .body = body);
}

TEST_RUNS(nodes_on_one_core_find_that_spinning_is_in_vain, run_on_two_nodes(spin_less_after_a_while));

static int count_turns(ddp_comm *comm, void *argument)
{
	int times = 0;

	CHECK(reduce_on_one_core(comm, &times) == 0);
	CHECK(times > 0);
	return 0;
}

TEST_RUNS(nodes_on_one_core_notice_that_they_give_it_to_each_other, run_on_two_nodes(count_turns));

static void *keep_a_core_busy(void *end)
{
	while (!atomic_load((atomic_bool *)end))
		continue;
	return NULL;
}

TEST(the_kernel_tells_if_threads_wait_for_a_core)
{
	enum { MOST = 256 };
	const long cores = sysconf(_SC_NPROCESSORS_ONLN), threads = cores + 1;
	static atomic_bool end;
	static ddp_comm comm;
	pthread_t busy[MOST];
	bool suffice = false;

	if (threads > MOST)
		skip();
	for (long i = 0; i < threads; i++)
		assert_int_equal(pthread_create(&busy[i], NULL, keep_a_core_busy, &end), 0);
	usleep(2000);
	assert_false(ddp_cores_suffice(&comm));
	atomic_store(&end, true);
	for (long i = 0; i < threads; i++)
		pthread_join(busy[i], NULL);
	for (int i = 0; i < 2500 && !suffice; i++) {
		usleep(2000);
		suffice = ddp_cores_suffice(&comm);
	}
	if (!suffice)
		skip(); /* others keep all cores busy */
}

TEST(a_rank_leaves_its_core_and_may_come_back)
{
	cpu_set_t allowed, after, one;
	const int core = sched_getcpu();

	assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	CPU_ZERO(&one);
	CPU_SET((size_t)core, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	ddp_core_leave();
	assert_int_equal(sched_getcpu(), core);
	assert_int_equal(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
	/* The kernel may move it back at once: not each time. */
	int left = 0;
	for (int i = 0; i < 100 && left == 0; i++) {
		const int before = sched_getcpu();
		ddp_core_leave();
		left = sched_getcpu() != before;
	}
	assert_int_equal(left, CPU_COUNT(&allowed) > 1);
	assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
	assert_true(CPU_EQUAL(&after, &allowed));
}

/* Until then, somebody is missing. */
static int missing_until(ddp_comm *comm, const void *until_ns)
{
	return ddp_now_ns() < *(const uint64_t *)until_ns ? 1 - comm->rank : DDP_NOBODY;
}

/* Nobody would wake a sleeper: it would look after its peers some 100 ms later. */
static int stay_awake_for_a_short_wait(ddp_comm *comm, void *argument)
{
	static const ddp_operation none = { .kind = DDP_BARRIER };
	int slept = 0;

	pthread_mutex_lock(&comm->run.lock);
	comm->run.operation = &none;
	for (int i = 0; i < 20; i++) {
		const uint64_t begun = ddp_now_ns(), until = begun + 30000;
		const ddp_condition wait = { .missing = missing_until, .argument = &until,
		                             .sleeps_for = DDP_SLEEPS_FOR_STEPS, .until = UINT64_MAX };
		comm->run.deadline_ns = 0;
		CHECK_OK(ddp_comm_await(comm, &wait));
		slept += ddp_now_ns() - begun > 90000000;
	}
	pthread_mutex_unlock(&comm->run.lock);
	/* On a busy machine a rank may lose its core for as long. */
	CHECK(comm->node.oversubscribed || slept <= 10);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(a_rank_with_a_core_does_not_sleep_for_a_short_wait,
          RUN_WORLD(.ranks = 2, .body = stay_awake_for_a_short_wait));

/* ---- waking ------------------------------------------------------------------------- */

enum { MANY = 16 };

typedef struct sleepers {
	atomic_int through; /* ranks that have done the operation */
	atomic_bool counted;
} sleepers;

/* How often ranks of the node were woken so far. */
static uint32_t count_wakeups(const ddp_comm *comm)
{
	uint32_t count = 0;

	for (int i = 0; i < comm->node.size; i++)
		count += atomic_load(&comm->node.shared->ranks[i].bell);
	return count;
}

static bool all_others_sleep(const ddp_comm *comm)
{
	for (int i = 0; i < comm->node.size; i++) {
		if (i != comm->node.self && atomic_load(&comm->node.shared->ranks[i].sleeps_for) == DDP_AWAKE)
			return false;
	}
	return true;
}

/* Rank 0 comes last; all others sleep then. */
static int come_last(ddp_comm *comm, void *argument)
{
	sleepers *m = argument;
	uint32_t before = 0;

	CHECK_OK(ddp_barrier(comm));
	while (comm->rank == 0 && !all_others_sleep(comm))
		usleep(1000);
	before = count_wakeups(comm);
	CHECK_OK(ddp_barrier(comm));
	atomic_fetch_add(&m->through, 1);
	if (comm->rank == 0) {
		while (atomic_load(&m->through) < MANY)
			usleep(1000);
		const uint32_t wakeups = count_wakeups(comm) - before;
		printf("# %u wake-ups of %d sleepers\n", wakeups, MANY - 1);
		CHECK(wakeups <= MANY - 1);
		atomic_store(&m->counted, true);
	}
	while (!atomic_load(&m->counted))
		usleep(1000);
	return 0;
}

TEST(each_sleeper_is_woken_once)
{
	sleepers *m = test_share(sizeof(*m));

	RUN_WORLD(.ranks = MANY, .body = come_last, .argument = m);
	test_unshare(m, sizeof(*m));
}

/* ---- a peer's death --------------------------------------------------------------- */

static atomic_bool sleeps_long; /* no sleeper between nodes wakes by itself or by the network, the first that it polls */

/* Stands before libc's. */
__attribute__((visibility("default"))) int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
                                                 const sigset_t *mask)
{
	const bool is_long = atomic_load(&sleeps_long);
	struct timespec left = { 0 };

	if (timeout != NULL)
		left = *timeout;
	return (int)syscall(SYS_ppoll, is_long ? fds + 1 : fds, is_long ? count - 1 : count,
	                    timeout == NULL || is_long ? NULL : &left, mask, sizeof(uint64_t));
}

/* No other rank of the first node has a connection with rank 1, and no rank of the second node waits for it. */
static int hear_of_a_death(ddp_comm *comm, void *argument)
{
	(void)argument;
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_barrier(comm));
	atomic_store(&sleeps_long, ddp_comm_rank(comm) == 0);
	if (ddp_comm_rank(comm) == 1) {
		usleep(200000);
		kill(getpid(), SIGKILL);
	}
	CHECK_FAILS(ddp_barrier(comm), DDP_ERR_PEER, "rank 1 on n0 died");
	return 0;
}

TEST(sleeper_is_woken_by_the_death_of_a_rank_of_its_node)
{
	static const int nodes[] = { 0, 0, 1, 1 };

	RUN_WORLD(.ranks = 4, .node_of = nodes, .body = hear_of_a_death, .expect_deaths = true);
}

/* ---- a peer's life --------------------------------------------------------------- */

static pid_t start_child(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		pause();
		_exit(0);
	}
	assert_true(pid > 0);
	return pid;
}

TEST(no_free_descriptor_is_no_death)
{
	struct rlimit before, none;
	pid_t pid = start_child();
	ddp_peer peer = { .pid = pid, .pid_start = ddp_process_start(pid), .pidfd = -1 };

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	ddp_peer_watch(&peer);
	bool alive = ddp_peer_alive(&peer);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	bool dead = !ddp_peer_alive(&peer);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_true(alive);
	assert_true(dead);
}

TEST(zombie_is_dead)
{
	pid_t pid = start_child();
	ddp_peer watched = { .pid = pid, .pid_start = ddp_process_start(pid), .pidfd = -1 };
	const ddp_peer unwatched = watched;

	ddp_peer_watch(&watched);
	assert_true(ddp_peer_alive(&watched));
	assert_true(ddp_peer_alive(&unwatched));
	kill(pid, SIGKILL);
	siginfo_t info;
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	assert_false(ddp_peer_alive(&watched));
	assert_false(ddp_peer_alive(&unwatched));
	waitpid(pid, NULL, 0);
	if (watched.pidfd >= 0)
		close(watched.pidfd);
}
