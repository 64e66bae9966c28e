/* SPDX-License-Identifier: Apache-2.0 */
/* spans: time ranges of communication, which may overlap. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct ddp_span {
	uint64_t start_ns, end_ns;
} ddp_span;

/* The time covered by at least one span, in seconds. Sorts them by start. */
double ddp_spans_union(ddp_span *spans, size_t count);

/* 1 - exposed / communication, within 0 .. 1; 1 if there was none. */
double ddp_overlap_ratio(double exposed_seconds, double communication_seconds);
