/* report: what rank 0 shows while and after it trains. */
#ifndef EXAMPLES_GPT_REPORT_H
#define EXAMPLES_GPT_REPORT_H

#include <stdio.h>

#include "gpt/options.h"

typedef struct report {
	const gpt_options *options;
	FILE *out;
	bool live;       /* a terminal: colour, and a line that is redrawn */
	int64_t every;   /* steps between lines that stay */
	int64_t first;   /* step from which the figures below count */
	int64_t last;    /* step that is done */
	double seconds, weight, exposed_seconds;
	int64_t steps;      /* of this run */
	double run_seconds; /* which they took */
} report;

void report_start(report *r, const gpt_options *options, const ddp_job *job,
                  int64_t parameters, int64_t samples);
void report_step(report *r, const ddp_step_stats *stats);
/* The closing summary: for people, or JSON on stdout. */
void report_end(report *r, const ddp_summary *summary, const ddp_job *job);

#endif
