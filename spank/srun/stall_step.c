/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/stall_step.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "spank/wire/progress_page.h"
#include "watch/progress.h"

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

/* "0-23,25-7999", in order, whatever ranks the nodes have: those that wait, or those that are not seen. */
static void add_ranges(const struct stall_step *step, bool unseen, struct sink *sink)
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

/* "ranks call different operations as collective #14: ..."; false: the ranks that wait in it call the same one. */
static bool add_different(const struct stall_step *step, uint64_t collective, struct sink *sink)
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
	add_ranges(step, true, sink);
}

static void add_program(const struct stall_note *note, const char *before, const char *behind, struct sink *sink)
{
	if (note->program[0] != '\0')
		sink_add(sink, "%s%s%s", before, note->program, behind);
}

/* The sentence on ranks that are not seen. */
static void add_unseen(const struct stall_step *step, struct sink *sink)
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

enum { NODES_MAX = 65536, OLD_MS = 10000, AGED_MS = 2000, UNSEEN_MS = 10000 };

/* The node's place, or a new one; NULL: there is no room. */
static struct stall_told *place_of(struct stall_step *step, const struct stall_note *note)
{
	for (size_t i = 0; i < step->count; i++)
		if (step->nodes[i].note.lowest == note->lowest)
			return &step->nodes[i];
	if (step->count == step->room) {
		size_t room = step->room > 0 ? step->room * 2 : 16;
		struct stall_told *more = room <= NODES_MAX
			? realloc(step->nodes, room * sizeof(*more)) : NULL;
		if (more == NULL)
			return NULL;
		step->nodes = more;
		step->room = room;
	}
	step->nodes[step->count] = (struct stall_told){ .taken_ns = 0 };
	return &step->nodes[step->count++];
}

void stall_step_take(struct stall_step *step, const unsigned char bytes[STALL_NOTE_BYTES],
                     uint64_t now_ns)
{
	struct stall_note note;
	struct stall_told *told;
	bool repeats;

	if (!stall_unpack(bytes, &note) ||
	    (step->count > 0 && step->nodes[0].note.world_size != note.world_size))
		return;
	told = place_of(step, &note);
	if (told == NULL)
		return;
	if (told->note.stalled)
		step->stalled_ranks -= told->note.ranks;
	if (note.stalled)
		step->stalled_ranks += note.ranks;
	else
		step->said = false;
	/* A node tells again what srun has not answered in time. */
	repeats = told->note.unseen != STALL_SEEN;
	*told = (struct stall_told){ now_ns, note };
	if (note.unseen == STALL_SEEN || repeats)
		return;
	if (step->unseen_ns == 0)
		step->unseen_ns = now_ns;
	step->unseen_ranks += note.ranks;
}

bool stall_step_is_blocked(const struct stall_step *step)
{
	bool waits = false, ended = false;

	if (step->count == 0 || step->stalled_ranks != step->nodes[0].note.world_size)
		return false;
	for (size_t i = 0; i < step->count; i++) {
		const struct stall_note *note = &step->nodes[i].note;
		if (note->absent > 0 || (note->at_work > 0 && strcmp(note->wait, DDP_PROGRESS_FIRST_EXCHANGE) != 0))
			return false;
		/* One that had begun: the others' waits were told before it came. */
		if (note->kind == STALL_LEFT || (note->kind == STALL_ENDED && note->doing[0] != '\0'))
			return false;
		waits |= note->at_work > 0;
		ended |= note->kind == STALL_ENDED;
	}
	return waits && ended;
}

uint64_t stall_step_unseen_due(const struct stall_step *step)
{
	if (step->count == 0 || step->unseen_ns == 0 || step->unseen_said ||
	    !(step->asked.stall || step->asked.watch || step->asked.python))
		return UINT64_MAX;
	/* Other nodes may be about to tell the same. */
	return step->unseen_ns + (step->unseen_ranks >= step->nodes[0].note.world_size ? 0 : UNSEEN_MS * NS_PER_MS);
}

