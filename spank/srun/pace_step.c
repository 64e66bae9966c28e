/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/pace_step.h"

#include <stdlib.h>
#include <string.h>

enum { LOST_WINDOWS = 3 }; /* a rank that is silent for so many windows of another one no longer counts */

/* ---- notes ------------------------------------------------------------------------------ */

static bool has_room(struct pace_step *step, uint32_t world_size)
{
	if (step->world_size != world_size) {
		pace_step_end(step);
		step->ranks = calloc(world_size, sizeof(*step->ranks));
		step->sorted = calloc(world_size, sizeof(*step->sorted));
		step->world_size = world_size;
	}
	return step->ranks != NULL && step->sorted != NULL;
}

/* 1 + the index of the node; 0: no memory. */
static uint32_t node_of(struct pace_step *step, const char *name)
{
	for (uint32_t i = 0; i < step->node_count; i++)
		if (strcmp(step->nodes[i], name) == 0)
			return i + 1;
	if (step->node_count == step->node_room) {
		const uint32_t room = step->node_room > 0 ? step->node_room * 2 : 16;
		void *more = realloc(step->nodes, room * sizeof(*step->nodes));
		if (more == NULL)
			return 0;
		step->nodes = more;
		step->node_room = room;
	}
	memcpy(step->nodes[step->node_count], name, HOST_NAME_MAX_BYTES);
	return ++step->node_count;
}

/* Ranks that have ended, or whose node has lost its witness. */
static void forget_silent(struct pace_step *step)
{
	for (uint32_t i = 0; i < step->world_size; i++) {
		struct pace_told *told = &step->ranks[i];
		if (told->node == 0 || told->windows > 0)
			continue;
		*told = (struct pace_told){ .node = 0 };
		step->known--;
	}
}

static void take_rank(struct pace_step *step, const struct pace_note *note, const struct pace_rank_note *rank,
                      uint32_t node)
{
	struct pace_told *told = &step->ranks[rank->rank];

	step->known += told->node == 0;
	step->fresh += told->windows == 0;
	told->node = node;
	told->host_us = rank->host_us;
	told->own_us = rank->own_us;
	told->steps = note->steps;
	if (told->windows < LOST_WINDOWS)
		told->windows++;
	else
		forget_silent(step);
}

/* ---- rounds ----------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Of two in the middle, the lower one: of two ranks, one can be slow. */
static uint32_t median(struct pace_step *step, bool own)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < step->world_size; i++)
		if (step->ranks[i].windows > 0)
			step->sorted[count++] = own ? step->ranks[i].own_us : step->ranks[i].host_us;
	qsort(step->sorted, count, sizeof(*step->sorted), compare);
	return step->sorted[(count - 1) / 2];
}

static bool is_above(uint64_t value_us, uint64_t median_us, uint64_t percent)
{
	return value_us * 100 >= median_us * percent && value_us >= median_us + PACE_LEAST_US;
}

static bool is_slow(const struct pace_step *step, const struct pace_told *told, uint32_t own_us, uint32_t percent)
{
	return is_above(told->own_us, own_us, percent) && is_above(told->host_us, step->median_us, percent);
}

static void judge_rank(struct pace_step *step, struct pace_told *told, uint32_t own_us)
{
	const bool slow = is_slow(step, told, own_us, step->percent);
	/* Between the two limits nothing changes. */
	const bool fine = !is_slow(step, told, own_us, (100 + step->percent) / 2);

	told->slow_steps = slow ? told->slow_steps + told->steps : 0;
	told->slow = !slow ? 0 : told->slow < PACE_ROUNDS ? told->slow + 1 : PACE_ROUNDS;
	told->fine = !fine ? 0 : told->fine < PACE_ROUNDS ? told->fine + 1 : PACE_ROUNDS;
	if (told->fine == PACE_ROUNDS)
		told->said = false;
	if (told->slow < PACE_ROUNDS || told->said)
		return;
	told->said = told->new = true;
	step->news++;
}

static void judge_round(struct pace_step *step)
{
	const uint32_t own_us = median(step, true);

	step->median_us = median(step, false);
	for (uint32_t i = 0; i < step->world_size; i++) {
		struct pace_told *told = &step->ranks[i];
		if (told->windows > 0)
			judge_rank(step, told, own_us);
		told->windows = 0;
	}
	step->fresh = 0;
}

bool pace_step_take(struct pace_step *step, const unsigned char bytes[PACE_NOTE_BYTES])
{
	struct pace_note note;
	uint32_t node;

	if (step->percent == 0 || !pace_unpack(bytes, &note) || !has_room(step, note.world_size) ||
	    (node = node_of(step, note.node)) == 0)
		return false;
	for (uint32_t i = 0; i < note.count; i++)
		take_rank(step, &note, &note.ranks[i], node);
	/* The median of a few ranks says nothing of all. */
	if (step->fresh == step->known && step->known > 1 && step->known > step->world_size / 2)
		judge_round(step);
	return step->news > 0;
}

/* ---- lines ------------------------------------------------------------------------------ */

/* Writes "rank 3", or "ranks 3-5, 7" for the new ones of the node. Returns the first; *count gets how many. */
static const struct pace_told *add_ranks(const struct pace_step *step, uint32_t node, struct sink *sink,
                                         uint32_t *count)
{
	const struct pace_told *first = NULL;

	*count = 0;
	for (uint32_t i = 0; i < step->world_size; i++)
		*count += step->ranks[i].new && step->ranks[i].node == node;
	for (uint32_t i = 0; i < step->world_size; i++) {
		uint32_t last = i;
		if (!step->ranks[i].new || step->ranks[i].node != node)
			continue;
		while (last + 1 < step->world_size && step->ranks[last + 1].new && step->ranks[last + 1].node == node)
			last++;
		sink_add(sink, "%s%u", first != NULL ? ", " : *count > 1 ? "ranks " : "rank ", i);
		if (last > i)
			sink_add(sink, "-%u", last);
		first = first != NULL ? first : &step->ranks[i];
		i = last;
	}
	return first;
}

bool pace_step_say(struct pace_step *step, struct sink *sink)
{
	const struct pace_told *first = NULL;
	uint32_t count, node;

	for (uint32_t i = 0; i < step->world_size && first == NULL; i++)
		first = step->ranks[i].new ? &step->ranks[i] : NULL;
	if (first == NULL || step->news == 0)
		return false;
	node = first->node;
	first = add_ranks(step, node, sink, &count);
	sink_add(sink, " on %s compute%s %.1f times as long as the median of %u ranks: %.1f ms a step, and the median is %.1f "
	         "ms, over %u steps", step->nodes[node - 1], count > 1 ? "" : "s",
	         (double)first->host_us / (step->median_us > 0 ? step->median_us : 1), step->known, first->host_us / 1e3,
	         step->median_us / 1e3, first->slow_steps);
	for (uint32_t i = 0; i < step->world_size; i++)
		if (step->ranks[i].node == node)
			step->ranks[i].new = false;
	step->news -= count;
	return true;
}

void pace_step_end(struct pace_step *step)
{
	free(step->ranks);
	free(step->sorted);
	free(step->nodes);
	*step = (struct pace_step){ .percent = step->percent };
}
