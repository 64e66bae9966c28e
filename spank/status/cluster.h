/* SPDX-License-Identifier: Apache-2.0 */
/* ddp-status asks this of Slurm, by its commands. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "spank/status/row.h"

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
