/* SPDX-License-Identifier: Apache-2.0 */
#include "base/outlier.h"

#include <stdio.h>

static int count_same(int ranks, bool (*same)(const void *, int, int), const void *values, int rank)
{
	int count = 0;

	for (int r = 0; r < ranks; r++)
		count += r == rank || same(values, r, rank);
	return count;
}

/* The first rank of a value that no rank before it has. */
static bool is_first(bool (*same)(const void *, int, int), const void *values, int rank)
{
	for (int r = 0; r < rank; r++) {
		if (same(values, r, rank))
			return false;
	}
	return true;
}

ddp_outlier ddp_outlier_find(int ranks, bool (*same)(const void *values, int a, int b), const void *values)
{
	ddp_outlier o = { .ranks = ranks, .odd = -1 };

	/* A value that more than half of the ranks have first appears in the first half. */
	for (int r = 1; r <= ranks / 2 && 2 * count_same(ranks, same, values, o.usual) <= ranks; r++) {
		if (is_first(same, values, r) && 2 * count_same(ranks, same, values, r) > ranks)
			o.usual = r;
	}
	o.usual_count = count_same(ranks, same, values, o.usual);
	for (int r = 0; r < ranks && o.odd < 0; r++) {
		if (r != o.usual && !same(values, r, o.usual))
			o.odd = r;
	}
	o.odd_count = o.odd < 0 ? 0 : count_same(ranks, same, values, o.odd);
	return o;
}

void ddp_outlier_say(const ddp_outlier *o, const char *odd_rank, const char *usual_rank, char *odd, char *usual,
                     size_t bytes)
{
	if (o->odd_count == 1)
		snprintf(odd, bytes, "%s", odd_rank);
	else
		snprintf(odd, bytes, "%d ranks (the first is %s)", o->odd_count, odd_rank);
	if (o->usual_count == 1)
		snprintf(usual, bytes, "%s", usual_rank);
	else if (o->usual_count + o->odd_count == o->ranks)
		snprintf(usual, bytes, "the %d others", o->usual_count);
	else
		snprintf(usual, bytes, "%d others (the first is %s)", o->usual_count, usual_rank);
}

void ddp_outlier_names(const ddp_outlier *o, char odd[DDP_OUTLIER_TEXT], char usual[DDP_OUTLIER_TEXT])
{
	char odd_rank[24], usual_rank[24];

	snprintf(odd_rank, sizeof(odd_rank), "rank %d", o->odd);
	snprintf(usual_rank, sizeof(usual_rank), "rank %d", o->usual);
	ddp_outlier_say(o, odd_rank, usual_rank, odd, usual, DDP_OUTLIER_TEXT);
}
