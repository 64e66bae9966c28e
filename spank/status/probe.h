/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at the tasks that a job has on this node, as the job's user: their
 * progress pages, and what the kernel tells of their processes.
 */
#ifndef STATUS_PROBE_H
#define STATUS_PROBE_H

#include <stdbool.h>
#include <stdint.h>

struct probe {
	const char *job;      /* SLURM_JOB_ID */
	int64_t slurm_step;   /* below 0: all steps */
	int interval_ms;      /* between two looks, for the CPU time */
	bool stacks;          /* ask processes of Python for their stacks */
};

/* Writes one line of JSON to stdout for each rank. False, with a sentence on
   stderr, if the node cannot be looked at. */
bool probe_run(const struct probe *probe);

#endif
