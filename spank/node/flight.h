/* SPDX-License-Identifier: Apache-2.0 */
/* When a node writes its tasks' flight records (record=): at a failure, at the end of a step that has failed, and when
   its ranks stall. Nothing here fails the step. libc only. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "spank/node/supervise.h"
#include "spank/witness/dump.h"

enum { FLIGHT_CHILDREN = SUPERVISE_WRITERS };

struct flight {
	struct record_place place; /* its `dir` is "" without record= */
	pid_t children[FLIGHT_CHILDREN]; /* that write records, and were not reaped; 0: none */
	bool failed;    /* the first failure of the generation was noted */
};

/* In slurmstepd. A task of the node has failed, or srun ends the generation: the first time, records with stacks of
   those that run are written beside. */
void flight_note_failure(struct flight *flight, const struct supervise *supervise);

/* In slurmstepd, when all tasks have ended: if one has failed, the last records are written, and waited for. */
void flight_note_end(struct flight *flight, const struct supervise *supervise);

/* Behind it: says by `say` if records of the node were not written. */
void flight_tell_lost(const struct flight *flight, const struct supervise *supervise, void (*say)(const char *text));

/* The witness sees this of a node's tasks. */
struct flight_view {
	struct supervise_shared *shared;
	const unsigned char *pages; /* the memory file */
	uint32_t count, generation;
};

/* In the witness, at each look, before srun is told. `begins`: the node's ranks begin to stall; their records are
   waited for, for some seconds at most. */
void flight_note_stall(struct flight *flight, const struct flight_view *view, bool begins);
