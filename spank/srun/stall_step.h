/* SPDX-License-Identifier: Apache-2.0 */
/* srun's side of stall=: combines the nodes' notes. Pure, but it allocates memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/wire/relay.h"

/* One node has told this. */
struct stall_told {
	uint64_t taken_ns;
	struct stall_note note;
};

/* The keys of which the user has asked for, by himself and not by the site's line. */
struct stall_asked {
	bool stall, watch, python;
};

struct stall_step {
	uint32_t seconds;        /* of stall= */
	struct stall_asked asked;
	uint64_t unseen_ns;      /* when the first node told of ranks that are not seen; 0: none has */
	uint64_t unseen_ranks;   /* of all nodes that have told so */
	bool unseen_said;
	struct stall_told *nodes;
	size_t count, room;
	uint64_t stalled_ranks;  /* of the nodes that stall */
	bool said;               /* since a rank last went on */
};

/* Takes a node's note, packed, in place of its last one. What is none, or no more to
   be kept, is dropped. */
void stall_step_take(struct stall_step *step, const unsigned char bytes[STALL_NOTE_BYTES],
                     uint64_t now_ns);

/* When the step has stalled for long enough, if no other note comes; UINT64_MAX: it
   goes on, all ranks have left it, or it was said. */
uint64_t stall_step_due(const struct stall_step *step);

/* When it is due to say which ranks are not seen; UINT64_MAX: all are, it was said, or nobody has asked. */
uint64_t stall_step_unseen_due(const struct stall_step *step);
void stall_step_say_unseen(struct stall_step *step, struct sink *sink);

/* Ranks wait in ddp_init() for one that has ended without it, and nobody does anything else. */
bool stall_step_is_blocked(const struct stall_step *step);

/* Adds what a rank says that gave up because of another one. Where a node has told of that other rank,
   or of one that is stopped, this comes first: "rank 3 of 4 on n3 did not come (in forward of step 7
   for 3.1 s); rank 1 ...". */
void stall_step_add_hearsay(const struct stall_step *step, const char *text, uint64_t now_ns, struct sink *sink);

/* Adds the sentence, which is then said. */
void stall_step_say(struct stall_step *step, uint64_t now_ns, struct sink *sink);

void stall_step_end(struct stall_step *step);
