/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/stall_words.h"

#include <string.h>

enum { RANGES_SAID = 16 };

/* The first range from `from` on of ranks that wait, or are not seen; false: there is none. */
static bool next_range(const struct stall_step *step, bool unseen, uint32_t from, struct stall_range *found)
{
	bool any = false;

	for (size_t i = 0; i < step->count; i++) {
		const struct stall_note *note = &step->nodes[i].note;
		if ((note->unseen != STALL_SEEN) != unseen)
			continue;
		for (uint32_t k = 0; k < note->range_count; k++) {
			struct stall_range range = note->ranges[k];
			if (range.last < from || (any && range.first >= found->first))
				continue;
			*found = range;
			any = true;
		}
	}
	if (any && found->first < from)
		found->first = from;
	return any;
}

void stall_words_ranges(const struct stall_step *step, bool unseen, struct sink *sink)
{
	struct stall_range range, next;
	bool more = next_range(step, unseen, 0, &range), cut = false;
	int said = 0;

	for (; more && said < RANGES_SAID; said++, range = next) {
		while ((more = range.last < UINT32_MAX && next_range(step, unseen, range.last + 1, &next)) &&
		       next.first == range.last + 1)
			range.last = next.last;
		sink_add(sink, range.last > range.first ? "%s%u-%u" : "%s%u", said > 0 ? "," : "",
		         range.first, range.last);
	}
	for (size_t i = 0; i < step->count; i++)
		cut |= step->nodes[i].note.cut && (step->nodes[i].note.unseen != STALL_SEEN) == unseen;
	if (more || cut)
		sink_add(sink, ",...");
}

/* ---- ranks in different collectives ------------------------------------------------- */

static bool waits_in(const struct stall_note *note, uint64_t collective)
{
	return note->stalled && note->unseen == STALL_SEEN && note->wait_collective == collective &&
	       stall_operation(note->wait) != NULL;
}

static uint64_t ranks_in(const struct stall_note *note)
{
	uint64_t count = 0;

	for (uint32_t i = 0; i < note->range_count; i++)
		count += (uint64_t)note->ranges[i].last - note->ranges[i].first + 1;
	return count;
}

/* How many ranks wait in this operation, as far as the nodes tell. */
static uint64_t votes_for(const struct stall_step *step, uint64_t collective, const char *wait)
{
	uint64_t votes = 0;

	for (size_t i = 0; i < step->count; i++) {
		const struct stall_note *note = &step->nodes[i].note;
		if (!waits_in(note, collective))
			continue;
		if (!stall_differs(note->wait, wait))
			votes += ranks_in(note) - (note->odd > 0);
		votes += note->odd > 0 && !stall_differs(note->odd_wait, wait);
	}
	return votes;
}

/* The lowest rank of the node that waits in the note's `wait`. */
static uint32_t first_of(const struct stall_note *note)
{
	uint32_t first = note->ranges[0].first;

	if (note->odd == 0 || first != note->odd - 1)
		return first;
	if (note->ranges[0].last > first)
		return first + 1;
	return note->range_count > 1 ? note->ranges[1].first : first;
}

/* A rank, its node, and the operation that it waits in. */
struct odd {
	const struct stall_note *note;
	uint32_t rank;
	const char *wait;
};

static void take_odd(const struct stall_note *note, uint32_t rank, const char *wait, const char *most, struct odd *odd)
{
	if (stall_differs(most, wait) && (odd->note == NULL || rank < odd->rank))
		*odd = (struct odd){ note, rank, wait };
}

bool stall_words_different(const struct stall_step *step, uint64_t collective, struct sink *sink)
{
	struct odd odd = { .note = NULL };
	const char *most = NULL, *node;
	uint64_t most_votes = 0;

	for (size_t i = 0; i < step->count; i++) {
		const struct stall_note *note = &step->nodes[i].note;
		if (!waits_in(note, collective))
			continue;
		for (int k = 0; k < 1 + (note->odd > 0); k++) {
			const char *wait = k == 0 ? note->wait : note->odd_wait;
			uint64_t votes = most == NULL || stall_differs(most, wait) ? votes_for(step, collective, wait) : 0;
			if (votes > most_votes) {
				most = wait;
				most_votes = votes;
			}
		}
	}
	for (size_t i = 0; i < step->count && most != NULL; i++) {
		const struct stall_note *note = &step->nodes[i].note;
		if (!waits_in(note, collective))
			continue;
		take_odd(note, first_of(note), note->wait, most, &odd);
		if (note->odd > 0)
			take_odd(note, note->odd - 1, note->odd_wait, most, &odd);
	}
	if (odd.note == NULL)
		return false;
	/* The node's name is in what the note says of its rank that is furthest behind. */
	node = strstr(odd.note->who, " on ");
	sink_add(sink, "ranks call different operations as collective #%llu: rank %u of %u%s calls %s, and %s %s",
	         (unsigned long long)collective, odd.rank, odd.note->world_size, node != NULL ? node : "",
	         stall_operation(odd.wait), most_votes > 1 ? "others call" : "another rank calls", stall_operation(most));
	return true;
}

/* ---- ranks that are not seen ---------------------------------------------------------- */

static void add_who(const struct stall_step *step, uint64_t count, struct sink *sink)
{
	sink_add(sink, count == 1 ? "rank " : "ranks ");
	stall_words_ranges(step, true, sink);
}

static void add_program(const struct stall_note *note, const char *before, const char *behind, struct sink *sink)
{
	if (note->program[0] != '\0')
		sink_add(sink, "%s%s%s", before, note->program, behind);
}

void stall_words_unseen(const struct stall_step *step, struct sink *sink)
{
	const struct stall_note *first = NULL;
	const char *key = step->asked.stall ? "stall=" : "watch";
	uint64_t count = 0;
	double seconds;

	for (size_t i = 0; i < step->count; i++) {
		const struct stall_note *note = &step->nodes[i].note;
		if (note->unseen == STALL_SEEN)
			continue;
		count += ranks_in(note);
		if (first == NULL || note->unseen < first->unseen)
			first = note;
	}
	if (first == NULL)
		return;
	seconds = first->unseen_ms / 1000.0;
	if (first->unseen == STALL_NO_PYTHON) {
		sink_add(sink, "--ddp=python has not started slurm_ddp in ");
		add_who(step, count, sink);
		add_program(first, " (", ")", sink);
		sink_add(sink, ": this Python ignores PYTHONPATH (-I, -E, a container), or is older than 3.8; install slurm_ddp "
		         "for it by pip, or begin the program with slurm_ddp.install() (see srun-ddp(7))");
		return;
	}
	if (first->unseen == STALL_STARTS) {
		sink_add(sink, "stall= sees no step yet: %.0f s after the start, ", seconds);
		add_who(step, count, sink);
		sink_add(sink, " ha%s told of no step and no phase, and a start may last for any time; slurm_ddp sees batches of "
		         "PyTorch's DataLoader and its optimizers, and otherwise what slurm_ddp.step() and phase() tell",
		         count == 1 ? "s" : "ve");
		return;
	}
	sink_add(sink, "%s sees nothing of ", key);
	add_who(step, count, sink);
	add_program(first, " (", ")", sink);
	sink_add(sink, ": %.0f s after the start, the program uses neither libddp nor slurm_ddp%s", seconds,
	         step->asked.watch ? " nor NCCL 2.27 or later" : "");
	if (!step->asked.python)
		sink_add(sink, step->asked.watch ? "; a program of Python is seen with --ddp=python" :
		         "; a program of Python is seen with --ddp=python, and one of NCCL with --ddp=watch");
}
