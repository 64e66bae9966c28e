/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preflight/history: what earlier runs of a site have measured, in a file of JSON lines, one for each run:
 *
 *   {"preflight": 1, "time": 1764151234, "busy": false, "nodes": {"n1": {"product": 8.1e10, "memory": 1.2e10,
 *    "bandwidth": 1.1e9, "speed": 40000, "threads": 8}}}
 *
 * All numbers but the threads of a rank are rates: `speed` is 1 / latency in seconds. Runs on busy nodes, and runs of a
 * node with another number of threads, are not compared. Damaged lines count as
 * none, since another process may be writing one.
 */
#ifndef DDP_PREFLIGHT_HISTORY_H
#define DDP_PREFLIGHT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preflight/finding.h"

enum preflight_record { PREFLIGHT_RECORD_PRODUCT, PREFLIGHT_RECORD_MEMORY, PREFLIGHT_RECORD_BANDWIDTH, PREFLIGHT_RECORD_SPEED,
	                PREFLIGHT_RECORDS };
enum { PREFLIGHT_HISTORY_RUNS = 50, PREFLIGHT_HISTORY_LEAST = 5, PREFLIGHT_HISTORY_LINE = 4 << 20 };

/* A run has measured this of a node. 0: nothing. */
struct preflight_values {
	double of[PREFLIGHT_RECORDS];
	int threads; /* of a rank */
};

/* The last runs of each node of this run. */
struct preflight_history {
	int nodes;
	const char *const *names;
	const int *threads; /* of each node's ranks now; NULL: not compared */
	double *past; /* [nodes][records][PREFLIGHT_HISTORY_RUNS] */
	int *runs;    /* of each node; how many are known, at most PREFLIGHT_HISTORY_RUNS */
	int *next;    /* where the next one goes */
};

bool preflight_history_open(struct preflight_history *history, const char *const *names, int nodes);
void preflight_history_close(struct preflight_history *history);

/* Takes one line of the file. Returns false if it is no run of this format. */
bool preflight_history_take(struct preflight_history *history, const char *line, size_t bytes);

/* Reads the file; a file that does not exist has no runs. False: errno says why. */
bool preflight_history_read(struct preflight_history *history, const char *path);

/* Sets doubted[node] where a value is below its usual one. Returns whether there is one. */
bool preflight_history_doubt(const struct preflight_history *history, const struct preflight_values *values, bool *doubted);

/* Names the nodes that are slower than usual. */
void preflight_history_judge(struct preflight_findings *findings, const struct preflight_history *history,
                             const struct preflight_values *values);

/* Appends this run in one write. False: errno says why. */
bool preflight_history_append(const char *path, int64_t time, bool busy, const char *const *names,
                              const struct preflight_values *values, int nodes);

#endif
