/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; takes: 15 */
/* A lack of memory on one rank, at each place where it asks for some, also for messages that come early: all ranks
   get an error, or none, at once, and no descriptor of the program's is closed. This program's malloc and calloc,
   which are the library's but not UCX's, come here first (--wrap). */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/segment.h"
#include "comm/core/comm.h"
#include "comm/net/net.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/context_ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"
#include "watch/watch.h"

enum { RANKS = 3, LACKING = 1, TIMEOUT_MS = 20000, SENTINEL = 200, MESSAGE_BYTES = 4 << 20,
       PLACES_MAX = 200, EARLY_NS = 2000000 };
/* Sanitizers are slower; what they look for is the same at most places. */
enum { EACH_PLACE = THREAD_SANITIZER ? 29 : ADDRESS_SANITIZER ? 5 : 1 };

/* ---- memory ------------------------------------------------------------------------------ */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

static atomic_int to_come = -1; /* so many requests, then one is refused; negative: none */

static bool is_refused(void)
{
	return atomic_load(&to_come) >= 0 && atomic_fetch_sub(&to_come, 1) == 0;
}

/* What nobody has set looks like the number of a descriptor. */
void *__wrap_malloc(size_t bytes)
{
	int *memory = is_refused() ? NULL : __real_malloc(bytes);

	for (size_t i = 0; memory != NULL && i < bytes / sizeof(int) && i < 1024; i++)
		memory[i] = SENTINEL;
	return memory;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
	return is_refused() ? NULL : __real_calloc(count, bytes);
}

/* ---- messages that come early ------------------------------------------------------------ */

void __real_ddp_net_recv(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer, size_t bytes,
                         ddp_transfer *transfer);
void __wrap_ddp_net_recv(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer, size_t bytes,
                         ddp_transfer *transfer);

static bool is_same(const ddp_comm *comm, const ddp_unexpected *came, const void *wanted)
{
	const ddp_envelope *envelope = wanted;

	return came->envelope.source == envelope->source && came->envelope.tag == envelope->tag;
}

/* The rank that lacks memory asks for each message when it has come, if the sender does not wait for this rank. */
void __wrap_ddp_net_recv(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer, size_t bytes,
                         ddp_transfer *transfer)
{
	ddp_envelope wanted = { .source = peer, .tag = envelope->tag };
	const uint64_t end_ns = ddp_now_ns() + EARLY_NS;
	ddp_unexpected came;

	while (atomic_load(&to_come) >= 0 && ddp_now_ns() < end_ns && !ddp_net_find_unexpected(comm, is_same, &wanted, &came))
		(void)ddp_net_progress(comm);
	__real_ddp_net_recv(comm, peer, envelope, buffer, bytes, transfer);
}

/* ---- operations --------------------------------------------------------------------------- */

static ddp_status allocate(ddp_comm *comm)
{
	void *memory;
	ddp_status status = ddp_mem_alloc(comm, 10000, &memory);

	return status == DDP_OK ? ddp_mem_free(comm, memory) : status;
}

static ddp_status split(ddp_comm *comm)
{
	ddp_comm *part;
	ddp_status status = ddp_comm_split(comm, 0, 0, &part);

	return status == DDP_OK ? ddp_comm_free(part) : status;
}

/* Leaves memory alone while a communicator is made for an operation. */
static ddp_comm *split_with_memory(ddp_comm *comm)
{
	const int place = atomic_exchange(&to_come, -1);
	ddp_comm *part;

	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	/* Others' messages of the operation come after this. */
	atomic_store(&to_come, place);
	return part;
}

static ddp_status open_lane(ddp_comm *comm)
{
	ddp_comm *part = split_with_memory(comm);
	const ddp_status status = ddp_run(part, &(ddp_operation){ .kind = DDP_BARRIER, .lane = 1 });
	const ddp_status freed = ddp_comm_free(part);

	return status == DDP_OK ? freed : status;
}

