/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; needs: UCX */
/* Another user of the host connects to UCX's listening sockets, while the kernel takes no socket filters, and
   sends what ends a process in which UCX reads it. No rank's end comes of that. */
#include <stdint.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/net/ucx.h"
#include "tests/support/attacker.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/hung.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

enum { SECONDS = 30, TIMES = SANITIZER ? 1 : 2 };
static const int attacks[ATTACKER_PHASES] = { 10 * TIMES, 30 * TIMES, 5 * TIMES }; /* that are waited for */

static attacker *s;
static bool keeps_listening; /* in this process, also once all are connected, as in larger worlds */

/* Stands before the C library's: libddp ends UCX's listeners by it. */
__attribute__((visibility("default"))) int dup3(int from, int to, int flags)
{
	int (*dup_to)(int, int, int);
	ddp_place place;

	if (keeps_listening && ddp_socket_listens(to, &place)) {
		errno = EBUSY;
		return -1;
	}
	*(void **)&dup_to = dlsym(RTLD_NEXT, "dup3");
	return dup_to(from, to, flags);
}

/* In a process of its own: UCX's functions are replaced once in each. */
static int code_of_child(int (*body)(void))
{
	int end;

	fflush(NULL);
	const pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(body());
	assert_int_equal(waitpid(pid, &end, 0), pid);
	assert_true(WIFEXITED(end));
	return WEXITSTATUS(end);
}

static int run_two_nodes(int (*body)(ddp_comm *, void *), void *argument)
{
	static const int two_nodes[] = { 0, 1 };
	const test_world world = { .ranks = 2, .node_of = two_nodes, .body = body, .argument = argument };

	return test_world_run(&world);
}

/* ---- attacks ----------------------------------------------------------------------------------- */

static bool has_enough(int phase)
{
	return atomic_load(&s->sent[phase]) >= attacks[phase];
}

static int train(ddp_comm *comm, void *argument)
{
	const uint64_t start_ns = ddp_now_ns();
	ddp_comm *part;
	float done = 0, x[1000];

	atomic_store(&s->phase, 1);
	while (done < 2) {
		for (int i = 0; i < 1000; i++)
			x[i] = 1;
		CHECK_OK(ddp_all_reduce(comm, NULL, x, 1000, DDP_F32, DDP_SUM));
		CHECK(x[0] == 2 && x[999] == 2);
		done = has_enough(1) || ddp_seconds_since(start_ns) > 1;
		CHECK_OK(ddp_all_reduce(comm, NULL, &done, 1, DDP_F32, DDP_SUM));
	}
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	CHECK_OK(ddp_barrier(part));
	CHECK_OK(ddp_comm_free(part));
	atomic_fetch_add(&s->refusals, ddp_guard_refused(comm->net->worker->guard));
	atomic_store(&s->phase, 2);
	return 0;
}

static int be_attacked(void)
{
	const uint64_t start_ns = ddp_now_ns();

	attacker_be_victim();
	while (!has_enough(0) || !has_enough(1) || !has_enough(2)) {
		atomic_store(&s->phase, 0);
		if (run_two_nodes(train, NULL) != 0)
			return 1;
		if (ddp_seconds_since(start_ns) > SECONDS * test_slowness()) {
			fprintf(stderr, "attacks: %d, %d, %d\n", s->sent[0], s->sent[1], s->sent[2]);
			return 2;
		}
	}
	return 0;
}

static void attack_ranks(bool floods)
{
	s = test_share(sizeof(*s));
	atomic_store(&s->floods, floods);
	keeps_listening = true;
	const pid_t pid = attacker_begin(s, attacker_victim());
	const int code = code_of_child(be_attacked);
	attacker_end(s, pid);
	keeps_listening = false;
	assert_int_equal(code, 0);
	assert_true(atomic_load(&s->refused));
	assert_true(atomic_load(&s->copied) > 0);
	assert_true(atomic_load(&s->refusals) > 0);
	test_unshare(s, sizeof(*s));
	s = NULL;
}

TEST_RUNS(bytes_of_an_attacker_end_no_rank, attack_ranks(false));

