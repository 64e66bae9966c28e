/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/progress_page.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/hash.h"
#include "ddp.h"
#include "spank/identity/nodelist.h"

/* A context of libddp describes what NCCL does for it. */
static bool counts(const struct ddp_progress *slot, bool any_libddp)
{
	return slot->magic == DDP_PROGRESS_MAGIC && (slot->writer != DDP_WRITER_NCCL || !any_libddp);
}

/* The slots that count: *list is at most DDP_PROGRESS_SLOTS long. If any context is open, the others are over. */
static size_t list_slots(const struct ddp_progress *slots, bool only_open, const struct ddp_progress **list)
{
	bool any_libddp = false;
	size_t count = 0;

	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
		any_libddp |= slots[i].magic == DDP_PROGRESS_MAGIC && slots[i].writer == DDP_WRITER_LIBDDP;
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
		if (counts(&slots[i], any_libddp) && !(only_open && slots[i].closed == 1))
			list[count++] = &slots[i];
	return count;
}

/* How much the slot knows of the collectives of the step's ranks. */
static int knows(const struct ddp_progress *slot)
{
	if ((slot->aside & (DDP_ASIDE_NUMBERS | DDP_ASIDE_RANKS)) != 0)
		return 0;
	if (slot->writer == DDP_WRITER_PYTHON)
		return slot->collective > 0 ? 3 : 1;
	return slot->writer == DDP_WRITER_NCCL ? 2 : 4;
}

static const struct ddp_progress *choose_main(const struct ddp_progress *const *list, size_t count)
{
	const struct ddp_progress *best = list[0];

	for (size_t i = 1; i < count; i++)
		if (knows(list[i]) > knows(best))
			best = list[i];
	return best;
}

/* A program whose collectives are seen has started. */
static bool has_phase(const struct ddp_progress *slot)
{
	return slot->step > 0 || (slot->phase != 0 && slot->phase != DDP_PROGRESS_STARTING);
}

static bool any_is_of(const struct ddp_progress *const *list, size_t count, enum ddp_writer writer)
{
	for (size_t i = 0; i < count; i++)
		if (list[i]->writer == (uint32_t)writer)
			return true;
	return false;
}

/* Readers take an error of libddp's for the rank's error, and take no phase from NCCL. */
static uint32_t choose_writer(const struct ddp_progress *const *list, size_t count)
{
	if (any_is_of(list, count, DDP_WRITER_LIBDDP))
		return DDP_WRITER_LIBDDP;
	for (size_t i = 0; i < count; i++)
		if (has_phase(list[i]))
			return DDP_WRITER_PYTHON;
	return any_is_of(list, count, DDP_WRITER_NCCL) ? DDP_WRITER_NCCL : DDP_WRITER_PYTHON;
}

/* A context for some group of ranks may never tell a phase. */
static void take_phase(const struct ddp_progress *const *list, size_t count, struct ddp_progress *shown)
{
	const struct ddp_progress *last = list[0];

	for (size_t i = 1; i < count; i++)
		if (has_phase(list[i]) != has_phase(last) ? has_phase(list[i]) : list[i]->updated_ns > last->updated_ns)
			last = list[i];
	shown->phase = last->phase;
	shown->step = last->step;
	shown->updated_ns = last->updated_ns;
	shown->bucket = last->bucket;
	shown->buckets = last->buckets;
	shown->step_seconds = last->step_seconds;
	shown->step_weight = last->step_weight;
	shown->steps = last->steps;
}

static void take_wait(const struct ddp_progress *const *list, size_t count, const struct ddp_progress *main,
                      struct ddp_progress *shown)
{
	const struct ddp_progress *oldest = NULL;

	shown->waiting = DDP_WAITING_NOT;
	for (size_t i = 0; i < count; i++)
		if (list[i]->waiting != DDP_WAITING_NOT &&
		    (oldest == NULL || list[i]->collective_ns < oldest->collective_ns))
			oldest = list[i];
	if (oldest == NULL)
		return;
	shown->waiting = oldest == main ? oldest->waiting : DDP_WAITING_OTHER;
	shown->collective_ns = oldest->collective_ns;
	memcpy(shown->collective_text, oldest->collective_text, sizeof(shown->collective_text));
}

static bool is_worse(const struct ddp_progress *one, const struct ddp_progress *other)
{
	if (one->error_state != other->error_state)
		return one->error_state > other->error_state;
	return one->error[0] != '\0' && other->error[0] == '\0';
}

