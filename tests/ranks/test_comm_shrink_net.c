/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan; needs: UCX */
/* What keeps ranks between nodes from going on with what is left of a communicator: a network that
   does not end, too few descriptors, ranks that die before they tell, and memory that is refused. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#include "comm/core/comm.h"
#include "comm/group/agreement.h"
#include "comm/net/net.h"
#include "tests/support/comm_shrink.h"
#include "tests/support/hung.h"
#include "tests/support/test.h"

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
	test_ranks_together(); /* one that is still in it would hear of the abort there */
	atomic_store(&stuck, rank == 1 && before);
	if (rank == 0 && !before)
		ddp_comm_abort(comm, "the test wants it");
	while (ddp_all_reduce(comm, NULL, x, 8, DDP_F32, DDP_SUM) == DDP_OK)
		continue;
	atomic_store(&stuck, rank == 1);
	if (rank == 1) {
		CHECK_FAILS(ddp_comm_shrink(comm, &survivors), DDP_ERR_PEER, "no network any more");
		CHECK(ddp_comm_shrink(comm, &survivors) == DDP_ERR_PEER);
		return 0;
	}
	CHECK_OK(ddp_comm_free(test_shrink_to_all_but(comm, 1, 1)));
	return 0;
}

TEST(rank_whose_network_ended_is_left_out)
{
	static const int two_nodes[] = { 0, 1, 0 };
	static bool before[] = { false, true };
	/* Less, and a rank that a busy machine keeps waiting would be left out, too. */
	const int timeout_ms = 1500 * test_slowness();

	for (int i = 0; i < 2; i++)
		test_run_shrinking(3, two_nodes, timeout_ms, shrink_with_one_mute, &before[i]);
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
	CHECK_OK(ddp_comm_free(test_shrink_to_all_but(comm, 0, 0)));
	return 0;
}

/* Rank 0 may not raise its limit. The others hear of it, though most are not connected with it. */
static int connect_without_descriptors(ddp_comm *comm, void *argument)
{
	char byte = 0;

	if (ddp_comm_rank(comm) == 0) {
		connect_for_barriers(comm);
		limit_descriptors(3, 3);
		CHECK_FAILS(ddp_send(comm, &byte, 1, DDP_U8, FAR, 0), DDP_ERR_PEER, "rank 0 on n0 has no descriptor left");
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
	test_run_shrinking(CONNECTED_LATE, nodes, INT_MAX, body, NULL);
}

TEST_RUNS(rank_with_few_descriptors_gets_more, run_connected_late(shrink_with_few_descriptors));

TEST_RUNS(rank_without_descriptors_says_so, run_connected_late(connect_without_descriptors));

/* ---- connections ---------------------------------------------------------------------------- */

static atomic_int connections; /* that this rank has begun */

/* Stands before UCX's. */
__attribute__((visibility("default"))) ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params,
                                                                  ucp_ep_h *ep)
{
	ucs_status_t (*create)(ucp_worker_h, const ucp_ep_params_t *, ucp_ep_h *);

	atomic_fetch_add(&connections, 1);
	*(void **)&create = dlsym(RTLD_NEXT, "ucp_ep_create");
	return create(worker, params, ep);
}

enum { MANY_NODES = 5, ON_EACH = 7 };

/* Blocks of any size, of which words of the sum hold parts. */
static void gather_little(ddp_comm *comm)
{
	unsigned char all[MANY_NODES * ON_EACH][3] = { 0 };
	const unsigned char rank = (unsigned char)ddp_comm_rank(comm), own[3] = { rank, 255, (unsigned char)(rank + 1) };

	CHECK_OK(ddp_all_gather(comm, own, all, sizeof(own), DDP_U8));
	for (int r = 0; r < MANY_NODES * ON_EACH; r++)
		CHECK(all[r][0] == r && all[r][1] == 255 && all[r][2] == r + 1);
}

/* Two between two nodes, of which both ends count. */
static int shrink_by_few_connections(ddp_comm *comm, void *begun_by_all)
{
	ddp_comm *survivors;

	test_break(comm, DDP_ERR_ABORTED);
	const int before = atomic_load(&connections);
	CHECK_OK(ddp_comm_shrink(comm, &survivors));
	gather_little(survivors);
	atomic_fetch_add((atomic_int *)begun_by_all, atomic_load(&connections) - before);
	CHECK_OK(ddp_barrier(survivors));
	CHECK(atomic_load((atomic_int *)begun_by_all) <= 2 * MANY_NODES * (MANY_NODES - 1));
	CHECK_OK(ddp_comm_free(survivors));
	return 0;
}

