/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slurm's own variables of a task, as they are in a generation: its rank, the ranks of its node, the nodes that
 * take part. Programs that read these, such as JAX and libddp, agree then with those that read RANK and WORLD_SIZE.
 * Variables that describe the job change with the step's if they said the same. Pure.
 */
#ifndef SPANK_RENUMBER_H
#define SPANK_RENUMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/error.h"
#include "spank/restart/deal.h"

enum { RENUMBER_MAX = 16, RENUMBER_TEXT_MAX = 65536 };

struct renumbered {
	struct {
		const char *name, *value;
	} item[RENUMBER_MAX];
	int count;
	char text[RENUMBER_TEXT_MAX];
	size_t used;
	bool overflow;
};

/* `environment` is the task's as Slurm made it; `pid` is the program's. Values may point into `go`, which is no
   spare's. False, with a sentence, if there is no room. */
bool renumber(struct renumbered *renumbered, char *const *environment, const struct deal_go *go,
              uint32_t local_task, uint32_t pid, struct error *error);

/* Whether the variable is of PMI or PMIx. A PMI server serves one program of a task only, so a program that is started
   again must not see these variables. `text` is NAME=VALUE. */
bool renumber_hides(const char *text);

#endif
