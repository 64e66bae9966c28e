/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static int64_t slice_begin(const ddp_units *units, const ddp_unit *unit, int rank)
{
	int64_t lines = (unit->end - unit->begin) / DDP_ALIGN_ELEMENTS, ranks = units->ranks;

	return unit->begin + (lines / ranks * rank + lines % ranks * rank / ranks) * DDP_ALIGN_ELEMENTS;
}

void ddp_unit_slice(const ddp_units *units, const ddp_unit *unit, int rank, int64_t *begin,
                    int64_t *end)
{
	*begin = slice_begin(units, unit, rank);
	*end = slice_begin(units, unit, rank + 1);
}

int ddp_unit_at(const ddp_units *units, int64_t offset)
{
	int low = 0, high = units->count;

	while (low < high) {
		int middle = low + (high - low) / 2;
		if (offset < units->list[middle].end)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static int64_t units_in(int64_t elements)
{
	return (elements + DDP_UNIT_ELEMENTS - 1) / DDP_UNIT_ELEMENTS;
}

/* Cuts [begin, end) from its beginning. */
static void cut(ddp_units *units, int64_t begin, int64_t end)
{
	while (begin < end) {
		int64_t stop = end - begin < DDP_UNIT_ELEMENTS ? end : begin + DDP_UNIT_ELEMENTS;
		units->list[units->count++] = (ddp_unit){ .begin = begin, .end = stop };
		begin = stop;
	}
}

int64_t ddp_pieces_in(int64_t elements)
{
	return (elements + DDP_PIECE_ELEMENTS - 1) / DDP_PIECE_ELEMENTS;
}

/* Pieces of what this rank owns, and how much a rank owns at most. */
static ddp_status cut_pieces(ddp_units *units)
{
	int64_t count = 0, begin, end, kept = 0;

	for (int u = 0; u < units->count; u++) {
		ddp_unit_slice(units, &units->list[u], units->rank, &begin, &end);
		count += ddp_pieces_in(end - begin);
	}
	units->pieces = malloc((size_t)(count + 1) * sizeof(*units->pieces));
	if (units->pieces == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %lld pieces of the model", (long long)count);
	for (int u = 0; u < units->count; u++) {
		ddp_unit *unit = &units->list[u];
		unit->first_piece = units->piece_count;
		ddp_unit_slice(units, unit, units->rank, &begin, &end);
		while (begin < end) {
			int64_t stop = end - begin < DDP_PIECE_ELEMENTS ? end : begin + DDP_PIECE_ELEMENTS;
			units->pieces[units->piece_count++] = (ddp_piece){ begin, stop, kept };
			kept += stop - begin;
			begin = stop;
		}
		unit->end_piece = units->piece_count;
	}
	for (int rank = 0; rank < units->ranks; rank++) {
		int64_t owned = 0;
		for (int u = 0; u < units->count; u++) {
			ddp_unit_slice(units, &units->list[u], rank, &begin, &end);
			owned += end - begin;
		}
		units->most = owned > units->most ? owned : units->most;
	}
	return DDP_OK;
}

/* The i-th of the plan's grains or buckets, which go from the end to the beginning. */
static void range_of(const ddp_bucket_plan *plan, bool fine, int i, int64_t *begin, int64_t *end)
{
	*begin = fine ? plan->grains[i + 1] : plan->buckets[i].begin;
	*end = fine ? plan->grains[i] : plan->buckets[i].end;
}

ddp_status ddp_units_make(const ddp_layout *layout, const ddp_bucket_plan *plan, bool fine, int ranks,
                          int rank, ddp_units *units)
{
	ddp_units made = { .ranks = ranks, .rank = rank };
	const int ranges = fine ? plan->grain_count : plan->count;
	int64_t count = units_in(layout->elements - layout->dense), begin, end;

	for (int i = 0; i < ranges; i++) {
		range_of(plan, fine, i, &begin, &end);
		count += units_in(end - begin);
	}
	made.list = malloc((size_t)count * sizeof(*made.list));
	if (made.list == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %lld units of the model", (long long)count);
	for (int i = ranges - 1; i >= 0; i--) {
		range_of(plan, fine, i, &begin, &end);
		cut(&made, begin, end);
	}
	cut(&made, layout->dense, layout->elements);
	ddp_status status = cut_pieces(&made);
	if (status != DDP_OK) {
		ddp_units_free(&made);
		return status;
	}
	*units = made;
	return DDP_OK;
}

void ddp_units_free(ddp_units *units)
{
	free(units->list);
	free(units->pieces);
	*units = (ddp_units){ 0 };
}

ddp_status ddp_units_store(const ddp_units *units, const ddp_place *place, float *kept, int64_t first,
                           const float *values, int64_t count)
{
	ddp_status status = DDP_OK;

	for (int u = ddp_unit_at(units, first); u < units->count && units->list[u].begin < first + count;
	     u++) {
		const ddp_unit *unit = &units->list[u];
		for (int i = unit->first_piece; i < unit->end_piece && status == DDP_OK; i++) {
			const ddp_piece *piece = &units->pieces[i];
			int64_t from = first > piece->begin ? first : piece->begin;
			int64_t to = first + count < piece->end ? first + count : piece->end;
			if (from < to)
				status = ddp_place_write(place, kept + piece->kept + (from - piece->begin),
				                         values + (from - first), (size_t)(to - from) * sizeof(*kept));
		}
	}
	return status;
}
