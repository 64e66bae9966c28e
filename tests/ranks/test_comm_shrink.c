/* Those that are left of a broken communicator go on. */
#include <dirent.h>
#include <errno.h>
#include <dlfcn.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef HAVE_UCX
#include <ucp/api/ucp.h>
#endif

#include "comm/core/comm.h"
#include "comm/net/net.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/hung.h"

enum { FALL_OUT_MS = 300 };

static const int two_nodes[] = { 0, 1, 0, 1 };

static void run_with(int ranks, const int *node_of, int timeout_ms, int (*body)(ddp_comm *, void *),
                     void *argument)
{
	const test_world world = { .ranks = ranks, .node_of = node_of, .timeout_ms = timeout_ms,
	                           .body = body, .argument = argument, .expect_deaths = true };

	assert_int_equal(test_world_run(&world), 0);
}

static void expect_sum_of(ddp_comm *comm, int value, int expected)
{
	enum { COUNT = 30000 };
	static float x[COUNT];

	for (int i = 0; i < COUNT; i++)
		x[i] = (float)value;
	CHECK_OK(ddp_all_reduce(comm, NULL, x, COUNT, DDP_F32, DDP_SUM));
	for (int i = 0; i < COUNT; i++)
		CHECK(x[i] == (float)expected);
}

/* All ranks but `out` of them, from `first` on, shrink to what they can go on with, where they
   keep their order. */
static ddp_comm *shrink_to_all_but(ddp_comm *comm, int first, int out)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	ddp_comm *survivors;

	CHECK_OK(ddp_comm_shrink(comm, &survivors));
	CHECK(ddp_comm_size(survivors) == size - out);
	CHECK(ddp_comm_rank(survivors) == (rank < first ? rank : rank - out));
	expect_sum_of(survivors, rank, size * (size - 1) / 2 - out * first - out * (out - 1) / 2);
	return survivors;
}

/* ---- after each kind of error ---------------------------------------------------------- */

static int go_on_without_the_dead(ddp_comm *comm, void *argument)
{
	ddp_status status = DDP_OK;
	ddp_comm *survivors;
	static float x[30000];

	(void)argument;
	CHECK(ddp_comm_shrink(comm, &survivors) == DDP_ERR_STATE);
	for (int i = 0; i < 1000 && status == DDP_OK; i++) {
		if (ddp_comm_rank(comm) == 1 && i == 3)
			kill(getpid(), SIGKILL);
		status = ddp_all_reduce(comm, NULL, x, 30000, DDP_F32, DDP_SUM);
	}
	CHECK(status == DDP_ERR_PEER);
	CHECK_OK(ddp_comm_free(shrink_to_all_but(comm, 1, 1)));
	return 0;
}

static void survivors_go_on(void **state)
{
	(void)state;
	run_with(2, NULL, 0, go_on_without_the_dead, NULL);
	run_with(4, NULL, 0, go_on_without_the_dead, NULL);
	run_with(3, two_nodes, 0, go_on_without_the_dead, NULL);
	run_with(4, two_nodes, 0, go_on_without_the_dead, NULL);
}

static void set_timeout(ddp_comm *comm, int timeout_ms)
{
	pthread_mutex_lock(&comm->run.lock);
	comm->timeout_ms = timeout_ms;
	pthread_mutex_unlock(&comm->run.lock);
}

/* Breaks the communicator in the way of `status`, with all ranks alive. A short
   timeout is for this only: on a busy machine ranks shrink more slowly. */