static void take_error(const struct ddp_progress *const *list, size_t count, struct ddp_progress *shown)
{
	const struct ddp_progress *worst = shown;

	for (size_t i = 0; i < count; i++)
		if (is_worse(list[i], worst))
			worst = list[i];
	if (worst == shown)
		return;
	shown->status = worst->status;
	shown->error_state = worst->error_state;
	shown->culprit = worst->culprit;
	memcpy(shown->error, worst->error, sizeof(shown->error));
	memcpy(shown->culprit_node, worst->culprit_node, sizeof(shown->culprit_node));
}

/* All slots count: the rank goes on if any of its contexts does. */
static uint32_t hash_of(const struct ddp_progress *const *list, size_t count)
{
	struct { uint64_t of[DDP_PROGRESS_SLOTS][9]; } moving = { .of = { { 0 } } };

	for (size_t i = 0; i < count; i++) {
		const struct ddp_progress *s = list[i];
		const uint64_t fields[9] = { s->phase, (uint64_t)s->step, s->updated_ns, (uint32_t)s->bucket, s->collective,
			                     s->collective_ns, s->waiting, s->closed, s->status };
		memcpy(moving.of[i], fields, sizeof(fields));
	}
	const uint64_t hash = ddp_hash(&moving, sizeof(moving));
	return (uint32_t)(hash ^ hash >> 32);
}

bool slots_survive(const struct ddp_progress *shown)
{
	return shown->magic == DDP_PROGRESS_MAGIC && (shown->aside & DDP_PROGRESS_SURVIVES) != 0;
}

bool slots_have_survived(const struct ddp_progress *shown)
{
	return shown->magic == DDP_PROGRESS_MAGIC && (shown->aside & DDP_PROGRESS_SURVIVED) != 0;
}

void slots_read(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], struct ddp_progress *shown)
{
	const struct ddp_progress *all[DDP_PROGRESS_SLOTS], *open[DDP_PROGRESS_SLOTS], *main;
	const size_t count = list_slots(slots, false, all), opened = list_slots(slots, true, open);

	if (count <= 1) {
		*shown = count == 1 ? *all[0] : slots[0];
		shown->others = 0;
		return;
	}
	main = choose_main(opened > 0 ? open : all, opened > 0 ? opened : count);
	*shown = *main;
	shown->closed = opened == 0;
	for (size_t i = 0; i < count; i++)
		shown->aside |= all[i]->aside & (DDP_PROGRESS_SURVIVES | DDP_PROGRESS_SURVIVED);
	shown->writer = choose_writer(all, count);
	take_phase(opened > 0 ? open : all, opened > 0 ? opened : count, shown);
	take_wait(open, opened, main, shown);
	take_error(all, count, shown);
	for (size_t i = 0; i < opened; i++) {
		if (open[i]->wanted_ns > shown->wanted_ns)
			shown->wanted_ns = open[i]->wanted_ns;
		if (open[i]->timeout_ms != 0 && (shown->timeout_ms == 0 || open[i]->timeout_ms < shown->timeout_ms))
			shown->timeout_ms = open[i]->timeout_ms;
	}
	shown->others = hash_of(all, count);
}

bool slots_loss(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], double *loss)
{
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++) {
		const struct ddp_progress *slot = &slots[i];
		if (slot->magic != DDP_PROGRESS_MAGIC || slot->writer != DDP_WRITER_PYTHON || slot->python.told != 1)
			continue;
		*loss = slot->python.loss;
		return true;
	}
	return false;
}

bool slots_exposed(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], double *ratio)
{
	const struct ddp_progress *last = NULL;

	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++) {
		const struct ddp_progress *slot = &slots[i];
		if (slot->magic == DDP_PROGRESS_MAGIC && slot->writer == DDP_WRITER_LIBDDP && slot->exposed > 0 &&
		    slot->exposed <= 1000001 && (last == NULL || slot->updated_ns > last->updated_ns))
			last = slot;
	}
	if (last != NULL)
		*ratio = (last->exposed - 1) * 1e-6;
	return last != NULL;
}

bool slots_compute(const struct ddp_progress slots[DDP_PROGRESS_SLOTS], struct slots_compute *compute)
{
	*compute = (struct slots_compute){ .steps = 0 };
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++) {
		const struct ddp_progress *slot = &slots[i];
		/* An older libddp may have the end of an error there. */
		if (slot->magic == DDP_PROGRESS_MAGIC && slot->closed == 0 && slot->error[sizeof(slot->error) - 1] == '\0' &&
		    slot->compute_steps > compute->steps)
			*compute = (struct slots_compute){ slot->compute_ns, slot->compute_steps, slot->pid };
	}
	return compute->steps > 0;
}

/* ---- what the rank is doing ---- */

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct phase {
	const char *name, *sentence;
};

