/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/tree: from which node to which a broadcast goes. Nodes are counted from the root, which is 0. A node passes
   each chunk on to one child after the other as soon as the chunk has come. All ranks choose the same form, because it
   depends on the number of nodes and of chunks alone. */
#pragma once

#include <stddef.h>

enum { DDP_TREE_DEGREE = 31 };

/* A broadcast of k chunks goes to n nodes in one of these forms. */
typedef enum ddp_tree_form {
	DDP_TREE_BINOMIAL, /* the root sends each chunk log2(n) times: least for one chunk or two */
	DDP_TREE_BINARY,   /* each node sends each chunk twice: least for many nodes */
	DDP_TREE_CHAIN,    /* each node sends each chunk once, and the last node waits for n - 1 hops: least for many chunks */
	DDP_TREE_FORMS
} ddp_tree_form;

typedef struct ddp_tree {
	int parent; /* -1: this is the root */
	int children[DDP_TREE_DEGREE];
	int count;
} ddp_tree;

/* Seconds until the last node has the last chunk, if a node sends a chunk in `chunk_seconds`, and each hop takes
   `latency_seconds` more. */
double ddp_tree_cost(ddp_tree_form form, int nodes, size_t chunks, double chunk_seconds, double latency_seconds);

/* The cheapest form where a hop takes as long as a chunk, such as 20 us and 256 KiB at 100 Gbit/s. */
ddp_tree_form ddp_tree_choose(int nodes, size_t chunks);
const char *ddp_tree_name(ddp_tree_form form);

/* A node's neighbours. */
ddp_tree ddp_tree_of(ddp_tree_form form, int nodes, int node);
