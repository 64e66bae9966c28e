/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/survey: all measurements of all ranks, in order. Each function is collective. */
#pragma once

#include <ddp.h>

#include "preflight/facts.h"
#include "preflight/finding.h"
#include "preflight/judge_links.h"
#include "preflight/judge_ranks.h"
#include "preflight/measure.h"

struct preflight_survey {
	const ddp_job *job;
	ddp_comm *world, *links; /* links: NULL on all but the first rank of each node */
	struct preflight_bench *bench;
	struct preflight_lines *lines;

	/* All ranks have these. */
	struct preflight_facts *facts; /* [ranks] */
	struct preflight_people people;
	int *node, *machine, *kind;    /* of each rank */
	int *machine_of_node;
	bool *left_out; /* [nodes] of the rounds of links, as they took too long; known after them, to the first rank of each node */
	const char **names;
	int ranks, nodes, turns;       /* turns: ranks of the fullest machine */
	bool works[PREFLIGHT_WORKS];   /* what at least one rank can do */

	/* Rank 0 has these. */
	struct preflight_figures *figures; /* [ranks] */
	struct preflight_link *link;
	int link_count;
	struct preflight_figures *repeated; /* [PREFLIGHT_REPEATS_BUSY * ranks] */
	struct preflight_link link_again[PREFLIGHT_REPEATS_BUSY * PREFLIGHT_LINKS_AGAIN];

	/* All ranks have what is measured again. */
	struct preflight_ranks_again ranks_again;
	struct preflight_links_again links_again;
	int repeats;
};

/* Exchanges the facts, and makes the communicator of links. `bench` stays the caller's. */
ddp_status preflight_survey_open(struct preflight_survey *survey, ddp_context *context, struct preflight_bench *bench,
                                 const struct preflight_facts *own);
void preflight_survey_close(struct preflight_survey *survey);

/* Measures everything once. */
ddp_status preflight_survey_measure(struct preflight_survey *survey);

/* Measures again what looks odd to rank 0. `findings` is room for an interim verdict. */
ddp_status preflight_survey_again(struct preflight_survey *survey, struct preflight_findings *findings);

/* On rank 0: judges what was measured. Returns whether more repeats make a finding surer. */
bool preflight_survey_judge(const struct preflight_survey *survey, struct preflight_findings *findings);
