/* SPDX-License-Identifier: Apache-2.0 */
/* ddp-status gets its rows from one of these. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "spank/status/row.h"

/* ---- probe.c: one job's tasks, or all, on this node, as their user ---- */

/* Looks at the tasks' progress pages, and at what the kernel tells of their processes. The user's word counts for all
   of it except the kernel's part. */
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

/* ---- local.c: the ranks of all jobs on this node, without Slurm ---- */

/* This is for programs that collect figures every few seconds. */
struct local {
	int64_t job, slurm_step; /* below 0: all */
	const char *node;        /* what the rows call this node */
	int interval_ms;
};

/* Collects the rows of the calling user's jobs. Root gets those of all users' jobs: a child process for each user looks
   at that user's processes with that user's rights, so that nothing that a user offers is opened as root. A child that
   does not answer in time is killed, and its user's ranks are left out.

   The rows name the users, and are sorted. False, with a sentence on stderr, if the node cannot be looked at. */
bool local_collect(const struct local *local, struct row **rows, size_t *count);

/* Makes this process the user's, with the user's groups. False, with errno. */
bool local_become(uid_t user);

/* Writes the user's name, or the number if this machine knows no name. */
void local_user_name(uid_t user, char *name, size_t bytes);

/* ---- cluster.c: the ranks of a job on all its nodes, by Slurm's commands ---- */

struct job {
	char id[32];
	uid_t owner;
	char nodes[24];  /* how many */
	size_t ranks_max; /* more cannot be, by what Slurm gave it */
	bool running;
};

/* False, with a sentence on stderr, if Slurm does not know or tell the job. */
bool cluster_find_job(const char *id, struct job *job);

/* Runs `program --probe` once on each node of the job, beside what runs there,
   as the job's owner, and collects the rows. False, with a sentence on stderr, if
   that cannot be done; a node that does not answer only lacks its rows. `dump` is a further option of the probe's, or
   NULL. */
bool cluster_probe(const struct job *job, const char *program, const char *what, int interval_ms, bool stacks,
                   const char *dump, struct row **rows, size_t *count);
