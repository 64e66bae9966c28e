/* SPDX-License-Identifier: Apache-2.0 */
/* Why generations have ended, and whether they got further than those before. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/sink.h"

enum {
	CAUSE_TEXT_MAX = 2047,
	HISTORY_FRUITLESS = 2, /* so many restarts in a row without a new step end the step */
};

/* Why a generation ends. */
struct cause {
	bool known;
	bool hearsay;        /* a rank gave up because of another rank, of which nothing is known yet */
	bool lost;           /* a node was lost, which says nothing of the program */
	bool port_taken;     /* of rank 0's; the next generation has another one */
	bool survived;       /* the other ranks may stay in their processes, as far as they say so */
	int wait_status;
	uint32_t rank, node; /* UINT32_MAX: not known */
	char text[CAUSE_TEXT_MAX + 1];
};

struct history {
	uint64_t best_step;  /* the highest step of all generations; 0: pages show none */
	uint64_t best_first; /* the highest step with which one has begun, as a checkpoint allowed it */
	uint32_t fruitless;  /* generations in a row that did not get further */
	uint32_t last_rank, last_node; /* of the last cause; UINT32_MAX: not known */
	uint64_t last_step;  /* of that generation */
};

void history_start(struct history *history);

/* The cause that a node is lost; UINT32_MAX: several nodes, or none in particular. */
struct cause cause_of_loss(uint32_t node, const char *text);

/* Adds a further cause of the same end. It replaces hearsay; otherwise it goes behind what is known. */
void cause_add(struct cause *cause, const struct cause *further);

/* Notes the end of a generation with its highest step and its first one, 0 if not known. */
void history_note(struct history *history, const struct cause *cause, uint64_t step, uint64_t first);

/* Adds "; it is the same rank as last time", if it is. To be called before history_note(). */
void history_add_repetition(const struct history *history, const struct cause *cause, uint64_t step,
                            struct sink *sink);

/* Whether ranks have now failed on the same node twice in a row. */
bool history_same_node(struct history *history, const struct cause *cause);
