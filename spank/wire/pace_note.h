/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node tells srun for slow=: how long its ranks computed in a step, on average over some steps. Also writes a
 * note as bytes, and reads it. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/identity/nodelist.h"

enum { PACE_RANKS_MAX = 60, PACE_WORLD_MAX = 1 << 20 };
enum { PACE_NOTE_BYTES = 3 * 4 + HOST_NAME_MAX_BYTES + PACE_RANKS_MAX * 12 };

struct pace_rank_note {
	uint32_t rank;
	uint32_t host_us; /* that it computed in a step, by the wall clock, */
	uint32_t own_us;  /* and without the time in which it waited for a processor */
};

struct pace_note {
	uint32_t world_size, steps; /* the average is over so many steps */
	uint32_t count;
	char node[HOST_NAME_MAX_BYTES];
	struct pace_rank_note ranks[PACE_RANKS_MAX];
};

void pace_pack(const struct pace_note *note, unsigned char bytes[PACE_NOTE_BYTES]);

/* The name comes printable. False: it is no such note. */
bool pace_unpack(const unsigned char bytes[PACE_NOTE_BYTES], struct pace_note *note);
