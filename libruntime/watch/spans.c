/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/spans.h"

#include <stdlib.h>

static int by_start(const void *a, const void *b)
{
	const ddp_span *x = a, *y = b;

	return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

double ddp_spans_union(ddp_span *spans, size_t count)
{
	uint64_t covered_ns = 0, covered_to_ns = 0;

	if (count > 1)
		qsort(spans, count, sizeof(*spans), by_start);
	for (size_t i = 0; i < count; i++) {
		uint64_t start_ns = spans[i].start_ns > covered_to_ns ? spans[i].start_ns
		                                                      : covered_to_ns;
		if (spans[i].end_ns <= start_ns)
			continue;
		covered_ns += spans[i].end_ns - start_ns;
		covered_to_ns = spans[i].end_ns;
	}
	return (double)covered_ns * 1e-9;
}

double ddp_overlap_ratio(double exposed_seconds, double communication_seconds)
{
	if (communication_seconds <= 0)
		return 1;
	double ratio = 1 - exposed_seconds / communication_seconds;
	return ratio < 0 ? 0 : ratio;
}
