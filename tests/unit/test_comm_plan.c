/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: tsan asan */
/* comm/hier/plan: exchanges fit together, and combine in comm/ops/combine_nodes's order. comm/hier/tree: trees of a
   broadcast.
   comm/hier/algorithms: the table; messages and connections of large worlds. comm/ops/blocks: their chunks.
   comm/group/agreement: room for what their ranks tell. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/core/roster.h"
#include "comm/group/agreement.h"
#include "comm/hier/algorithms.h"
#include "comm/hier/plan.h"
#include "comm/hier/tree.h"
#include "comm/ops/blocks.h"
#include "comm/ops/combine_nodes.h"
#include "comm/shm/node.h"
#include "tests/support/test.h"

/* ---- exchanges ------------------------------------------------------------------------------ */

static bool same(ddp_range a, ddp_range b)
{
	return a.count == b.count && (a.count == 0 || a.begin == b.begin);
}

static void check_pairs(const ddp_plan *plan, size_t chunk)
{
	for (int round = 0; round < plan->rounds; round++) {
		for (int node = 0; node < plan->nodes; node++) {
			const ddp_exchange mine = ddp_plan_round(plan, node, chunk, round);
			if (mine.peer < 0)
				continue;
			assert_true(mine.peer < plan->nodes && mine.peer != node);
			const ddp_exchange theirs = ddp_plan_round(plan, mine.peer, chunk, round);
			assert_int_equal(theirs.peer, node);
			assert_true(theirs.below != mine.below);
			assert_true(same(mine.send, theirs.recv) && same(mine.recv, theirs.send));
		}
	}
}

TEST(what_one_node_sends_the_other_expects)
{
	for (int nodes = 2; nodes <= 12500; nodes = nodes < 130 ? nodes + 1 : nodes * 3 + nodes % 2) {
		const ddp_plan plans[] = {
			ddp_plan_halving(nodes), ddp_plan_doubling(nodes), ddp_plan_halving_to_owners(nodes),
			ddp_plan_halving_to_root(nodes, 0), ddp_plan_halving_to_root(nodes, 1),
			ddp_plan_halving_to_root(nodes, nodes - 1),
		};
		for (size_t p = 0; p < sizeof(plans) / sizeof(plans[0]); p++) {
			check_pairs(&plans[p], 0);
			check_pairs(&plans[p], 1);
		}
	}
}

/* ---- order ------------------------------------------------------------------------------------ */

enum { NODES = 40, COUNT = 77 };

/* All nodes' values, as if they exchanged them. */
typedef struct cluster {
	float have[NODES][COUNT], before[NODES][COUNT];
} cluster;

static void run_round(const ddp_plan *plan, cluster *c, size_t chunk, int round)
{
	memcpy(c->before, c->have, sizeof(c->have));
	for (int node = 0; node < plan->nodes; node++) {
		const ddp_exchange e = ddp_plan_round(plan, node, chunk, round);
		const ddp_range in = ddp_plan_elements(plan, e.recv, COUNT);
		if (e.peer < 0 || in.count == 0)
			continue;
		float *ours = &c->have[node][in.begin], *theirs = &c->before[e.peer][in.begin];
		if (round >= plan->reductions)
			memcpy(ours, theirs, in.count * sizeof(float));
		else
			ddp_combine_pair(DDP_F32, DDP_SUM, e.below ? theirs : ours, e.below ? ours : theirs, ours,
			                 in.count);
	}
}

/* On all nodes, or on the root. */
static void check_order(const ddp_plan *plan, size_t chunk)
{
	static cluster c;
	static float want[COUNT];
	void *parts[NODES], *dst[1] = { want }, *scratch = malloc(ddp_combine_scratch_bytes(plan->nodes));
	const ddp_combination last = { .type = DDP_F32, .op = DDP_SUM, .ndst = 1, .dst = dst };

	assert_non_null(scratch);
	for (int node = 0; node < plan->nodes; node++) {
		for (size_t i = 0; i < COUNT; i++)
			c.have[node][i] = 1.0f / (float)(1 + (i * 7 + (size_t)node * 13) % 1000);
		parts[node] = c.have[node];
	}
	ddp_combine_nodes(&last, DDP_F32, parts, plan->nodes, COUNT, scratch);
	for (int round = 0; round < plan->rounds; round++)
		run_round(plan, &c, chunk, round);
	for (int node = 0; node < plan->nodes; node++) {
		if (plan->wanted == DDP_WANTED_BY_ALL || node == plan->root)
			assert_memory_equal(c.have[node], want, sizeof(want));
	}
	free(scratch);
}

