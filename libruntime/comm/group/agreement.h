/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/agreement: rounds in which the ranks that are left of a broken
   communicator tell each other something, over what still works of it: its
   shared memory and its connections.

   On a node, ranks read in its shared memory what the others tell. Between nodes, a
   rank tells two of each node, which show it to all there: with one message to every
   rank of the world, a round would take as many as the square of their number. The
   second makes up for the first, if that one dies before it has shown it. Where both
   are lost, or do not come for long, all others there are told; and they are told of
   the last round again, which both may have been through with before they showed it.

   A round takes 2 (nodes - 1) messages of each rank, and the first as many connections,
   which over TCP are descriptors. By a tree each rank would need a few, but would hear
   later, and not at all from beyond an inner node that dies in a round.

   Each round has a deadline of its own, longer than the last one's: ranks that
   waited in vain for the same silent rank may be as far apart as they waited. */
#pragma once

#include "comm/core/comm.h"

enum { DDP_AGREEMENT_DATA = 128 }; /* bytes that a rank can tell, at most */

/* A rank tells a proposal. `stage` says what it is at: what is told at one stage is
   never taken for what belongs to another. */
typedef struct ddp_proposal {
	uint64_t hash;    /* of all that follows it */
	uint64_t serial;  /* of the round */
	int32_t source;
	uint32_t stage;   /* grows */
	int32_t verdict;
	uint32_t decided; /* 1: the verdict and who is present are final */
	uint32_t size;    /* of the communicator */
	uint32_t bytes;   /* of data */
	unsigned char data[DDP_AGREEMENT_DATA];
	unsigned char present[]; /* a bit for each rank */
} ddp_proposal;

/* Says what this rank tells in a round, and to whom. */
typedef struct ddp_telling {
	uint64_t serial;
	ddp_proposal *record;
	bool *to;             /* [size] */
	int *receivers;       /* [2 * nodes]: who is to show it on each node, or DDP_NOBODY */
	struct ddp_transfer *transfers; /* [size] */
} ddp_telling;

typedef struct ddp_agreement {
	ddp_comm *comm;
	bool *present;        /* [size]: whom this rank counts in; never grows */
	bool *told;           /* [size]: `present` as told in the last round */
	ddp_proposal **proposals; /* [size]: what they tell; NULL: did not come */
	uint64_t serial;
	int64_t timeout_ms;  /* of the next round */
	bool *gone;           /* [size]: who has ended, at the last look, and has not come */
	bool *called;         /* [size]: who was present in the last round */
	ddp_telling tellings[2]; /* by the round's parity: this round's, and the last one's */
	bool *coming;         /* [size]: whose message is being received */
	struct ddp_transfer *transfers; /* [size]: from each rank */
	size_t record_bytes;  /* of a proposal */
	unsigned char *records; /* [2 * size + 3]: `proposals`, what comes, what is told, what is read */
	size_t *seen;         /* [node size]: what others have shown of other nodes */
} ddp_agreement;

ddp_status ddp_agreement_open(ddp_agreement *m, ddp_comm *comm);
void ddp_agreement_close(ddp_agreement *m);

/* One round: tells `data` to all that are present, and waits for what they
   tell. Who is gone, or silent until the deadline, is not present any more.
   DDP_ERR_PEER if the others have gone on without this rank, or its network has
   ended. */
ddp_status ddp_agreement_round(ddp_agreement *m, uint32_t stage, int verdict, bool decided, const void *data,
                               size_t bytes);

/* Does the rank that tells this count rank r in? */
static inline bool ddp_proposal_counts(const ddp_proposal *n, int r)
{
	return (n->present[r / 8] >> r % 8 & 1) != 0;
}