static void fall_out(ddp_comm *comm, ddp_status status)
{
	int rank = ddp_comm_rank(comm);
	int timeout_ms = comm->timeout_ms;
	float x[8] = { 0 };
	ddp_status ended = DDP_OK;

	for (int i = 0; i < 3 && ended == DDP_OK; i++) {
		if (i == 1 && rank == 1 && status == DDP_ERR_ABORTED)
			ddp_comm_abort(comm, "the test wants it");
		if (i == 1 && rank != 1 && status == DDP_ERR_TIMEOUT)
			set_timeout(comm, FALL_OUT_MS);
		while (i == 1 && rank == 1 && status == DDP_ERR_TIMEOUT && !ddp_comm_broken(comm))
			usleep(1000);
		ended = ddp_all_reduce(comm, NULL, x, status == DDP_ERR_MISMATCH && rank == 1 ? 7 : 8, DDP_F32,
		                       DDP_SUM);
	}
	CHECK(ended == status);
	set_timeout(comm, timeout_ms);
}

static int shrink_with_all_alive(ddp_comm *comm, void *argument)
{
	const ddp_status *status = argument;

	fall_out(comm, *status);
	ddp_comm *again = shrink_to_all_but(comm, 0, 0);
	/* What came of it may break, too. */
	fall_out(again, *status);
	CHECK_OK(ddp_comm_free(shrink_to_all_but(again, 0, 0)));
	CHECK_OK(ddp_comm_free(again));
	return 0;
}

static void shrink_works_after_every_kind_of_error(void **state)
{
	static ddp_status kinds[] = { DDP_ERR_ABORTED, DDP_ERR_MISMATCH, DDP_ERR_TIMEOUT };

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		run_with(3, NULL, 0, shrink_with_all_alive, &kinds[i]);
		run_with(3, two_nodes, 0, shrink_with_all_alive, &kinds[i]);
	}
}

/* Who never wants to give up gives the longest deadline there is. */
static void the_longest_deadline_does_not_pass_at_once(void **state)
{
	static ddp_status aborted = DDP_ERR_ABORTED;

	(void)state;
	run_with(3, NULL, INT_MAX, shrink_with_all_alive, &aborted);
	run_with(3, two_nodes, INT_MAX, shrink_with_all_alive, &aborted);
}

static int leave_and_shrink(ddp_comm *comm, void *argument)
{
	(void)argument;
	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 1)
		return 0;
	CHECK(ddp_barrier(comm) == DDP_ERR_PEER);
	CHECK_OK(ddp_comm_free(shrink_to_all_but(comm, 1, 1)));
	return 0;
}

static void who_has_left_does_not_count(void **state)
{
	(void)state;
	run_with(3, NULL, 0, leave_and_shrink, NULL);
}

/* ---- a rank that stays away -------------------------------------------------------------- */

static void await(atomic_int *done, int count)
{
	while (atomic_load(done) < count)
		usleep(1000);
}

/* Ranks that come when the others have gone on are told so; who has gone on stays until then, as
   they must still find the others' word. `done` counts both. */
static void go_on_without_the_late(ddp_comm *comm, atomic_int *done, int first, int out, const char *told)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	ddp_comm *survivors;

	if (rank >= first && rank < first + out) {
		await(done, size - out);
		CHECK(ddp_comm_shrink(comm, &survivors) == DDP_ERR_PEER);
		CHECK(strstr(ddp_last_error(), told) != NULL);
		atomic_fetch_add(done, 1);
		return;
	}
	survivors = shrink_to_all_but(comm, first, out);
	atomic_fetch_add(done, 1);
	await(done, size);
	CHECK_OK(ddp_comm_free(survivors));
}

/* The ranks that shrink begin at different times, and so wait for the one that
   does not until different times. */
static int shrink_without_the_last(ddp_comm *comm, void *done)
{
	/* Not while another rank is still opening it. */
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_barrier(comm));
		ddp_comm_abort(comm, "the test wants it");
	}
	while (ddp_barrier(comm) == DDP_OK)
		continue;
	usleep(ddp_comm_rank(comm) == 1 ? 300000 : 0);
	go_on_without_the_late(comm, done, 2, 1, "went on without rank 2");
	return 0;
}

