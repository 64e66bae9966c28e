/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* When the progress thread runs: how seldom while callers look after the network,
   and when messages are coalesced. */
#include <dirent.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

enum { OPERATIONS = 2000, DOZE_MS = 10, COUNT = 1 << 20 };

static const int two_nodes[] = { 0, 1 };

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
