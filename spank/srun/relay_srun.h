/* SPDX-License-Identifier: Apache-2.0 */
/* srun takes the messages of its step's nodes, reports failures and has the step ended. libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/srun/links.h"
#include "spank/srun/presence.h"
#include "spank/srun/step.h"
#include "spank/wire/channel.h"
#include "spank/wire/relay.h"

/* srun: listens on a port from `low` to `high`, or on any if they are 0, in a
   thread that blocks all signals; a second call only tells the same spec. */
bool relay_open(uint16_t low, uint16_t high, const struct step_policy *policy,
                const struct relay_actions *actions, char spec[RELAY_SPEC_MAX],
                struct error *error);
/* The nodes' links, for who takes their frames (relay_actions). In srun's relay thread only, that is, in calls that it
   makes. */
struct links *relay_links(void);

/* Says a sentence. For the restarts (spank/srun/dealer.c), in the same thread. */
void relay_say(const char *text);
/* Messages of nodes on this generation count from now on, and none on earlier ones. */
void relay_begin_generation(uint32_t generation);
/* Ends the step, and says why; "": there is nothing to say. */
void relay_end_step(const char *text, int wait_status);
/* All ranks have ended. True if a failure was held that is to be said now. */
bool relay_take_rest(struct step_action *action);

/* The step, or a component of it, is about to start: nodes that start tasks and do not report
   are said. Does nothing if it is not open. */
void relay_expect(const struct presence_policy *policy);

/* After relay_close(): which nodes have started tasks, and have reported; NULL: it is open. */
struct presence *relay_presence(void);

/* Says what is held, as long as that takes, and ends the thread, if it does not take
   longer than JOIN_MS over the step's end; the wait status of the failure that was said, or 0. Does nothing in a
   forked child. */
int relay_close(void);

/* After relay_close(): the sentence about nodes whose plugin is of another release than this one; false: there are
   none. */
bool relay_has_other_releases(char text[RELAY_TEXT_MAX + 1]);

/* After relay_close(): whether a node has told that Slurm asked the step to stop. */
bool relay_was_stopping(void);
/* After relay_close(): whether ranks have gone on without others, and all has ended well. */
bool relay_has_survived(void);
/* After relay_close(): the step of a training that the last failure's sentence names; 0: none. */
uint64_t relay_failed_at(void);
