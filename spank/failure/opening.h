/* SPDX-License-Identifier: Apache-2.0 */
/* A node says this of itself when it opens its link to srun. Pure. */
#ifndef SPANK_OPENING_H
#define SPANK_OPENING_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/identity/nodelist.h"

enum { OPENING_RELEASE_BYTES = 32 };

struct link_opening {
	uint32_t node_id;  /* of its component of the step */
	uint32_t rank;     /* of one of its tasks; UINT32_MAX: not known */
	uint32_t tasks;    /* of the node */
	uint64_t read;     /* so many of srun's numbered frames has the node read */
	char node[HOST_NAME_MAX_BYTES];
	char release[OPENING_RELEASE_BYTES]; /* of the node's plugin; "": one that does not tell it here. To be printed with care */
	uint32_t protocol; /* FRAME_PROTOCOL of the node; 0: one that does not tell it */
};

enum { OPENING_BYTES = 24 + HOST_NAME_MAX_BYTES + OPENING_RELEASE_BYTES + 4 };

void opening_pack(const struct link_opening *opening, unsigned char bytes[OPENING_BYTES]);
/* False: the bytes are no opening. */
bool opening_unpack(const unsigned char bytes[OPENING_BYTES], struct link_opening *opening);

#endif
