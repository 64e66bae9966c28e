/* SPDX-License-Identifier: Apache-2.0 */
/* srun's decisions in a step with restart=: which node has which ranks in which generation, when a generation ends,
   and when the step does. Pure, but it allocates memory: the caller gives the time and what the nodes tell, and acts
   on the result.

   The first generation begins when all nodes have joined.

   After a failure all nodes are told to end their ranks. When each has answered that it is clear, or is lost, the
   next generation begins. It does not wait long for a spare that is not needed. What fails between these two moments
   changes who is in the next generation, and causes no further one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/srun/roster.h"
#include "spank/wire/deal.h"
#include "spank/witness/agent.h"

enum {
	PLAN_TEXT_MAX = 3071,
	PLAN_CLEAR_MS = 60000,  /* a node that has not ended its ranks by then is lost, as for Slurm (UnkillableStepTimeout) */
	PLAN_SPARE_MS = 100,    /* a spare that is there answers within it */
	PLAN_GONE_MS = AGENTS_ASK_MS + 1000, /* agents without a slurmstepd have ended everything by then */
	PLAN_ALONE_MS = 20000,  /* so long srun waits at least for its nodes, if it reaches none; agents wait likewise */
	PLAN_LEAVE_MS = 10000,  /* after QUIT a node's tasks end within it */
	PLAN_PORTS = 8,         /* so many ports that are taken cost no restart */
	PLAN_SETTLE_MS = 400,   /* after the last rank's end its node may still tell why */
};

struct plan_policy {
	uint32_t restarts, spares;
	uint32_t min_nodes;  /* 0: as many as have slots */
	uint32_t silence_ms; /* 0: no node is ever called silent */
	const char *odd_nodes; /* a list of ddp-preflight's: others take their places, if others wait; or NULL */
};

enum {
	CAUSE_TEXT_MAX = 2047,
	HISTORY_FRUITLESS = 2, /* so many restarts in a row without a new step end the step */
};

/* Why a generation ends. */
struct cause {
	bool known;
	bool hearsay;        /* a rank gave up because of another rank, of which nothing is known yet */
	bool lost;           /* a node was lost, which says nothing of the program */
	bool port_taken;     /* of rank 0's; the next generation has another one */
	bool survived;       /* the other ranks may stay in their processes, as far as they say so */
	int wait_status;
	uint32_t rank, node; /* UINT32_MAX: not known */
	char text[CAUSE_TEXT_MAX + 1];
};

struct history {
	uint64_t best_step;  /* the highest step of all generations; 0: pages show none */
	uint64_t best_first; /* the highest step with which one has begun, as a checkpoint allowed it */
	uint32_t fruitless;  /* generations in a row that did not get further */
	uint32_t last_rank, last_node; /* of the last cause; UINT32_MAX: not known */
	uint64_t last_step;  /* of that generation */
};

enum plan_phase {
	PLAN_JOINING, /* not all nodes are there */
	PLAN_RUNNING, /* a generation */
	PLAN_ENDING,  /* its nodes end it */
	PLAN_ALONE,   /* no node has spoken for a while: srun itself is cut off */
	PLAN_OVER,
};

struct plan {
	struct plan_policy policy;
	enum plan_phase phase;
	struct roster roster;
	uint32_t generation, restarts; /* of both the first is 0 while nodes join */
	uint32_t ports_taken;
	struct history history;
	bool *ended;             /* by rank */
	uint32_t ended_count, fine_count, fine_rank;
	bool never_ran;          /* SLURM could not start a program of the generation */
	uint64_t ended_ns;       /* when the last rank was heard to end; UINT64_MAX: not all have, or it was said */
	uint64_t phase_ns;       /* when the phase began */
	uint64_t not_before_ns;  /* the next generation */
	uint64_t enough_ns;      /* PLAN_ENDING: when enough nodes became clear; 0: they are not */
	uint64_t alone_until_ns, silent_ns; /* PLAN_ALONE: until when; how long nodes were silent when it began */
	uint64_t over_ns;        /* when plan_act() first saw that all is over; 0: it is not */
	bool abandoned;
	uint64_t step, first;    /* the highest and the lowest that nodes have told of this generation */
	struct cause cause;      /* why it ends */
	bool keeps;              /* PLAN_ENDING: nodes leave ranks in their processes that survive others */
	bool refused;            /* and these cannot stay after all */
	bool joins;              /* of the generation: ranks have stayed in it */
	/* The caller does this next. */
	bool begins, says, ends, succeeds;
	uint32_t cursor;         /* orders may be owed to nodes from here on */
	int wait_status;         /* with which the step ends */
	char text[PLAN_TEXT_MAX + 1];
};

