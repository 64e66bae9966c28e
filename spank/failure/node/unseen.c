/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/node/unseen.h"

#include <string.h>

uint32_t unseen_page_ms(uint32_t stall_seconds)
{
	uint64_t stall_ms = (uint64_t)stall_seconds * 1000, several_ms = stall_ms * UNSEEN_STALLS;

	if (stall_ms == 0 || (several_ms >= UNSEEN_PAGE_MS && stall_ms <= UNSEEN_PAGE_MS))
		return UNSEEN_PAGE_MS;
	if (stall_ms > UNSEEN_PAGE_MS)
		return stall_ms < UINT32_MAX ? (uint32_t)stall_ms : UINT32_MAX;
	return several_ms > UNSEEN_LEAST_MS ? (uint32_t)several_ms : UNSEEN_LEAST_MS;
}

/* A start may last five times as long as a page may take to come. */
static uint32_t start_ms(uint32_t stall_seconds)
{
	uint64_t ms = (uint64_t)unseen_page_ms(stall_seconds) * (UNSEEN_START_MS / UNSEEN_PAGE_MS);

	return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

static bool has_no_page(const struct stall_rank *rank)
{
	return rank->end == STALL_NO_END && rank->page.magic != DDP_PROGRESS_MAGIC;
}

/* Only slurm_ddp knows this phase. */
static bool is_starting(const struct stall_rank *rank)
{
	return rank->end == STALL_NO_END && rank->page.magic == DDP_PROGRESS_MAGIC && rank->page.closed == 0 &&
	       rank->page.phase == DDP_PROGRESS_STARTING && rank->page.step <= 0 && rank->page.waiting == DDP_WAITING_NOT;
}

static uint32_t list(const struct stall_node *node, bool (*is_meant)(const struct stall_rank *), struct stall_note *note)
{
	uint32_t first = UINT32_MAX;

	for (uint32_t i = 0; i < node->count; i++) {
		if (!is_meant(&node->ranks[i]))
			continue;
		if (first == UINT32_MAX)
			first = i;
		stall_add_to_ranges(node->ranks[i].rank, note);
	}
	return first;
}

static bool tell(const struct unseen_watch *watch, enum stall_unseen unseen, const struct program *program, struct stall_note *note)
{
	note->unseen = unseen;
	note->unseen_ms = watch->age_ms;
	memcpy(note->program, program->name, sizeof(note->program));
	return true;
}

bool unseen_judge(const struct unseen_watch *watch, const struct stall_node *node, struct stall_note *note)
{
	const uint32_t page_ms = unseen_page_ms(watch->seconds);
	const bool page_is_due = (watch->wanted.stall || watch->wanted.watch) && watch->age_ms >= page_ms;
	const bool python_is_due = watch->wanted.python && watch->age_ms >= UNSEEN_PYTHON_MS;
	struct program program = { .age_ms = 0 };
	uint32_t first;

	for (uint32_t i = 0; i < node->count; i++)
		if (node->ranks[i].rank == UINT32_MAX)
			return false;
	*note = (struct stall_note){ .ranks = node->count, .lowest = note->lowest, .world_size = node->world_size };
	first = page_is_due || python_is_due ? list(node, has_no_page, note) : UINT32_MAX;
	if (first != UINT32_MAX) {
		watch->look(watch->about, first, &program);
		if (python_is_due && program_is_python(program.name) && program.age_ms >= UNSEEN_PYTHON_MS)
			return tell(watch, STALL_NO_PYTHON, &program, note);
		/* A program that has libddp may take long before it calls ddp_init(). */
		if (page_is_due && !program.has_libddp)
			return tell(watch, STALL_NO_PAGE, &program, note);
		note->range_count = 0;
		note->cut = false;
	}
	if (!watch->wanted.stall || watch->age_ms < start_ms(watch->seconds))
		return false;
	first = list(node, is_starting, note);
	if (first == UINT32_MAX)
		return false;
	watch->look(watch->about, first, &program);
	return tell(watch, STALL_STARTS, &program, note);
}