/* A rank that cannot even begin is left behind; the others know that. */
static ddp_status shrink(ddp_comm *comm)
{
	ddp_comm *part = split_with_memory(comm), *survivors;

	CHECK_OK(ddp_comm_abort(part, "to be shrunk"));
	ddp_status status = ddp_comm_shrink(part, &survivors);
	if (status == DDP_OK) {
		const bool all = ddp_comm_size(survivors) == RANKS;
		status = ddp_comm_free(survivors);
		status = status == DDP_OK && !all ? DDP_ERR_PEER : status;
	}
	(void)ddp_comm_free(part);
	return status;
}

/* By its members alone, which are all. */
static ddp_status create_group(ddp_comm *comm)
{
	static const int all[RANKS] = { 0, 1, 2 };
	ddp_comm *part;
	ddp_status status = ddp_comm_create_group(comm, all, RANKS, 0, &part);

	return status == DDP_OK ? ddp_comm_free(part) : status;
}

/* One without the rank that lacks memory, which only takes part in making it. */
static ddp_status group(ddp_comm *comm)
{
	static const int others[] = { 0, 2 };
	ddp_comm *part;
	ddp_status status = ddp_comm_group(comm, others, 2, &part);

	return status == DDP_OK ? ddp_comm_free(part) : status;
}

/* Large enough that between nodes it is announced first. */
static ddp_status receive(ddp_comm *comm)
{
	static char buffer[MESSAGE_BYTES];

	ddp_status status = DDP_OK;

	if (ddp_comm_rank(comm) == LACKING)
		status = ddp_recv(comm, buffer, sizeof(buffer), DDP_U8, 0, 0);
	else if (ddp_comm_rank(comm) == 0)
		status = ddp_send(comm, buffer, sizeof(buffer), DDP_U8, LACKING, 0);
	return status == DDP_OK ? ddp_barrier(comm) : status;
}

enum { PARAMS = 600, ODD_PARAM = 590 }; /* more than are compared at once */

static ddp_context models; /* what a model is made in */

/* Of a parameter list of which each rank has the same, but for the shape of one. */
static ddp_status make_model(ddp_comm *comm, int odd_rank)
{
	static char names[PARAMS][8];
	static ddp_param params[PARAMS];
	ddp_model *model;

	for (int p = 0; p < PARAMS; p++) {
		snprintf(names[p], sizeof(names[p]), "p%d", p);
		params[p] = (ddp_param){ .name = names[p], .ndim = 1, .shape = { 3 } };
	}
	params[ODD_PARAM].shape[0] = ddp_comm_rank(comm) == odd_rank ? 4 : 3;
	ddp_status status = ddp_model_create(&models, params, PARAMS, NULL, &model);
	if (status == DDP_OK)
		ddp_model_free(model);
	return status;
}

/* Whether it is known which one that is; if not, a rank that lacks memory is the reason. */
static ddp_status name_parameter(ddp_comm *comm)
{
	ddp_status status = make_model(comm, 2);

	if (status == DDP_ERR_MISMATCH)
		return strstr(ddp_last_error(), "parameter 590 is \"p590\"") != NULL ? DDP_OK : DDP_ERR_PEER;
	CHECK(status != DDP_OK);
	return status;
}

static ddp_status make_same(ddp_comm *comm)
{
	ddp_status status = make_model(comm, -1);

	return status == DDP_ERR_MISMATCH ? DDP_ERR_PEER : status;
}

typedef ddp_status (*attempt)(ddp_comm *comm);

/* What the ranks share. */
typedef struct progress {
	attempt operation;
	int place;               /* whose memory is refused */
	bool all_done;           /* the operation asks for no more than was refused */
	atomic_int status[RANKS];
} progress;

static bool same_on_all(const progress *p)
{
	for (int r = 1; r < RANKS; r++) {
		if ((atomic_load(&p->status[r]) == DDP_OK) != (atomic_load(&p->status[0]) == DDP_OK))
			return false;
	}
	return true;
}

