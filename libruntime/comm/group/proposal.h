/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/proposal: what a rank tells in a round of comm/group/agreement, and the boards in a node's shared memory
   on which its ranks show that, and what they were told by ranks of other nodes. */
#pragma once

#include "comm/core/comm.h"

enum {
	DDP_AGREEMENT_DATA = 128, /* bytes that a rank can tell, at most */
	DDP_PROPOSAL_GONE = 0     /* a stage */
};

/* A rank tells a proposal. `stage` says what it is at: what is told at one stage is
   never taken for what belongs to another. 0: the source is gone, as ranks of its node tell. */
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
	ddp_proposal *record;  /* of this rank */
	unsigned char *batch;  /* [node size]: the proposals of this node's ranks, in the order in which they came, */
	size_t count;          /* so many */
	size_t *sent;          /* [size]: how many of them this rank has carried to each rank, */
	struct ddp_transfer *carried; /* [size] */
	bool *to;              /* [size]: whom this rank told its record itself, */
	struct ddp_transfer *transfers; /* [size] */
} ddp_telling;

typedef struct ddp_agreement {
	ddp_comm *comm;
	bool *present;        /* [size]: whom this rank counts in; never grows */
	bool *told;           /* [size]: `present` as told in the last round */
	ddp_proposal **proposals; /* [size]: what they tell; NULL: did not come */
	uint64_t serial;
	int64_t timeout_ms;   /* of the next round */
	bool *gone;           /* [size]: who has ended, at the last look, and has not come */
	bool *called;         /* [size]: who was present in the last round */
	ddp_telling tellings[2]; /* by the round's parity: this round's, and the last one's */
	bool *shown;          /* [size]: whose proposal this rank has shown its node or, of a gone rank of it, carries */
	void **arriving;      /* [size]: what is being received from each rank, or NULL */
	void *spare;          /* where one message arrives if there is no memory; NULL: one does */
	struct ddp_transfer *transfers; /* [size] */
	size_t record_bytes;  /* of a proposal */
	unsigned char *records; /* [size + 3 + 2 * node size + largest node's size]: `proposals`, what is read, what is
	                           told, batches, the spare */
	size_t *seen;         /* [node size]: what others have shown of other nodes */
} ddp_agreement;

/* Does the rank that tells this count rank r in? */
static inline bool ddp_proposal_counts(const ddp_proposal *n, int r)
{
	return (n->present[r / 8] >> r % 8 & 1) != 0;
}

/* The number of a round in its agreement, from 1. */
enum { DDP_ROUND_BITS = 12 };
static inline uint64_t ddp_round_in_agreement(uint64_t serial)
{
	return serial & ((UINT64_C(1) << DDP_ROUND_BITS) - 1);
}

/* The k-th of the agreement's records; and that where this rank reads. */
static inline ddp_proposal *ddp_agreement_record(const ddp_agreement *m, size_t k)
{
	return (ddp_proposal *)(void *)(m->records + k * m->record_bytes);
}

static inline ddp_proposal *ddp_agreement_scratch(const ddp_agreement *m)
{
	return ddp_agreement_record(m, (size_t)m->comm->size);
}

static inline ddp_telling *ddp_telling_of(ddp_agreement *m, uint64_t serial)
{
	return &m->tellings[serial & 1];
}

/* Writes this rank's record of the round. */
void ddp_proposal_write(ddp_agreement *m, uint32_t stage, int verdict, bool decided, const void *data, size_t bytes);
/* Writes, where this rank reads, that rank r is gone. */
const ddp_proposal *ddp_proposal_gone(const ddp_agreement *m, int r);
/* Is it whole, and of that round? It may have been overwritten while it was read. */
bool ddp_proposal_is_sound(const ddp_agreement *m, const ddp_proposal *n, uint64_t serial);

/* Shows the ranks of this node this rank's record; and, once in a round, what was told of a rank of another node. */
void ddp_board_show(ddp_agreement *m);
void ddp_board_add(const ddp_agreement *m, const ddp_proposal *n);
/* How many local rank i shows of other nodes in this round; and the k-th that it shows, 0 being its own, or NULL if
   that is not of round `serial`. */
size_t ddp_board_others(const ddp_agreement *m, int i);
const ddp_proposal *ddp_board_read(const ddp_agreement *m, int i, size_t k, uint64_t serial);
