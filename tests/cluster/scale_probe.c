/* SPDX-License-Identifier: Apache-2.0 */
/* scale_probe: a rank of a large world, which does random operations with all others and
   in random groups, loses one of them, and goes on without it; for tests on clusters.
   Rank 0 tells what each part took. The seed may be given. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/comm_cases.h"

enum {
	OPERATIONS = 24,
	GROUPS = 2,      /* each time the world is cut into groups, */
	BATCHES = 2,     /* and so many batches are done in each */
	MOST = 20000,    /* elements of a rank */
	DIES_AFTER_MS = 300
};

static unsigned int roll(unsigned int *state, unsigned int sides)
{
	*state = *state * 1664525u + 1013904223u;
	return (*state >> 8) % sides;
}

/* ---- operations of all ranks ------------------------------------------------------------ */

/* Element i of what `from` gives to `to`; exact in f32, also summed over 1,000 ranks. */
static float value(unsigned int seed, int from, int to, size_t i)
{
	return (float)((seed + (unsigned int)from * 7919u + (unsigned int)to * 104729u + (unsigned int)i * 31u) % 1021u);
}

static float combined(unsigned int seed, int size, int to, size_t i, ddp_op op)
{
	float result = value(seed, 0, to, i);

	for (int r = 1; r < size; r++) {
		float x = value(seed, r, to, i);
		result = op == DDP_SUM ? result + x : op == DDP_MIN ? (x < result ? x : result) : x > result ? x : result;
	}
	return result;
}

/* What lies in recv[block * count + i] afterwards, or what was there if nothing does. */
static float expected(const ddp_operation *c, unsigned int seed, int rank, int size, int block, size_t i)
{
	switch (c->kind) {
	case DDP_ALL_REDUCE: return combined(seed, size, 0, i, c->op);
	case DDP_REDUCE: return rank == c->root ? combined(seed, size, 0, i, c->op) : -1;
	case DDP_REDUCE_SCATTER: return combined(seed, size, rank, i, c->op);
	case DDP_BROADCAST: return value(seed, c->root, 0, i);
	case DDP_SCATTER: return value(seed, c->root, rank, i);
	case DDP_GATHER: return rank == c->root ? value(seed, block, 0, i) : -1;
	case DDP_ALL_GATHER: return value(seed, block, 0, i);
	case DDP_ALL_TO_ALL: return value(seed, block, rank, i);
	default: return -1;
	}
}

static void run_operation(ddp_comm *comm, unsigned int *common, ddp_operation_kind kind)
{
	const int rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	const bool sends_all = kind == DDP_REDUCE_SCATTER || kind == DDP_SCATTER || kind == DDP_ALL_TO_ALL;
	const bool takes_all = kind == DDP_GATHER || kind == DDP_ALL_GATHER || kind == DDP_ALL_TO_ALL;
	static const ddp_op ops[] = { DDP_SUM, DDP_MIN, DDP_MAX };
	const unsigned int seed = roll(common, 1u << 20);
	ddp_operation c = { .kind = kind, .type = DDP_F32, .op = ops[roll(common, 3)],
	                     .root = (int)roll(common, (unsigned int)size),
	                     .count = roll(common, 2) == 0 ? roll(common, 64) : roll(common, MOST) };

	if (sends_all || takes_all)
		c.count = 1 + c.count / (size_t)size;
	const size_t blocks = takes_all ? (size_t)size : 1, sent = sends_all ? (size_t)size : 1;
	float *send = malloc((sent * c.count + 1) * sizeof(float)), *recv = malloc((blocks * c.count + 1) * sizeof(float));
	CHECK(send != NULL && recv != NULL);
	for (size_t k = 0; k < sent * c.count; k++)
		send[k] = value(seed, rank, (int)(k / c.count), k % c.count);
	for (size_t k = 0; k < blocks * c.count; k++)
		recv[k] = -1;
	c.send = send;
	c.recv = recv;
	if (kind == DDP_BROADCAST) {
		memcpy(recv, send, c.count * sizeof(float));
		c.send = NULL;
	}
	CHECK_OK(ddp_run(comm, &c));
	for (size_t k = 0; k < blocks * c.count; k++)
		CHECK(recv[k] == expected(&c, seed, rank, size, (int)(k / c.count), k % c.count));
	free(send);
	free(recv);
}

static void run_operations(ddp_comm *comm, unsigned int *common)
{
	static const ddp_operation_kind kinds[] = { DDP_ALL_REDUCE, DDP_REDUCE, DDP_BROADCAST, DDP_REDUCE_SCATTER, DDP_ALL_GATHER,
	                                  DDP_GATHER, DDP_SCATTER, DDP_BARRIER };

	for (int i = 0; i < OPERATIONS; i++)
		run_operation(comm, common, kinds[(size_t)i % (sizeof(kinds) / sizeof(kinds[0]))]);
}

/* Random groups, of which each knows at most as many ranks as the reference does. */
static void run_groups(ddp_comm *comm, unsigned int *common)
{
	const int size = ddp_comm_size(comm), groups = (size + TEST_RANKS_MAX - 1) / TEST_RANKS_MAX;
	int *order = malloc((size_t)size * sizeof(int));

	CHECK(order != NULL);
	for (int round = 0; round < GROUPS; round++) {
		for (int i = 0; i < size; i++) {
			int k = (int)roll(common, (unsigned int)i + 1);
			order[i] = order[k];
			order[k] = i;
		}
		const int place = order[ddp_comm_rank(comm)], colour = place % groups;
		ddp_comm *part;
		CHECK_OK(ddp_comm_split(comm, colour, place, &part));
		test_run_batches(part, *common + (unsigned int)colour, BATCHES, MOST);
		CHECK_OK(ddp_comm_free(part));
	}
	free(order);
}

