/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/stall.h"

#include <string.h>

#include "ddp.h"
#include "spank/identity/nodelist.h"
#include "spank/wire/progress_page.h"

static const uint64_t ns_per_ms = 1000000;

/* Ranks come one after the other: a wait in ddp_init() that is shorter is not told. */
static const double start_seconds = 0.5;

/* The rank writes these numbers as it goes on; texts follow from them. For messages, and for
   collectives of groups, the time of the last wait is all that tells them apart. */
static bool same_place(const struct ddp_progress *a, const struct ddp_progress *b)
{
	return a->magic == b->magic && a->phase == b->phase && a->step == b->step &&
	       a->updated_ns == b->updated_ns && a->bucket == b->bucket &&
	       a->collective == b->collective && a->collective_ns == b->collective_ns &&
	       a->waiting == b->waiting && a->closed == b->closed && a->status == b->status &&
	       a->others == b->others;
}

void stall_see(struct stall_rank *rank, const struct ddp_progress *page, enum stall_end end,
               bool stopped, uint64_t now_ns)
{
	if (rank->changed_ns == 0 || end != rank->end || stopped != rank->stopped ||
	    !same_place(&rank->page, page))
		rank->changed_ns = now_ns;
	rank->page = *page;
	rank->end = end;
	rank->stopped = stopped;
	/* A program may call ddp_init() once more. */
	if (page->magic != DDP_PROGRESS_MAGIC || page->closed != 1)
		rank->closed_ns = 0;
	else if (rank->closed_ns == 0)
		rank->closed_ns = now_ns;
}

void stall_see_task(struct stall_rank *rank, uint32_t pid, uint64_t cpu_ms, uint64_t now_ns)
{
	/* A thread that looks for something from time to time is no work. */
	enum { WORK_PART = 20 };
	uint64_t least_ms = (now_ns - rank->seen_ns) / ns_per_ms / WORK_PART;

	if (rank->closed_ns != 0 && rank->end == STALL_NO_END && cpu_ms > rank->cpu_ms + least_ms)
		rank->changed_ns = now_ns;
	rank->is_task = rank->page.pid == pid;
	rank->cpu_ms = cpu_ms;
	rank->seen_ns = now_ns;
}

void stall_forget_time(struct stall_rank *ranks, uint32_t count, uint64_t lost_ns)
{
	for (uint32_t i = 0; i < count; i++)
		if (ranks[i].changed_ns != 0)
			ranks[i].changed_ns += lost_ns;
}

bool stall_is_quiet(const struct stall_rank *rank, uint32_t seconds, uint64_t now_ns)
{
	return now_ns >= rank->changed_ns &&
	       now_ns - rank->changed_ns >= (uint64_t)seconds * 1000 * ns_per_ms;
}

/* A program of Python may say that it waits, in a collective of which slurm_ddp knows nothing. */
static bool is_waiting(const struct stall_rank *rank, const struct progress_text *progress)
{
	return progress->wait != PROGRESS_NO_WAIT ||
	       (rank->page.writer == DDP_WRITER_PYTHON && progress->phase == DDP_PHASE_WAIT);
}

static enum stall_kind kind_of(const struct stall_rank *rank, const struct progress_text *progress)
{
	if (rank->end != STALL_NO_END)
		return rank->end == STALL_GOOD_END ? STALL_ENDED : STALL_FAILED;
	if (rank->stopped)
		return STALL_STOPPED;
	if (progress->closed)
		return STALL_LEFT;
	return is_waiting(rank, progress) ? STALL_WAITS : STALL_RUNS;
}

/* In a checkpoint or an evaluation a rank may run for as long as it likes, and who
   waits for it there is as good as in any other phase. */