enum plan_kind {
	PLAN_SAY,        /* `text` to the user */
	PLAN_BEGIN,      /* a generation begins: all that is known of the last one's ends is to be forgotten. Orders follow */
	PLAN_SEND_END,   /* to `node` */
	PLAN_SEND_GO,    /* plan_go() tells what */
	PLAN_SEND_QUIT,
	PLAN_ALL_ENDED,  /* all ranks have ended, and not all well: plan_fail() or plan_leave() is to be called */
	PLAN_SUCCESS,    /* all ranks have ended well */
	PLAN_END_STEP,   /* it has failed, with `text` and `wait_status` */
	PLAN_ABANDON,    /* the step has ended, except on nodes that are away (roster_is_away()): srun waits for none */
};

struct plan_action {
	enum plan_kind kind;
	uint32_t node;
	int wait_status;
	const char *text; /* the plan's, until the next call */
};

struct plan_failure {
	const char *text;
	const char *node;    /* on which it happened; NULL or "": not known */
	uint32_t rank;       /* or ROSTER_NONE */
	int wait_status;
	bool hearsay;        /* a better reason may come */
	bool port_taken;     /* rank 0's program was not started, as another program has its port */
	bool survived;       /* the rank's page says that the other ranks go on */
	bool stopping;       /* the step was asked to stop, or was sent another signal */
	const char *damaged; /* ranks found that this node's memory or processor is damaged; NULL, or unknown: none is */
};

/* Plans a step with so many nodes and tasks. False without memory, or if the policy does not fit them. */
bool plan_start(struct plan *plan, const struct plan_policy *policy, uint32_t nodes, uint32_t tasks);
void plan_free(struct plan *plan);

/* A node has opened a link. If what it says contradicts the step, the step ends. */
void plan_join(struct plan *plan, const struct deal_join *join, const char *name, uint64_t now_ns);

/* The node is srun's own host: srun hears it without a network. */
void plan_note_own(struct plan *plan, uint32_t node);

/* srun has read something that the node has sent. */
void plan_heard(struct plan *plan, uint32_t node, uint64_t now_ns);

void plan_clear(struct plan *plan, uint32_t node, const struct deal_clear *clear, uint64_t now_ns);
void plan_done(struct plan *plan, uint32_t node, const struct deal_done *done, uint64_t now_ns);
void plan_lose_agent(struct plan *plan, uint32_t node, const struct deal_lost *lost, uint64_t now_ns);

/* A failure for which a step without restart= would end. */
void plan_fail(struct plan *plan, const struct plan_failure *failure, uint64_t now_ns);

/* srun has heard nothing of the node for so long. */
void plan_silent(struct plan *plan, uint32_t node, uint64_t silent_ms, uint64_t now_ns);

/* srun has heard nothing of any node for so long. */
void plan_all_silent(struct plan *plan, uint64_t silent_ms, uint64_t now_ns);

/* Its slurmstepd has ended without a word. */
void plan_gone(struct plan *plan, uint32_t node, uint64_t now_ns);

/* Its slurmstepd says that all its tasks have ended. */
void plan_bye(struct plan *plan, uint32_t node, uint64_t now_ns);

/* The step ends as its programs have ended. */
void plan_leave(struct plan *plan);

/* Returns when plan_act() has something to do; UINT64_MAX: not before there is news. */
uint64_t plan_due(const struct plan *plan);

/* Gives the next thing to do; false: there is nothing to do. */
bool plan_act(struct plan *plan, uint64_t now_ns, struct plan_action *action);

/* Gives what a node is told of the generation, except key and list of nodes, and the ranks of its tasks in order. */
void plan_go(const struct plan *plan, uint32_t node, struct deal_go *go, uint32_t ranks[DEAL_TASKS_MAX]);
