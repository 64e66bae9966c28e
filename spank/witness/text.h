/* SPDX-License-Identifier: Apache-2.0 */
/* What the flight recorder writes of one rank: a line of JSON, which ddp-report reads (`ddp-report --record`). The
   format is described in ddp-report(1). Pure. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "spank/base/text.h"
#include "spank/witness/rings.h"

/* Room for the longest line, with stacks of RECORD_STACKS_MAX bytes before they are escaped. */
enum { RECORD_TEXT_MAX = 3 << 20, RECORD_STACKS_MAX = 65536 };

struct record_rank {
	const char *reason;      /* "stall", "failure", "end", "asked"; a constant */
	uint32_t job, step, generation; /* generation 0: the step has no restart= */
	uint32_t rank, world_size;
	const char *node;        /* printed with '?' for what is not printable */
	int64_t pid;             /* 0: not known */
	const char *end;         /* how its program has ended, such as "signal 9"; NULL: it runs, or is not known */
	uint64_t now_ns;         /* CLOCK_MONOTONIC, and the same moment by */
	uint64_t real_ns;        /* CLOCK_REALTIME */
	const char *threads;     /* lines of its threads' states and stacks; NULL: nobody asked. Not trusted */
	const struct rings *rings;
};

/* Adds the line with its newline. If it does not fit, sink->full is set. */
void record_text(struct sink *sink, const struct record_rank *rank);
