/* SPDX-License-Identifier: Apache-2.0 */
/* The node's part in a restart, in slurmstepd's thread (node/ends.h): it takes srun's orders (deal.h), hands
   them to the node's agents (agent.h), and tells srun what becomes of them. Ends of programs are judged as in a step
   without restart= (node.h), except ends that srun has ordered.

   A node that does not reach srun ends its ranks before srun gives their places to another node (the fence), and gives
   up after a longer time. A step that Slurm has asked to stop does not start again: the agents end with their programs.
   All functions are called with the same lock held, or by one thread. libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/node/node.h"
#include "spank/wire/deal.h"

struct generation_facts {
	uint32_t node_id;    /* of Slurm, in the step */
	uint32_t silence_ms; /* after so long srun takes a node for lost; 0: never */
	uint32_t fence_ms;   /* age of the lease at which the node ends its ranks; 0: never */
	/* Sends srun a frame of an enum deal_type. */
	bool (*send)(uint32_t type, const void *payload, size_t bytes);
	uint32_t (*lease_ms)(void); /* how long srun has heard nothing of the node */
	/* Finds a node's address as Slurm knows it. NULL, or false: it is not known. */
	bool (*find_address)(const char *node, char *address, size_t bytes);
};

enum generation_state {
	GENERATION_WAITS, /* no generation was ordered yet, or the agents are clear of the last one */
	GENERATION_RUNS,
	GENERATION_ENDS,  /* the agents end what is left of it */
	GENERATION_QUITS,
};

struct generation {
	struct node *node; /* NULL: the step has no agents */
	struct generation_facts facts;
	enum generation_state state;
	uint32_t number;    /* of the last generation that began or was ended; 0: none */
	pid_t group;        /* the process group of the node's tasks */
	uint64_t first_step; /* the lowest step that the pages have shown in it; 0: none */
	uint64_t last_step;  /* the highest, when it was ended */
	uint64_t checked_ns; /* when stopped agents were last looked for */
	uint64_t looked_ns;  /* when the pages were last looked at for it */
	uint64_t ended_ns;   /* when it was ended, or all were */
	bool joined, fenced;
	bool keeps;          /* programs of the generation that ends stay */
	enum deal_rest rest; /* what became of its programs */
	bool run_owed;       /* the step is suspended, so the programs do not begin yet */
	bool *lost;         /* by local task: srun was told that its agent was killed */
	uint64_t *gone_ns;  /* by local task: when its agent was seen to have ended; 0: it was not */
};

/* The tasks were forked. False without memory for it. */
bool generation_start(struct generation *generation, struct node *node, const struct generation_facts *facts);
void generation_free(struct generation *generation);

/* Takes a frame of srun's. A frame that is no order, or contradicts what is known, has no effect. */
void generation_take(struct generation *generation, uint32_t type, const void *payload, size_t bytes);

/* Does what is due. To be called when agents have news, and at the latest after the milliseconds that the last call
   has returned. */
int generation_advance(struct generation *generation);

/* To be called when node_take_end() has taken the end of a task. */
void generation_done(struct generation *generation, uint32_t local_task);
