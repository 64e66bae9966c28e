/* SPDX-License-Identifier: Apache-2.0 */
/* srun names the failure that happened first, and not the one whose news came first. While it holds a failure, it
   asks all nodes whether they have told of all ends that they have seen (links_ask()), and the step waits for what
   may still turn out to be an earlier one: for nodes that have not answered, or have not reported yet, for nodes that
   may be about to fall silent, and for news that wait until slurmctld tells whether their node has failed. libc
   only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/srun/links.h"
#include "spank/srun/presence.h"
#include "spank/srun/requests.h"
#include "spank/srun/step.h"

struct first_failure {
	uint64_t asked_ns; /* when the nodes were asked about the failure that is held; 0: none is held */
};

/* Asks when a failure begins to be held, and tells the step until when it is to wait (doubt_ns). To be called after
   each turn in which news may have come, and before step_act(). */
void first_failure_update(struct first_failure *first, struct step *step, struct links *links,
                          struct presence *presence, const struct requests *requests, uint64_t now_ns);

/* Whether srun is about to say a failure, and has waited long enough for slurmctld's word about other news: these
   then count as they are, because they may be its cause. To be called behind first_failure_update(). */
bool first_failure_needs_held(const struct first_failure *first, const struct step *step, uint64_t now_ns);

/* A generation begins: its first failure is a question of its own. */
void first_failure_begin_again(struct first_failure *first, struct links *links);
