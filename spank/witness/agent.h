/* SPDX-License-Identifier: Apache-2.0 */
/* With restart=, the process that Slurm takes for a task is the task's agent. It runs no program. Each
   generation of the program is a child of the agent: agent_serve() returns there, and Slurm's own code
   then makes the child the user's program. The agent notes how the child ends. When slurmstepd
   orders it, the agent kills all that is left of the generation. The agent is a subreaper: it adopts what the program
   leaves behind, so nothing escapes by setsid() or by forking twice.

   A thread of slurmstepd gives the orders, to all agents of the node alike. Orders and answers lie in
   memory that both share. The thread wakes the agents by SIGCONT, which also continues an agent that
   somebody has stopped; the agents wake the thread by an eventfd. If slurmstepd dies, or the task's program
   outlives its agent, the kernel tells the survivor, which then ends too.

   The agent blocks all signals, so that signals to the step reach the program only. With proctrack/cgroup, SLURM sends
   signals to the children of slurmstepd only, so each agent hands them on to its program. With
   SignalChildrenProcesses=yes in cgroup.conf, SLURM itself sends them to all processes. If SLURM sends a signal while
   there is no program, the agent keeps it until the next program has a handler for it. Between fork and exec
   there is libc only, and no lock: slurmstepd has threads. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/base/text.h"

enum {
	AGENTS_DEAL_MAX = 1 << 20,
	AGENTS_HOST_MAX = 256,
	AGENTS_ASK_MS = 2000, /* so long an srun that a program has started may take to end its step */
};

/* As `quit_status`: each agent exits as its last child has ended, or with code 0 if the last generation had no child of
   the agent. */
#define AGENTS_OWN_STATUS INT32_MIN

enum agents_order {
	AGENTS_WAIT, /* nothing was ordered yet */
	AGENTS_RUN,  /* start the program of the generation */
	AGENTS_KEEP, /* end what is left of the generation, unless the program lives and stays */
	AGENTS_END,  /* end what is left of the generation, and of earlier ones */
	AGENTS_QUIT, /* the same, and then exit */
};

/* Shared by the agent and slurmstepd. Only the agent writes it, except `spare` and `stays`. */
struct agent {
	_Atomic pid_t pid;      /* of the agent; 0: the task has not become one yet */
	_Atomic pid_t child;    /* of the last generation that it began; 0: none, or the child was reaped */
	_Atomic uint32_t begun; /* the last generation that it began; 0: none */
	_Atomic uint32_t ended; /* the last generation of which its child has ended: */
	atomic_int wait_status; /* so */
	_Atomic uint32_t unborn; /* the last generation whose child has ended before it became the program */
	_Atomic uint32_t kept;  /* the last generation of which only the program is left */
	_Atomic uint32_t clear; /* nothing of this generation and of earlier ones is left */
	atomic_bool spare;      /* the task has no child in the generation that was ordered */
	atomic_bool stays;      /* its child, if it lives, stays when the generation ends, and is the next one's, too */
};

struct agents_shared {
	_Atomic uint64_t wanted; /* generation and order, in one: see agents_order() */
	atomic_int quit_status;  /* for AGENTS_QUIT: a wait status, or AGENTS_OWN_STATUS */
	bool hands_on;           /* SLURM's signals reach agents only. Set before they are forked */
	/* What srun has dealt for the generation. slurmstepd writes it while all agents are clear. */
	char master[AGENTS_HOST_MAX]; /* the address of rank 0's node, as Slurm knows it; "": it is not known */
	uint32_t deal_bytes;
	unsigned char deal[AGENTS_DEAL_MAX];
	struct agent agent[]; /* by local task */
};

struct agents {
	struct agents_shared *shared; /* NULL: there are no agents */
	uint32_t count;               /* the node's tasks */
	pid_t slurmstepd;
	int news;      /* an eventfd: a task or its agent has something new */
	pid_t *pids;   /* by local task, as slurmstepd has forked them; 0: not yet, or reaped */
};

/* In slurmstepd, before it forks the tasks. False, with a sentence, without memory or descriptors for it. */
bool agents_make(struct agents *agents, uint32_t count, struct error *error);
void agents_free(struct agents *agents);

/* In slurmstepd: notes the process of a task; notes that Slurm has reaped it. */
void agents_forked(struct agents *agents, uint32_t local_task, pid_t pid);
void agents_reaped(struct agents *agents, uint32_t local_task);

/* In a task: whether slurmstepd and the task's processes know each other by the same numbers. In a PID namespace
   they do not, and slurmstepd could not end them. */
bool agent_is_known(const struct agents *agents, struct error *error);

/* In the task: it becomes the agent, which slurmstepd sees. The caller soon calls agent_serve(). */
void agent_become(const struct agents *agents, uint32_t local_task);

/* In the agent. Returns in each generation's child, with the generation's number, and in no other process. The child
   has the task's signal mask and dispositions, and dies with the agent. */
uint32_t agent_serve(void);

/* In that child: the program of the former generation stays, so the child is to tell it the identity that it has in
   this one, and to exit. */
bool agent_child_tells(void);

/* In slurmstepd: gives all agents an order. Numbers of generations grow, and so do the orders of one generation; an
   order that is older than the last one is not given. */
void agents_order(struct agents *agents, enum agents_order order, uint32_t generation);
enum agents_order agents_ordered(const struct agents *agents, uint32_t *generation);

/* In slurmstepd: whether the task's child of that generation has ended by now, and how. */
bool agents_child_ended(const struct agents *agents, uint32_t local_task, uint32_t generation, int *wait_status);

/* In slurmstepd: whether that child has ended before it became the program, as where the program's file is missing. */
bool agents_child_never_ran(const struct agents *agents, uint32_t local_task, uint32_t generation);

/* In slurmstepd: whether the task's agent was forked and has not ended. Reaps nothing. */
bool agents_agent_runs(const struct agents *agents, uint32_t local_task);

/* How many of the node's tasks have become agents, and how many agents run. */
uint32_t agents_ready(const struct agents *agents);
uint32_t agents_left(const struct agents *agents);

/* Whether an agent, or all agents, have ended, or have nothing left of the generation except what was ordered to
   stay. */
bool agents_agent_clear(const struct agents *agents, uint32_t local_task, uint32_t generation);
bool agents_clear(const struct agents *agents, uint32_t generation);

/* Whether the task's child of the last generation runs. */
bool agents_child_runs(const struct agents *agents, uint32_t local_task);

/* Continues an agent that somebody has stopped. */
void agents_wake(const struct agents *agents, uint32_t local_task);

/* In a task or an agent: wakes slurmstepd's thread, which has something new to look at. Without agents it does
   nothing. */
void agents_give_news(const struct agents *agents);

/* Takes in what made `news` readable. To be called before the agents are looked at. */
void agents_take_news(const struct agents *agents);
