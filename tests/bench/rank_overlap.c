/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of overlap_progress: does an all-reduce proceed while this process
 * only computes, and what does an idle communicator cost?
 *
 *   rank_overlap MIB THREADS IDLE_SECONDS REPEATS
 *
 * `alone` all-reduces and waits. Then, for several lengths of computation in
 * units of that time, an all-reduce is issued, all threads compute without
 * a call to the library, and only then the rank waits. Rank 0 prints JSON
 * lines; all figures are the slowest rank's.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "ddp.h"
#include "rank.h"

enum { BLOCK = 2048, BLOCK_ROUNDS = 50 };

static const double compute_lengths[] = { 0.5, 0.9, 1.0, 1.0 / 0.9, 1.5, 2.0 };

struct bench {
	ddp_comm *comm;
	float *data; /* [count] */
	size_t count;
	int threads;
	int repeats;
	double alone_seconds;
};

/* Work that fills a core's arithmetic units and touches only its first cache. */
struct worker {
	pthread_t thread;
	uint64_t end_ns;
	uint64_t blocks;
	float numbers[BLOCK];
};

static void compute_block(float *numbers)
{
	for (int round = 0; round < BLOCK_ROUNDS; round++) {
		for (int i = 0; i < BLOCK; i++)
			numbers[i] = numbers[i] * 0.999f + 0.001f;
	}
}

static void *work(void *argument)
{
	struct worker *worker = argument;

	while (ddp_now_ns() < worker->end_ns) {
		compute_block(worker->numbers);
		worker->blocks++;
	}
	return NULL;
}

/* Computes in `threads` threads, this one among them, for so long. Returns the
   blocks done, -1 if a thread could not be started. */
static double compute(int threads, double seconds)
{
	struct worker *workers = calloc((size_t)threads, sizeof *workers);
	uint64_t end_ns = ddp_now_ns() + (uint64_t)(seconds * 1e9);
	double blocks = 0;
	int started = 1;

	if (!workers)
		return -1;
	for (int i = 0; i < threads; i++)
		workers[i].end_ns = end_ns;
	while (started < threads &&
	       !pthread_create(&workers[started].thread, NULL, work, &workers[started]))
		started++;
	work(&workers[0]);
	for (int i = 1; i < started; i++)
		pthread_join(workers[i].thread, NULL);
	for (int i = 0; i < started; i++)
		blocks += (double)workers[i].blocks;
	free(workers);
	return started == threads ? blocks : -1;
}

/* CPU seconds of this process, in user and kernel mode, all threads. */
static double cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void pause_for(double seconds)
{
	struct timespec rest = {
		.tv_sec = (time_t)seconds,
		.tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9),
	};

	while (nanosleep(&rest, &rest))
		continue;
}

/* The largest of each rank's values, on all ranks. */
static ddp_status slowest(struct bench *bench, double *values, size_t count)
{
	return ddp_all_reduce(bench->comm, NULL, values, count, DDP_F64, DDP_MAX);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, compare);
	return values[count / 2];
}

static ddp_status measure_alone(struct bench *bench)
{
	double *seconds = calloc((size_t)bench->repeats + 1, sizeof *seconds);
	ddp_status status = seconds ? DDP_OK : DDP_ERR_NOMEM;

	for (int i = 0; !status && i <= bench->repeats; i++) {
		uint64_t start;

		status = ddp_barrier(bench->comm);
		start = ddp_now_ns();
		if (!status)
			status = ddp_all_reduce(bench->comm, NULL, bench->data, bench->count,
			                        DDP_F32, DDP_SUM);
		if (status)
			break;
		seconds[i] = ddp_seconds_since(start);
		status = slowest(bench, &seconds[i], 1);
	}
	/* The first one warms up. */
	if (!status)
		bench->alone_seconds = median(seconds + 1, bench->repeats);
	free(seconds);
	return status;
}

/* Seconds from issue to completion, seconds of waiting at its end, blocks. */
struct overlap {
	double total, exposed, blocks;
};

static ddp_status overlap_once(struct bench *bench, double compute_seconds, struct overlap *result)
{
	ddp_operation operation = {
		.kind = DDP_ALL_REDUCE, .recv = bench->data, .count = bench->count,
		.type = DDP_F32, .op = DDP_SUM,
	};
	ddp_request *request;
	uint64_t start, computed;
	double slow[2];
	ddp_status status = ddp_barrier(bench->comm);

	if (status)
		return status;
	start = ddp_now_ns();
	status = ddp_issue(bench->comm, &operation, &request);
	if (status)
		return status;
	result->blocks = compute(bench->threads, compute_seconds);
	computed = ddp_now_ns();
	status = ddp_wait(request);
	slow[0] = ddp_seconds_since(start);
	slow[1] = ddp_seconds_since(computed);
	if (!status)
		status = slowest(bench, slow, 2);
	result->total = slow[0];
	result->exposed = slow[1];
	return status;
}