TEST(every_plan_combines_in_the_order_of_the_tree)
{
	for (int nodes = 2; nodes <= NODES; nodes++) {
		const ddp_plan halving = ddp_plan_halving(nodes), doubling = ddp_plan_doubling(nodes);
		check_order(&halving, 0);
		check_order(&halving, 1);
		check_order(&doubling, 0);
		for (int root = 0; root < nodes; root++) {
			const ddp_plan to_root = ddp_plan_halving_to_root(nodes, root);
			check_order(&to_root, (size_t)root / 2 % 2);
		}
	}
}

/* Parts that are exchanged together hold as many nodes as their leaves have. */
static void check_nodes_of(const ddp_plan *plan, ddp_range parts)
{
	size_t count = 0;

	for (size_t part = parts.begin; part < parts.begin + parts.count; part++)
		count += ddp_plan_nodes_of(plan, part).count;
	assert_int_equal(ddp_plan_node_count(plan, parts), count);
}

TEST(each_node_is_in_one_part)
{
	for (int nodes = 2; nodes <= 100; nodes++) {
		const ddp_plan plan = ddp_plan_halving_to_owners(nodes);
		int seen[100] = { 0 };
		for (size_t part = 0; part < (size_t)plan.leaves; part++) {
			const ddp_range of = ddp_plan_nodes_of(&plan, part);
			for (size_t node = of.begin; node < of.begin + of.count; node++) {
				seen[node]++;
				const ddp_range own = ddp_plan_own(&plan, (int)node, 0);
				assert_true(own.count == 0 || own.begin == part);
			}
		}
		for (int node = 0; node < nodes; node++) {
			assert_int_equal(seen[node], 1);
			for (int round = 0; round < plan.rounds; round++)
				check_nodes_of(&plan, ddp_plan_round(&plan, node, 0, round).send);
		}
	}
}

/* ---- large worlds -------------------------------------------------------------------------------- */

/* 10 Gbit/s over TCP; and 200 Gbit/s. */
static const ddp_link links[] = {
	{ .measured = true, .latency_seconds = 20e-6, .message_seconds = 3e-6, .byte_seconds = 0.8e-9,
	  .chunk_bytes = 60 * 1024 },
	{ .measured = true, .latency_seconds = 2e-6, .message_seconds = 0.3e-6, .byte_seconds = 0.04e-9,
	  .chunk_bytes = 256 * 1024 },
};

enum { KINDS = 3 };
static const ddp_operation_kind kinds[KINDS] = { DDP_ALL_REDUCE, DDP_REDUCE, DDP_REDUCE_SCATTER };

/* Of f32 or, with 2 bytes an element, bf16, which is combined as f32. */
static ddp_shape shape_of_type(size_t element, ddp_operation_kind kind, int nodes, int channels, size_t bytes)
{
	return (ddp_shape){ .kind = kind, .nodes = nodes, .channels = channels, .blocks = (size_t)nodes,
	                    .count = bytes / element, .element = element, .travel = element, .wide = 4,
	                    .stage_bytes = DDP_NET_STAGE_BYTES };
}

static ddp_shape shape_of_kind(ddp_operation_kind kind, int nodes, int channels, size_t bytes)
{
	return shape_of_type(4, kind, nodes, channels, bytes);
}

static size_t longest_of(const ddp_shape *shape)
{
	return (shape->count + (size_t)shape->channels - 1) / (size_t)shape->channels;
}

static ddp_shape shape_of(int nodes, int channels, size_t bytes)
{
	return shape_of_kind(DDP_ALL_REDUCE, nodes, channels, bytes);
}

/* A row that lacks something would be missed by none but who runs that algorithm. */
TEST(each_algorithm_has_a_whole_row)
{
	for (ddp_algorithm a = 0; a < DDP_ALGORITHMS; a++) {
		const ddp_algorithm_row *row = ddp_algorithm_of(a);
		bool runs = false;
		assert_non_null(row->name);
		assert_int_equal(ddp_algorithm_named(row->name), a);
		assert_null(strpbrk(row->name, ", "));
		assert_true(row->can != NULL && row->cost != NULL && row->cut != NULL && row->run != NULL);
		for (size_t k = 0; k < KINDS; k++)
			runs = runs || row->can(kinds[k], false) || row->can(kinds[k], true);
		assert_true(runs);
	}
	assert_int_equal(ddp_algorithm_named("ring"), DDP_ALGORITHMS);
	for (size_t k = 0; k < KINDS; k++) {
		assert_true(ddp_algorithm_candidates(kinds[k], false) != 0);
		/* Inputs of a reduce_scatter never come with the headers. */
		assert_true(kinds[k] == DDP_REDUCE_SCATTER || ddp_algorithm_candidates(kinds[k], true) != 0);
	}
}

