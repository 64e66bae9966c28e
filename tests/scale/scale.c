/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale: what a reduction between the nodes of a large world takes, by each algorithm
 * of comm/hier, and which of them libddp would choose: time, messages and connections of
 * a rank, for 100 to 100,000 ranks. The figures are those of the library's own model
 * (comm/hier/algorithms), for a network that is described by the options; recursive doubling
 * and halving are also simulated, message by message. Nothing is measured here.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/scale/plot.h"
#include "tests/scale/simulate.h"

enum { WORLDS = 7, SIZES = 3 };

static const int worlds[WORLDS] = { 100, 300, 1000, 3000, 10000, 30000, 100000 };
static const struct {
	const char *name;
	size_t bytes;
} sizes[SIZES] = { { "1 KiB", 1024 }, { "25 MiB", (size_t)25 << 20 }, { "1 GiB", (size_t)1 << 30 } };

static const char usage[] =
	"usage: scale [--kind KIND] [--type TYPE] [--ranks-per-node N] [--latency-us X]\n"
	"             [--message-us X] [--gbit X] [--chunk-kib N] [--svg FILE]\n"
	"  --kind KIND         all_reduce, reduce or reduce_scatter (default: all_reduce)\n"
	"  --type TYPE         f32 or bf16 (default: f32)\n"
	"  --ranks-per-node N  (default: 8)\n"
	"  --latency-us X      from node to node (default: 5)\n"
	"  --message-us X      a message's own time at its sender (default: 0.5)\n"
	"  --gbit X            of a node's link, each way (default: 100)\n"
	"  --chunk-kib N       of direct exchange's messages, at most (default: 256)\n"
	"  --svg FILE          where to draw it (default: scale.svg)\n"
	"What a network really does, libddp's log tells at level info: \"between nodes: ...\".\n";

/* One of those that are modelled. */
static ddp_operation_kind kind_named(const char *name)
{
	static const ddp_operation_kind kinds[] = { DDP_ALL_REDUCE, DDP_REDUCE, DDP_REDUCE_SCATTER };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (strcmp(name, ddp_kind_name(kinds[i])) == 0)
			return kinds[i];
	}
	fprintf(stderr, "scale: \"%s\" is no kind of reduction\n%s", name, usage);
	exit(2);
}

/* Bytes of an element; either type is combined as f32. */
static size_t element_of(const char *type)
{
	if (strcmp(type, "f32") != 0 && strcmp(type, "bf16") != 0) {
		fprintf(stderr, "scale: \"%s\" is neither f32 nor bf16\n%s", type, usage);
		exit(2);
	}
	return type[0] == 'f' ? 4 : 2;
}

static double number(const char *text)
{
	char *end;
	const double value = strtod(text, &end);

	if (end == text || *end != '\0' || !(value > 0) || !isfinite(value)) {
		fprintf(stderr, "scale: \"%s\" is not a number above 0\n%s", text, usage);
		exit(2);
	}
	return value;
}

/* One size of operation in all worlds: its table, and its curves of the plot. */
static bool tell(ddp_operation_kind kind, size_t element, size_t size, int ranks_per_node, const ddp_link *link,
                 plot_panel *seconds, plot_panel *connections)
{
	const bool small = sizes[size].bytes <= DDP_SMALL_BYTES && kind != DDP_REDUCE_SCATTER;
	const unsigned int candidates = ddp_algorithm_candidates(kind, small);

	printf("\n%s of %s, %s\n%8s %7s  %-20s %12s %12s %12s %12s\n", ddp_kind_name(kind), sizes[size].name,
	       element == 4 ? "f32" : "bf16", "ranks", "nodes", "algorithm", "ms", "simulated", "messages", "connections");
	for (int w = 0; w < WORLDS; w++) {
		const int nodes = (worlds[w] + ranks_per_node - 1) / ranks_per_node;
		const ddp_shape shape = { .kind = kind, .nodes = nodes, .blocks = (size_t)nodes, .channels = small ? 1 : ranks_per_node,
		                          .count = sizes[size].bytes / element, .element = element, .travel = element, .wide = 4,
		                          .stage_bytes = DDP_NET_STAGE_BYTES };
		const ddp_algorithm chosen = ddp_algorithm_cheapest(link, &shape, candidates);
		for (ddp_algorithm a = 0; a < DDP_ALGORITHMS; a++) {
			if ((candidates >> a & 1) == 0)
				continue;
			const ddp_cost cost = ddp_algorithm_of(a)->cost(link, &shape);
			const bool by_rounds = a == DDP_RECURSIVE_DOUBLING || a == DDP_RECURSIVE_HALVING;
			const double simulated = by_rounds ? simulate(a, link, &shape) : 0;
			if (simulated < 0)
				return false;
			printf("%8d %7d %c%-20s %12.3f ", worlds[w], nodes, a == chosen ? '*' : ' ',
			       ddp_algorithm_of(a)->name, 1e3 * cost.seconds);
			if (by_rounds)
				printf("%12.3f", 1e3 * simulated);
			else
				printf("%12s", "-");
			printf(" %12.0f %12d\n", cost.messages, cost.connections);
			plot_add(seconds, a, worlds[w], cost.seconds, a == chosen);
			plot_add(connections, a, worlds[w], cost.connections, a == chosen);
		}
	}
	return true;
}

