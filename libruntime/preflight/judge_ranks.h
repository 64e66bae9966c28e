/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/judge_ranks: which ranks compute or move memory slower than others of their kind. Pure. */
#pragma once

#include <stdbool.h>

#include "preflight/finding.h"
#include "preflight/schedule.h"

enum preflight_work {
	PREFLIGHT_PRODUCT, PREFLIGHT_MEMORY, PREFLIGHT_GPU_PRODUCT, PREFLIGHT_GPU_MEMORY, PREFLIGHT_WORKS
};
enum preflight_way { PREFLIGHT_AT_ONCE, PREFLIGHT_ALONE, PREFLIGHT_WAYS };

/* A rank did so much in a window of time. 0: it was not measured. */
struct preflight_figure {
	double rate;  /* work per second */
	double share; /* processor time of the thread, as a share of the window */
};

struct preflight_figures {
	struct preflight_figure of[PREFLIGHT_WAYS][PREFLIGHT_WORKS];
};

/* Who the ranks are. Ranks are compared with ranks of the same kind: of the same processor and so on. */
struct preflight_people {
	int ranks;
	const int *node;    /* of each rank */
	const int *machine; /* of each rank: nodes that are parts of one computer share it */
	const int *kind;    /* of each rank */
	const char *const *names; /* of each node */
};

enum { PREFLIGHT_OF_A_MACHINE = 2, PREFLIGHT_CONTROLS = 2 };
enum { PREFLIGHT_RANKS_AGAIN = PREFLIGHT_SUBJECTS + 2 * PREFLIGHT_CONTROLS };

/* These are measured again: the listed ranks alone, and all ranks at once. */
struct preflight_ranks_again {
	int rank[PREFLIGHT_RANKS_AGAIN];
	bool control[PREFLIGHT_RANKS_AGAIN];
	int count;        /* 0: nothing */
	bool at_once;
	bool work[PREFLIGHT_WORKS];
};

/* The name of a kind of work, and the unit of 1e9 bytes or operations per second. */
const char *preflight_work_name(enum preflight_work work);
const char *preflight_work_unit(enum preflight_work work);

/* Chooses what is measured again. */
void preflight_ranks_doubt(struct preflight_ranks_again *again, const struct preflight_people *people,
                           const struct preflight_figures *figures);

/* Judges the ranks by what was measured again: repeated[repeat * people->ranks + rank]. Sets unfit[node] where a rank
   does not get its processor. If other processes compete for the processors, as `busy` or the shares of those
   compared with say, only large differences count, or a rank that never gets its processor where others do as a rule.
   Returns whether a rank is named, and the rank or others lacked their processors now and then: only if the rank is
   still odd in as many repeats more, chance is improbable. */
bool preflight_ranks_judge(struct preflight_findings *findings, const struct preflight_people *people,
                           const struct preflight_ranks_again *again, const struct preflight_figures *repeated,
                           int repeats, bool busy, bool *unfit);

/* Whether other processes compete for the processors of most ranks. */
bool preflight_is_busy(const struct preflight_people *people, const struct preflight_figures *figures);
