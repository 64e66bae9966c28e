/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/comm_ranks.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "tests/support/sanitizers.h"
#ifdef HAVE_UCX
#include "comm/net/listener.h"
#endif

enum { BLOB_BYTES = 1 << 16, OPEN_TIMEOUT_MS = 60000 };

/* One per rank, in memory that all share. */
typedef struct slot {
	atomic_ulong written, read; /* numbers of the exchange */
	size_t bytes;
	char blob[BLOB_BYTES];
} slot;

typedef struct test_wireup {
	ddp_wireup base;
	slot *slots;
	unsigned long round;
} test_wireup;

static ddp_status await_all(const test_wireup *w, bool read, uint64_t deadline_ns)
{
	for (int r = 0; r < w->base.job->world_size; r++) {
		atomic_ulong *counter = read ? &w->slots[r].read : &w->slots[r].written;
		while (atomic_load(counter) < w->round) {
			if (ddp_now_ns() > deadline_ns)
				return ddp_fail(DDP_ERR_TIMEOUT, "rank %d did not come", r);
			usleep(100);
		}
	}
	return DDP_OK;
}

static ddp_status exchange(ddp_wireup *wireup, const void *blob, size_t bytes,
                           uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	test_wireup *w = (test_wireup *)wireup;
	slot *mine = &w->slots[wireup->job->rank];
	ddp_status status;

	if (bytes > BLOB_BYTES)
		return ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes", bytes);
	w->round++;
	memcpy(mine->blob, blob, bytes);
	mine->bytes = bytes;
	atomic_store(&mine->written, w->round);
	if ((status = await_all(w, false, deadline_ns)) != DDP_OK)
		return status;
	for (int r = 0; r < wireup->job->world_size; r++) {
		sizes[r] = w->slots[r].bytes;
		blobs[r] = malloc(sizes[r] + 1);
		memcpy(blobs[r], w->slots[r].blob, sizes[r]);
	}
	atomic_store(&mine->read, w->round);
	return await_all(w, true, deadline_ns);
}

static const ddp_wireup_ops shared_memory_ops = { .name = "test", .exchange = exchange };

/* The case's timeout is for its own operations. Opening needs as long as the
   machine needs, which may be busy: all ranks have opened before it counts. */
static void shorten_timeout(ddp_comm *comm, test_wireup *w, int timeout_ms)
{
	w->round++;
	atomic_store(&w->slots[w->base.job->rank].written, w->round);
	CHECK_OK(await_all(w, false, ddp_now_ns() + OPEN_TIMEOUT_MS * 1000000ull));
	comm->timeout_ms = timeout_ms;
}

/* A build without UCX refuses ranks of several nodes: then this is what is tested. */
static bool is_refused(const test_world *world)
{
#ifdef HAVE_UCX
	(void)world;
#else
	for (int r = 1; r < world->ranks && world->node_of != NULL; r++) {
		if (world->node_of[r] != world->node_of[0])
			return true;
	}
#endif
	return false;
}

static int nodes_of(const test_world *world)
{
	int nodes = 1;

	for (int r = 1; world->node_of != NULL && r < world->ranks; r++) {
		int earlier = 0;
		while (world->node_of[earlier] != world->node_of[r])
			earlier++;
		nodes += earlier == r;
	}
	return nodes;
}

/* Under a sanitizer, the 20 MB by which each communicator measures the network take longer than most tests. */
static void know_network(ddp_comm *comm)
{
	comm->hier.link = (ddp_link){ .measured = true, .latency_seconds = 2e-5, .message_seconds = 2e-6,
	                              .byte_seconds = 5e-10, .chunk_bytes = 60 * 1024 };
}

struct opening {
	const test_world *world;
	slot *slots;
};

static int run_rank(int rank, void *argument)
{
	const struct opening *opening = argument;
	const test_world *world = opening->world;
	ddp_job job = { .rank = rank, .world_size = world->ranks, .local_rank = rank,
	                .local_world_size = world->ranks, .nnodes = 1, .pid = getpid() };
	test_wireup wireup = { .base = { .ops = &shared_memory_ops, .job = &job }, .slots = opening->slots };
	ddp_comm *comm = NULL;
	char node[32];

	snprintf(job.hostname, sizeof(job.hostname), "n%d",
	         world->node_of != NULL ? world->node_of[rank] : 0);
	snprintf(node, sizeof(node), "%d", world->node_of != NULL ? world->node_of[rank] : 0);
	setenv("DDP_LOCALITY", node, 1);
	if (is_refused(world)) {
		CHECK_FAILS(ddp_comm_open(&job, &wireup.base, OPEN_TIMEOUT_MS, NULL, &comm), DDP_ERR_UNSUPPORTED, "--with-ucx");
		return 0;
	}
	const ddp_status opened = ddp_comm_open(&job, &wireup.base, OPEN_TIMEOUT_MS, NULL, &comm);
	if (world->may_fail_to_open && opened == DDP_ERR_PEER)
		return 0;
	CHECK_OK(opened);
	CHECK(ddp_comm_nodes(comm) == nodes_of(world));
	if (SANITIZER && !world->measures)
		know_network(comm);
	if (world->timeout_ms > 0)
		shorten_timeout(comm, &wireup, world->timeout_ms);
	int code = world->body(comm, world->argument);
	ddp_comm_close(comm);
	return code;
}

uint64_t test_lane_count(ddp_comm *comm, int lane)
{
	const ddp_lane *place = &comm->lanes.of[DDP_MEMORY_HOST][lane];

	if (!atomic_load(&place->open))
		return 0;
	ddp_comm *twin = place->self;
	pthread_mutex_lock(&twin->run.lock);
	const uint64_t count = twin->run.sequence;
	pthread_mutex_unlock(&twin->run.lock);
	return count;
}

void test_await_state(pid_t pid, char awaited)
{
	char path[64], state = '?';

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)pid);
	while (state != awaited) {
		FILE *file = fopen(path, "re");
		CHECK(file != NULL);
		CHECK(fscanf(file, "%*d %*s %c", &state) == 1);
		fclose(file);
		usleep(1000);
	}
}

#ifdef HAVE_UCX
bool test_may_filter(void)
{
	const ddp_listeners one = { .count = 1, .fds = { socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) } };
	const int error = ddp_listeners_shut(&one);

	close(one.fds[0]);
	return error != EPERM;
}
#endif

int test_world_run(const test_world *world)
{
	size_t bytes = (size_t)world->ranks * sizeof(slot);
	struct opening opening = { world, test_share(bytes) };
	const test_ranks ranks = { .count = world->ranks, .body = run_rank, .argument = &opening,
	                           .at_start = is_refused(world) ? NULL : world->at_start,
	                           .at_start_argument = world->argument,
	                           .expect_deaths = world->expect_deaths };
	int failures = test_ranks_run(&ranks);

	test_unshare(opening.slots, bytes);
	return failures;
}
