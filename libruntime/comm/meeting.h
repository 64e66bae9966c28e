/*
 * comm/meeting: rounds in which the ranks that are left of a broken
 * communicator tell each other something, over what still works of it: its
 * shared memory and its connections.
 *
 * Each round has a deadline of its own, longer than the last one's: ranks that
 * waited in vain for the same silent rank may be as far apart as they waited.
 */
#ifndef DDP_COMM_MEETING_H
#define DDP_COMM_MEETING_H

#include "comm/internal.h"

/* What a rank tells. `stage` says what it is at: what is told at one stage is
   never taken for what belongs to another. */
typedef struct ddp_notice {
	uint64_t hash;    /* of all that follows it */
	uint64_t serial;  /* of the round */
	uint64_t bytes;   /* of data */
	uint32_t stage;   /* grows */
	int32_t verdict;
	uint32_t decided; /* 1: the verdict and who is present are final */
	uint32_t size;    /* of the communicator */
	unsigned char present[]; /* [size], then data */
} ddp_notice;

typedef struct ddp_meeting {
	ddp_comm *comm;
	bool *present;        /* [size]: whom this rank counts in; never grows */
	bool *told;           /* [size]: `present` as told in the last round */
	ddp_notice **notices; /* [size]: what they tell; NULL: did not come */
	uint64_t serial;
	int64_t patience_ms;  /* of the next round */
	bool *called;         /* [size]: who was present in the last round */
	bool *come;           /* [size]: who has told in this round */
	ddp_notice *plain;    /* room for a notice without data */
	struct ddp_transfer *transfers; /* [4 * size]: length and data, both ways */
	uint64_t *lengths;    /* [2 * size]: theirs, ours */
} ddp_meeting;

ddp_status ddp_meeting_open(ddp_meeting *m, ddp_comm *comm);
void ddp_meeting_close(ddp_meeting *m);

/*
 * One round: tells `data` to all that are present, and waits for what they
 * tell. Who is gone, or silent until the deadline, is not present any more.
 * DDP_ERR_PEER if the others have gone on without this rank, or its network has
 * ended; DDP_ERR_NOMEM if only this rank's verdict could be told, not the data.
 */
ddp_status ddp_meet(ddp_meeting *m, uint32_t stage, int verdict, bool decided, const void *data,
                    size_t bytes);

static inline const void *ddp_notice_data(const ddp_notice *n)
{
	return n->present + n->size;
}

#endif
