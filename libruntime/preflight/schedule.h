/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/schedule: who measures when. Pure.

   Links are measured in rounds, in each of which a node exchanges messages with at most one other node. Up to
   PREFLIGHT_ALL_PAIRS nodes meet in all pairs, by the circle method of a round-robin tournament, so that all
   nodes are busy in each round. More nodes meet along the edges of a hypercube, and then their neighbours. */
#pragma once

#include <stdbool.h>

enum { PREFLIGHT_ALL_PAIRS = 64 };

/* How many rounds so many nodes need; 0 for one node. */
int preflight_rounds(int nodes);

/* Returns the peer of `node` in a round, or -1 if the node is free. The peer of the peer is the node. */
int preflight_peer(int nodes, int round, int node);

/* A node that hardly gets its processor, or is behind slow links, would make all nodes wait for it in each round.
   `late[n]` is how many of the rounds of node n took longer than PREFLIGHT_LATE_MS, counted from its last one back to
   the first that did not. Sets out[n] for each node that takes no part in further rounds, and returns true if there
   is a new one. If many nodes are late, that is nobody's fault, and no node is left out. */
enum { PREFLIGHT_LATE_MS = 200, PREFLIGHT_LATE_ROUNDS = 3 };
bool preflight_leave_out(const unsigned char *late, bool *out, int nodes);

/* One measurement by one or two parties, which has some machines to itself. */
struct preflight_item {
	int a, b;                 /* what is measured: a rank and -1, or the two nodes of a link */
	int machine_a, machine_b; /* the machines that it occupies; machine_b is -1 for one */
	int turn;
};

/* Gives each item its turn, so that no machine has two items in one turn, and returns the number of turns. `seed`
   decides the order: another seed gives another order. */
int preflight_take_turns(struct preflight_item *items, int count, unsigned seed);

/* How long one measurement takes, in milliseconds. */
enum {
	PREFLIGHT_LINK_MS = 18,     /* of a link, at most, where 64 KiB take less than a millisecond */
	PREFLIGHT_WINDOW_MS = 120,  /* of a rank's work; longer than the period in which the kernel limits a control group */
	PREFLIGHT_ALONE_MS = 600,   /* of all ranks of a machine, one after the other, for each kind of work */
	PREFLIGHT_ALONE_LEAST_MS = 5,
	PREFLIGHT_ALONE_MOST_MS = 60,
	PREFLIGHT_REPEATS = 5,      /* what looks odd is measured again so often, */
	PREFLIGHT_REPEATS_BUSY = 10, /* and so often if it then still looks odd, and processors were lacking */
	PREFLIGHT_SUBJECTS = 12,    /* so many ranks, and so many links, at most */
};

/* How long each rank of a machine with so many ranks works alone, in milliseconds. */
int preflight_alone_ms(int ranks);