/* ---- what it takes ------------------------------------------------------------------------- */

static double count_entries(const char *path)
{
	DIR *folder = opendir(path);
	int count = -2; /* . and .. */

	CHECK(folder != NULL);
	while (readdir(folder) != NULL)
		count++;
	closedir(folder);
	return count;
}

/* A line of /proc/self/NAME, in KiB */
static double kib_of(const char *file, const char *name)
{
	FILE *stream = fopen(file, "re");
	char line[256];
	double kib = -1;

	CHECK(stream != NULL);
	while (kib < 0 && fgets(line, sizeof(line), stream) != NULL) {
		if (strncmp(line, name, strlen(name)) == 0)
			kib = strtod(line + strlen(name), NULL);
	}
	fclose(stream);
	return kib;
}

/* Since `start`, and what the ranks have now: the largest, and the mean. */
static void tell(ddp_comm *comm, const char *what, uint64_t start_ns)
{
	const double own[] = { ddp_seconds_since(start_ns), kib_of("/proc/self/smaps_rollup", "Pss:") / 1024,
	                       count_entries("/proc/self/fd") - 1, count_entries("/proc/self/task") };
	double most[4], mean[4];

	CHECK_OK(ddp_all_reduce(comm, own, most, 4, DDP_F64, DDP_MAX));
	CHECK_OK(ddp_all_reduce(comm, own, mean, 4, DDP_F64, DDP_AVG));
	if (ddp_comm_rank(comm) != 0)
		return;
	printf("%-30s %7.2f s; of a rank: memory %.1f MiB (most %.1f), descriptors %.0f (most %.0f), threads %.0f\n",
	       what, most[0], mean[1], most[1], mean[2], most[2], most[3]);
	fflush(stdout);
}

/* ---- the life of a rank ---------------------------------------------------------------------- */

/* The one in the middle dies in the middle of operations; *dead_ns: when. */
static void lose_one(ddp_comm *comm, uint64_t *dead_ns)
{
	const int victim = ddp_comm_size(comm) / 2;
	ddp_status status = DDP_OK;
	char name[32];
	float x[4];

	/* All nodes of a test have this machine's clock. */
	int64_t at = (int64_t)ddp_now_ns() + (int64_t)DIES_AFTER_MS * 1000000;
	CHECK_OK(ddp_all_reduce(comm, NULL, &at, 1, DDP_I64, DDP_MAX));
	*dead_ns = (uint64_t)at;
	while (status == DDP_OK) {
		if (ddp_comm_rank(comm) == victim && ddp_now_ns() >= *dead_ns)
			raise(SIGKILL);
		status = ddp_all_reduce(comm, NULL, x, 4, DDP_F32, DDP_SUM);
	}
	snprintf(name, sizeof(name), "rank %d on ", victim);
	if (status != DDP_ERR_PEER || strstr(ddp_last_error(), name) == NULL)
		fprintf(stderr, "rank %d: %s: %s\n", ddp_comm_rank(comm), ddp_status_name(status), ddp_last_error());
	CHECK(status == DDP_ERR_PEER && strstr(ddp_last_error(), name) != NULL);
}

int main(int argc, char **argv)
{
	unsigned int common = argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 0) : 1;
	uint64_t start_ns = ddp_now_ns(), dead_ns;
	ddp_context *context;
	ddp_comm *rest;

	CHECK_OK(ddp_init(NULL, &context));
	ddp_comm *world = ddp_world(context);
	test_be_rank(ddp_comm_rank(world), NULL);
	const int size = ddp_comm_size(world);
	tell(world, "wire-up", start_ns);
	start_ns = ddp_now_ns();
	run_operations(world, &common);
	tell(world, "random operations", start_ns);
	start_ns = ddp_now_ns();
	run_groups(world, &common);
	tell(world, "random groups", start_ns);
	start_ns = ddp_now_ns();
	run_operation(world, &common, DDP_ALL_TO_ALL);
	tell(world, "all_to_all, all connected", start_ns);

	lose_one(world, &dead_ns);
	const double found_s = ddp_seconds_since(dead_ns);
	start_ns = ddp_now_ns();
	CHECK_OK(ddp_comm_shrink(world, &rest));
	CHECK(ddp_comm_size(rest) == size - 1);
	double most_s = found_s;
	CHECK_OK(ddp_all_reduce(rest, &found_s, &most_s, 1, DDP_F64, DDP_MAX));
	if (ddp_comm_rank(rest) == 0)
		printf("%-30s %7.2f s until the last rank knew it\n", "a death", most_s);
	tell(rest, "shrink", start_ns);
	start_ns = ddp_now_ns();
	run_operations(rest, &common);
	run_groups(rest, &common);
	tell(rest, "random operations and groups", start_ns);
	if (ddp_comm_rank(rest) == 0)
		printf("%d of %d ranks went on\n", ddp_comm_size(rest), size);
	CHECK_OK(ddp_comm_free(rest));
	CHECK_OK(ddp_finalize(context));
	return 0;
}
