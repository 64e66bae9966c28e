/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes a step with restart= has, and which of them has which ranks. Pure, but it allocates memory.

   The last nodes are spares. Each other node has a slot, which holds the ranks of the tasks that Slurm has given to
   that node, its home. If a node cannot keep its slot, a spare takes it, and the ranks stay the same. If no spare is
   left, the slot is dropped, and the ranks of the others are counted anew. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/wire/deal.h"

#define ROSTER_NONE UINT32_MAX

struct roster_node {
	char *name;
	uint32_t *tasks;      /* their numbers in the step */
	uint32_t task_count;
	uint32_t slot;        /* ROSTER_NONE: it waits, or is not needed */
	uint64_t heard_ns;    /* when srun last read something of it */
	bool joined;
	bool own;             /* it is srun's host, which srun hears without a network */
	bool lost;            /* it is not there any more, or not for this step */
	bool bye;             /* all its tasks have ended, it says */
	bool unfit;           /* it is there, but cannot start one of its tasks again */
	bool suspect;         /* ranks failed there twice in a row, or ddp-preflight found it odd: a good spare is preferred */
	bool clear;           /* nothing lives there of the generation that ends, except what is kept, or none has begun */
	enum deal_rest rest;  /* and what became of its programs */
	bool end_owed, go_owed, quit_owed; /* orders that are still to be sent */
	bool quit;            /* that order was sent */
};

struct roster_slot {
	uint32_t home, node;  /* node ROSTER_NONE: the slot is dropped */
	uint32_t node_rank;
};

struct roster {
	struct roster_node *nodes; /* by Slurm's number in the step */
	struct roster_slot *slots;
	uint32_t *rank_of;     /* of each task of the step; ROSTER_NONE: none in this generation */
	uint32_t node_count, slot_count, task_count, spares, min_nodes;
	uint32_t world_size;   /* 0: ranks were never counted */
	uint32_t active;       /* how many slots are not dropped */
	uint32_t master;       /* the node rank of the node with rank 0 */
};

enum roster_order { ORDER_NONE, ORDER_END, ORDER_GO, ORDER_QUIT };

/* Whether a step can have so many spares, and so few nodes at least; otherwise, with the reason, false. */
bool roster_fits(uint32_t nodes, uint32_t tasks, uint32_t spares, uint32_t min_nodes, struct error *error);

/* `min_nodes` 0: as many as have slots. False without memory, or if there are too few nodes for this. */
bool roster_start(struct roster *roster, uint32_t nodes, uint32_t tasks, uint32_t spares, uint32_t min_nodes);
void roster_free(struct roster *roster);

/* Takes a node that joins for the first time. Returns why the node cannot join; NULL: it has joined. */
const char *roster_join(struct roster *roster, const struct deal_join *join, const char *name);

bool roster_all_joined(const struct roster *roster);

/* Whether enough nodes are clear for the next generation: all that keep their slots, and as many that wait as there are
   slots for them, or all that wait; and whether all nodes are. Lost nodes do not count. */
bool roster_is_clear(const struct roster *roster);
bool roster_all_clear(const struct roster *roster);

/* Whether the node may still have tasks of which srun hears nothing any more. */
bool roster_is_away(const struct roster_node *node);
bool roster_any_away(const struct roster *roster);
/* Whether all nodes have said good-bye, except those that are away. */
bool roster_all_gone(const struct roster *roster);

bool roster_is_usable(const struct roster_node *node);

/* All nodes that count are clear: whether ranks have stayed, all that ran have, and each dead one, of which there is
   one at least, can be started anew, on its node or on one that waits; and whether any ranks have stayed. */
bool roster_can_join(const struct roster *roster);
bool roster_any_kept(const struct roster *roster);

/* Gives the slots of nodes that cannot keep them to other nodes that are clear, and adds who takes whose place. False
   if fewer than `min_nodes` are left. */
bool roster_fill(struct roster *roster, struct sink *sink);

/* Counts the ranks, in order of the tasks' numbers. */
void roster_count(struct roster *roster);

/* Returns how many nodes wait, good ones or not; and one of them by its place among them, ROSTER_NONE behind the
   last. */
uint32_t roster_waiting(const struct roster *roster);
uint32_t roster_waiting_at(const struct roster *roster, uint32_t index);
/* Adds " (1 spare left)"; nothing in a step without spares. */
void roster_add_spares(const struct roster *roster, struct sink *sink);
/* Adds ", with ranks 2-3, 8" of a node that has ranks. */
void roster_add_ranks(const struct roster *roster, uint32_t node, struct sink *sink);

/* The rank that a node's task has; ROSTER_NONE: none. */
uint32_t roster_rank(const struct roster *roster, uint32_t node, uint32_t local_task);
/* A node by its name, by one of its ranks, and by its own rank; ROSTER_NONE: there is no such node. */
uint32_t roster_find(const struct roster *roster, const char *name);
uint32_t roster_node_of(const struct roster *roster, uint32_t rank);
uint32_t roster_node_at(const struct roster *roster, uint32_t node_rank);

/* Whether an order is owed to a node from this one on. */
bool roster_owes(const struct roster *roster, uint32_t from);
/* The first of these orders, which is then not owed any more, and its node in *from. */
enum roster_order roster_take_order(struct roster *roster, uint32_t *from);

/* Sets what a node is told of the ranks: counts, its own rank and its tasks' ranks. The rest of `go` stays. */
void roster_deal(const struct roster *roster, uint32_t node, struct deal_go *go, uint32_t ranks[DEAL_TASKS_MAX]);