TEST_RUNS(idle_connections_of_an_attacker_keep_no_rank_out, attack_ranks(true));

/* ---- proofs ------------------------------------------------------------------------------------ */

/* From that port of the listener's own address; 0: from any. */
static int connect_from(const ddp_place *place, uint16_t *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = place->port }, from = { .sin_family = AF_INET, .sin_port = *port };
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t length = sizeof(from);

	memcpy(&to.sin_addr, place->address, sizeof(to.sin_addr));
	from.sin_addr = to.sin_addr;
	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)) == 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ .l_onoff = 1 }, sizeof(struct linger)) == 0);
	CHECK(bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0);
	CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&from, &length) == 0);
	*port = from.sin_port;
	return fd;
}

static bool ends(int fd, int ms)
{
	struct pollfd end = { .fd = fd, .events = POLLIN };
	char byte;

	return poll(&end, 1, ms) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

TEST(proof_holds_for_one_connection_and_key)
{
	const ddp_place near = { .family = AF_INET, .port = 1, .address = { 127, 0, 0, 1 } };
	const ddp_place far = { .family = AF_INET, .port = 2, .address = { 127, 0, 0, 1 } };
	const ddp_key step = { .present = true, .bytes = { 1 } };
	ddp_share share, other_share;
	ddp_proof_key key, other_key;
	ddp_proof proof, changed;
	ddp_place other;

	assert_int_equal(ddp_share_make(&share), DDP_OK);
	assert_int_equal(ddp_share_make(&other_share), DDP_OK);
	assert_int_equal(ddp_proof_key_make(&step, &share, &key), DDP_OK);
	assert_int_equal(ddp_proof_make(&key, &near, &far, &proof), DDP_OK);
	assert_true(ddp_proof_holds(&key, &near, &far, &proof));
	assert_false(ddp_proof_holds(&key, &far, &near, &proof));
	for (size_t i = 0; i < sizeof(near); i++) {
		other = near;
		((unsigned char *)&other)[i] ^= 1;
		assert_false(ddp_proof_holds(&key, &other, &far, &proof));
	}
	for (size_t i = 0; i < sizeof(proof); i++) {
		changed = proof;
		((unsigned char *)&changed)[i] ^= 0x40;
		assert_false(ddp_proof_holds(&key, &near, &far, &changed));
	}
	assert_int_equal(ddp_proof_key_make(NULL, &share, &other_key), DDP_OK);
	assert_false(ddp_proof_holds(&other_key, &near, &far, &proof));
	assert_int_equal(ddp_proof_key_make(&step, &other_share, &other_key), DDP_OK);
	assert_false(ddp_proof_holds(&other_key, &near, &far, &proof));
	for (size_t bytes = 0; bytes <= sizeof(proof); bytes++)
		assert_true(ddp_proof_may_begin(&proof, bytes));
	assert_false(ddp_proof_may_begin("ddpconn2", 8));
}

/* A proof comes in two pieces; it is used again from another port, and then from the same. */
static int use_a_proof_again(ddp_comm *comm, void *argument)
{
	const ddp_worker *worker = comm->net->worker;
	const ddp_key *key = &worker->roster->key;
	const ddp_place *place = &worker->listeners.places[0];
	const int long_ms = 10000 * test_slowness();
	uint16_t port = 0, other_port = 0;
	ddp_proof_key proof_key;
	ddp_proof proof;

	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 0) {
		const int refused = ddp_guard_refused(worker->guard), fd = connect_from(place, &port);
		ddp_place near = *place;
		near.port = port;
		CHECK(worker->unguarded == NULL && place->family == AF_INET);
		CHECK_OK(ddp_proof_key_make(key->present ? key : NULL, &worker->share, &proof_key));
		CHECK_OK(ddp_proof_make(&proof_key, &near, place, &proof));
		CHECK(send(fd, &proof, 20, MSG_NOSIGNAL) == 20);
		CHECK(!ends(fd, 50));
		CHECK(send(fd, (char *)&proof + 20, sizeof(proof) - 20, MSG_NOSIGNAL) == sizeof(proof) - 20);
		const int other = connect_from(place, &other_port);
		CHECK(send(other, &proof, sizeof(proof), MSG_NOSIGNAL) == sizeof(proof));
		CHECK(ends(other, long_ms));
		CHECK(!ends(fd, 50));
		CHECK(ddp_guard_refused(worker->guard) == refused + 1);
		close(fd);
		close(other);
		const int again = connect_from(place, &port);
		CHECK(port == near.port);
		CHECK(send(again, &proof, sizeof(proof), MSG_NOSIGNAL) == sizeof(proof));
		CHECK(ends(again, long_ms));
		CHECK(ddp_guard_refused(worker->guard) == refused + 2);
		close(again);
	}
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST(proof_is_taken_once)
{
	attacker none = { .phase = 0 };

	attacker_refuse_filters(&none);
	keeps_listening = true;
	assert_int_equal(run_two_nodes(use_a_proof_again, NULL), 0);
	keeps_listening = false;
	attacker_refuse_filters(NULL);
}

static int reach_a_barrier(ddp_comm *comm, void *argument)
{
	CHECK_OK(ddp_barrier(comm));
	CHECK((comm->net->worker->unguarded == NULL) == (argument == NULL));
	return 0;
}

TEST(connections_that_ucx_does_not_wait_for_are_proved)
{
	setenv("UCX_TCP_CONN_NB", "y", 1);
	assert_int_equal(run_two_nodes(reach_a_barrier, NULL), 0);
	unsetenv("UCX_TCP_CONN_NB");
}

/* ---- no filters ---------------------------------------------------------------------------------- */

/* Once all are connected, UCX listens no more. */
static int stop_listening(ddp_comm *comm, void *argument)
{
	const ddp_listeners *listeners = &comm->net->worker->listeners;
	ddp_comm *part;
	ddp_place place;

	CHECK_OK(ddp_barrier(comm));
	CHECK(listeners->count > 0);
	for (int i = 0; i < listeners->count; i++)
		CHECK(!ddp_socket_listens(listeners->fds[i], &place));
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	CHECK_OK(ddp_barrier(part));
	CHECK_OK(ddp_comm_free(part));
	return 0;
}

TEST(listeners_end_when_all_are_connected)
{
	attacker none = { .phase = 0 };

	attacker_refuse_filters(&none);
	assert_int_equal(run_two_nodes(stop_listening, NULL), 0);
	attacker_refuse_filters(NULL);
}

enum { IDLE = 60, FREE = 80, KEPT = 20 };

/* Rank 1 connects, and sends nothing; rank 0 has few descriptors. */
static int keep_some_descriptors(ddp_comm *comm, void *argument)
{
	const ddp_worker *worker = comm->net->worker;
	const uint64_t start_ns = ddp_now_ns();
	int idle[IDLE];

	if (ddp_comm_rank(comm) == 0) {
		struct rlimit limit;
		const int next = dup(STDOUT_FILENO);
		CHECK(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
		limit.rlim_cur = (rlim_t)(next + FREE);
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	}
	CHECK_OK(ddp_barrier(comm));
	for (int i = 0; i < IDLE && ddp_comm_rank(comm) == 1; i++) {
		uint16_t port = 0;
		idle[i] = connect_from(&worker->peer_listeners[0], &port);
	}
	CHECK_OK(ddp_barrier(comm));
	while (ddp_comm_rank(comm) == 0 && ddp_guard_refused(worker->guard) < IDLE - KEPT)
		CHECK(ddp_seconds_since(start_ns) < 5 * test_slowness());
	CHECK_OK(ddp_barrier(comm));
	for (int i = 0; i < IDLE && ddp_comm_rank(comm) == 1; i++)
		close(idle[i]);
	return 0;
}

TEST(idle_connections_leave_descriptors)
{
	attacker none = { .phase = 0 };

	attacker_refuse_filters(&none);
	keeps_listening = true;
	assert_int_equal(run_two_nodes(keep_some_descriptors, NULL), 0);
	keeps_listening = false;
	attacker_refuse_filters(NULL);
}

/* ---- a UCX whose functions cannot be replaced --------------------------------------------------- */

static atomic_int *lacking; /* in so many processes that look next */

/* Stands before the C library's. */
__attribute__((visibility("default"))) int dladdr1(const void *address, Dl_info *info, void **extra, int flags)
{
	static pid_t lacks; /* the process that lacks it, at each look */
	int (*look)(const void *, Dl_info *, void **, int);

	if (lacking != NULL && (lacks == getpid() || atomic_fetch_sub(lacking, 1) > 0)) {
		lacks = getpid();
		return 0;
	}
	*(void **)&look = dlsym(RTLD_NEXT, "dladdr1");
	return look(address, info, extra, flags);
}

typedef struct heard {
	atomic_int warnings;
	char warning[1024];
} heard;

static void hear(void *user, ddp_log_level level, const char *message)
{
	heard *h = user;

	if (level <= DDP_LOG_WARN && atomic_fetch_add(&h->warnings, 1) == 0)
		snprintf(h->warning, sizeof(h->warning), "%s", message);
}

/* The others then ask for no proof: a rank that cannot be guarded cannot prove anything either. */
static void run_without(int count, const char *words)
{
	heard *h = test_share(sizeof(*h));
	attacker none = { .phase = 0 };

	lacking = test_share(sizeof(*lacking));
	atomic_store(lacking, count);
	ddp_set_log(hear, h, DDP_LOG_WARN);
	attacker_refuse_filters(&none);
	const int failures = run_two_nodes(stop_listening, NULL);
	attacker_refuse_filters(NULL);
	ddp_set_log(NULL, NULL, DDP_LOG_WARN);
	test_unshare(lacking, sizeof(*lacking));
	lacking = NULL;
	if (failures > 0 || strstr(h->warning, words) == NULL)
		fprintf(stderr, "# %s\n", h->warning);
	assert_int_equal(failures, 0);
	assert_int_equal(atomic_load(&h->warnings), 1);
	assert_non_null(strstr(h->warning, words));
	test_unshare(h, sizeof(*h));
}

TEST(ucx_that_cannot_be_guarded_is_told_once)
{
	run_without(2, "open to any host on 2 of 2 ranks, rank 0 on n0 first: libddp cannot check who connects to this UCX, "
	            "and no filter could be set for them (Operation not permitted)");
	run_without(1, "open to any host on 1 of 2 ranks");
}

static int look_at_no_listeners(void)
{
	const ddp_listeners none = { .count = 0 }, one = { .count = 1, .fds = { STDIN_FILENO } };
	ddp_guard *guard;

	CHECK_OK(ddp_guard_make(&guard));
	CHECK(ddp_guard_lacks(guard, &one) != NULL);
	CHECK(ddp_guard_lacks(guard, &none) == NULL);
	ddp_guard_free(guard);
	return 0;
}

TEST(ucx_without_listeners_needs_no_guard)
{
	lacking = test_share(sizeof(*lacking));
	atomic_store(lacking, 1);
	const int code = code_of_child(look_at_no_listeners);
	test_unshare(lacking, sizeof(*lacking));
	lacking = NULL;
	assert_int_equal(code, 0);
}

enum { PLACES = 16384 };

/* As a world of so many ranks has them. */
TEST(many_listeners_are_known_at_once)
{
	const clock_t start = clock();
	const ddp_proof_key key = { .bytes = { 1 } };
	ddp_guard *guard;

	assert_int_equal(ddp_guard_make(&guard), DDP_OK);
	for (int i = 0; i < 3 * PLACES; i++) {
		const int n = i % PLACES;
		const ddp_place place = { .family = AF_INET, .port = 1, .address = { 10, 0, (unsigned char)(n >> 8), (unsigned char)n } };
		assert_int_equal(ddp_guard_add_peer(guard, &place, 1, &key), DDP_OK);
	}
	ddp_guard_free(guard);
	const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
	printf("# %d listeners, thrice: %.3f s\n", PLACES, seconds);
	assert_true(seconds < 0.5 * test_slowness());
}
