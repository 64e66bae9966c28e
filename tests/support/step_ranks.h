/* SPDX-License-Identifier: Apache-2.0 */
/* step_ranks: ranks of a step with restart=, without SLURM. The test does what srun and its agents do: it starts
   programs, deals identities on progress pages, and starts others in place of ranks that die. Those that survive keep
   their processes, if all that run say so on their pages; otherwise all start again. Nodes are pretended ones of this
   host. */
#pragma once

#include <stdbool.h>

enum { STEP_RANKS_MAX = 4, STEP_HARMS = 2, STEP_FAILED = 3 };

/* When ranks die. */
typedef enum test_moment {
	NEVER,
	IN_STEP,      /* `number` */
	AT_START,     /* their programs have just begun, */
	BEFORE_TRAIN, /* or have their models */
	WAITS,        /* the first of them stays, and waits for a new identity, */
	MEETS,        /* meets the others, */
	RECEIVES,     /* or gets or gives what newcomers need */
	PAST_STEP,    /* its page shows a step that is `number` or above */
	LATER         /* `number` us after the generation began */
} test_moment;

typedef struct test_harm {
	test_moment when;
	int number;
	unsigned int ranks; /* bits */
	int generation;     /* from 1 */
	bool node;          /* they are started again on another node */
} test_harm;

typedef struct test_step {
	const char *name;    /* for messages */
	int ranks;
	const int *node_of;  /* [ranks]: of nodes 0 and 1; NULL: all on one */
	int (*body)(int rank); /* a program; its exit code is 0, or STEP_FAILED if its training failed */
	test_harm harms[STEP_HARMS];
	int last;            /* the training has so many steps */
	/* What followed. */
	int joins, restarts;
} test_step;

/* Runs the step until all ranks have ended well. Fails the test if a rank hangs or ends in another way. */
void test_step_run(test_step *step);

/* In a rank: it dies, if it is to do so here. */
void test_step_die(test_moment when, int number);
/* In a rank: waits in one of the last two steps until all harm is done, as srun does not restart a step of which a rank
   has ended well. */
void test_step_await_harms(int number);
