/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/finding: what is odd, as a sentence and as numbers, and what is worth saying without being odd. */
#pragma once

#include <stdbool.h>

enum { PREFLIGHT_TEXT = 384, PREFLIGHT_FINDINGS = 256 };

struct preflight_finding {
	bool odd;          /* otherwise a remark, which changes no exit status */
	const char *about; /* "product", "memory", "bandwidth", "latency", "clock", "version", "limit", "binding", "gpu" */
	int node;          /* which is odd, or -1: no single one */
	int rank;          /* or -1 */
	int peer;          /* the other node of a link, or -1 */
	double value, usual; /* 0: not a number */
	char text[PREFLIGHT_TEXT];
};

struct preflight_findings {
	struct preflight_finding item[PREFLIGHT_FINDINGS];
	int count, odd; /* how many are in `item`, and how many odd ones there were, also without room */
};

/* Adds a finding; its text is formatted as by printf(). */
void preflight_find(struct preflight_findings *findings, const struct preflight_finding *finding, const char *format,
                    ...) __attribute__((format(printf, 3, 4)));

/* Sets excluded[node] for the fewest nodes that have a part in all odd findings, roughly: nodes that are odd, and of
   the links that are odd the ends with most of them. */
void preflight_exclude(const struct preflight_findings *findings, bool *excluded, int nodes);
