/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* Kills or stops a random rank at a random moment of random collectives, again
   and again: the others must get an error in time, never hang, and, after a
   death, go on without it. Usage: comm_soak [ROUNDS [SEED]] */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/comm_ranks.h"

enum { COUNT = 100000, STOP_TIMEOUT_MS = 1000 };

typedef struct fault {
	unsigned int seed;
	int ranks, victim, signal;
	useconds_t after_us;
	atomic_int *at_work; /* ranks that have opened; shared with them */
	atomic_int *told;    /* ranks that have an error; the same */
} fault;

static unsigned int roll(unsigned int *state, unsigned int sides)
{
	*state = *state * 1664525u + 1013904223u;
	return (*state >> 8) % sides;
}

static ddp_status random_operation(ddp_comm *comm, unsigned int *seed, float *shared, float *private)
{
	static const ddp_operation_kind kinds[] = { DDP_ALL_REDUCE, DDP_BROADCAST, DDP_REDUCE, DDP_BARRIER,
	                                  DDP_ALL_REDUCE, DDP_ALL_GATHER };
	size_t size = (size_t)ddp_comm_size(comm);
	ddp_operation c = { .kind = kinds[roll(seed, 6)], .root = (int)roll(seed, (unsigned int)size),
	                     .count = roll(seed, 2) == 0 ? roll(seed, 100) : roll(seed, COUNT) };
	bool use_shared = roll(seed, 2) == 0, asynchronous = roll(seed, 2) == 0;
	ddp_request *requests[3];
	int issued = 0;

	c.recv = use_shared ? shared : private;
	if (c.kind == DDP_ALL_GATHER)
		c.count /= size;
	if (!asynchronous)
		return ddp_run(comm, &c);
	/* Two more of the same, so that some are still queued at the end. */
	ddp_status status = DDP_OK;
	for (; issued < 3 && status == DDP_OK; issued++)
		status = ddp_issue(comm, &c, &requests[issued]);
	for (int i = 0; i < issued; i++) {
		ddp_status ended = ddp_wait(requests[i]);
		status = status == DDP_OK ? ended : status;
	}
	return status;
}

static int work(ddp_comm *comm, void *argument)
{
	const fault *f = argument;
	bool victim = ddp_comm_rank(comm) == f->victim;
	unsigned int seed = f->seed;
	float *private = calloc(COUNT, sizeof(*private));
	ddp_status status = DDP_OK;
	void *shared = NULL;
	uint64_t start = 0;
	ddp_comm *survivors;

	atomic_fetch_add(f->at_work, 1);
	/* The fault may already be here. */
	status = ddp_mem_alloc(comm, COUNT * sizeof(float), &shared);
	while (status == DDP_OK) {
		start = ddp_now_ns();
		status = random_operation(comm, &seed, shared, private);
	}
	atomic_fetch_add(f->told, 1);
	/* One that was stopped finds, when it goes on, that the others have gone. */
	if (!victim)
		CHECK(status == (f->signal == SIGKILL ? DDP_ERR_PEER : DDP_ERR_TIMEOUT));
	CHECK(ddp_last_error()[0] != '\0');
	/* A second is the bound; a loaded machine is given more. */
	CHECK(start == 0 || ddp_seconds_since(start) < 15);
	if (f->signal == SIGKILL) {
		CHECK_OK(ddp_comm_shrink(comm, &survivors));
		CHECK(ddp_comm_size(survivors) == f->ranks - 1);
		CHECK_OK(ddp_all_reduce(survivors, NULL, private, COUNT, DDP_F32, DDP_SUM));
		CHECK_OK(ddp_comm_free(survivors));
	}
	if (shared != NULL)
		CHECK_OK(ddp_mem_free(comm, shared));
	free(private);
	return 0;
}

static void strike(const pid_t *pids, void *argument)
{
	const fault *f = argument;

	/* Faults at the opening are the wire-up's. */
	for (int i = 0; i < 30000 && atomic_load(f->at_work) < f->ranks; i++)
		usleep(1000);
	usleep(f->after_us);
	kill(pids[f->victim], f->signal);
	if (f->signal == SIGSTOP) {
		for (int i = 0; i < 30000 && atomic_load(f->told) < f->ranks - 1; i++)
			usleep(1000);
		kill(pids[f->victim], SIGCONT);
	}
}

int main(int argc, char **argv)
{
	static const int two_nodes[] = { 0, 1, 0, 1 };
	int rounds = argc > 1 ? atoi(argv[1]) : 10, failures = 0;
	unsigned int seed = argc > 2 ? (unsigned int)atoi(argv[2]) : 1;

	atomic_int *at_work = mmap(NULL, 2 * sizeof(*at_work), PROT_READ | PROT_WRITE,
	                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (at_work == MAP_FAILED)
		return 1;
	printf("1..%d\n", rounds);
	for (int i = 1; i <= rounds; i++) {
		fault f = { .seed = roll(&seed, 1u << 20), .ranks = 2 + (int)roll(&seed, 3) };
		bool nodes = roll(&seed, 2) == 0;
		f.victim = (int)roll(&seed, (unsigned int)f.ranks);
		f.signal = roll(&seed, 6) == 0 ? SIGSTOP : SIGKILL;
		f.after_us = roll(&seed, 200000);
		f.at_work = at_work;
		f.told = at_work + 1;
		atomic_store(f.at_work, 0);
		atomic_store(f.told, 0);
		const test_world world = {
			.ranks = f.ranks, .node_of = nodes ? two_nodes : NULL, .body = work, .argument = &f,
			.timeout_ms = f.signal == SIGSTOP ? STOP_TIMEOUT_MS : 30000, .at_start = strike,
			.expect_deaths = true,
		};
		int failed = test_world_run(&world);
		failures += failed != 0;
		printf("%sok %d - %s rank %d of %d on %d node%s, seed %u\n", failed ? "not " : "", i,
		       f.signal == SIGSTOP ? "stop" : "kill", f.victim, f.ranks, nodes ? 2 : 1, nodes ? "s" : "",
		       f.seed);
		fflush(stdout);
	}
	return failures != 0;
}
