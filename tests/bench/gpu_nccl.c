/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_nccl: what libddp adds to NCCL's calls, of one rank on one GPU: sums by ddp_issue() and ddp_wait(), by
   ncclAllReduce() on the same communicator and queue, and copies of as many bytes within the GPU. They take
   turns, round by round; a sample is a batch of one of them back to back, to its end as the host sees that.

     gpu_nccl [--rounds N] */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/nccl/lane.h"
#include "comm/nccl/nccl.h"
#include "tests/support/options.h"

enum { ROUNDS_MAX = 101, BATCH = 20, WAYS = 3 };

static const size_t lengths[] = { 2, 16 << 10, 256 << 10, 6 << 20, 24 << 20 }; /* of f32 */
enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };

static ddp_comm *comm;
static ddp_device *device;
static ddp_device_queue *queue;
static const ddp_nccl_lane *lane;
static float *memory[2];
static int rounds = 15;

static void fail(const char *what)
{
	fprintf(stderr, "gpu_nccl: %s: %s\n", what, ddp_last_error());
	exit(EXIT_FAILURE);
}

static void check(ddp_status status, const char *what)
{
	if (status != DDP_OK)
		fail(what);
}

static void tell(void *user, ddp_log_level level, const char *message)
{
	(void)user;
	(void)level;
	fprintf(stderr, "gpu_nccl: %s\n", message);
}

/* ---- the ways ------------------------------------------------------------------------------- */

static void by_libddp(size_t count)
{
	const ddp_operation sum = { .kind = DDP_ALL_REDUCE, .recv = memory[0], .count = count, .type = DDP_F32,
		.op = DDP_SUM, .memory = DDP_MEMORY_DEVICE, .stream = queue };
	ddp_request *requests[BATCH];

	for (int i = 0; i < BATCH; i++)
		check(ddp_issue(comm, &sum, &requests[i]), "ddp_issue()");
	for (int i = 0; i < BATCH; i++)
		check(ddp_wait(requests[i]), "ddp_wait()");
}

typedef struct sums {
	size_t count;
	int result;
} sums;

static void issue_sums(void *argument)
{
	sums *s = argument;

	for (int i = 0; i < BATCH; i++) {
		s->result = lane->nccl->all_reduce(memory[0], memory[0], s->count, DDP_NCCL_FLOAT32, DDP_NCCL_SUM,
		                                   lane->handle, lane->queue);
		while (s->result == DDP_NCCL_IN_PROGRESS)
			if (lane->nccl->async_error(lane->handle, &s->result) != DDP_NCCL_SUCCESS)
				return;
		if (s->result != DDP_NCCL_SUCCESS)
			return;
	}
}

static void by_nccl(size_t count)
{
	sums s = { .count = count };

	check(ddp_device_within(device, issue_sums, &s), "the device");
	if (s.result != DDP_NCCL_SUCCESS) {
		fprintf(stderr, "gpu_nccl: ncclAllReduce(): %s\n", lane->nccl->error_text(s.result));
		exit(EXIT_FAILURE);
	}
	check(ddp_device_queue_sync(device, lane->queue), "the queue of NCCL");
}

static void by_copies(size_t count)
{
	for (int i = 0; i < BATCH; i++)
		check(ddp_device_copy(device, lane->queue, memory[1], memory[0], count * sizeof(float)), "a copy");
	check(ddp_device_queue_sync(device, lane->queue), "the queue of the copies");
}

/* ---- measuring ------------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Median, least and most. */
static void print_times(double *seconds, double each, int digits)
{
	qsort(seconds, (size_t)rounds, sizeof(*seconds), by_size);
	printf("  %8.*f (%8.*f to %8.*f)", digits, (seconds[(rounds - 1) / 2] + seconds[rounds / 2]) / 2 * each, digits,
	       seconds[0] * each, digits, seconds[rounds - 1] * each);
}

static void measure(size_t count)
{
	static void (*const ways[WAYS])(size_t) = { by_libddp, by_nccl, by_copies };
	double seconds[WAYS][ROUNDS_MAX], shares[ROUNDS_MAX];

	for (int round = -1; round < rounds; round++) /* the first one warms up */
		for (int w = 0; w < WAYS; w++) {
			const uint64_t start_ns = ddp_now_ns();
			ways[w](count);
			if (round >= 0)
				seconds[w][round] = ddp_seconds_since(start_ns);
		}
	for (int i = 0; i < rounds; i++)
		shares[i] = seconds[0][i] / seconds[1][i];
	printf("%10zu", count * sizeof(float));
	for (int w = 0; w < WAYS; w++)
		print_times(seconds[w], 1e6 / BATCH, 1);
	print_times(shares, 1, 2);
	printf("\n");
	fflush(stdout);
}

/* ---- setting up ----------------------------------------------------------------------------- */

static void open_lane(void)
{
	for (int i = 0; i < 2; i++)
		check(ddp_device_alloc(device, lengths[LENGTHS - 1] * sizeof(float), (void **)&memory[i]), "memory");
	check(ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &queue), "a queue");
	for (int i = 0; i < 2; i++)
		check(ddp_device_fill(device, queue, memory[i], 0, lengths[LENGTHS - 1] * sizeof(float)), "memory");
	check(ddp_device_queue_sync(device, queue), "memory");
	by_libddp(1);
	if (comm->lanes.of[DDP_MEMORY_DEVICE][0].backend != &ddp_backend_nccl) {
		fprintf(stderr, "gpu_nccl: NCCL is not used, as was told above; DDP_NCCL names the library\n");
		exit(EXIT_FAILURE);
	}
	lane = comm->lanes.of[DDP_MEMORY_DEVICE][0].self;
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = { { "rounds", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 } };
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
		rounds = option == 'r' ? atoi(optarg) : 0;
	if (optind < argc || rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: gpu_nccl [--rounds N]   (N from 1 to %d)\n", ROUNDS_MAX);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .device = "cuda" };
	ddp_context *context;

	parse(argc, argv);
	ddp_set_log(tell, NULL, DDP_LOG_INFO);
	check(ddp_init(&options, &context), "ddp_init()");
	comm = ddp_world(context);
	device = comm->roster->device;
	open_lane();
	printf("us an operation, medians and ranges of %d rounds of %d, one rank\n", rounds, BATCH);
	printf("%10s  %31s  %31s  %31s  %31s\n", "bytes", "libddp", "ncclAllReduce()", "copy", "libddp over NCCL");
	for (int i = 0; i < LENGTHS; i++)
		measure(lengths[i]);
	for (int i = 0; i < 2; i++)
		check(ddp_device_free(device, memory[i]), "memory");
	check(ddp_device_queue_free(device, queue), "the queue");
	check(ddp_finalize(context), "ddp_finalize()");
	return 0;
}
