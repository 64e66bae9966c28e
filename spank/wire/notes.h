/* SPDX-License-Identifier: Apache-2.0 */
/* Notes, in which a node tells srun its present state, as structures and as bytes. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/identity/nodelist.h"

/* For stall=: whether its ranks make progress, which rank is furthest behind, and which ranks wait. */
enum { STALL_WHO_MAX = 127, STALL_DOING_MAX = 255, STALL_WAIT_MAX = 95, STALL_RANGES_MAX = 16, STALL_PROGRAM_MAX = 31 };

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

/* Why stall= cannot see what some ranks do, so that it never sees their step stall. */
enum stall_unseen {
	STALL_SEEN,
	STALL_NO_PYTHON, /* Python runs without slurm_ddp, which python= was to start */
	STALL_NO_PAGE,   /* they use neither libddp nor slurm_ddp nor, with watch=, NCCL */
	STALL_STARTS,    /* they have used slurm_ddp since their start, and have told of no step */
	STALL_UNSEEN_KINDS
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
	uint64_t collective; /* its last one, or progress_text_place() */
	char who[STALL_WHO_MAX + 1];     /* "rank 3 of 4 on n1" */
	char doing[STALL_DOING_MAX + 1]; /* "in forward of step 4 for 32.0 s" */
	/* The ranks that wait. */
	uint32_t range_count;
	bool cut;            /* there are more ranges */
	struct stall_range ranges[STALL_RANGES_MAX];
	uint32_t wait_ms;    /* of the one that has got furthest, and in what: */
	uint64_t wait_collective;
	char wait[STALL_WAIT_MAX + 1];   /* "collective #6 all_reduce f32[10] sum" */
	/* A node of release 0.2 does not tell the rest. A rank that waits in another operation under the same
	   number: */
	uint32_t odd;                    /* 1 + the rank; 0: there is none */
	char odd_wait[STALL_WAIT_MAX + 1];
	/* Instead of a stall, once: the ranks in `ranges` are not seen. */
	enum stall_unseen unseen;
	uint32_t unseen_ms;              /* for so long, since their start */
	char program[STALL_PROGRAM_MAX + 1]; /* of one of them: "python3.11"; "": not known */
};

enum {
	STALL_NOTE_BYTES = 3 + 4 * 10 + 8 * 2 + STALL_RANGES_MAX * 8 + STALL_WHO_MAX + STALL_DOING_MAX +
	                   STALL_WAIT_MAX + 4 + STALL_WAIT_MAX + 1 + 4 + STALL_PROGRAM_MAX
};

/* Whether two waits of one collective's number are waits in different operations: "collective #6 barrier" and
   "collective #6 all_reduce f32[10]". In some operations, such as a gather, ranks have tensors of different sizes. */
bool stall_differs(const char *wait, const char *other);

/* Behind the number of a collective: "all_reduce f32[10] sum"; NULL: the wait is in no collective of all ranks, or it
   is not known in which. */
const char *stall_operation(const char *wait);

void stall_pack(const struct stall_note *note, unsigned char bytes[STALL_NOTE_BYTES]);

/* Texts come printable. False: it is no such note. */
bool stall_unpack(const unsigned char bytes[STALL_NOTE_BYTES], struct stall_note *note);

/* For slow=: how long its ranks computed in a step, on average over some steps. */
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