TEST(connections_are_as_many_as_nodes_need_and_not_ranks)
{
	int nodes[MANY_NODES * ON_EACH];
	atomic_int *begun = test_share(sizeof(*begun));

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	skip(); /* each process is dear */
#endif
	for (int r = 0; r < MANY_NODES * ON_EACH; r++)
		nodes[r] = r / ON_EACH;
	test_run_shrinking(MANY_NODES * ON_EACH, nodes, INT_MAX, shrink_by_few_connections, begun);
	test_unshare(begun, sizeof(*begun));
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

/* Ranks 1 to 3 are on one node. Of the first two, which carry, rank 0 has heard all that it waits for;
   but rank 3 has not heard from rank 0. */
static int shrink_without_those_who_show(ddp_comm *comm, void *argument)
{
	second_round = argument;
	test_break(comm, DDP_ERR_ABORTED);
	rounds_of = ddp_comm_rank(comm) < 3 ? comm : NULL;
	CHECK_OK(ddp_comm_free(test_shrink_to_all_but(comm, 1, 2)));
	rounds_of = NULL;
	return 0;
}

TEST(ranks_are_heard_though_those_who_would_show_it_die)
{
	static const int nodes[] = { 0, 1, 1, 1 };
	atomic_bool *second = test_share(sizeof(*second));

	test_run_shrinking(4, nodes, 10000, shrink_without_those_who_show, second);
	test_unshare(second, sizeof(*second));
}

/* ---- an attempt that fails ---------------------------------------------------------------- */

static bool refuses;         /* the next memory that is to be shared, */
static bool refuses_another; /* or that of another process */

/* These stand before libc's. */
__attribute__((visibility("default"))) int memfd_create(const char *name, unsigned int flags)
{
	if (refuses) {
		refuses = false;
		errno = ENFILE;
		return -1;
	}
	return (int)syscall(SYS_memfd_create, name, flags);
}

__attribute__((visibility("default"))) int open(const char *path, int flags, ...)
{
	va_list arguments;

	if (refuses_another && strncmp(path, "/proc/", 6) == 0 && strstr(path, "/fd/") != NULL) {
		refuses_another = false;
		errno = EACCES;
		return -1;
	}
	va_start(arguments, flags);
	const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
	va_end(arguments);
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static int missed = DDP_NOBODY; /* the rank whose word this one misses, once it fails */

ddp_status __real_ddp_agreement_round(ddp_agreement *m, uint32_t stage, int verdict, bool decided,
                                      const void *data, size_t bytes);
ddp_status __wrap_ddp_agreement_round(ddp_agreement *m, uint32_t stage, int verdict, bool decided,
                                      const void *data, size_t bytes);
ddp_status __wrap_ddp_agreement_round(ddp_agreement *m, uint32_t stage, int verdict, bool decided,
                                      const void *data, size_t bytes)
{
	ddp_status status = __real_ddp_agreement_round(m, stage, verdict, decided, data, bytes);

	if (missed != DDP_NOBODY && m->proposals[missed] != NULL && m->proposals[missed]->verdict != 0) {
		m->proposals[missed] = NULL;
		missed = DDP_NOBODY;
	}
	return status;
}

/* Descriptors of this process but for sockets: UCX makes and closes those when its connections need them. */
static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	char target[64];
	int count = 0;

	CHECK(folder != NULL);
	for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
		const ssize_t bytes = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target));
		count += bytes > 0 && strncmp(target, "socket:", strlen("socket:")) != 0;
	}
	closedir(folder);
	return count;
}

typedef struct refusal {
	int ranks, node_of[4];
	int rank;      /* cannot make its part, */
	bool *refuses; /* as this is refused; */
	int misses;    /* a rank that hears of it only from those that have heard of it, or DDP_NOBODY */
} refusal;

/* A rank cannot make its part, before it has offered it or behind that: nobody has the
   communicator, all know whose error it is, of what had begun nothing is left, and all try again. */
static int shrink_with_a_refusal(ddp_comm *comm, void *argument)
{
	const refusal *r = argument;
	const int before = descriptors();
	CHECK(before > 0);
	ddp_comm *again = NULL;
	char who[64];

	test_break(comm, DDP_ERR_ABORTED);
	*r->refuses = ddp_comm_rank(comm) == r->rank;
	missed = ddp_comm_rank(comm) == r->misses ? r->rank : DDP_NOBODY;
	CHECK(ddp_comm_shrink(comm, &again) != DDP_OK && again == NULL);
	CHECK(!*r->refuses && missed == DDP_NOBODY);
	snprintf(who, sizeof(who), "rank %d on n%d could not make its part", r->rank, r->node_of[r->rank]);
	CHECK(ddp_comm_rank(comm) == r->rank || strstr(ddp_last_error(), who) != NULL);
	CHECK(descriptors() == before);
	/* One begins at once, while others of its node may still be in the attempt's last round. */
	CHECK_OK(ddp_comm_free(test_shrink_to_all_but(comm, 0, 0)));
	CHECK(descriptors() == before);
	/* With a rank that has ended, the others have no connection any more. */
	test_ranks_together();
	return 0;
}

TEST(nothing_is_left_of_an_attempt_that_failed)
{
	refusal refusals[] = {
		{ .ranks = 3, .node_of = { 0, 1, 2 }, .rank = 2, .refuses = &refuses, .misses = DDP_NOBODY },
		{ .ranks = 3, .node_of = { 0, 0, 1 }, .rank = 1, .refuses = &refuses_another, .misses = DDP_NOBODY },
		{ .ranks = 4, .node_of = { 0, 0, 0, 1 }, .rank = 2, .refuses = &refuses_another, .misses = 1 },
	};

	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
		test_run_shrinking(refusals[i].ranks, refusals[i].node_of, 0, shrink_with_a_refusal, &refusals[i]);
}
