/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/judge_links: which links between nodes are odd, and which nodes, whose links are all slow. Pure. */
#pragma once

#include <stdbool.h>

#include "preflight/finding.h"
#include "preflight/schedule.h"

struct preflight_link {
	double bandwidth; /* bytes per second in each direction, of both at once */
	double latency;   /* seconds, one way */
	double offset;    /* seconds by which b's clock is ahead of a's */
	double doubt;     /* of `offset` */
	double waited;    /* the larger share of the time, of both ends, in which a thread could run and got no processor */
	int a, b;         /* nodes; a < b */
};

/* These links are measured again. */
struct preflight_links_again {
	struct preflight_item item[PREFLIGHT_SUBJECTS + 3];
	bool control[PREFLIGHT_SUBJECTS + 3];
	int node[PREFLIGHT_SUBJECTS + 3]; /* whose suspect link it is, or -1: the link itself is a suspect */
	int count;                        /* 0: nothing */
};

enum { PREFLIGHT_LINKS_AGAIN = PREFLIGHT_SUBJECTS + 3 };

/* Chooses what is measured again. machine[node] is the node's machine. */
void preflight_links_doubt(struct preflight_links_again *again, const struct preflight_link *links, int count,
                           int nodes, const int *machine);

/* Judges them: link[repeat * again->count + i] is item i of that repeat. `busy`: other processes compete for the
   nodes' processors, so only large differences count, as they do for a link whose ends waited for theirs. unfit[node]:
   the rank that measured there was slow itself, so its links are not judged. names[node] are for the sentences. */
void preflight_links_judge(struct preflight_findings *findings, const struct preflight_links_again *again,
                           const struct preflight_link *link, int repeats, bool busy, const bool *unfit,
                           const char *const *names);

/* Whether an end of a link that is judged often waited for its processor. */
bool preflight_links_wait(const struct preflight_links_again *again, const struct preflight_link *link, int repeats);

/* Names nodes whose clock is away from the others'. */
void preflight_clocks_judge(struct preflight_findings *findings, const struct preflight_link *links, int count,
                            int nodes, const char *const *names);
