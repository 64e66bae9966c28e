/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/fingerprint: what must be equal in an operation on all ranks, such as its kind, type and size. */
#pragma once

#include <string.h>

#include "comm/ops/names.h"

/* The structure has no gap, so that it can be compared as a whole. It has 20 bytes, so that the first line of a
   header has room for it. */
typedef struct ddp_fingerprint {
	uint8_t kind, type, op;
	uint8_t by_counts;    /* 1: the v-form */
	int32_t root;         /* or a barrier's tag */
	uint64_t count;
	uint32_t counts_hash; /* of the v-form, where counts are the same on all ranks */
} __attribute__((packed, aligned(4))) ddp_fingerprint;

/* The fingerprint of an operation among `size` ranks; what does not matter to its kind is 0. */
ddp_fingerprint ddp_fingerprint_of(const ddp_operation *c, int size);

/* "all_reduce f32[100] sum" */
void ddp_fingerprint_describe(const ddp_fingerprint *f, char *text, size_t bytes);

/* Does a rank issue nothing behind it? */
static inline bool ddp_fingerprint_is_end(const ddp_fingerprint *f)
{
	return f->kind == DDP_BARRIER && f->root != 0;
}

static inline bool ddp_fingerprint_same(const ddp_fingerprint *a, const ddp_fingerprint *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* A rank, and the operation that it has issued under a number of the communicator. */
typedef struct ddp_issued {
	int rank;
	ddp_fingerprint operation;
} ddp_issued;

/* Breaks the communicator with DDP_ERR_MISMATCH, or with DDP_ERR_PEER if the operation of one rank is
   ddp_finalize() or ddp_comm_free(). The sentence names the first rank whose operation is
   not that of most ranks. The same list gives the same sentence. `issued` holds at least two
   operations that differ, in the order of ranks. `sequence` is the operation's number, or 0 for none. */
ddp_status ddp_mismatch_break(ddp_comm *comm, uint64_t sequence, const ddp_issued *issued, int count);
