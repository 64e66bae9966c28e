/* SPDX-License-Identifier: Apache-2.0 */
/* progress: what rank 0 shows while it trains: lines that stay, and on a terminal one that is
   redrawn with each step, and tells what time is left. */
#pragma once

#include <stdio.h>

#include "ddp.h"

typedef struct progress {
	FILE *out;
	const char *unit; /* of weight: "tokens" */
	bool live;        /* a terminal: colour, and the line that is redrawn */
	int64_t total;    /* steps, also when resumed */
	int64_t every;    /* steps between lines that stay */
	int64_t first;    /* step from which the figures below count; 0: the next */
	double seconds, weight, exposed_seconds;
	int64_t steps;      /* of this run */
	double run_seconds; /* which they took */
} progress;

#define PROGRESS_BOLD "\033[1m"
#define PROGRESS_PLAIN "\033[0m"

void progress_start(progress *p, FILE *out, int64_t total, const char *unit);
void progress_step(progress *p, const ddp_step_stats *stats);

/* The escape sequence, or nothing if `out` is no terminal that has colours. */
const char *progress_paint(const progress *p, const char *escape);

enum { PROGRESS_NUMBER_BYTES = 32 };
/* 1234567 -> "1,234,567" */
const char *progress_number(double value, char text[PROGRESS_NUMBER_BYTES]);
