/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which messages srun has taken. If somebody records a message and sends it again, it then does nothing. A
 * message's nonce consists of the mark of its node and the message's number there (relay.h). A node of an
 * earlier release takes a new mark for each message. Pure, but it allocates memory.
 */
#ifndef SPANK_HEARD_H
#define SPANK_HEARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/failure/relay.h"

/* A node may have so many connections at once, of which a later one may be heard first. */
enum { HEARD_WINDOW = 64 };

struct heard_node {
	uint64_t mark;
	uint64_t newest; /* the highest number that was heard */
	uint64_t window; /* bit i: whether newest - i was heard; 0: the place is free */
};

struct heard {
	struct heard_node *nodes; /* by mark, which is random */
	size_t count, room;       /* room is a power of 2, or 0 */
};

/* Notes an authenticated message, and returns whether it is to be heard: it is new, and not older than
   the window. `last_word`: it must also be newer than all that srun has heard of the node. False, too,
   without memory to note it. */
bool heard_first(struct heard *heard, const unsigned char nonce[RELAY_NONCE_BYTES], bool last_word);

/* Frees the memory. */
void heard_end(struct heard *heard);

#endif