static void live_rank_that_stays_away_is_left_out_by_all(void **state)
{
	static const int apart[] = { 0, 0, 1 }, three[] = { 0, 1, 2 };
	const int *const layouts[] = { NULL, two_nodes, apart, three };
	/* Less, and a rank that a busy machine keeps waiting would be left out, and those
	   that wait for it here would hang. */
	const int timeout_ms = 1500 * test_slowness();

	(void)state;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		atomic_int *done = test_share(sizeof(*done));
		run_with(3, layouts[i], timeout_ms, shrink_without_the_last, done);
		test_unshare(done, sizeof(*done));
	}
}

/* Ranks 4 and 5, who would show on their node what ranks 0, 3 and others of the other one
   tell: their node's others hear of it nevertheless. */
static int shrink_without_two_of_a_node(ddp_comm *comm, void *done)
{
	fall_out(comm, DDP_ERR_ABORTED);
	go_on_without_the_late(comm, done, 4, 2, "went on without");
	return 0;
}

static void ranks_are_heard_though_those_who_would_show_it_stay_away(void **state)
{
	static const int nodes[] = { 0, 0, 0, 0, 1, 1, 1, 1 };
	atomic_int *done = test_share(sizeof(*done));

	(void)state;
	run_with(8, nodes, 3000, shrink_without_two_of_a_node, done);
	test_unshare(done, sizeof(*done));
}

/* ---- a rank that is slow to see the failure ------------------------------------------------ */

enum { SLOW_COUNT = 90000, PAGE_ELEMENTS = 1024 };

static float *slow_page;
static atomic_bool *held; /* all ranks share it */
static const ddp_node *slow_node;

/* Rank 0's thread is held here, in the middle of its part of the sum, until each
   of the others has told the rest that it shrinks. */
static void let_the_others_shrink(int number)
{
	(void)number;
	atomic_store(held, true);
	for (int i = 1; i < slow_node->size; i++) {
		while (atomic_load(&slow_node->shared->ranks[i].agreement) == 0)
			usleep(1000);
	}
	if (mprotect(slow_page, PAGE_ELEMENTS * sizeof(float), PROT_READ | PROT_WRITE) != 0)
		_exit(1);
}

static void *abort_when_held(void *comm)
{
	while (!atomic_load(held))
		usleep(1000);
	ddp_comm_abort(comm, "the test wants it");
	return NULL;
}

