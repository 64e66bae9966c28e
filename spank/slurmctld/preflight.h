/* SPDX-License-Identifier: Apache-2.0 */
/* Runs ddp-preflight on the nodes of a step before its programs start (preflight=): a step of its own, beside that
   one. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/options/options.h"

/* The step, and its nodes as Slurm writes lists; NULL: not known. */
struct preflight_place {
	uint32_t job_id, tasks, nodes;
	const char *node_list;
};

/* In srun, as the user, once the step is there and before it is launched. Waits for the end of ddp-preflight, whose table
   goes to srun's standard error. Sets *avoid to the list of nodes that are to wait as spares, allocated, or NULL. False:
   the step is not to start. */
bool preflight_run(const struct settings *settings, const struct preflight_place *place, char **avoid, struct error *error);
