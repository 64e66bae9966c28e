/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/lines: the control segment of a node, in which each rank has cache lines of its own. Other
   ranks read them, and do not write to them unless a field's comment says so. */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>

#include "comm/core/failure.h"
#include "comm/core/fingerprint.h"

enum {
	DDP_INLINE_BYTES = 32,
	DDP_SMALL_BYTES = 8192,        /* payload that travels with the header */
	DDP_STAGE_BYTES = 256 * 1024,  /* window of the staged path */
	/* A reduction has these where ranks outnumber cores, as each window costs a turn of the scheduler for each rank.
	   The second is the most of one rank's slice in a window. */
	DDP_CROWDED_STAGE_BYTES = 1024 * 1024,
	DDP_CROWDED_SLICE_BYTES = 128 * 1024,
	DDP_NET_STAGE_BYTES = 4096 * 1024, /* the same, with several nodes */
	DDP_PROPOSAL_BYTES = 256,      /* what a rank tells in comm/group/agreement, and a bit for each rank */
	DDP_PROPOSAL_BOARDS = 3        /* of a rank: where it shows these (comm/group/agreement) */
};

/* This says where a buffer lies in memory that the node's ranks share. */
typedef struct ddp_memory_ref {
	uint64_t allocation; /* 0: not shared */
	uint64_t offset;
} ddp_memory_ref;

/* A rank posts this at the start of operation `sequence`. The payload of a
   tiny operation travels in the same line. */
typedef struct ddp_header {
	alignas(128) _Atomic uint64_t sequence;
	ddp_fingerprint operation; /* compared */
	uint8_t flags;
	union {
		unsigned char inlined[DDP_INLINE_BYTES];
		struct {
			ddp_memory_ref send, recv;
		};
	};
	/* second line, rarely looked at: valid if `flags` say so */
	double scale;
	uint64_t largest_block;  /* bytes; how long the staged path runs */
} ddp_header;

enum { DDP_HEADER_SCALED = 1, DDP_HEADER_SEND_SHARED = 2, DDP_HEADER_RECV_SHARED = 4,
       DDP_HEADER_BLOCK = 8 };

/* A sleeping rank waits for one of these. */
enum { DDP_AWAKE = 0, DDP_SLEEPS_FOR_HEADERS, DDP_SLEEPS_FOR_STEPS, DDP_SLEEPS_FOR_ANY,
       DDP_SLEEPS_FOR_NET };

/* One rank's lines; `step`, `header` and `failure` have one writer, the rank
   itself. */
typedef struct ddp_node_rank {
	alignas(128) _Atomic uint64_t step;
	_Atomic uint32_t left;      /* closed its communicator */
	_Atomic uint32_t ending;    /* issues nothing more, and waits for all ranks to do the same */
	_Atomic uint64_t agreement;   /* the last round of comm/group/agreement that it is at */
	alignas(128) _Atomic uint32_t bell; /* futex: rung to wake the rank */
	_Atomic uint32_t sleeps_for; /* who wakes the rank sets DDP_AWAKE */
	_Atomic uint64_t sleeps_until;
	_Atomic uint32_t yields_on; /* 1 + the core that it is giving up; 0: none */
	/* of comm/wait/verdict: */
	_Atomic int32_t names;      /* 1 + the rank that it holds to be late; 0: not known */
	_Atomic uint64_t waits_ns;  /* when it last said that it waits; 0: it does not */
	_Atomic uint64_t wanted_ns; /* when a rank last inquired after it */
	ddp_header header[2];       /* by the sequence's parity */
	ddp_failure failure;        /* complete before `failed_by` names the rank */
} ddp_node_rank;

enum { DDP_SILENCES = 64 };

typedef struct ddp_node_shared {
	unsigned char nonce[16];
	_Atomic uint32_t cores;     /* of the node, as its first rank to come saw it */
	alignas(64) _Atomic uint32_t sleepers;
	alignas(64) _Atomic uint32_t failed_by; /* 1 + index of the rank whose failure counts; 0: none */
	_Atomic uint32_t told_by;   /* 1 + index of the rank that tells the user of a lost peer; 0: none */
	alignas(64) _Atomic uint64_t silences[DDP_SILENCES]; /* 1 + a rank in the job, whose node is silent, and for
	                             how many milliseconds (comm/core/silence) */
	alignas(4096) ddp_node_rank ranks[];
} ddp_node_shared;

/* A rank answers this if others ask about it (comm/wait/verdict). */
typedef struct ddp_answer {
	uint64_t at_ns;
	bool waits;
	int names;      /* the rank that it holds to be late, or DDP_NOBODY */
} ddp_answer;

/* Returns what a rank's lines say to somebody who asks about that rank. */
static inline ddp_answer ddp_lines_inquire(ddp_node_rank *lines, uint64_t now)
{
	atomic_store(&lines->wanted_ns, now);
	const uint64_t waits_ns = atomic_load_explicit(&lines->waits_ns, memory_order_acquire);

	return (ddp_answer){ .at_ns = waits_ns, .waits = waits_ns != 0, .names = atomic_load(&lines->names) - 1 };
}
