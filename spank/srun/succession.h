/* SPDX-License-Identifier: Apache-2.0 */
/* How a step with restart= goes from one generation to the next, or ends: the part of a plan (plan.h) that looks
   neither at time nor at single nodes' words. plan.c decides by these words when a generation ends. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/srun/plan.h"

/* Nothing has happened yet. */
void history_start(struct history *history);

/* The cause that a node is lost; UINT32_MAX: several nodes, or none in particular. */
struct cause cause_of_loss(uint32_t node, const char *text);

/* Adds a further cause of the same end. It replaces hearsay; otherwise it goes behind what is known. */
void cause_add(struct cause *cause, const struct cause *further);

/* Whether ranks have now failed on the same node twice in a row. */
bool history_same_node(struct history *history, const struct cause *cause);

/* Returns a sink behind what is still to be said. */
struct sink succession_say(struct plan *plan);

/* The step is over: each node that is there is to quit. */
void succession_finish(struct plan *plan);

/* Ends the step with the cause, and `why` behind it. */
void succession_give_up(struct plan *plan, const char *why);

/* Ends the generation for that cause, or the step, if there may be no restart. */
void succession_begin_ending(struct plan *plan, const struct cause *cause, uint64_t now_ns);

/* Returns when a generation that ends gives way to the next one; UINT64_MAX: not before there is news. */
uint64_t succession_next_ns(const struct plan *plan);

/* Begins the next generation, if that is due. */
void succession_go_on(struct plan *plan, uint64_t now_ns);
