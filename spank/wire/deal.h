/* SPDX-License-Identifier: Apache-2.0 */
/* The orders of srun to the nodes of a step with restart=, and what the nodes tell of their agents. They are the
   payloads of a link's frames (channel.h), and the type of the frame is an enum deal_type. Numbers are
   little-endian. Pure: an unpacked order points into the payload, and nothing is allocated.

   A node's agents begin with generation 0, in which no program runs. A generation begins with GO. For the next one,
   srun sends END, every node's agents end all of their descendants, the node answers with CLEAR, and GO follows.

   Programs may say on their pages that they survive others. With `keep`, END leaves them, if all that run on the node
   say so, and CLEAR tells so. If no node has ended a program, and one had died, GO begins a generation in which they
   stay, and programs are started only for those that had died (`joins`). Otherwise another END, without `keep`, comes
   first. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum deal_type {
	/* srun -> node */
	DEAL_END = 32, /* end all ranks of the generation */
	DEAL_GO,       /* begin a generation */
	DEAL_QUIT,     /* end all descendants, and then the agents: the step is over for this node */
	DEAL_SPARES,   /* to rank 0's node, for ddp-status: which nodes wait. A node of an older release leaves it out */
	/* node -> srun */
	DEAL_JOIN = 48, /* the first frame of each of the node's links */
	DEAL_CLEAR,     /* nothing of the generation lives on this node any more */
	DEAL_DONE,      /* a rank has ended, in whatever way */
	DEAL_LOST,      /* an agent was ended, so that its node cannot start that task again */
};

/* What a node says of the programs that ran when END came. */
enum deal_rest {
	DEAL_ENDED, /* they were ended, or the node is of an older release */
	DEAL_NONE,  /* none ran */
	DEAL_KEPT,  /* all of the node's programs ran, and stay */
	DEAL_SOME,  /* those that ran stay, and others had ended */
};

enum {
	DEAL_VERSION = 1,
	DEAL_TASKS_MAX = 4096,    /* of a node */
	DEAL_KEY_DIGITS = 64,
	DEAL_NODES_MAX = 131071,  /* bytes of a list of nodes: no variable can be longer */
	DEAL_RELEASE_MAX = 31,
	DEAL_GENERATIONS = 65535, /* a message of the relay has room for no higher number */
	DEAL_SPARES_MAX = 1023,   /* bytes of the list of nodes that wait */
	DEAL_SMALL_BYTES = 64,    /* room for each payload, except GO, SPARES and JOIN */
};

#define DEAL_SPARE UINT32_MAX /* as a node's rank: the node waits in that generation */

/* Instead of a wait status: each agent ends as its program of the last generation has ended, and an agent that has
   had no program in it ends with code 0. */
#define DEAL_OWN_STATUS INT32_MIN

struct deal_go {
	uint32_t generation;    /* from 1 */
	uint32_t restart_count; /* how many restarts in the step were before it */
	uint32_t world_size, node_count;
	uint32_t node_rank;     /* or DEAL_SPARE: then the node has no ranks in this generation */
	uint32_t master;        /* the rank of the node that holds rank 0 */
	uint32_t local_count;   /* how many ranks this node has, one for each of its tasks; of a spare 0 */
	uint32_t port_seed;     /* moves the port on which rank 0 listens */
	char key[DEAL_KEY_DIGITS + 1]; /* see deal_make_key() */
	bool joins;             /* programs that were kept stay, and others are started to join them */
	const char *nodes;      /* all nodes of the generation in order of their ranks, as Slurm writes lists; terminated */
	const unsigned char *ranks; /* see deal_rank() */
};

struct deal_join {
	uint32_t version; /* DEAL_VERSION */
	uint32_t node_id; /* of Slurm, in the step */
	uint32_t generation; /* the newest that the node's agents have begun or ended; 0: none */
	uint32_t task_count;
	const unsigned char *tasks; /* their numbers in the step, see deal_task() */
	char release[DEAL_RELEASE_MAX + 1]; /* printable */
};

struct deal_clear {
	uint32_t generation;
	bool fenced;    /* the node has ended its ranks by itself, because it did not reach srun */
	uint64_t step;  /* the highest step that its pages showed in this generation; 0: they show none */
	uint64_t first; /* the lowest step, with which the generation began; 0: not known */
	enum deal_rest rest;
};

struct deal_done {
	uint32_t generation, local_task, rank;
	int wait_status; /* as judge_status() gives it */
	bool never_ran;  /* SLURM could not start the program */
};

struct deal_lost {
	uint32_t generation, local_task;
};

/* How many bytes the payload takes. */
size_t deal_go_bytes(uint32_t local_count, const char *nodes);
size_t deal_join_bytes(uint32_t task_count);

/* Each writes a payload and returns its length. The arrays are given beside the structures, whose `ranks` and `tasks`
   are not looked at. */
size_t deal_pack_end(uint32_t generation, bool keep, unsigned char *bytes);
size_t deal_pack_go(const struct deal_go *go, const uint32_t *ranks, unsigned char *bytes);
size_t deal_pack_quit(int wait_status, unsigned char *bytes);
size_t deal_pack_spares(const char *nodes, unsigned char bytes[4 + DEAL_SPARES_MAX]);
size_t deal_pack_join(const struct deal_join *join, const uint32_t *tasks, unsigned char *bytes);
size_t deal_pack_clear(const struct deal_clear *clear, unsigned char *bytes);
size_t deal_pack_done(const struct deal_done *done, unsigned char *bytes);
size_t deal_pack_lost(const struct deal_lost *lost, unsigned char *bytes);

/* Each returns false if the payload is no such order or contradicts itself. A longer payload is one, too: a later
   release may append to it. */
bool deal_unpack_end(const void *bytes, size_t count, uint32_t *generation, bool *keep);
bool deal_unpack_go(const void *bytes, size_t count, struct deal_go *go);
bool deal_unpack_quit(const void *bytes, size_t count, int *wait_status);
bool deal_unpack_spares(const void *bytes, size_t count, char nodes[DEAL_SPARES_MAX + 1]);
bool deal_unpack_join(const void *bytes, size_t count, struct deal_join *join);
bool deal_unpack_clear(const void *bytes, size_t count, struct deal_clear *clear);
bool deal_unpack_done(const void *bytes, size_t count, struct deal_done *done);
bool deal_unpack_lost(const void *bytes, size_t count, struct deal_lost *lost);

/* The rank of a node's task in the generation, and the number of a node's task in the step. */
uint32_t deal_rank(const struct deal_go *go, uint32_t local_task);
uint32_t deal_task(const struct deal_join *join, uint32_t local_task);

/* ---- keys of a step, and of a generation ---- */

/* Makes a key at random: hexadecimal, in small letters. False, with errno. */
bool deal_make_key(char key[DEAL_KEY_DIGITS + 1]);

/* Whether the text, which may be NULL, is such a key. */
bool deal_is_key(const char *text);