/* In the order of enum ddp_phase of ddp.h. */
static const struct phase phases[] = {
	{ "idle", "between steps" },
	{ "data", "loading data" },
	{ "forward", "in forward" },
	{ "backward", "in backward" },
	{ "wait", "waiting for gradients" },
	{ "optimizer", "in the optimizer" },
	{ "checkpoint", "writing a checkpoint" },
	{ "eval", "in evaluation" },
};

/* In the order of enum ddp_progress_phase. */
static const struct phase other_phases[] = {
	{ "starting", "starting" },
	{ "compute", "computing" },
	{ "ending", "at its end" },
};

static const struct phase *find_phase(uint32_t phase)
{
	if (phase < COUNT(phases))
		return &phases[phase];
	if (phase >= DDP_PROGRESS_STARTING && phase - DDP_PROGRESS_STARTING < COUNT(other_phases))
		return &other_phases[phase - DDP_PROGRESS_STARTING];
	return NULL;
}

const char *progress_phase_name(uint32_t phase)
{
	const struct phase *found = find_phase(phase);

	if (phase == PROGRESS_NCCL)
		return "nccl";
	return found != NULL ? found->name : "unknown";
}

bool progress_text_is_busy(const struct progress_text *progress)
{
	return progress->phase == DDP_PHASE_CHECKPOINT || progress->phase == DDP_PHASE_EVAL ||
	       progress->phase == DDP_PROGRESS_STARTING;
}

uint64_t progress_text_place(const struct progress_text *progress)
{
	if (progress->collective > 0 || progress->step <= 0)
		return progress->collective;
	return 2 * (uint64_t)progress->step + (progress->phase != DDP_PHASE_DATA);
}

static double seconds_since(uint64_t then_ns, uint64_t now_ns)
{
	return then_ns > 0 && then_ns <= now_ns ? (double)(now_ns - then_ns) * 1e-9 : -1;
}

static double positive(double value)
{
	return isfinite(value) && value > 0 && value < 1e15 ? value : 0;
}

/* An older libddp describes every collective, and tells of no waits. */
static bool text_counts(const struct ddp_progress *page)
{
	if (page->waiting == DDP_WAITING_OTHER)
		return true;
	return page->collective > 0 &&
	       (page->collective_ns == 0 || page->described == page->collective);
}

void progress_text_read(const struct ddp_progress *page, uint64_t now_ns, struct progress_text *progress)
{
	struct sink text = sink_on(progress->text, sizeof(progress->text));
	struct sink error = sink_on(progress->error, sizeof(progress->error));

	*progress = (struct progress_text){ .phase_seconds = -1, .wait_seconds = -1, .culprit = UINT32_MAX };
	if (page->magic != DDP_PROGRESS_MAGIC)
		return;
	progress->known = true;
	progress->closed = page->closed == 1;
	progress->phase = page->writer == DDP_WRITER_NCCL ? PROGRESS_NCCL : page->phase;
	progress->step = page->step > 0 ? page->step : 0;
	if (page->bucket >= 0 && page->buckets > 0 && page->bucket < page->buckets) {
		progress->bucket = page->bucket + 1;
		progress->buckets = page->buckets;
	}
	progress->phase_seconds = seconds_since(page->updated_ns, now_ns);
	progress->collective = page->collective;
	if (page->waiting == DDP_WAITING_COLLECTIVE)
		progress->wait = PROGRESS_WAITS_IN_COLLECTIVE;
	else if (page->waiting == DDP_WAITING_OTHER)
		progress->wait = PROGRESS_WAITS_OTHERWISE;
	progress->wait_seconds = seconds_since(page->collective_ns, now_ns);
	if (text_counts(page))
		sink_add_untrusted(&text, page->collective_text, sizeof(page->collective_text));
	sink_add_untrusted(&error, page->error, sizeof(page->error));
	progress->status = page->status;
	if (page->culprit > 0)
		progress->culprit = page->culprit - 1;
	progress->step_seconds = positive(page->step_seconds);
	progress->step_weight = positive(page->step_weight);
	progress->steps = page->steps > 0 ? page->steps : 0;
}

static void add_wait(struct sink *sink, const struct progress_text *progress)
{
	if (progress->wait == PROGRESS_WAITS_OTHERWISE) {
		sink_add(sink, ", waiting in %s", progress->text);
	} else if (progress->collective > 0) {
		sink_add(sink, ", %s #%llu",
		         progress->wait == PROGRESS_WAITS_IN_COLLECTIVE ? "waiting in collective"
		         : progress->wait_seconds >= 0 ? "last collective" : "collective",
		         (unsigned long long)progress->collective);
		if (progress->text[0] != '\0')
			sink_add(sink, " %s", progress->text);
	} else {
		return;
	}
	if (progress->wait_seconds >= 0)
		sink_add(sink, progress->wait != PROGRESS_NO_WAIT ? " for %.1f s" : " %.1f s ago",
		         progress->wait_seconds);
}