/* What it still writes to others must not touch what these tell each other. */
static int shrink_while_one_still_works(ddp_comm *comm, void *argument)
{
	const struct sigaction hold = { .sa_handler = let_the_others_shrink };
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	float *x = mmap(NULL, SLOW_COUNT * sizeof(float), PROT_READ | PROT_WRITE,
	                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;

	held = argument;
	slow_node = &comm->node;
	CHECK(x != MAP_FAILED);
	slow_page = x + 4 * PAGE_ELEMENTS;
	if (rank == 0) {
		CHECK(sigaction(SIGSEGV, &hold, NULL) == 0);
		CHECK(mprotect(slow_page, PAGE_ELEMENTS * sizeof(float), PROT_NONE) == 0);
	}
	if (rank == size - 1)
		CHECK(pthread_create(&thread, NULL, abort_when_held, comm) == 0);
	CHECK(ddp_all_reduce(comm, NULL, x, SLOW_COUNT, DDP_F32, DDP_SUM) == DDP_ERR_ABORTED);
	CHECK_OK(ddp_comm_free(shrink_to_all_but(comm, 0, 0)));
	if (rank == size - 1)
		CHECK(pthread_join(thread, NULL) == 0);
	return 0;
}

static void who_still_works_does_not_disturb_the_others(void **state)
{
	atomic_bool *flag = test_share(sizeof(*flag));

	(void)state;
	run_with(3, NULL, 0, shrink_while_one_still_works, flag);
	test_unshare(flag, sizeof(*flag));
}

/* ---- a rank that dies meanwhile ----------------------------------------------------------- */

static void *die_soon(void *delay_us)
{
	usleep(*(const useconds_t *)delay_us);
	kill(getpid(), SIGKILL);
	return NULL;
}

/* Whatever the moment, the others end up together. */
static int shrink_while_one_dies(ddp_comm *comm, void *argument)
{
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	ddp_comm *now = comm, *next;
	pthread_t thread;

	while (ddp_barrier(comm) == DDP_OK) {
		if (rank == 0)
			ddp_comm_abort(comm, "the test wants it");
	}
	if (rank == 1)
		CHECK(pthread_create(&thread, NULL, die_soon, argument) == 0);
	/* It may still have been counted in: then the new one breaks. */
	ddp_status status = DDP_ERR_ABORTED;
	for (int i = 0; i < 3 && status != DDP_OK; i++) {
		CHECK_OK(ddp_comm_shrink(now, &next));
		if (now != comm)
			CHECK_OK(ddp_comm_free(now));
		now = next;
		while ((status = ddp_barrier(now)) == DDP_OK && ddp_comm_size(now) == size)
			continue;
		CHECK(status == DDP_OK || status == DDP_ERR_PEER);
	}
	CHECK(ddp_comm_size(now) == size - 1);
	expect_sum_of(now, rank, size * (size - 1) / 2 - 1);
	CHECK_OK(ddp_comm_free(now));
	return 0;
}

static void ranks_agree_although_one_dies_while_they_do(void **state)
{
	static const int three_of_three[] = { 0, 0, 0, 1, 1, 1, 2, 2, 2 };
	static useconds_t delays_us[] = { 0, 150, 300, 600, 1200, 2500, 5000, 12000, 30000 };

	(void)state;
	for (size_t i = 0; i < sizeof(delays_us) / sizeof(delays_us[0]); i++) {
		run_with(4, NULL, 0, shrink_while_one_dies, &delays_us[i]);
		run_with(4, two_nodes, 0, shrink_while_one_dies, &delays_us[i]);
	}
	run_with(9, three_of_three, 0, shrink_while_one_dies, &delays_us[3]);
	run_with(9, three_of_three, 0, shrink_while_one_dies, &delays_us[7]);
}

/* ---- an attempt that fails ---------------------------------------------------------------- */

static bool refuses; /* the next memory that is to be shared */

/* Stands before libc's. */
__attribute__((visibility("default"))) int memfd_create(const char *name, unsigned int flags)
{
	if (refuses) {
		refuses = false;
		errno = ENFILE;
		return -1;
	}
	return (int)syscall(SYS_memfd_create, name, flags);
}

#ifdef HAVE_UCX
/* ---- a network that does not end ------------------------------------------------------------ */

static atomic_bool stuck; /* what is sent from here on is under way for ever */

/* Stands before UCX's. Only requests with a callback are awaited by it. */
__attribute__((visibility("default"))) ucs_status_ptr_t
ucp_am_send_nbx(ucp_ep_h ep, unsigned int id, const void *header, size_t header_bytes,
                const void *data, size_t bytes, const ucp_request_param_t *param)
{
	ucs_status_ptr_t (*send)(ucp_ep_h, unsigned int, const void *, size_t, const void *, size_t,
	                         const ucp_request_param_t *);
	static char request;

	if (atomic_load(&stuck) && (param->op_attr_mask & UCP_OP_ATTR_FIELD_CALLBACK) != 0)
		return &request;
	*(void **)&send = dlsym(RTLD_NEXT, "ucp_am_send_nbx");
	return send == NULL ? UCS_STATUS_PTR(UCS_ERR_UNSUPPORTED)
	                    : send(ep, id, header, header_bytes, data, bytes, param);
}

/* Rank 1, alone on its node, cannot speak: before the failure, or from the time
   that it shrinks. UCX, which does not end what it was told to, is closed. */
static int shrink_with_one_mute(ddp_comm *comm, void *argument)
{
	const bool before = *(const bool *)argument;
	int rank = ddp_comm_rank(comm);
	float x[8] = { 0 };
	ddp_comm *survivors;

	CHECK_OK(ddp_all_reduce(comm, NULL, x, 8, DDP_F32, DDP_SUM));
	atomic_store(&stuck, rank == 1 && before);
	if (rank == 0 && !before)
		ddp_comm_abort(comm, "the test wants it");
	while (ddp_all_reduce(comm, NULL, x, 8, DDP_F32, DDP_SUM) == DDP_OK)
		continue;
	atomic_store(&stuck, rank == 1);
	if (rank == 1) {
		CHECK(ddp_comm_shrink(comm, &survivors) == DDP_ERR_PEER);
		CHECK(strstr(ddp_last_error(), "no network any more") != NULL);
		CHECK(ddp_comm_shrink(comm, &survivors) == DDP_ERR_PEER);
		return 0;
	}
	CHECK_OK(ddp_comm_free(shrink_to_all_but(comm, 1, 1)));
	return 0;
}

static void rank_whose_network_ended_is_left_out(void **state)
{
	static bool before[] = { false, true };

	(void)state;
	for (int i = 0; i < 2; i++)
		run_with(3, two_nodes, 1500, shrink_with_one_mute, &before[i]);
}

/* ---- a rank without descriptors --------------------------------------------------------------- */

enum {
	CONNECTED_LATE = DDP_NET_FEW_RANKS + 2, /* ranks: as they need it */
	FAR = 21                                /* one that rank 0 is not connected with */
};

static void limit_descriptors(rlim_t soft, rlim_t hard)
{
	const struct rlimit limit = { .rlim_cur = soft, .rlim_max = hard };

	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* The second barrier finds all connections that it needs. */
static void connect_for_barriers(ddp_comm *comm)
{
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_barrier(comm));
}

/* Rank 0 has no descriptor for a connection, and does not come to shrink at once. */
static int shrink_with_few_descriptors(ddp_comm *comm, void *argument)
{
	struct rlimit limit;
	char byte = 0;

	(void)argument;
	if (ddp_comm_rank(comm) == 0) {
		connect_for_barriers(comm);
		CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
		limit_descriptors(3, limit.rlim_max);
		CHECK_OK(ddp_send(comm, &byte, 1, DDP_U8, FAR, 0));
		CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > 3);
		ddp_comm_abort(comm, "the test wants it");
		usleep(500000);
	}
	while (ddp_barrier(comm) == DDP_OK)
		continue;
	CHECK_OK(ddp_comm_free(shrink_to_all_but(comm, 0, 0)));
	return 0;
}