/* The cost on a link of which only one part takes time: by how many units of it. */
static double units(ddp_algorithm a, ddp_link link, const ddp_shape *shape)
{
	link.measured = true;
	link.chunk_bytes = 60 * 1024;
	return ddp_algorithm_of(a)->cost(&link, shape).seconds;
}

/* Most is sent if each node sends all of its data to each other one. */
static void check_cost(ddp_algorithm a, const ddp_shape *shape)
{
	const double nodes = shape->nodes, bytes = (double)(shape->count * shape->element);
	const double least = (shape->kind == DDP_ALL_REDUCE ? 2 : 1) * bytes * (nodes - 1) / nodes;
	const double sent = units(a, (ddp_link){ .byte_seconds = 1 }, shape);
	const ddp_link of_messages = { .measured = true, .message_seconds = 1, .chunk_bytes = 60 * 1024 };
	const ddp_cost cost = ddp_algorithm_of(a)->cost(&of_messages, shape);
	const double waits = units(a, (ddp_link){ .latency_seconds = 1 }, shape);

	assert_true(sent >= 0.99 * least && sent <= 1.01 * (nodes - 1) * bytes);
	assert_true(cost.seconds >= 2 && cost.seconds <= 1.4 * cost.messages);
	assert_true(waits >= 1 && waits < 20);
}

/* A cost that is too high or too low would let another algorithm run. */
TEST(costs_are_those_of_the_link)
{
	for (ddp_algorithm a = 0; a < DDP_ALGORITHMS; a++) {
		for (size_t k = 0; k < KINDS; k++) {
			for (int nodes = 3; nodes <= 9; nodes++) {
				const ddp_shape small = shape_of_kind(kinds[k], nodes, 1, 4096);
				const ddp_shape large = shape_of_kind(kinds[k], nodes, 8, (size_t)64 << 20);
				if (ddp_algorithm_of(a)->can(kinds[k], true))
					check_cost(a, &small);
				if (ddp_algorithm_of(a)->can(kinds[k], false))
					check_cost(a, &large);
			}
		}
	}
}

TEST(messages_do_not_shrink_with_the_world)
{
	const size_t bytes = (size_t)256 << 20;

	for (size_t k = 0; k < KINDS; k++) {
		for (size_t l = 0; l < 2; l++) {
			for (int nodes = 2; nodes <= 16384; nodes *= 2) {
				const ddp_shape shape = shape_of_kind(kinds[k], nodes, 8, bytes);
				const unsigned int candidates = ddp_algorithm_candidates(kinds[k], false);
				const ddp_algorithm chosen = ddp_algorithm_cheapest(&links[l], &shape, candidates);
				const ddp_cost cost = ddp_algorithm_of(chosen)->cost(&links[l], &shape);
				/* What is sent is twice a channel's data, or once, less what stays where it is. */
				const double times = kinds[k] == DDP_REDUCE_SCATTER ? 1 : 2;
				const double sent = times * (double)bytes / 8 * (nodes - 1) / nodes;
				if (nodes > 2)
					assert_true(sent / cost.messages >= 16 * 1024);
				assert_true(cost.message_bytes >= 32 * 1024);
			}
		}
	}
}

TEST(chunks_of_recursive_halving_depend_on_channels_and_rounds_alone)
{
	for (int nodes = 3; nodes <= 100000; nodes = nodes * 3 + 1) {
		for (int channels = 1; channels <= 64; channels *= 2) {
			const ddp_shape shape = shape_of(nodes, channels, (size_t)1 << 30);
			const size_t chunk = ddp_halving_chunk(&links[0], &shape);
			const size_t depth = ddp_halving_depth(&shape, chunk, longest_of(&shape));
			assert_true(chunk >= 64 && chunk % 64 == 0);
			assert_true(chunk * 4 * (size_t)channels <= DDP_NET_STAGE_BYTES);
			assert_true(2 * chunk * 4 * depth <= 32 << 20);
			assert_true(chunk * 4 >= 32 * 1024);
		}
	}
}

TEST(an_operation_has_a_chunk_however_small_it_is)
{
	for (size_t bytes = 4; bytes < 100000; bytes += 4 + bytes / 3) {
		const ddp_shape shape = shape_of(5, 3, bytes);
		const size_t chunk = ddp_halving_chunk(&links[0], &shape);
		assert_true(chunk >= 64);
		assert_true(ddp_halving_depth(&shape, chunk, longest_of(&shape)) >= 1);
	}
}

