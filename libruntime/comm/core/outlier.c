#include "comm/core/outlier.h"

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

void ddp_outlier_names(const ddp_outlier *o, char odd[DDP_OUTLIER_TEXT], char usual[DDP_OUTLIER_TEXT])
{
	if (o->odd_count == 1)
		snprintf(odd, DDP_OUTLIER_TEXT, "rank %d", o->odd);
	else
		snprintf(odd, DDP_OUTLIER_TEXT, "%d ranks (the first is rank %d)", o->odd_count, o->odd);
	if (o->usual_count == 1)
		snprintf(usual, DDP_OUTLIER_TEXT, "rank %d", o->usual);
	else if (o->usual_count + o->odd_count == o->ranks)
		snprintf(usual, DDP_OUTLIER_TEXT, "the %d others", o->usual_count);
	else
		snprintf(usual, DDP_OUTLIER_TEXT, "%d others (the first is rank %d)", o->usual_count, o->usual);
}