static int run(ddp_operation_kind kind, size_t element, int ranks_per_node, const ddp_link *link, const char *file)
{
	static plot_panel panels[2][SIZES];
	char caption[160];

	snprintf(caption, sizeof(caption), "%d ranks a node; %.3g us from node to node, %.3g us a message, %.3g Gbit/s",
	         ranks_per_node, 1e6 * link->latency_seconds, 1e6 * link->message_seconds,
	         8e-9 / link->byte_seconds);
	printf("%s\n* is what libddp chooses; messages and connections are a rank's\n", caption);
	for (size_t size = 0; size < SIZES; size++) {
		snprintf(panels[0][size].title, sizeof(panels[0][size].title), "seconds, %s", sizes[size].name);
		snprintf(panels[1][size].title, sizeof(panels[1][size].title), "connections of a rank, %s",
		         sizes[size].name);
		if (!tell(kind, element, size, ranks_per_node, link, &panels[0][size], &panels[1][size])) {
			fprintf(stderr, "scale: out of memory\n");
			return 1;
		}
	}
	if (!plot_write(file, caption, &panels[0][0], 2, SIZES)) {
		fprintf(stderr, "scale: cannot write %s\n", file);
		return 1;
	}
	printf("\nwrote %s\n", file);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "kind", required_argument, NULL, 'k' },           { "type", required_argument, NULL, 't' },
		{ "ranks-per-node", required_argument, NULL, 'r' }, { "latency-us", required_argument, NULL, 'l' },
		{ "message-us", required_argument, NULL, 'm' },     { "gbit", required_argument, NULL, 'g' },
		{ "chunk-kib", required_argument, NULL, 'c' },      { "svg", required_argument, NULL, 's' },
		{ "help", no_argument, NULL, 'h' },                 { 0 },
	};
	ddp_link link = { .measured = true, .latency_seconds = 5e-6, .message_seconds = 0.5e-6,
	                  .byte_seconds = 8e-9 / 100, .chunk_bytes = 256 * 1024 };
	int ranks_per_node = 8, option;
	ddp_operation_kind kind = DDP_ALL_REDUCE;
	size_t element = 4;
	const char *file = "scale.svg";

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'k': kind = kind_named(optarg); break;
		case 't': element = element_of(optarg); break;
		case 'r': ranks_per_node = (int)number(optarg); break;
		case 'l': link.latency_seconds = 1e-6 * number(optarg); break;
		case 'm': link.message_seconds = 1e-6 * number(optarg); break;
		case 'g': link.byte_seconds = 8e-9 / number(optarg); break;
		case 'c': link.chunk_bytes = (size_t)(1024 * number(optarg)); break;
		case 's': file = optarg; break;
		case 'h': fputs(usage, stdout); return 0;
		default: fputs(usage, stderr); return 2;
		}
	}
	if (optind < argc || ranks_per_node < 1 || ranks_per_node > 32) {
		fputs(usage, stderr);
		return 2;
	}
	return run(kind, element, ranks_per_node, &link, file);
}
