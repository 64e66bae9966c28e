/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of tests/bench/algorithms: measures a reduction by each algorithm between
   nodes, beside what comm/hier/algorithms predicts from what libddp measured of the network;
   or a broadcast, beside what its tree of nodes would take (comm/hier/tree).
   Rank 0 prints a line for each size and algorithm. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "comm/hier/algorithms.h"
#include "comm/hier/tree.h"
#include "comm/ops/names.h"
#include "rank.h"

enum {
	BATCHES = 5,
	REPEATS_MOST = 200,
	BROADCAST_CHUNK = 256 * 1024, /* of comm/hier/broadcast.c */
};

static const double batch_seconds = 0.4;

static void must(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "rank_cost: %s\n", ddp_last_error());
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Seconds of an operation on the slowest rank, in several batches, sorted; the first batch
   does not count. `wanted` names the operation's algorithm, but not that of the ranks' own talk. */
static void measure(ddp_comm *comm, const ddp_operation *c, ddp_wanted_list wanted, int repeats, double *seconds)
{
	for (int batch = -1; batch < BATCHES; batch++) {
		must(ddp_barrier(comm));
		comm->roster->wanted = wanted;
		const uint64_t start = ddp_now_ns();
		for (int i = 0; i < repeats; i++)
			must(ddp_run(comm, c));
		comm->roster->wanted.count = 0;
		double now = ddp_seconds_since(start) / repeats;
		must(ddp_all_reduce(comm, NULL, &now, 1, DDP_F64, DDP_MAX));
		if (batch >= 0)
			seconds[batch] = now;
	}
	qsort(seconds, BATCHES, sizeof(*seconds), by_value);
}

static int repeats_of(double predicted)
{
	const double repeats = batch_seconds / predicted;

	return repeats > REPEATS_MOST ? REPEATS_MOST : repeats < 2 ? 2 : (int)repeats;
}

static void print_line(const ddp_operation *c, size_t bytes, const char *name, double predicted, const double *measured)
{
	printf("%-14s %10zu %-21s %11.3f %11.3f %11.3f %11.3f %9.2f\n", ddp_kind_name(c->kind), bytes, name, 1e3 * predicted,
	       1e3 * measured[BATCHES / 2], 1e3 * measured[0], 1e3 * measured[BATCHES - 1], predicted / measured[BATCHES / 2]);
}

static void compare_broadcast(ddp_comm *comm, char *data, size_t bytes)
{
	const ddp_operation c = { .kind = DDP_BROADCAST, .send = data, .recv = data, .count = bytes / 4, .type = DDP_F32 };
	const ddp_link *link = &comm->hier.link;
	const size_t chunk = bytes < BROADCAST_CHUNK ? bytes : BROADCAST_CHUNK, chunks = (bytes + chunk - 1) / chunk;
	const ddp_tree_form form = ddp_tree_choose(comm->topology.nodes, chunks);
	const double predicted = ddp_tree_cost(form, comm->topology.nodes, chunks, (double)chunk * link->byte_seconds,
	                                       link->latency_seconds);
	double measured[BATCHES];
	char name[32];

	measure(comm, &c, (ddp_wanted_list){ .count = 0 }, repeats_of(predicted), measured);
	snprintf(name, sizeof(name), " %s", ddp_tree_name(form));
	if (comm->rank == 0)
		print_line(&c, bytes, name, predicted, measured);
	fflush(stdout);
}