/* Rank 0 may not raise its limit. The others hear of it, though most are not connected with it. */
static int connect_without_descriptors(ddp_comm *comm, void *argument)
{
	char byte = 0;

	(void)argument;
	if (ddp_comm_rank(comm) == 0) {
		connect_for_barriers(comm);
		limit_descriptors(3, 3);
		CHECK(ddp_send(comm, &byte, 1, DDP_U8, FAR, 0) == DDP_ERR_PEER);
		CHECK(strstr(ddp_last_error(), "rank 0 on n0 has no descriptor left") != NULL);
		_exit(0); /* what UCX 1.13 does without descriptors is not tested */
	}
	while (ddp_barrier(comm) == DDP_OK)
		continue;
	return 0;
}

static void run_connected_late(int (*body)(ddp_comm *, void *))
{
	int nodes[CONNECTED_LATE];

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	skip(); /* each process is dear */
#endif
	for (int r = 0; r < CONNECTED_LATE; r++)
		nodes[r] = r;
	run_with(CONNECTED_LATE, nodes, INT_MAX, body, NULL);
}

static void rank_with_few_descriptors_gets_more(void **state)
{
	(void)state;
	run_connected_late(shrink_with_few_descriptors);
}

static void rank_without_descriptors_says_so(void **state)
{
	(void)state;
	run_connected_late(connect_without_descriptors);
}

/* ---- ranks that die with what they were to show ---------------------------------------------- */

static ddp_comm *rounds_of;      /* of its rounds: */
static atomic_bool *second_round; /* rank 0 has begun the second one; all ranks share it */
static uint64_t first_round;