void progress_text_add(struct sink *sink, const struct progress_text *progress)
{
	if (!progress->known)
		return;
	const struct phase *phase = find_phase(progress->phase);
	if (progress->phase == PROGRESS_NCCL)
		sink_add(sink, "%s", progress->wait == PROGRESS_NO_WAIT ? "outside NCCL" : "in NCCL");
	else
		sink_add(sink, "%s", phase != NULL ? phase->sentence : "in an unknown phase");
	if (progress->step > 0)
		sink_add(sink, progress->phase == DDP_PROGRESS_COMPUTING ? " step %lld" : " of step %lld", (long long)progress->step);
	if (progress->phase_seconds >= 0)
		sink_add(sink, " for %.1f s", progress->phase_seconds);
	if (progress->buckets > 0)
		sink_add(sink, ", bucket %d of %d", progress->bucket, progress->buckets);
	add_wait(sink, progress);
}

/* ---- blame ---- */

bool blame_ends_in_error(const struct ddp_progress *page)
{
	return page->magic == DDP_PROGRESS_MAGIC && page->writer == DDP_WRITER_LIBDDP &&
	       (page->error_state == DDP_ERROR_OPEN || page->error_state == DDP_ERROR_FINAL);
}

bool blame_is_of_peer(const struct ddp_progress *page, uint32_t own_rank)
{
	if (page->culprit > 0 && page->culprit - 1 == own_rank)
		return false;
	return page->magic == DDP_PROGRESS_MAGIC &&
	       (page->status == DDP_ERR_PEER || page->status == DDP_ERR_ABORTED ||
	        (page->status == DDP_ERR_TIMEOUT && page->culprit > 0));
}

bool blame_is_shared(const struct ddp_progress *page, uint32_t own_rank)
{
	return blame_ends_in_error(page) && !blame_is_of_peer(page, own_rank) && page->culprit > 0 &&
	       page->culprit - 1 != own_rank;
}

uint32_t blame_of(const struct ddp_progress *page, uint32_t own_rank)
{
	if (!blame_is_of_peer(page, own_rank) || page->culprit == 0)
		return BLAME_NOBODY;
	return page->culprit - 1;
}

bool blame_cause_is_late(const struct ddp_progress *page, uint32_t own_rank)
{
	return blame_is_of_peer(page, own_rank) && page->status != DDP_ERR_PEER;
}

void blame_add_culprit(const struct ddp_progress *page, uint32_t own_rank, uint32_t world_size,
                       struct sink *sink)
{
	uint32_t rank = blame_of(page, own_rank);

	/* Who aborts has an error of its own. */
	if (rank >= world_size || page->status == DDP_ERR_ABORTED)
		return;
	sink_add(sink, "rank %u of %u", rank, world_size);
	if (page->culprit_node[0] != '\0') {
		sink_add(sink, " on ");
		sink_add_untrusted(sink, page->culprit_node, sizeof(page->culprit_node));
	}
	sink_add(sink, "%s", page->status == DDP_ERR_TIMEOUT ? BLAME_LATE : BLAME_LOST);
}

const char *blame_place_of_node(const char *text, uint32_t *rank)
{
	unsigned int world_size;
	int used = 0;

	if (sscanf(text, "rank %u of %u%n", rank, &world_size, &used) != 2)
		return NULL;
	text += used;
	return strncmp(text, BLAME_LATE, strlen(BLAME_LATE)) == 0 ||
	       strncmp(text, BLAME_LOST, strlen(BLAME_LOST)) == 0 ? text : NULL;
}

bool blame_describe(const struct blamed *blamed, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);
	struct progress_text progress;

	sink_add(&sink, "rank %u of %u on ", blamed->rank, blamed->world_size);
	sink_add_untrusted(&sink, blamed->node, HOST_NAME_MAX_BYTES);
	sink_add(&sink, " ");
	if (blamed->runs) {
		sink_add(&sink, blamed->stopped ? "was stopped by a signal or a debugger" : "was still running");
		progress_text_read(&blamed->progress, blamed->now_ns, &progress);
		if (progress.known)
			sink_add(&sink, ", ");
		progress_text_add(&sink, &progress);
		return true;
	}
	if (!WIFEXITED(blamed->wait_status) || WEXITSTATUS(blamed->wait_status) != 0)
		return false;
	sink_add(&sink, "had ended with code 0");
	if (blamed->seconds_ago >= 0)
		sink_add(&sink, ", %.1f s before", blamed->seconds_ago);
	return true;
}
