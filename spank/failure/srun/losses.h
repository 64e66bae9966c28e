/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes that are to leave the job, because they are lost. SLURM without slurmdbd changes the nodes of a job once,
   so all of them leave it in one request, as late as possible. Pure, but it allocates memory. */
#ifndef SPANK_LOSSES_H
#define SPANK_LOSSES_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/failure/srun/links.h"

struct losses {
	uint32_t *nodes;       /* of the links, */
	uint32_t count, room;
	uint32_t asked;        /* and so many were in a request */
};

/* Adds a node that is not among them yet. Without memory it does nothing: the caller comes again. */
void losses_add(struct losses *losses, uint32_t node);

/* Adds all nodes for which srun does not wait any more: those that are silent or lost, and have not said good-bye. */
void losses_add_all(struct losses *losses, const struct links *links);

/* Whether one was in no request yet. */
bool losses_any_new(const struct losses *losses);

/* Gives the names of these, with commas, for free(3); NULL: there is none, or no memory. */
char *losses_names(const struct losses *losses, const struct links *links);

/* A request with these names is under way. */
void losses_note_request(struct losses *losses);

void losses_end(struct losses *losses);

#endif