static bool goes_on(const struct stall_rank *rank, uint32_t seconds, uint64_t now_ns)
{
	struct progress_text progress;

	if (rank->rank == UINT32_MAX || !stall_is_quiet(rank, seconds, now_ns))
		return true;
	if (rank->end != STALL_NO_END)
		return false;
	progress_text_read(&rank->page, now_ns, &progress);
	return !progress.known || (progress_text_is_busy(&progress) && kind_of(rank, &progress) == STALL_RUNS);
}

static uint32_t ms_since(uint64_t then_ns, uint64_t now_ns)
{
	uint64_t ms = now_ns > then_ns ? (now_ns - then_ns) / ns_per_ms : 0;

	return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

static void note_furthest_behind(const struct stall_rank *rank, const struct progress_text *progress,
                                 const struct stall_node *node, uint64_t now_ns,
                                 struct stall_note *note)
{
	struct sink who = sink_on(note->who, sizeof(note->who));
	struct sink sink = sink_on(note->doing, sizeof(note->doing));

	note->kind = kind_of(rank, progress);
	note->rank = rank->rank;
	note->collective = progress_text_place(progress);
	note->since_ms = ms_since(note->kind == STALL_LEFT ? rank->closed_ns : rank->changed_ns, now_ns);
	sink_add(&who, "rank %u of %u on ", rank->rank, node->world_size);
	sink_add_untrusted(&who, node->name, HOST_NAME_MAX_BYTES);
	if (progress->closed)
		sink_add(&sink, "%.1f s after ddp_finalize() or destroy_process_group()", ms_since(rank->closed_ns, now_ns) / 1000.0);
	else
		progress_text_add(&sink, progress);
}

void stall_add_to_ranges(uint32_t rank, struct stall_note *note)
{
	struct stall_range *last = &note->ranges[note->range_count > 0 ? note->range_count - 1 : 0];

	if (note->range_count > 0 && rank > 0 && rank - 1 == last->last)
		last->last = rank;
	else if (note->range_count < STALL_RANGES_MAX)
		note->ranges[note->range_count++] = (struct stall_range){ rank, rank };
	else
		note->cut = true;
}

static void note_wait(const struct stall_rank *rank, const struct progress_text *progress, struct stall_note *note)
{
	char wait[STALL_WAIT_MAX + 1] = "";
	struct sink sink;

	stall_add_to_ranges(rank->rank, note);
	if (progress->wait == PROGRESS_NO_WAIT)
		return;
	sink = sink_on(wait, sizeof(wait));
	if (progress->wait == PROGRESS_WAITS_IN_COLLECTIVE)
		sink_add(&sink, "collective #%llu%s", (unsigned long long)progress->collective,
		         progress->text[0] != '\0' ? " " : "");
	sink_add(&sink, "%s", progress->text);
	if (note->wait[0] != '\0' && progress->collective <= note->wait_collective) {
		if (note->odd == 0 && stall_differs(note->wait, wait)) {
			note->odd = rank->rank + 1;
			memcpy(note->odd_wait, wait, sizeof(note->odd_wait));
		}
		return;
	}
	/* The wait of a rank that is further behind says nothing of this collective. */
	note->odd = 0;
	memcpy(note->wait, wait, sizeof(note->wait));
	note->wait_collective = progress->collective;
	note->wait_ms = progress->wait_seconds > 0 && progress->wait_seconds < UINT32_MAX / 1000.0
	                ? (uint32_t)(progress->wait_seconds * 1000) : 0;
}

static bool is_further_behind(enum stall_kind kind, const struct progress_text *progress, const struct stall_note *note)
{
	return note->who[0] == '\0' || kind < note->kind ||
	       (kind == note->kind && progress_text_place(progress) < note->collective);
}

static void add_rank(const struct stall_rank *rank, const struct stall_node *node, uint64_t now_ns,
                     struct stall_note *note)
{
	struct progress_text progress;
	enum stall_kind kind;
	uint32_t quiet_ms = ms_since(rank->changed_ns, now_ns);

	progress_text_read(&rank->page, now_ns, &progress);
	kind = kind_of(rank, &progress);
	if (kind == STALL_STOPPED || kind == STALL_RUNS || (kind == STALL_LEFT && rank->is_task))
		note->absent++;
	if (kind == STALL_STOPPED || kind == STALL_RUNS || kind == STALL_WAITS || (kind == STALL_LEFT && rank->is_task))
		note->at_work++;
	if (quiet_ms < note->quiet_ms)
		note->quiet_ms = quiet_ms;
	if (is_further_behind(kind, &progress, note))
		note_furthest_behind(rank, &progress, node, now_ns, note);
	if (kind == STALL_WAITS)
		note_wait(rank, &progress, note);
}

void stall_judge_node(const struct stall_node *node, uint64_t now_ns, struct stall_note *note)
{
	bool stalled = true;

	*note = (struct stall_note){ .ranks = node->count, .lowest = UINT32_MAX,
		                     .world_size = node->world_size };
	for (uint32_t i = 0; i < node->count; i++) {
		if (node->ranks[i].rank < note->lowest)
			note->lowest = node->ranks[i].rank;
		stalled = stalled && !goes_on(&node->ranks[i], node->seconds, now_ns);
	}
	if (!stalled)
		return;
	note->stalled = true;
	note->quiet_ms = UINT32_MAX;
	for (uint32_t i = 0; i < node->count; i++)
		add_rank(&node->ranks[i], node, now_ns, note);
}

static bool has_page(const struct stall_rank *rank)
{
	return rank->page.magic == DDP_PROGRESS_MAGIC && rank->page.writer == DDP_WRITER_LIBDDP;
}

static bool is_late(const struct stall_rank *rank, enum stall_kind kind, uint64_t now_ns)
{
	uint64_t wanted_ns = rank->page.wanted_ns;

	if (kind == STALL_STOPPED)
		return now_ns > rank->changed_ns;
	return kind == STALL_RUNS && has_page(rank) && wanted_ns <= now_ns && now_ns - wanted_ns < STALL_WANTED_NS;
}

bool stall_judge_late(const struct stall_node *node, uint64_t now_ns, struct stall_note *note)
{
	for (uint32_t i = 0; i < node->count; i++) {
		const struct stall_rank *rank = &node->ranks[i];
		struct progress_text progress;
		enum stall_kind kind;
		progress_text_read(&rank->page, now_ns, &progress);
		kind = kind_of(rank, &progress);
		if (rank->rank != UINT32_MAX && is_late(rank, kind, now_ns) &&
		    is_further_behind(kind, &progress, note))
			note_furthest_behind(rank, &progress, node, now_ns, note);
	}
	return note->who[0] != '\0';
}

static bool is_in_first_exchange(const struct progress_text *progress)
{
	return progress->wait == PROGRESS_WAITS_OTHERWISE && progress->collective == 0 &&
	       strcmp(progress->text, DDP_PROGRESS_FIRST_EXCHANGE) == 0;
}

bool stall_judge_start(const struct stall_node *node, uint64_t now_ns, struct stall_note *note)
{
	struct stall_node all = *node;
	bool blocked = true, may_be = false;
	struct progress_text progress;

	all.seconds = 0;
	stall_judge_node(&all, now_ns, note);
	for (uint32_t i = 0; i < node->count; i++) {
		const struct stall_rank *rank = &node->ranks[i];
		bool waits;
		progress_text_read(&rank->page, now_ns, &progress);
		waits = rank->end == STALL_NO_END && is_in_first_exchange(&progress);
		may_be |= waits || (rank->end == STALL_NO_END && !has_page(rank));
		blocked &= (waits && progress.wait_seconds >= start_seconds) ||
		           (rank->end == STALL_GOOD_END && !has_page(rank));
	}
	if (!blocked)
		*note = (struct stall_note){ .ranks = note->ranks, .lowest = note->lowest,
			                     .world_size = note->world_size };
	return blocked || may_be;
}