/* One place after the other, until an error has ended the communicator. */
static int lack_memory(ddp_comm *comm, void *argument)
{
	progress *p = argument;
	int rank = ddp_comm_rank(comm);

	CHECK(dup2(STDERR_FILENO, SENTINEL) == SENTINEL);
	models = test_context_of(comm);
	while (!p->all_done) {
		ddp_status status = ddp_barrier(comm);
		if (status != DDP_OK) {
			/* The rank that lacks memory was through before this one, and has broken the communicator. */
			atomic_store(&p->status[rank], status);
			break;
		}
		if (rank == LACKING)
			atomic_store(&to_come, p->place);
		status = p->operation(comm);
		bool refused = rank == LACKING && atomic_exchange(&to_come, -1) < 0;
		CHECK(fcntl(SENTINEL, F_GETFD) >= 0);
		CHECK(status == DDP_OK || status == DDP_ERR_NOMEM || status == DDP_ERR_PEER);
		atomic_store(&p->status[rank], status);
		/* Nobody is through before all are; the rank that lacked memory goes on. */
		bool broken = ddp_barrier(comm) != DDP_OK;
		if (!broken)
			CHECK(same_on_all(p));
		if (rank == LACKING) {
			p->place += EACH_PLACE;
			p->all_done = !refused;
			CHECK(refused || status == DDP_OK);
			CHECK(p->place < PLACES_MAX);
		}
		if (broken || ddp_barrier(comm) != DDP_OK)
			break;
	}
	ddp_watch_close(models.watch);
	return 0;
}

static void run(attempt operation, const int *node_of, bool all_or_none)
{
	progress *p = test_share(sizeof(*p));

	p->operation = operation;
	while (!p->all_done) {
		int before = p->place;

		RUN_WORLD(.ranks = RANKS, .node_of = node_of, .timeout_ms = TIMEOUT_MS, .measures = true, .body = lack_memory,
		          .argument = p);
		assert_true(p->place > before || p->all_done);
		assert_true(!all_or_none || same_on_all(p));
	}
	printf("# %d places\n", p->place / EACH_PLACE - 1);
	test_unshare(p, sizeof(*p));
}

static void run_on_nodes(attempt operation, bool all_or_none)
{
	run(operation, NULL, all_or_none);
#ifdef HAVE_UCX
	static const int three_nodes[RANKS] = { 0, 1, 2 };

	run(operation, two_nodes, all_or_none);
	run(operation, three_nodes, all_or_none);
#endif
}

TEST_RUNS(shared_memory_is_given_to_all_or_none, run_on_nodes(allocate, true));

/* A rank that lacks memory closes its segment, and then has another file under that number. */
TEST(segment_that_was_closed_is_told_from_an_error)
{
	int ends[2], sockets[2];

	assert_return_code(pipe(ends), errno);
	assert_return_code(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), errno);
	const int files[] = { open("/", O_RDONLY | O_DIRECTORY), memfd_create("another", MFD_CLOEXEC), ends[1], sockets[0] };
	for (size_t i = 0; i < COUNT(files); i++) {
		assert_return_code(files[i], errno);
		assert_int_equal(ddp_segment_open(getpid(), files[i]), -1);
		assert_int_equal(errno, ESTALE);
		close(files[i]);
	}
	assert_int_equal(ddp_segment_open(getpid(), files[0]), -1);
	assert_int_equal(errno, ENOENT);
	close(ends[0]);
	close(sockets[1]);
}

TEST_RUNS(communicator_is_split_by_all_or_none, run_on_nodes(split, true));

TEST_RUNS(group_of_others_is_made_or_not, run_on_nodes(group, true));

TEST_RUNS(group_is_created_by_all_members_or_none, run_on_nodes(create_group, false));

TEST(lane_is_opened_by_all_or_none)
{
	/* Each communicator measures the network: between three nodes that takes too many requests. */
	run(open_lane, NULL, true);
#ifdef HAVE_UCX
	run(open_lane, two_nodes, true);
#endif
}

TEST_RUNS(communicator_is_shrunk_by_all_or_none, run_on_nodes(shrink, true));

TEST_RUNS(message_comes_or_breaks_the_communicator, run_on_nodes(receive, false));

TEST_RUNS(a_parameter_that_differs_is_named_or_memory_was_lacking, run_on_nodes(name_parameter, false));

TEST_RUNS(model_is_made_by_all_or_none, run_on_nodes(make_same, true));
