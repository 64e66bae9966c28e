/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; needs: UCX */
/* Stops or kills a random rank at a random moment of random operations, again and again. If it was stopped, every other
   rank's error must name that one, and not one that waited for it, too. If it was killed, the others must get an error,
   and go on without it. DDP_TEST_STOPS and DDP_TEST_SEED make it a longer or another run. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/hung.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

enum { COUNT = 100000, TIMEOUT_MS = 1000, DEATH_TIMEOUT_MS = 30000, WORKERS = 3, RANKS_MAX = 6, TEXT_BYTES = 256 };

/* A world, and what happens to it; shared with its ranks. */
typedef struct stop {
	unsigned int seed;
	int ranks, victim, signal, timeout_ms;
	const int *node_of;
	bool measures;       /* the network, also under a sanitizer */
	useconds_t after_us;
	atomic_int at_work;  /* ranks that have opened */
	atomic_int told;     /* ranks that have an error */
	int failures;        /* of the world */
	ddp_status status[RANKS_MAX];
	int culprit[RANKS_MAX];
	char text[RANKS_MAX][TEXT_BYTES]; /* of each rank's error */
} stop;

static const struct layout {
	int ranks;
	int node_of[RANKS_MAX];
} layouts[] = {
	{ 2, { 0, 1 } }, { 4, { 0, 1, 0, 1 } }, { 4, { 0, 0, 1, 1 } }, { 3, { 0, 1, 1 } },
	{ 6, { 0, 0, 1, 1, 2, 2 } }, { 3, { 0, 0, 0 } },
};

static unsigned int roll(unsigned int *state, unsigned int sides)
{
	*state = *state * 1664525u + 1013904223u;
	return (*state >> 8) % sides;
}

static int from_environment(const char *name, int otherwise)
{
	const char *text = getenv(name);

	return text != NULL ? atoi(text) : otherwise;
}

/* ---- operations ------------------------------------------------------------------------- */

/* Issued all at once, so that some are still queued while one of them waits. */
static ddp_status run_three(ddp_comm *comm, const ddp_operation *c)
{
	ddp_request *requests[3];
	ddp_status status = DDP_OK;
	int issued = 0;

	for (; issued < 3 && status == DDP_OK; issued++)
		status = ddp_issue(comm, c, &requests[issued]);
	for (int i = 0; i < issued; i++) {
		ddp_status ended = ddp_wait(requests[i]);
		status = status == DDP_OK ? ended : status;
	}
	return status;
}

/* A message to the next rank, and one from the rank before. */
static ddp_status pass_on(ddp_comm *comm, float *data, size_t count)
{
	int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	const ddp_operation c = { .kind = DDP_RECV, .recv = data, .count = count,
	                           .root = (rank + size - 1) % size };
	ddp_request *request;
	ddp_status status = ddp_issue(comm, &c, &request);

	if (status != DDP_OK)
		return status;
	status = ddp_send(comm, data + COUNT, count, DDP_F32, (rank + 1) % size, 0);
	ddp_status ended = ddp_wait(request);
	return status == DDP_OK ? ended : status;
}

static ddp_status random_operation(ddp_comm *comm, unsigned int *seed, float *shared, float *private)
{
	static const ddp_operation_kind kinds[] = { DDP_ALL_REDUCE, DDP_ALL_REDUCE, DDP_BROADCAST, DDP_REDUCE,
	                                  DDP_BARRIER, DDP_ALL_GATHER, DDP_GATHER, DDP_ALL_TO_ALL,
	                                  DDP_SEND };
	size_t size = (size_t)ddp_comm_size(comm);
	ddp_operation c = { .kind = kinds[roll(seed, sizeof(kinds) / sizeof(kinds[0]))],
	                     .root = (int)roll(seed, (unsigned int)size),
	                     .count = roll(seed, 2) == 0 ? roll(seed, 100) : roll(seed, COUNT) };
	bool use_shared = roll(seed, 2) == 0, asynchronous = roll(seed, 2) == 0;

	if (c.kind == DDP_SEND)
		return pass_on(comm, private, c.count);
	if (c.kind == DDP_ALL_GATHER || c.kind == DDP_GATHER || c.kind == DDP_ALL_TO_ALL)
		c.count /= size;
	c.recv = use_shared ? shared : private;
	c.send = private + COUNT;
	return asynchronous ? run_three(comm, &c) : ddp_run(comm, &c);
}

/* ---- a world ------------------------------------------------------------------------------ */

static void go_on_without_one(ddp_comm *comm, float *data)
{
	ddp_comm *survivors;

	CHECK_OK(ddp_comm_shrink(comm, &survivors));
	CHECK(ddp_comm_size(survivors) == ddp_comm_size(comm) - 1);
	CHECK_OK(ddp_all_reduce(survivors, NULL, data, COUNT, DDP_F32, DDP_SUM));
	CHECK_OK(ddp_comm_free(survivors));
}