static ddp_status measure_overlap(struct bench *bench, double length)
{
	double seconds = length * bench->alone_seconds;
	double *totals = calloc(3 * (size_t)bench->repeats, sizeof *totals);
	double *exposed = totals + bench->repeats, *rates = exposed + bench->repeats;
	double alone_rate = 0;
	ddp_status status = totals ? DDP_OK : DDP_ERR_NOMEM;

	for (int i = 0; !status && i < bench->repeats; i++) {
		struct overlap result;

		status = overlap_once(bench, seconds, &result);
		if (status)
			break;
		totals[i] = result.total;
		exposed[i] = result.exposed;
		rates[i] = result.blocks / seconds;
		/* What the threads reach when nothing communicates. */
		status = ddp_barrier(bench->comm);
		alone_rate += compute(bench->threads, seconds) / seconds / bench->repeats;
	}
	if (!status && ddp_comm_rank(bench->comm) == 0)
		printf("{\"what\": \"overlap\", \"compute_seconds\": %.6f, \"alone_seconds\": %.6f, "
		       "\"total_seconds\": %.6f, \"exposed_seconds\": %.6f, \"compute_rate_ratio\": %.4f}\n",
		       seconds, bench->alone_seconds, median(totals, bench->repeats),
		       median(exposed, bench->repeats),
		       alone_rate > 0 ? median(rates, bench->repeats) / alone_rate : 0.0);
	free(totals);
	return status;
}

/* The share of a core that this process uses: idle, and waiting in a barrier
   for a rank that comes late. */
static ddp_status measure_idle(struct bench *bench, double seconds)
{
	bool late = ddp_comm_rank(bench->comm) == 0;
	double share[2], before;
	uint64_t start;
	ddp_status status = ddp_barrier(bench->comm);

	if (status)
		return status;
	before = cpu_seconds();
	pause_for(seconds);
	share[0] = (cpu_seconds() - before) / seconds;
	status = ddp_barrier(bench->comm);
	if (status)
		return status;
	start = ddp_now_ns();
	before = cpu_seconds();
	if (late)
		pause_for(seconds);
	status = ddp_barrier(bench->comm);
	share[1] = (cpu_seconds() - before) / ddp_seconds_since(start);
	if (!status)
		status = slowest(bench, share, 2);
	if (!status && late)
		printf("{\"what\": \"idle\", \"seconds\": %.3f, \"idle_core_share\": %.6f, "
		       "\"waiting_core_share\": %.6f}\n", seconds, share[0], share[1]);
	return status;
}

static ddp_status measure(struct bench *bench, double idle_seconds)
{
	void *memory;
	ddp_status status = ddp_mem_alloc(bench->comm, bench->count * sizeof(float), &memory);

	if (status)
		return status;
	bench->data = memory;
	status = measure_alone(bench);
	for (size_t i = 0; !status && i < sizeof compute_lengths / sizeof *compute_lengths; i++)
		status = measure_overlap(bench, compute_lengths[i]);
	if (!status)
		status = measure_idle(bench, idle_seconds);
	return status ? status : ddp_mem_free(bench->comm, memory);
}

int main(int argc, char **argv)
{
	struct bench bench = { 0 };
	ddp_context *context;
	long idle_seconds;

	if (argc != 5) {
		fprintf(stderr, "usage: %s MIB THREADS IDLE_SECONDS REPEATS\n", argv[0]);
		return 2;
	}
	bench.count = (size_t)rank_number("MIB", argv[1], 1, 4096) << 18;
	bench.threads = (int)rank_number("THREADS", argv[2], 1, 1024);
	idle_seconds = rank_number("IDLE_SECONDS", argv[3], 1, 3600);
	bench.repeats = (int)rank_number("REPEATS", argv[4], 1, 1000);
	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	if (ddp_init(NULL, &context)) {
		fprintf(stderr, "rank_overlap: %s\n", ddp_last_error());
		return 1;
	}
	bench.comm = ddp_world(context);
	if (measure(&bench, (double)idle_seconds)) {
		fprintf(stderr, "rank_overlap: rank %d: %s\n", ddp_comm_rank(bench.comm), ddp_last_error());
		ddp_finalize(context);
		return 1;
	}
	return ddp_finalize(context) ? 1 : 0;
}