/* Stands before UCX's. Ranks 1 and 2 hear nothing from their first round on, and die when
   rank 0 is through with it. */
__attribute__((visibility("default"))) unsigned int ucp_worker_progress(ucp_worker_h worker)
{
	unsigned int (*progress)(ucp_worker_h);
	const uint64_t round = rounds_of != NULL ? atomic_load(&ddp_lines_own(rounds_of)->agreement) : 0;

	if (round != 0 && ddp_comm_rank(rounds_of) == 0) {
		first_round = first_round == 0 ? round : first_round;
		if (round != first_round)
			atomic_store(second_round, true);
	} else if (round != 0) {
		if (atomic_load(second_round))
			kill(getpid(), SIGKILL);
		return 0;
	}
	*(void **)&progress = dlsym(RTLD_NEXT, "ucp_worker_progress");
	return progress(worker);
}

/* Ranks 1 to 3 are on one node. Of the first two, rank 0 has heard all that it waits for;
   but rank 3 has not heard from rank 0. */
static int shrink_without_those_who_show(ddp_comm *comm, void *argument)
{
	second_round = argument;
	fall_out(comm, DDP_ERR_ABORTED);
	rounds_of = ddp_comm_rank(comm) < 3 ? comm : NULL;
	CHECK_OK(ddp_comm_free(shrink_to_all_but(comm, 1, 2)));
	rounds_of = NULL;
	return 0;
}

static void ranks_are_heard_though_those_who_would_show_it_die(void **state)
{
	static const int nodes[] = { 0, 1, 1, 1 };
	atomic_bool *second = test_share(sizeof(*second));

	(void)state;
	run_with(4, nodes, 10000, shrink_without_those_who_show, second);
	test_unshare(second, sizeof(*second));
}

static int count_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	CHECK(folder != NULL);
	while (readdir(folder) != NULL)
		count++;
	closedir(folder);
	return count;
}

/* Rank 2 cannot make its part: nobody has the communicator, of what had begun nothing is
   left, and all try again. */
static int shrink_with_a_refusal(ddp_comm *comm, void *argument)
{
	const int before = count_descriptors();
	ddp_comm *again = NULL;

	(void)argument;
	fall_out(comm, DDP_ERR_ABORTED);
	refuses = ddp_comm_rank(comm) == 2;
	CHECK(ddp_comm_shrink(comm, &again) != DDP_OK && again == NULL);
	CHECK(!refuses);
	CHECK(count_descriptors() == before);
	CHECK_OK(ddp_comm_free(shrink_to_all_but(comm, 0, 0)));
	CHECK(count_descriptors() == before);
	/* With a rank that has ended, the others have no connection any more. */
	test_ranks_together();
	return 0;
}

static void nothing_is_left_of_an_attempt_that_failed(void **state)
{
	static const int three[] = { 0, 1, 2 };

	(void)state;
	run_with(3, three, 0, shrink_with_a_refusal, NULL);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(survivors_go_on),
		cmocka_unit_test(shrink_works_after_every_kind_of_error),
		cmocka_unit_test(the_longest_deadline_does_not_pass_at_once),
		cmocka_unit_test(who_has_left_does_not_count),
		cmocka_unit_test(live_rank_that_stays_away_is_left_out_by_all),
		cmocka_unit_test(ranks_are_heard_though_those_who_would_show_it_stay_away),
		cmocka_unit_test(who_still_works_does_not_disturb_the_others),
		cmocka_unit_test(ranks_agree_although_one_dies_while_they_do),
#ifdef HAVE_UCX
		cmocka_unit_test(nothing_is_left_of_an_attempt_that_failed),
		cmocka_unit_test(rank_whose_network_ended_is_left_out),
		cmocka_unit_test(rank_with_few_descriptors_gets_more),
		cmocka_unit_test(rank_without_descriptors_says_so),
		cmocka_unit_test(ranks_are_heard_though_those_who_would_show_it_die),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