/* Some fixed points. */
TEST(connections_stay_few)
{
	for (int nodes = 4; nodes <= 16384; nodes *= 4) {
		const ddp_shape large = shape_of(nodes, 8, (size_t)25 << 20), small = shape_of(nodes, 1, 1024);
		int log2 = 0;
		while (1 << log2 < nodes)
			log2++;
		assert_int_equal(ddp_algorithm_of(DDP_RECURSIVE_HALVING)->cost(&links[0], &large).connections, log2);
		assert_int_equal(ddp_algorithm_of(DDP_RECURSIVE_DOUBLING)->cost(&links[0], &small).connections, log2);
		assert_int_equal(ddp_algorithm_of(DDP_SCATTER_GATHER)->cost(&links[0], &large).connections, nodes - 1);
	}
	const ddp_shape large = shape_of(12500, 8, (size_t)25 << 20), small = shape_of(12500, 1, 1024);
	const ddp_algorithm chosen = ddp_algorithm_cheapest(&links[0], &large, ddp_algorithm_candidates(DDP_ALL_REDUCE, false));
	assert_int_equal(chosen, DDP_RECURSIVE_HALVING);
	assert_true(ddp_algorithm_of(chosen)->cost(&links[0], &large).connections <= 2 * 14);
	assert_int_equal(ddp_algorithm_cheapest(&links[0], &small, ddp_algorithm_candidates(DDP_ALL_REDUCE, true)),
	                 DDP_RECURSIVE_DOUBLING);
}

/* However many nodes there are, twice the data go in and out of each. */
TEST(time_of_large_operations_hardly_grows)
{
	const size_t bytes = (size_t)1 << 30;

	for (size_t l = 0; l < 2; l++) {
		for (int nodes = 3; nodes <= 12500; nodes = nodes * 2 + 1) {
			const ddp_shape shape = shape_of(nodes, 8, bytes);
			const unsigned int candidates = ddp_algorithm_candidates(DDP_ALL_REDUCE, false);
			const ddp_algorithm chosen = ddp_algorithm_cheapest(&links[l], &shape, candidates);
			const double least = 2.0 * (double)bytes * (nodes - 1) / nodes * links[l].byte_seconds;
			assert_true(ddp_algorithm_of(chosen)->cost(&links[l], &shape).seconds < 1.3 * least);
		}
	}
}

/* ---- comm/ops/blocks ------------------------------------------------------------ */

enum { LIMIT = 256 * 1024, WINDOW = 4 * 1024 * 1024, LONGEST = 1 << 30 };

TEST(a_window_holds_a_chunk_of_each_of_many_slices)
{
	static const struct {
		size_t element, wide;
	} types[] = { { 1, 4 }, { 2, 4 }, { 4, 4 }, { 8, 8 } };

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		const size_t element = types[t].element, wide = types[t].wide;
		for (size_t slices = 1; slices <= WINDOW / element; slices += 1 + slices / 7) {
			size_t count = ddp_chunk_count(LIMIT, WINDOW / slices, element, wide, LONGEST);
			assert_true(count > 0);
			assert_true(count * element * slices <= WINDOW);
			assert_true(count * wide <= LIMIT || count == 64);
			assert_true(count < 64 || count % 64 == 0);
		}
		assert_int_equal(ddp_chunk_count(LIMIT, WINDOW / (WINDOW / element * 2), element, wide, LONGEST), 0);
	}
}

/* Also where the longest slice is a little shorter than that: a window is cut
   into whole chunks, so it must hold one. */
TEST(a_chunk_as_long_as_the_longest_slice_fits_in_its_share)
{
	for (size_t slices = 1; slices <= WINDOW / 8 / 64; slices += 1 + slices / 7) {
		const size_t share = WINDOW / slices;
		for (size_t longest = share / 4 > 200 ? share / 4 - 200 : 0; longest < share / 4 + 200; longest++) {
			size_t count = ddp_chunk_count(LIMIT, share, 4, 4, longest);
			assert_true(count > 0 && count * 4 <= share);
			assert_true(count < longest + 64 || count == 64);
		}
	}
}

/* ---- trees of a broadcast ------------------------------------------------------------------------ */

enum { TREE_NODES = 1000, TREE_CHUNKS = 256 };

static bool is_child(const ddp_tree *tree, int node)
{
	int times = 0;

	for (int i = 0; i < tree->count; i++)
		times += tree->children[i] == node;
	return times == 1;
}

