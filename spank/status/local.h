/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of all jobs on this node, without Slurm: for programs that collect figures every few seconds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/status/row.h"

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
