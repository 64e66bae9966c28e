/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_record [RANKS [ROUNDS]]: what the flight recorder costs: all_reduce of 8 B to 1 MiB with a ring and without, in
 * turns, on the ranks of a node. A sample is a batch of operations. Of each way it tells the median and the least of the
 * rounds, on rank 0, and the ratios.
 */
#include <ddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/api.h"
#include "watch/recorder.h"

enum { ROUNDS_MAX = 2000, RUNS_UP = 3, LARGEST = 1 << 20, BATCH_MAX = 2000, BATCH_BYTES = 8 << 20 };
enum way { WITHOUT, WITH, WAYS };

static void check(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "%s: %s\n", ddp_status_name(status), ddp_last_error());
	exit(1);
}

static int compare(const void *left, const void *right)
{
	const double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

/* The memory file that the plugin makes for a node with so many tasks. */
static int make_file(int ranks)
{
	const struct ddp_record_place place = { .magic = DDP_RECORD_MAGIC, .version = DDP_RECORD_VERSION, .tasks = (uint32_t)ranks };
	const int file = memfd_create("ddp_progress", 0);

	if (file < 0 || ftruncate(file, (off_t)DDP_RECORD_FILE_BYTES(ranks)) != 0 ||
	    pwrite(file, &place, sizeof(place), (off_t)DDP_RECORD_PLACE_OFFSET(ranks)) != (ssize_t)sizeof(place)) {
		perror("rank_record: memory file");
		exit(1);
	}
	return file;
}

/* Microseconds of one operation. */
static double measure(ddp_comm *comm, void *memory, size_t bytes, int batch)
{
	check(ddp_barrier(comm));
	const uint64_t start_ns = ddp_now_ns();
	for (int i = 0; i < batch; i++)
		check(ddp_all_reduce(comm, NULL, memory, bytes / sizeof(float), DDP_F32, DDP_SUM));
	return ddp_seconds_since(start_ns) * 1e6 / batch;
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 8, 64, 1 << 10, 8 << 10, 64 << 10, LARGEST };
	static double times[WAYS][ROUNDS_MAX];
	const int ranks = argc > 1 ? atoi(argv[1]) : 2, rounds = argc > 2 ? atoi(argv[2]) : 200;
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC };
	ddp_spawn_result spawned;
	ddp_context *context;
	void *memory;

	if (ranks < 1 || rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: rank_record [RANKS [ROUNDS]], 1 to %d rounds\n", ROUNDS_MAX);
		return 2;
	}
	const int file = make_file(ranks);
	check(ddp_spawn(ranks, &spawned));
	if (!spawned.is_rank)
		return spawned.exit_code;
	check(ddp_init(NULL, &context));
	ddp_comm *comm = ddp_world(context);
	ddp_recorder recorder = ddp_recorder_map(file, ddp_comm_rank(comm), 0);
	if (recorder.head == NULL)
		return 1;
	check(ddp_mem_alloc(comm, LARGEST, &memory));
	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		const size_t bytes = sizes[k];
		const int batch = bytes * BATCH_MAX < BATCH_BYTES ? BATCH_MAX : (int)(BATCH_BYTES / bytes);
		for (int i = -RUNS_UP; i < rounds; i++) {
			for (int turn = 0; turn < WAYS; turn++) {
				const enum way way = (enum way)((turn + i) & 1);
				ddp_comm_set_page(comm, &page, way == WITH ? &recorder : NULL);
				const double us = measure(comm, memory, bytes, batch);
				if (i >= 0)
					times[way][i] = us;
			}
		}
		for (int way = 0; way < WAYS; way++)
			qsort(times[way], (size_t)rounds, sizeof(double), compare);
		if (ddp_comm_rank(comm) == 0)
			printf("%7zu B  without %9.3f us (least %9.3f)  with %9.3f us (least %9.3f)  ratio %.3f (%.3f)\n", bytes,
			       times[WITHOUT][rounds / 2], times[WITHOUT][0], times[WITH][rounds / 2], times[WITH][0],
			       times[WITH][rounds / 2] / times[WITHOUT][rounds / 2], times[WITH][0] / times[WITHOUT][0]);
	}
	ddp_comm_set_page(comm, NULL, NULL);
	ddp_recorder_unmap(&recorder);
	check(ddp_mem_free(comm, memory));
	check(ddp_finalize(context));
	return 0;
}
