/* SPDX-License-Identifier: Apache-2.0 */
/*
 * srun's requests to slurmctld, one at a time and from a thread of their own. So srun goes on taking and
 * answering the nodes' reports while slurmctld does not answer. libc only.
 */
#pragma once

#include <stdbool.h>

#include "spank/srun/step.h"

enum controller_request {
	REQUEST_NONE,
	REQUEST_NODE_FAILED, /* of relay_actions */
	REQUEST_SLURM_ENDS_IT,
	REQUEST_LOSE_NODES,
	REQUEST_END_STEP,
};

/* Starts one; without a thread for it, it is done before the call returns. False if an earlier
   request is still under way, or there is no memory. `nodes`: of REQUEST_NODE_FAILED one, of REQUEST_LOSE_NODES all of
   them with commas, otherwise "". */
bool controller_start(const struct relay_actions *actions, enum controller_request request, const char *nodes);

/* A descriptor that is readable once the request under way is done; -1: there is none. */
int controller_descriptor(void);

/* Whether a request is done that controller_finish() has not told yet, and that has no descriptor. */
bool controller_has_answer(void);

/* True if no request is under way after `ms` at most. Then `request` is the one that was done since
   the last call, with its answer, or REQUEST_NONE. */
bool controller_finish(int ms, enum controller_request *request, bool *answer);
