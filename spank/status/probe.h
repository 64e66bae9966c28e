/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the tasks that a job has on this node, as the job's user: their
   progress pages, and what the kernel tells of their processes. The user's word
   counts for all of it except the kernel's part. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct probe {
	int64_t job;          /* SLURM_JOB_ID; below 0: all jobs of the user */
	int64_t slurm_step;   /* below 0: all steps */
	int interval_ms;      /* between two looks, for the CPU time */
	bool own_only;        /* leave out other users' processes, which root could read */
	bool stacks;          /* ask processes of Python for their stacks */
	bool dump;            /* write flight records, */
	const char *dump_dir; /* below this directory; "": as the step's record= says */
};

/* Writes a row (row_write()) for each rank. False, with a sentence on
   stderr, if the node cannot be looked at. */
bool probe_run(const struct probe *probe, FILE *output);