static int work(ddp_comm *comm, void *argument)
{
	stop *s = argument;
	int rank = ddp_comm_rank(comm);
	unsigned int seed = s->seed, own = s->seed + (unsigned int)rank;
	float *private = calloc(2 * COUNT, sizeof(*private));
	void *shared = NULL;

	CHECK(private != NULL);
	ddp_status status = ddp_mem_alloc(comm, COUNT * sizeof(float), &shared);
	atomic_fetch_add(&s->at_work, 1);
	while (status == DDP_OK) {
		if (roll(&own, 4) == 0)
			usleep(roll(&own, 3000));
		status = random_operation(comm, &seed, shared, private);
	}
	s->status[rank] = status;
	s->culprit[rank] = comm->failure.culprit;
	snprintf(s->text[rank], TEXT_BYTES, "%s", ddp_last_error());
	atomic_fetch_add(&s->told, 1);
	if (s->signal == SIGKILL)
		go_on_without_one(comm, private);
	if (shared != NULL)
		CHECK_OK(ddp_mem_free(comm, shared));
	free(private);
	return 0;
}

static void strike(const pid_t *pids, void *argument)
{
	stop *s = argument;

	for (int i = 0; i < 30000 && atomic_load(&s->at_work) < s->ranks; i++)
		usleep(1000);
	usleep(s->after_us);
	kill(pids[s->victim], s->signal);
	if (s->signal == SIGKILL)
		return;
	for (int i = 0; i < 40 * s->timeout_ms && atomic_load(&s->told) < s->ranks - 1; i++)
		usleep(1000);
	kill(pids[s->victim], SIGCONT);
}

static void run_stop(stop *s)
{
	const test_world world = { .ranks = s->ranks, .node_of = s->node_of, .body = work, .argument = s,
	                           .timeout_ms = s->timeout_ms, .at_start = strike,
	                           .measures = s->measures, .expect_deaths = s->signal == SIGKILL };

	s->failures = test_world_run(&world);
}

/* Does the rank's error begin with the one that was stopped, or is it that of a death? */
static bool is_right(const stop *s, int rank)
{
	char name[32];

	if (s->signal == SIGKILL)
		return s->status[rank] == DDP_ERR_PEER;
	snprintf(name, sizeof(name), "rank %d on n%d ", s->victim, s->node_of[s->victim]);
	return s->status[rank] == DDP_ERR_TIMEOUT && s->culprit[rank] == s->victim &&
	       strncmp(s->text[rank], name, strlen(name)) == 0;
}

static bool judge(const stop *s)
{
	bool right = s->failures == 0;

	for (int r = 0; r < s->ranks; r++)
		right = right && (r == s->victim || is_right(s, r));
	for (int r = 0; r < s->ranks && !right; r++)
		fprintf(stderr, "# seed %u, %s rank %d of %d after %u us: rank %d says: %s\n", s->seed,
		        s->signal == SIGKILL ? "killed" : "stopped", s->victim, s->ranks, (unsigned int)s->after_us, r, s->text[r]);
	return right;
}

/* Worlds wait for most of their time: some at once. */
static void run_all(stop *stops, int count)
{
	pid_t workers[WORKERS];

	for (int w = 0; w < WORKERS; w++) {
		fflush(NULL);
		workers[w] = fork();
		assert_true(workers[w] >= 0);
		if (workers[w] > 0)
			continue;
		for (int i = w; i < count; i += WORKERS)
			run_stop(&stops[i]);
		_exit(0);
	}
	for (int w = 0; w < WORKERS; w++)
		waitpid(workers[w], NULL, 0);
}

TEST(stopped_rank_is_named_by_all_others_and_killed_one_outlived)
{
	enum { LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };
	int count = from_environment("DDP_TEST_STOPS", 20), taken = 0, right = 0;
	unsigned int seed = (unsigned int)from_environment("DDP_TEST_SEED", 1);
	size_t bytes = (size_t)count * sizeof(stop);
	stop *stops = test_share(bytes);

	/* Where a machine has no core for a rank until the deadline, it does not come. */
	int timeout_ms = TIMEOUT_MS * test_slowness();
	for (int i = 0; i < count; i++) {
		const struct layout *l = &layouts[i % LAYOUTS];
		stop *s = &stops[taken];
		s->seed = roll(&seed, 1u << 20);
		s->ranks = l->ranks;
		s->node_of = l->node_of;
		s->measures = taken == 1;
		s->victim = (int)roll(&seed, (unsigned int)l->ranks);
		s->after_us = roll(&seed, 200000);
		s->signal = i % 5 < 3 ? SIGSTOP : SIGKILL;
		s->timeout_ms = s->signal == SIGSTOP ? timeout_ms : DEATH_TIMEOUT_MS;
		s->failures = -1;
		taken += getenv("DDP_TEST_STOPS") != NULL || test_takes((size_t)i / LAYOUTS);
	}
	run_all(stops, taken);
	for (int i = 0; i < taken; i++)
		right += judge(&stops[i]);
	print_message("# %d of %d ranks that were stopped or killed were told of rightly\n", right, taken);
	test_unshare(stops, bytes);
	assert_int_equal(right, taken);
}
