/* SPDX-License-Identifier: Apache-2.0 */
/* For slow=, in srun: which ranks compute longer than the others. Nodes tell, for windows of some steps, how long
   each of their ranks has computed in a step. When all ranks were told anew, that is a round. A rank is slow if it
   computes so many times as long as the median in PACE_ROUNDS rounds one after the other, by the wall clock and also
   without the time for which it waited for a processor. It is told once, and again only after as many rounds in which
   it was not slow. Pure, but it allocates memory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/wire/relay.h"

enum { PACE_ROUNDS = 3, PACE_LEAST_US = 1000 }; /* a difference below that in a step is none */

struct pace_told {
	uint32_t node;       /* 1 + its index; 0: the rank was never told */
	uint32_t host_us, own_us, steps; /* of its last window */
	uint8_t windows;     /* that were told since the last round */
	uint8_t slow, fine;  /* rounds, one after the other */
	bool said;           /* it counts as slow */
	bool new;            /* and that is still to be said */
	uint32_t slow_steps; /* over which it was slow */
};

struct pace_step {
	uint32_t percent;    /* of the median, that a rank is slow from; 0: nobody asks */
	uint32_t world_size, known, fresh; /* ranks: that were ever told, and since the last round */
	struct pace_told *ranks;
	uint32_t *sorted;    /* room for a median */
	char (*nodes)[HOST_NAME_MAX_BYTES];
	uint32_t node_count, node_room, news;
	uint32_t median_us;  /* of the last round, by the wall clock */
};

/* Takes a node's note, as pace_pack() gives it. True: there are lines to be said. */
bool pace_step_take(struct pace_step *step, const unsigned char bytes[PACE_NOTE_BYTES]);

/* Writes the next line: the ranks of a node that have come to be slow. False: there is none. */
bool pace_step_say(struct pace_step *step, struct sink *sink);

/* Another generation begins, or the step ends: frees the memory. The percentage stays. */
void pace_step_end(struct pace_step *step);