/* `bytes` of each rank's input; results go to the memory's second half. */
static void compare(ddp_comm *comm, ddp_operation_kind kind, char *data, size_t bytes)
{
	const bool small = bytes <= DDP_SMALL_BYTES && kind != DDP_REDUCE_SCATTER;
	const size_t element = sizeof(float), blocks = kind == DDP_REDUCE_SCATTER ? (size_t)comm->size : 1;
	const size_t count = bytes / element / blocks;
	const ddp_operation c = { .kind = kind, .send = data, .recv = kind == DDP_ALL_REDUCE ? data : data + bytes,
	                           .count = count, .type = DDP_F32, .op = DDP_SUM };
	const ddp_shape shape = { .kind = kind, .nodes = comm->topology.nodes,
	                          .channels = small ? 1 : comm->topology.channels,
	                          .blocks = (size_t)comm->topology.nodes, .count = count * blocks,
	                          .element = element, .travel = element, .wide = element, .stage_bytes = comm->node.stage_bytes };
	const ddp_link *link = &comm->hier.link;
	const unsigned int all = ddp_algorithm_candidates(kind, small);
	const unsigned int candidates = comm->topology.nodes == 2 ? all & -all : all; /* as comm/hier/tune.c has it */
	const ddp_algorithm chosen = ddp_algorithm_cheapest(link, &shape, candidates);

	for (ddp_algorithm a = 0; a < DDP_ALGORITHMS; a++) {
		double measured[BATCHES];
		if ((candidates >> a & 1) == 0)
			continue;
		const double predicted = ddp_algorithm_of(a)->cost(link, &shape).seconds;
		char name[64];
		measure(comm, &c, (ddp_wanted_list){ .count = 1, .order = { (int)a } }, repeats_of(predicted), measured);
		snprintf(name, sizeof(name), "%c%s", a == chosen ? '*' : ' ', ddp_algorithm_of(a)->name);
		if (comm->rank == 0)
			print_line(&c, bytes, name, predicted, measured);
	}
	fflush(stdout);
}

static int run(ddp_operation_kind kind, int size_count, char **sizes)
{
	ddp_context *context;
	size_t most = 0;
	void *memory;

	must(ddp_init(NULL, &context));
	ddp_comm *comm = ddp_world(context);
	for (int i = 0; i < size_count; i++) {
		const size_t bytes = (size_t)rank_number("SIZE", sizes[i], 4, 1l << 30);
		most = bytes > most ? bytes : most;
	}
	must(ddp_mem_alloc(comm, 2 * most, &memory));
	memset(memory, 0, 2 * most);
	/* The network is measured at the first. */
	must(ddp_all_reduce(comm, NULL, memory, most / 4, DDP_F32, DDP_SUM));
	const ddp_link *link = &comm->hier.link;
	if (comm->rank == 0)
		printf("%d nodes x %d ranks: %.1f us from node to node, %.2f us a message, %.2f Mbit/s\n"
		       "%-14s %10s  %-20s %11s %11s %11s %11s %9s\n", comm->topology.nodes, comm->topology.channels,
		       1e6 * link->latency_seconds, 1e6 * link->message_seconds,
		       link->byte_seconds > 0 ? 8e-6 / link->byte_seconds : 0, "operation", "bytes", "algorithm", "predicted ms",
		       "measured ms", "least", "most", "ratio");
	for (int i = 0; i < size_count; i++) {
		const size_t bytes = (size_t)rank_number("SIZE", sizes[i], 4, 1l << 30);
		if (kind == DDP_BROADCAST)
			compare_broadcast(comm, memory, bytes);
		else
			compare(comm, kind, memory, bytes);
	}
	must(ddp_mem_free(comm, memory));
	must(ddp_finalize(context));
	return 0;
}

int main(int argc, char **argv)
{
	static const ddp_operation_kind kinds[] = { DDP_ALL_REDUCE, DDP_REDUCE, DDP_REDUCE_SCATTER, DDP_BROADCAST };
	size_t kind = 0;

	while (argc > 2 && kind < 4 && strcmp(argv[1], ddp_kind_name(kinds[kind])) != 0)
		kind++;
	if (argc < 3 || kind == 4) {
		fprintf(stderr, "usage: %s all_reduce|reduce|reduce_scatter|broadcast BYTES...\n"
		        "its environment says which rank it is\n", argv[0]);
		return 2;
	}
	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	return run(kinds[kind], argc - 2, argv + 2);
}
