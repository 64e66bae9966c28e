/*
 * comm/group/agreement: rounds in which the ranks that are left of a broken
 * communicator tell each other something, over what still works of it: its
 * shared memory and its connections.
 *
 * Each round has a deadline of its own, longer than the last one's: ranks that
 * waited in vain for the same silent rank may be as far apart as they waited.
 */
#ifndef DDP_COMM_GROUP_AGREEMENT_H
#define DDP_COMM_GROUP_AGREEMENT_H

#include "comm/core/comm.h"

/* What a rank tells. `stage` says what it is at: what is told at one stage is
   never taken for what belongs to another. */
typedef struct ddp_proposal {
	uint64_t hash;    /* of all that follows it */
	uint64_t serial;  /* of the round */
	uint64_t bytes;   /* of data */
	uint32_t stage;   /* grows */
	int32_t verdict;
	uint32_t decided; /* 1: the verdict and who is present are final */
	uint32_t size;    /* of the communicator */
	unsigned char present[]; /* [size], then data */
} ddp_proposal;

typedef struct ddp_agreement {
	ddp_comm *comm;
	bool *present;        /* [size]: whom this rank counts in; never grows */
	bool *told;           /* [size]: `present` as told in the last round */
	ddp_proposal **proposals; /* [size]: what they tell; NULL: did not come */
	uint64_t serial;
	int64_t timeout_ms;  /* of the next round */
	bool *called;         /* [size]: who was present in the last round */
	bool *come;           /* [size]: who has told in this round */
	ddp_proposal *plain;    /* room for a proposal without data */
	struct ddp_transfer *transfers; /* [4 * size]: length and data, both ways */
	uint64_t *lengths;    /* [2 * size]: theirs, ours */
} ddp_agreement;

ddp_status ddp_agreement_open(ddp_agreement *m, ddp_comm *comm);
void ddp_agreement_close(ddp_agreement *m);

/*
 * One round: tells `data` to all that are present, and waits for what they
 * tell. Who is gone, or silent until the deadline, is not present any more.
 * DDP_ERR_PEER if the others have gone on without this rank, or its network has
 * ended; DDP_ERR_NOMEM if only this rank's verdict could be told, not the data.
 */
ddp_status ddp_agreement_round(ddp_agreement *m, uint32_t stage, int verdict, bool decided, const void *data,
                               size_t bytes);

static inline const void *ddp_proposal_data(const ddp_proposal *n)
{
	return n->present + n->size;
}

#endif