uint64_t stall_step_due(const struct stall_step *step)
{
	uint64_t due = 0, at_work = 0;

	if (step->said || step->count == 0 || step->stalled_ranks != step->nodes[0].note.world_size)
		return UINT64_MAX;
	if (stall_step_is_blocked(step))
		return 0;
	if (step->seconds == 0)
		return UINT64_MAX;
	for (size_t i = 0; i < step->count; i++) {
		const struct stall_told *told = &step->nodes[i];
		uint64_t quiet_ns = told->note.quiet_ms * NS_PER_MS, limit_ns = step->seconds * 1000 * NS_PER_MS;
		uint64_t left_ns = quiet_ns < limit_ns ? limit_ns - quiet_ns : 0;
		at_work += told->note.at_work;
		if (told->taken_ns + left_ns > due)
			due = told->taken_ns + left_ns;
	}
	return at_work > 0 ? due : UINT64_MAX;
}

static uint64_t age_ms(const struct stall_told *told, uint64_t now_ns)
{
	return now_ns > told->taken_ns ? (now_ns - told->taken_ns) / NS_PER_MS : 0;
}

/* ---- the sentence ----------------------------------------------------------------- */

static bool is_further_behind(const struct stall_note *a, const struct stall_note *b)
{
	if (a->kind != b->kind)
		return a->kind < b->kind;
	if (a->collective != b->collective)
		return a->collective < b->collective;
	return a->rank < b->rank;
}

/* `named`: the sentence has said already in what they wait. */
static void add_waiting(const struct stall_step *step, uint64_t waiting, bool named, uint64_t now_ns,
                        struct sink *sink)
{
	const struct stall_told *furthest = NULL;

	for (size_t i = 0; i < step->count; i++) {
		const struct stall_told *told = &step->nodes[i];
		if (told->note.range_count > 0 &&
		    (furthest == NULL || told->note.wait_collective > furthest->note.wait_collective))
			furthest = told;
	}
	if (furthest == NULL)
		return;
	sink_add(sink, waiting == 1 ? "; waiting: rank " : "; waiting: ranks ");
	add_ranges(step, false, sink);
	if (furthest->note.wait[0] != '\0')
		sink_add(sink, "%s%s for %.1f s", named ? "" : " in ", named ? "" : furthest->note.wait,
		         (double)(furthest->note.wait_ms + age_ms(furthest, now_ns)) / 1000);
}

/* All others have exited. */
static void add_not_exited(const struct stall_note *note, uint64_t count, double seconds, struct sink *sink)
{
	sink_add(sink, "%s has not exited %.1f s after ddp_finalize() or destroy_process_group()", note->who, seconds);
	if (count > 1)
		sink_add(sink, ", nor have %llu more", (unsigned long long)count - 1);
}

static void add_furthest_behind(const struct stall_told *told, uint64_t at_work, uint64_t absent,
                                uint64_t now_ns, struct sink *sink)
{
	const struct stall_note *note = &told->note;
	double seconds = (double)(note->since_ms + age_ms(told, now_ns)) / 1000;

	switch (note->kind) {
	case STALL_STOPPED:
		sink_add(sink, "%s is stopped by a signal or a debugger, ", note->who);
		break;
	case STALL_RUNS:
		if (absent == at_work)
			sink_add(sink, "none waits for another: %s is ", note->who);
		else if (absent > 1)
			sink_add(sink, "%s never came, nor did %llu more: it is ", note->who,
			         (unsigned long long)absent - 1);
		else
			sink_add(sink, "%s never came: it is ", note->who);
		break;
	case STALL_WAITS:
	case STALL_FAILED:
	case STALL_KINDS:
		sink_add(sink, "all wait, and furthest behind is %s, ", note->who);
		break;
	case STALL_LEFT:
		if (absent == at_work)
			add_not_exited(note, absent, seconds, sink);
		else
			sink_add(sink, "%s had left by ddp_finalize() or destroy_process_group(), %.1f s before", note->who, seconds);
		return;
	case STALL_ENDED:
		sink_add(sink, "%s had ended with code 0, %.1f s before", note->who, seconds);
		return;
	}
	sink_add(sink, "%s", note->doing);
	/* The times in it are those of then. */
	if (age_ms(told, now_ns) >= OLD_MS)
		sink_add(sink, " (%.0f s ago)", (double)age_ms(told, now_ns) / 1000);
}

void stall_step_say_unseen(struct stall_step *step, struct sink *sink)
{
	step->unseen_said = true;
	add_unseen(step, sink);
}

