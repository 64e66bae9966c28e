/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node tells srun for stall=: whether its ranks make progress, which rank is furthest behind, and
 * which ranks wait. Also writes a note as bytes, and reads it. Pure.
 */
#ifndef SPANK_STALL_NOTE_H
#define SPANK_STALL_NOTE_H

#include <stdbool.h>
#include <stdint.h>

enum { STALL_WHO_MAX = 127, STALL_DOING_MAX = 255, STALL_WAIT_MAX = 95, STALL_RANGES_MAX = 16 };

/* Why a rank does not come to where others wait for it: the likelier cause first. */
enum stall_kind {
	STALL_STOPPED, /* by a signal or a debugger */
	STALL_RUNS,
	STALL_LEFT,    /* by ddp_finalize(), and has not ended */
	STALL_ENDED,   /* with code 0 */
	STALL_WAITS,   /* itself */
	STALL_FAILED,  /* which was reported as that */
	STALL_KINDS
};

struct stall_range {
	uint32_t first, last;
};

struct stall_note {
	bool stalled;        /* false: a rank goes on; of the rest, there is `ranks` to `world_size`,
	                        and, where one keeps others waiting, `kind` to `doing` */
	uint32_t ranks;      /* how many the node has, */
	uint32_t lowest;     /* and the lowest of them, by which srun knows the node */
	uint32_t world_size;
	uint32_t at_work;    /* how many have not ended; who has left counts only where its own end is known */
	uint32_t absent;     /* of them, how many do not wait */
	uint32_t quiet_ms;   /* nothing has changed for so long */
	/* The rank that is furthest behind. */
	enum stall_kind kind;
	uint32_t rank;
	uint32_t since_ms;   /* since it left or ended */
	uint64_t collective; /* its last one, or doing_place() */
	char who[STALL_WHO_MAX + 1];     /* "rank 3 of 4 on n1" */
	char doing[STALL_DOING_MAX + 1]; /* "in forward of step 4 for 32.0 s" */
	/* The ranks that wait. */
	uint32_t range_count;
	bool cut;            /* there are more ranges */
	struct stall_range ranges[STALL_RANGES_MAX];
	uint32_t wait_ms;    /* of the one that has got furthest, and in what: */
	uint64_t wait_collective;
	char wait[STALL_WAIT_MAX + 1];   /* "collective #6 all_reduce f32[10] sum" */
};

enum {
	STALL_NOTE_BYTES = 3 + 4 * 10 + 8 * 2 + STALL_RANGES_MAX * 8 + STALL_WHO_MAX + STALL_DOING_MAX +
	                   STALL_WAIT_MAX
};

void stall_pack(const struct stall_note *note, unsigned char bytes[STALL_NOTE_BYTES]);

/* Texts come printable. False: it is no such note. */
bool stall_unpack(const unsigned char bytes[STALL_NOTE_BYTES], struct stall_note *note);

#endif