/* How many chunks a node sends one behind the other until the last node has the last one. */
static double pass_chunks(ddp_tree_form form, int nodes, int chunks)
{
	static double came[TREE_NODES][TREE_CHUNKS];
	double last = 0;

	for (int node = 0; node < nodes; node++) {
		const ddp_tree tree = ddp_tree_of(form, nodes, node);
		double sent = 0;
		for (int s = 0; s < chunks; s++) {
			for (int i = 0; i < tree.count; i++) {
				const double begun = node == 0 || came[node][s] < sent ? sent : came[node][s];
				/* A node comes behind its parent, so all that it gets is there already. */
				assert_true(tree.children[i] > node);
				came[tree.children[i]][s] = sent = begun + 1;
				last = sent > last ? sent : last;
			}
		}
	}
	return last;
}

static void check_tree(ddp_tree_form form, int nodes)
{
	int reached = 1;

	assert_int_equal(ddp_tree_of(form, nodes, 0).parent, -1);
	for (int node = 0; node < nodes; node++) {
		const ddp_tree tree = ddp_tree_of(form, nodes, node);
		reached += tree.count;
		if (node == 0)
			continue;
		const ddp_tree above = ddp_tree_of(form, nodes, tree.parent);
		assert_true(is_child(&above, node));
	}
	assert_int_equal(reached, nodes);
	for (int chunks = 1; chunks <= TREE_CHUNKS; chunks *= 4) {
		const double cost = ddp_tree_cost(form, nodes, (size_t)chunks, 1, 0), took = pass_chunks(form, nodes, chunks);
		assert_true(took <= cost && took >= cost / 2);
	}
}

TEST(each_node_gets_a_broadcast_once_and_in_time)
{
	for (ddp_tree_form form = DDP_TREE_BINOMIAL; form < DDP_TREE_FORMS; form++) {
		for (int nodes = 2; nodes <= TREE_NODES; nodes = nodes < 70 ? nodes + 1 : nodes * 2)
			check_tree(form, nodes);
		check_tree(form, TREE_NODES);
	}
}

TEST(broadcasts_take_the_tree_that_suits_nodes_and_chunks)
{
	assert_int_equal(ddp_tree_choose(8, 1), DDP_TREE_BINOMIAL);
	assert_int_equal(ddp_tree_choose(8, 16), DDP_TREE_CHAIN);
	assert_int_equal(ddp_tree_choose(TREE_NODES, 1), DDP_TREE_BINOMIAL);
	assert_int_equal(ddp_tree_choose(TREE_NODES, 16), DDP_TREE_BINARY);
	assert_int_equal(ddp_tree_choose(TREE_NODES, TREE_CHUNKS), DDP_TREE_BINARY);
	assert_int_equal(ddp_tree_choose(TREE_NODES, 40000), DDP_TREE_CHAIN);
	for (int chunks = 16; chunks <= TREE_CHUNKS; chunks *= 16) {
		const double took = pass_chunks(DDP_TREE_BINARY, TREE_NODES, chunks);
		assert_true(pass_chunks(DDP_TREE_BINOMIAL, TREE_NODES, chunks) > 2 * took);
		assert_true(pass_chunks(DDP_TREE_CHAIN, TREE_NODES, chunks) > 2 * took);
	}
}

/* ---- what ranks tell each other when they shrink --------------------------------------------------- */

/* On a node of one rank, among as many nodes. */
static void expect_room(int size)
{
	int rank = 0, *node_begin = calloc((size_t)size + 1, sizeof(*node_begin));
	ddp_peer self = { .pid = getpid() };
	ddp_roster roster = { .peers = &self };
	ddp_comm comm = { .roster = &roster, .size = size, .node = { .size = 1, .ranks = &rank },
	                  .topology = { .nodes = size, .world_ranks = &rank, .node_begin = node_begin } };
	ddp_agreement agreement;
	const int fd = ddp_segment_create(DDP_SEGMENT_START_BYTES);

	assert_non_null(node_begin);
	for (int node = 0; node <= size; node++)
		node_begin[node] = node;
	assert_true(fd >= 0);
	assert_int_equal(ddp_node_map(&comm, fd), DDP_OK);
	assert_int_equal(ddp_agreement_open(&agreement, &comm), DDP_OK);
	assert_true((size_t)(comm.node.rings - comm.node.proposals) / DDP_PROPOSAL_BOARDS >
	            ((size_t)size + 1) * agreement.record_bytes);
	ddp_agreement_close(&agreement);
	ddp_node_unmap(&comm);
	close(fd);
	free(comm.node.incoming);
	free(node_begin);
}

TEST(rank_has_room_for_what_all_others_tell)
{
	expect_room(2);
	expect_room(6000);
	expect_room(50000);
}
