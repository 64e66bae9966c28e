/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/slots.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/hash.h"

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
