/* SPDX-License-Identifier: Apache-2.0 */
/* The places of a task's variables. SLURM clears 256 KiB for each variable that it sets, and so many pages cost a start of
   many tasks milliseconds. So a value goes into the place of the one before, such as srun's word for nodes without the
   plugin, or of a variable that is taken out, if it is not longer. Pure. */
#pragma once

#include <stdbool.h>

#include "spank/launch/variables.h"

/* The variables of an environment that are to be taken out. */
struct room {
	const char *name[VARIABLES_MAX];
	char *text[VARIABLES_MAX]; /* "NAME=VALUE" in the environment; NULL: it has become another variable */
	int count;
};

/* Finds what has no value in `variables`, and is in the environment. */
void room_find(struct room *room, char *const *environment, const struct variables *variables);

/* Sets the variable in the environment. False, and nothing is changed, if there is no place for it. */
bool room_put(struct room *room, char *const *environment, const char *name, const char *value);