void stall_step_say(struct stall_step *step, uint64_t now_ns, struct sink *sink)
{
	const struct stall_told *furthest_behind = NULL;
	uint64_t quiet_ms = UINT64_MAX, at_work = 0, absent = 0;
	bool blocked = stall_step_is_blocked(step);

	step->said = true;
	for (size_t i = 0; i < step->count; i++) {
		const struct stall_told *told = &step->nodes[i];
		if (furthest_behind == NULL || is_further_behind(&told->note, &furthest_behind->note))
			furthest_behind = told;
		at_work += told->note.at_work;
		absent += told->note.absent;
		if (told->note.quiet_ms + age_ms(told, now_ns) < quiet_ms)
			quiet_ms = told->note.quiet_ms + age_ms(told, now_ns);
	}
	if (furthest_behind == NULL)
		return;
	if (!blocked)
		sink_add(sink, "the step stalls: no rank has made progress for %.1f s; ", (double)quiet_ms / 1000);
	if (absent == 0 && furthest_behind->note.kind == STALL_WAITS &&
	    add_different(step, furthest_behind->note.collective, sink)) {
		add_waiting(step, at_work - absent, true, now_ns, sink);
		return;
	}
	add_furthest_behind(furthest_behind, at_work, absent, now_ns, sink);
	if (blocked)
		sink_add(sink, ", and without ddp_init() or init_process_group(\"ddp\"): have every task call it, or start fewer "
		         "tasks (srun -n)");
	add_waiting(step, at_work - absent, false, now_ns, sink);
}

/* The rest of a sentence that begins with the note's rank, from ";" on; NULL: it does not. */
static const char *rest_about(const struct stall_note *note, const char *text, const char **verb)
{
	static const char *const verbs[] = { BLAME_LATE, BLAME_LOST };
	char who[64];
	struct sink sink = sink_on(who, sizeof(who));

	sink_add(&sink, "rank %u of %u ", note->rank, note->world_size);
	if (strncmp(text, who, strlen(who)) != 0)
		return NULL;
	for (int i = 0; i < 2; i++) {
		const char *at = strstr(text, verbs[i]), *end = strchr(text, ';');
		*verb = verbs[i];
		if (at != NULL && end != NULL && at + strlen(verbs[i]) == end + 2)
			return end;
	}
	return NULL;
}

static void add_state(const struct stall_told *told, uint64_t now_ns, struct sink *sink)
{
	const struct stall_note *note = &told->note;

	sink_add(sink, "%s%s%s", note->kind == STALL_STOPPED ? "stopped by a signal or a debugger" : "",
	         note->kind == STALL_STOPPED && note->doing[0] != '\0' ? ", " : "", note->doing);
	if (age_ms(told, now_ns) >= AGED_MS)
		sink_add(sink, " (%.0f s ago)", (double)age_ms(told, now_ns) / 1000);
}

void stall_step_add_hearsay(const struct stall_step *step, const char *text, uint64_t now_ns, struct sink *sink)
{
	const struct stall_told *stopped = NULL;
	const char *verb, *rest;

	for (size_t i = 0; i < step->count; i++) {
		const struct stall_told *told = &step->nodes[i];
		bool is_stopped = told->note.kind == STALL_STOPPED;
		if (told->note.who[0] == '\0' || (!is_stopped && told->note.kind != STALL_RUNS))
			continue;
		rest = rest_about(&told->note, text, &verb);
		if (rest != NULL) {
			sink_add(sink, "%s%.*s (", told->note.who, (int)strlen(verb) - 2, verb);
			add_state(told, now_ns, sink);
			sink_add(sink, ")%s", rest);
			return;
		}
		if (is_stopped && (stopped == NULL || told->note.rank < stopped->note.rank))
			stopped = told;
	}
	if (stopped != NULL) {
		sink_add(sink, "%s is ", stopped->note.who);
		add_state(stopped, now_ns, sink);
		sink_add(sink, "; ");
	}
	sink_add(sink, "%s", text);
}

void stall_step_end(struct stall_step *step)
{
	free(step->nodes);
	step->nodes = NULL;
	step->count = step->room = 0;
	step->stalled_ranks = step->unseen_ranks = 0;
	step->unseen_ns = 0;
}
