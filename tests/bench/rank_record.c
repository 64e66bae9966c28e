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
#include "rank_turns.h"
#include "watch/recorder.h"

enum { ROUNDS = 200, ROUNDS_MAX = 2000, LARGEST = 1 << 20, BATCH_MAX = 2000, BATCH_BYTES = 8 << 20 };
enum way { WITHOUT, WITH, WAYS };

struct sample {
	struct ddp_progress *page;
	ddp_recorder *recorder;
	size_t bytes;
	int batch;
};

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
static double measure(struct turns *turns, int way, const void *argument)
{
	const struct sample *sample = argument;

	ddp_comm_set_page(turns->comm, sample->page, way == WITH ? sample->recorder : NULL);
	turns_check(ddp_barrier(turns->comm));
	const uint64_t start_ns = ddp_now_ns();
	for (int i = 0; i < sample->batch; i++)
		turns_check(ddp_all_reduce(turns->comm, NULL, turns->memory, sample->bytes / sizeof(float), DDP_F32, DDP_SUM));
	return ddp_seconds_since(start_ns) * 1e6 / sample->batch;
}

static void tell(const struct turns *turns, size_t bytes)
{
	printf("%7zu B  without %9.3f us (least %9.3f)  with %9.3f us (least %9.3f)  ratio %.3f (%.3f)\n", bytes,
	       turns_median(turns, WITHOUT), turns_least(turns, WITHOUT), turns_median(turns, WITH), turns_least(turns, WITH),
	       turns_median(turns, WITH) / turns_median(turns, WITHOUT), turns_least(turns, WITH) / turns_least(turns, WITHOUT));
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 8, 64, 1 << 10, 8 << 10, 64 << 10, LARGEST };
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC };
	struct turns turns;

	turns_read(&turns, argc, argv, ROUNDS, ROUNDS_MAX);
	const int file = make_file(turns.ranks);
	turns_open(&turns, LARGEST);
	ddp_recorder recorder = ddp_recorder_map(file, ddp_comm_rank(turns.comm), 0);
	if (recorder.head == NULL) {
		fprintf(stderr, "rank_record: the ring cannot be mapped\n");
		return 1;
	}
	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		const struct sample sample = {
			&page, &recorder, sizes[k], sizes[k] * BATCH_MAX < BATCH_BYTES ? BATCH_MAX : (int)(BATCH_BYTES / sizes[k]),
		};
		turns_run(&turns, WAYS, measure, &sample);
		if (ddp_comm_rank(turns.comm) == 0)
			tell(&turns, sizes[k]);
	}
	ddp_comm_set_page(turns.comm, NULL, NULL);
	ddp_recorder_unmap(&recorder);
	turns_close(&turns);
	return 0;
}
